"""Turns logits into tokens: distributions, random numbers and verification of drafts."""
