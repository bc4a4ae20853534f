"""Maintainer's tools: reading facts out of vLLM wheels, and checking the rules against them; no part of the package."""
