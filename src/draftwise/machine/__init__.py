"""Finds this process's cores, and the folders that processes share and a user adds to."""
