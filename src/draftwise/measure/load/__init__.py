"""The load generator: when requests are sent, by whom, and whether it kept up."""
