"""The drafting methods of the embedded engine: a module for each, by its name in `facts.methods`."""

from __future__ import annotations

from importlib import import_module

from draftwise.engine.config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers.proposer import Builder, Confirmed, Proposer
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.spec import ResolvedSpec
from draftwise.facts.methods import get_method

__all__ = ["Builder", "Confirmed", "Draft", "Proposer", "find_builder", "make_proposer"]


def find_builder(method: str) -> Builder:
    """Return what builds the proposer of a method: the function `build` of the module that bears its name.

    The module is imported only now.

    Args:
        method: a row of `facts.methods` that the engine runs (`embedded`).

    Raises:
        KeyError: there is no such row.
    """
    builder: Builder = import_module(f"{__name__}.{get_method(method).name}").build
    return builder


def make_proposer(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer that a resolved speculative config asks for.

    Raises:
        InvalidSetup: the drafter's files are missing or do not fit the target.
    """
    return find_builder(spec.method)(spec, config, target)
