"""From text to token ids and back, and where an answer ends."""
