"""OpenAI-compatible HTTP and Prometheus metrics over the embedded engine."""
