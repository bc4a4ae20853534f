"""Computes the numbers of each comparison from a run's answers, and how sure they are."""
