"""Compose files, Kubernetes and KServe objects, chart values and units, down to the servers that they start."""
