"""ModelConfig: what the release reads from the config.json of target and drafter, and what it cannot build or split."""

from draftwise.plan.check.model.model_config import Model
from draftwise.plan.check.model.target import find_target, read_target
from draftwise.plan.check.model.weights import find_weights

__all__ = ["Model", "find_target", "find_weights", "read_target"]
