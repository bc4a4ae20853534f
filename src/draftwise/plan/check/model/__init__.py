"""ModelConfig: what the release reads from the config.json of target and drafter, and what it cannot build or split."""

from draftwise.plan.check.model.model_config import Model
from draftwise.plan.check.model.target import find_target, read_target

__all__ = ["Model", "find_target", "read_target"]
