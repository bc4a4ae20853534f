"""Watches services that run: windows of their counters, what these say, and what a probe of a few prompts adds."""
