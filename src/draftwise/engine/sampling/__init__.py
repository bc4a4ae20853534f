"""Turns logits into tokens: distributions, random numbers and the verification of drafts."""
