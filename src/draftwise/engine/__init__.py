"""The embedded PyTorch engine: scheduling, paged KV cache, models, proposers and verification."""
