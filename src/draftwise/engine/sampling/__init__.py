"""From logits to tokens: distributions, random numbers and the verification of drafts."""
