"""Guards a service: proposes steps if speculation stops paying, and takes those it has the means for."""
