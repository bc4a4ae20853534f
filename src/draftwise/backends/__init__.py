"""Servers that answer prompts over HTTP and report SpecStats: the embedded server, vLLM, any URL.

Modules are imported on first use: reading a metrics page needs neither an HTTP client nor the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.core.lazy import import_on_use

if TYPE_CHECKING:
    from draftwise.backends.backend import Backend, BrokenStream, Exchange, Piece, ServerInfo
    from draftwise.backends.embedded_server import EmbeddedBackend
    from draftwise.backends.gpu_placement import GpuPlacement, find_gpus, place_arms
    from draftwise.backends.line_up import LineUp, OneAtATime, SwitchCommand
    from draftwise.backends.url import UrlBackend
    from draftwise.backends.vllm_server import VllmBackend

__all__ = [
    "Backend", "BrokenStream", "EmbeddedBackend", "Exchange", "GpuPlacement", "LineUp", "OneAtATime", "Piece",
    "ServerInfo", "SwitchCommand", "UrlBackend", "VllmBackend", "find_gpus", "place_arms",
]  # fmt: skip

_MODULES = {
    "backend": "Backend BrokenStream Exchange Piece ServerInfo",
    "embedded_server": "EmbeddedBackend",
    "gpu_placement": "GpuPlacement find_gpus place_arms",
    "line_up": "LineUp OneAtATime SwitchCommand",
    "url": "UrlBackend",
    "vllm_server": "VllmBackend",
}
__getattr__ = import_on_use(__name__, _MODULES)
