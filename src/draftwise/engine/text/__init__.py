"""Converts text to token ids and back, and finds where an answer ends."""
