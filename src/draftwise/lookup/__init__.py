"""Drafting by lookup: which tokens followed the same text before. Lists of tokens in and out, no torch."""
