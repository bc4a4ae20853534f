"""Replays logged answers through the engine's own drafters: their drafts, and how many are accepted."""
