"""Drafts by lookup: finds the tokens that followed the same text before. Works on token lists, without torch."""
