"""The facts about vLLM versions, target families, methods and metrics, as data."""
