"""The drafting methods of the embedded engine: a module for each, by its name in `facts.methods`."""

from __future__ import annotations

<<<<<<< e9587aa5bb34c10f5122c37405eecd70bfd22229
from typing import cast

from draftwise.engine.config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers.base import Confirmed, Proposer
=======
from importlib import import_module

from draftwise.engine.config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers.proposer import Builder, Confirmed, Proposer
>>>>>>> f949382b6b09ab40139fb4255183ec6047de79b6
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.spec import ResolvedSpec
from draftwise.knowledge.methods import get_method

<<<<<<< e9587aa5bb34c10f5122c37405eecd70bfd22229
__all__ = ["Confirmed", "Draft", "Proposer", "make_proposer"]


=======
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


>>>>>>> f949382b6b09ab40139fb4255183ec6047de79b6
def make_proposer(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer that a resolved speculative config asks for.

    Raises:
        InvalidSetup: the drafter's files are missing or do not fit the target, or the method is of an installed
            package whose code cannot be imported.
    """
<<<<<<< e9587aa5bb34c10f5122c37405eecd70bfd22229
    make = get_method(spec.method).load("proposer")
    return cast("Proposer", make(spec, config, target))
=======
    return find_builder(spec.method)(spec, config, target)
>>>>>>> f949382b6b09ab40139fb4255183ec6047de79b6
