"""Texts as shells read them: words, and the server that a command starts."""
