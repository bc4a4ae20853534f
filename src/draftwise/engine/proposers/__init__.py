"""The drafting methods of the embedded engine, by vLLM's names."""

from __future__ import annotations

from typing import cast

from draftwise.engine.config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers.base import Confirmed, Proposer
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.spec import ResolvedSpec
from draftwise.knowledge.methods import get_method

__all__ = ["Confirmed", "Draft", "Proposer", "make_proposer"]


def make_proposer(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer that a resolved speculative config asks for.

    Raises:
        InvalidSetup: the drafter's files are missing or do not fit the target, or the method is of an installed
            package whose code cannot be imported.
    """
    make = get_method(spec.method).load("proposer")
    return cast("Proposer", make(spec, config, target))
