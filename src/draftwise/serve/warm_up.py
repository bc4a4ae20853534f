"""Fills a folder with the kernels of a server that is not started."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from draftwise.core import SpecConfig
from draftwise.engine.config import EngineConfig
from draftwise.engine.kernel_cache import count_kernels, make_environment
from draftwise.serve.launch import build_engine, start_process, unpack
from draftwise.serve.messages import Phase
from draftwise.serve.worker import EngineWorker

__all__ = ["Filled", "fill_kernel_cache"]


class Filled(NamedTuple):
    """What a folder holds."""

    num_kernels: int
    num_bytes: int


def fill_kernel_cache(
    config: EngineConfig, spec: SpecConfig | None, folder: str, *, on_phase: Callable[[Phase], None]
) -> Filled:
    """Start a server's engine on a folder of kernels and end it again.

    Raises:
        InvalidSetup: the model, a setting or the folder cannot be used.
        BackendError: the engine cannot be built for another reason.
    """
    config, spec = unpack(config, spec)
    build = partial(build_engine, config, None if spec is None else spec.to_json())
    worker = EngineWorker(start_process(build, environment=make_environment(folder)), max_waiting=0)
    try:
        worker.wait_until_built(config.model, on_phase=on_phase)
    finally:
        worker.stop()
    return Filled(*count_kernels(folder))
