"""Things that answer prompts over HTTP and report SpecStats: the embedded server, vLLM, any URL.

A name's module is imported with its first use: reading a page of counters needs no HTTP client and no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.core.lazy import import_on_use

if TYPE_CHECKING:
    from draftwise.backends.base import Backend, BrokenStream, Exchange, Piece, ServerInfo
    from draftwise.backends.embedded import EmbeddedBackend
    from draftwise.backends.gpus import Placement, find_gpus, place_arms
    from draftwise.backends.line_up import LineUp, OneAtATime
    from draftwise.backends.switch import SwitchCommand
    from draftwise.backends.url import UrlBackend
    from draftwise.backends.vllm import VllmBackend

__all__ = [
    "Backend",
    "BrokenStream",
    "EmbeddedBackend",
    "Exchange",
    "LineUp",
    "OneAtATime",
    "Piece",
    "Placement",
    "ServerInfo",
    "SwitchCommand",
    "UrlBackend",
    "VllmBackend",
    "find_gpus",
    "place_arms",
]

_MODULES = {
    "base": "Backend BrokenStream Exchange Piece ServerInfo",
    "embedded": "EmbeddedBackend",
    "gpus": "Placement find_gpus place_arms",
    "line_up": "LineUp OneAtATime",
    "switch": "SwitchCommand",
    "url": "UrlBackend",
    "vllm": "VllmBackend",
}
__getattr__ = import_on_use(__name__, _MODULES)
