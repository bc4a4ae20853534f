"""Runs one step of the engine: schedules, fills device inputs, reads results."""
