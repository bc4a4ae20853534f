"""Replays logged answers through the engine's own drafters: what they would have drafted, and what is accepted."""
