"""Adds the speculative config to a manifest that is there already, or takes it out, and changes nothing else."""
