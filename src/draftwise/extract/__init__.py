"""Parses the sources of a vLLM release into the tables of `knowledge`, without importing vLLM."""
