"""Reads the sources of a vLLM release, by parsing them, into the tables of `facts`: nothing of vLLM is imported."""
