"""Facts about this machine and process: cores, shared folders, files, network."""
