"""The drafting methods of the embedded engine, one module each. A method's row names its `build` function."""

from __future__ import annotations

from typing import cast

from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers.proposer import Builder, Confirmed, Proposer
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.engine.sampling.draft import Draft
from draftwise.knowledge.methods import get_method

__all__ = ["Builder", "Confirmed", "Draft", "Proposer", "make_proposer"]


def make_proposer(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer for a resolved speculative config.

    Raises:
        InvalidSetup: the drafter's files are missing or do not match the target, or the method's package cannot be
            imported.
    """
    return cast("Builder", get_method(spec.method).load("proposer"))(spec, config, target)
