"""Runs one step of the engine: schedules, fills the device's inputs, reads the results."""
