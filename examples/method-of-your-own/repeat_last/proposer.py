"""Drafts the last k tokens again."""

from __future__ import annotations

from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers import Confirmed, Draft, Proposer
from draftwise.engine.resolved_spec import ResolvedSpec

__all__ = ["RepeatLast", "build"]


class RepeatLast(Proposer):
    """Keeps no state: the engine hands it the tokens of every sequence."""

    on_host = True

    def propose(self, new: Confirmed, k: int) -> Draft:
        """Return the last tokens of each sequence, at most k and no more than are wanted."""
        limits = [min(limit, k) for limit in new.limits_B.tolist()]
        rows = [list(tokens[-limit:]) if limit > 0 else [] for tokens, limit in zip(new.histories, limits, strict=True)]
        return Draft.from_lists(rows, k)

    def release(self, slot: int) -> None:
        """Nothing to forget."""


def build(_spec: ResolvedSpec, _config: EngineConfig, _target: CausalLM) -> Proposer:
    """Return the proposer; the engine calls this once for each engine."""
    return RepeatLast()
