"""The law of the KV cache: vLLM's own layers and planner against what `size` says, for every architecture."""
