"""Computes each comparison's numbers and their uncertainty from a run's answers."""
