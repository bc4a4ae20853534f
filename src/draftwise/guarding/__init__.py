"""Guards a service: proposes steps if speculation stops paying, and carries out those that it has executors for."""
