"""The platforms that files are written for: a row and a template each, and a module if a template is not enough."""

from draftwise.deploying.targets.target_rows import TARGETS, DeployTarget, name_targets

__all__ = ["TARGETS", "DeployTarget", "name_targets"]
