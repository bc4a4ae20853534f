"""The oracle: the same configurations go through vLLM's own EngineArgs and through draftwise's check."""
