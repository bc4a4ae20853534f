"""Serves the embedded engine over an OpenAI-compatible HTTP API, with Prometheus metrics."""
