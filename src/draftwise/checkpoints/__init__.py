"""Inspects checkpoints on disk without loading them: config.json, tokenizer files, headers of safetensors files."""
