"""The expected speed-up of speculation from acceptance, the time of a step and the load."""
