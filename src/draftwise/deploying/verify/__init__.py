"""Whether files, what an API server made of them, or a server that runs are what was ordered."""
