"""Makes an engine ready for its first requests: kernels compiled, on all cores at once, and steps captured."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from importlib.util import find_spec
from types import TracebackType

import torch

from draftwise.engine.config import EngineConfig
from draftwise.engine.core import Engine
from draftwise.engine.startup import Startup
from draftwise.engine.step.rehearsal import Rehearsal
from draftwise.machine.cores import count_cores

__all__ = ["WarmUp"]

logger = logging.getLogger("draftwise.engine")


class WarmUp:
    """To be entered before an engine is built: what compiles its kernels starts while its weights are loaded.

    On a CPU there is nothing to do: building the engine compiles its kernels, and they are the same for every step.

    Args:
        config: of the engine.
        is_known: whether the kernels' folder already holds what an engine of this kind compiles.
    """

    def __init__(self, config: EngineConfig, *, is_known: bool = False) -> None:
        self._ends = ExitStack()
        self._on_gpu = config.device != "cpu" and torch.cuda.is_available() and find_spec("triton") is not None
        self._compiles = self._on_gpu and not is_known

    def __enter__(self) -> WarmUp:
        if self._compiles:
            from draftwise.engine.kernels.cuda.ahead import Compilers  # Triton exists for few platforms

            self._compilers = self._ends.enter_context(Compilers(count_cores()))
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._ends.close()

    def run(self, engine: Engine, startup: Startup) -> None:
        """Go through all steps that can come; `startup` is notified of the phases."""
        # A method that writes what it sees to disk must not see what is made up.
        if not self._on_gpu or engine.runner.model.device.type != "cuda" or engine.proposer.needs_every_state:
            return
        from draftwise.engine.kernels.cuda.ahead import note_late_compilations

        rehearsal = engine.rehearsal()
        if self._compiles:
            with startup.phase("compile kernels"):
                self._compile(rehearsal)
        with startup.phase("capture steps"):
            rehearsal.run()
            torch.cuda.synchronize()
        note_late_compilations()

    def _compile(self, rehearsal: Rehearsal) -> None:
        """Compile what a rehearsal would launch; what fails here is compiled when it is launched, one by one."""
        from draftwise.engine.kernels.cuda.ahead import Job, recording

        jobs: dict[Job, None] = {}
        with recording(jobs):
            rehearsal.run(briefly=True)
        failed = self._compilers.compile(jobs)
        logger.info("%d kernels compiled ahead", len(jobs) - len(failed))
        for each in failed[:3]:
            logger.warning("Not compiled ahead: %s", each)
