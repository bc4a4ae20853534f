"""The pages of the KV cache: how many there are, who holds them, and what lies in them."""
