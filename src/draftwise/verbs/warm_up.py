"""`warm-up`: compiles the kernels that a server will need ahead of time, into a folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from typing import Any, ClassVar

from draftwise.core import SpecConfig
from draftwise.core.progress import Progress
from draftwise.verbs.engine import make_config, parse_spec
from draftwise.verbs.verb import Result, verb


@dataclass(frozen=True, slots=True)
class WarmUpRequest:
    """The server whose kernels are compiled."""

    model: str | PathLike[str]
    """Directory of a checkpoint, or a GGUF file; with the setting load_format `dummy`, a config.json is enough."""
    _: KW_ONLY
    out: str | PathLike[str]
    """Folder for the kernels: new, or filled on a machine like this one."""
    speculative_config: SpecConfig | Mapping[str, Any] | str | None = None
    """Speculative config of the server; None for plain decoding."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Engine flags of vLLM by their long name with underscores, as the server will have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpResult(Result):
    """What was compiled."""

    VERB: ClassVar[str] = "warm_up"
    out: str
    num_kernels: int
    num_bytes: int
    seconds: float


@verb(WarmUpRequest)
def warm_up(request: WarmUpRequest, progress: Progress) -> WarmUpResult:
    """Compile the kernels that a server needs, without serving; phases go to `progress.update`.

    Copy the folder to machines with the same processor and versions: there, `serve` with `kernel_cache` starts without
    compiling. Other machines reject it. Several models and configurations may share it.
    """
    spec = parse_spec(request.speculative_config)
    config = make_config(str(request.model), spec, request.settings)
    try:
        from draftwise.serve.engine_worker import fill_kernel_cache
    except ModuleNotFoundError as error:
        from draftwise.serve.engine_process import make_missing_error

        raise make_missing_error(error) from None
    began = time.monotonic()
    filled = fill_kernel_cache(config, spec, str(request.out), on_phase=progress.update)
    return WarmUpResult(
        out=str(request.out),
        num_kernels=filled.num_kernels,
        num_bytes=filled.num_bytes,
        seconds=time.monotonic() - began,
    )
