"""The load generator: schedules and sends requests, and checks that it kept up."""
