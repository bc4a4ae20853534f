"""Makes an engine ready for its first requests: kernels compiled, on all cores at once, and steps captured."""

from __future__ import annotations

import logging

import torch

from draftwise.engine.compilers import Compilers
from draftwise.engine.core import Engine
from draftwise.engine.startup import Startup
from draftwise.engine.step.rehearsal import Rehearsal

__all__ = ["warm_up"]

logger = logging.getLogger("draftwise.engine")


def warm_up(engine: Engine, compilers: Compilers | None, startup: Startup) -> bool:
    """Go through all steps that can come; return whether that went well.

    On a CPU there is nothing to do: building the engine compiles its kernels, and they are the same for every step.

    Args:
        engine: has had no request yet.
        compilers: what compiles kernels first; None: they are there, or are compiled one after the other.
        startup: notified of the phases.
    """
    # A method that writes what it sees to disk must not see what is made up.
    if engine.runner.model.device.type != "cuda" or engine.proposer.needs_every_state:
        return True
    from draftwise.engine.kernels.cuda.ahead import note_late_compilations, prepare  # Triton is there where CUDA is

    rehearsal = engine.rehearsal()
    if compilers is not None:
        with startup.phase("compile kernels"):
            prepare()
            _compile(rehearsal, compilers)
    with startup.phase("capture steps"):
        try:
            prepare()
            rehearsal.run()
            torch.cuda.synchronize()
        except Exception:  # requests that need no more than what went well are served
            logger.exception(
                "Not all steps could be gone through: requests wait for what is compiled or captured later."
            )
            rehearsal.forget()
            return False
    note_late_compilations()
    return True


def _compile(rehearsal: Rehearsal, compilers: Compilers) -> None:
    """Compile what a rehearsal would launch; what fails here is compiled when it is launched, one by one."""
    from draftwise.engine.kernels.cuda.ahead import recording

    try:
        with recording(compilers.begin):
            rehearsal.run(briefly=True)
    except Exception:  # it only saves time, and looks into Triton to do so
        logger.exception("Not all kernels could be recorded.")
    failed = compilers.finish()
    logger.info("%d kernels to compile ahead, %d failures", compilers.num_jobs, len(failed))
    for each in failed[:3]:
        logger.warning("Not compiled ahead: %s", each)
