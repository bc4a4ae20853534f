"""Watches running services: windows of their counters, the diagnosis, and a probe of a few prompts."""
