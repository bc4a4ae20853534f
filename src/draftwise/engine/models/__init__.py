"""Target and draft models: decoders loaded from Hugging Face checkpoints."""

from draftwise.engine.models.decoder import CausalLM
from draftwise.engine.models.loading import load_model

__all__ = ["CausalLM", "load_model"]
