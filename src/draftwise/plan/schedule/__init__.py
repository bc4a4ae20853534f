"""How many tokens to draft: the best fixed number, a schedule by batch size, and how each engine writes it."""
