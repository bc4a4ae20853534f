"""Converts between operators' texts and a `Setup`: reads texts into setups, writes setups as text."""
