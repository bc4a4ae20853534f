"""What lies on disk, looked at without loading it: config.json, tokenizer files and headers of safetensors files."""
