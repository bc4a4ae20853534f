"""Compares files, an API server's objects, or a running server with the order."""
