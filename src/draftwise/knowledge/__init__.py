"""Holds the facts on vLLM versions, target families, methods and metrics, as data."""
