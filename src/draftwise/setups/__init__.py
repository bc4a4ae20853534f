"""Between what operators have and a `Setup`: text read into setups, and setups written as text."""
