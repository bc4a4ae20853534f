"""Compose files, Kubernetes and KServe objects, chart values and systemd units, down to the servers that they start."""
