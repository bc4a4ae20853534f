"""Turns a run's answers into a decision: numbers, validity checks, verdicts, setup, and when to roll back."""
