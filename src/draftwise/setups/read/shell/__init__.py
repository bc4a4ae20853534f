"""Reads texts as shells do: words, and the server that a command starts."""
