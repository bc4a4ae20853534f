"""Chooses how many tokens to draft: the best fixed number, a schedule by batch size, and each engine's spelling."""
