"""Reads the sources of a vLLM release, by parsing them, into the tables of `knowledge`; nothing of vLLM is imported."""
