"""Turns a run's answers into a decision: numbers, validity checks, verdicts, the setup to run, and when to undo it."""
