"""Watches running services: counter windows, diagnosis, and a probe with a few prompts."""
