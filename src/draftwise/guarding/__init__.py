"""Guards a service: proposes what to do when speculation stops paying, and does what it was given the means for."""
