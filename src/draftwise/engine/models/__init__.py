"""Target and draft models, loaded from Hugging Face checkpoints."""

from draftwise.engine.models.causal_lm import CausalLM
from draftwise.engine.models.weight_loading import load_model

__all__ = ["CausalLM", "load_model"]
