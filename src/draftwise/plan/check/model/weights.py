"""What the weights of target and drafter say beyond their config.json, where both lie here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from draftwise.core import Finding
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_weights"]

_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})


def find_weights(context: Context, resolved: Resolved) -> Iterator[Finding]:
    """Yield what is wrong or worth knowing about the files of a setup that is accepted.

    Directories that hold a config.json and no weights at all are a question about configs, and nothing is said of them.

    Args:
        context: the setup.
        resolved: its speculative config.
    """
    target = None if context.target is None else context.target.directory
    if target is None or not resolved.facts.has_weights:
        return
    drafter = None if context.drafter is None else context.drafter.directory
    own = drafter is not None and drafter.resolve() == target.resolve()
    if resolved.facts.weights == "target" and (own or not context.keys.get("model")):
        if _has_weights(target):
            from draftwise.checkpoints.pair import find_mtp_findings  # most setups name no directory: a slow import

            yield from find_mtp_findings(target, version=context.release.version)
    elif drafter is not None and not own and (_has_weights(target) or _has_weights(drafter)):
        from draftwise.checkpoints.pair import find_pair_findings

        yield from find_pair_findings(drafter, target, version=context.release.version)


def _has_weights(directory: Path) -> bool:
    try:
        return any(entry.suffix in _WEIGHTS for entry in directory.iterdir())
    except OSError:
        return False
