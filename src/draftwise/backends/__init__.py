"""Things that answer prompts over HTTP and report SpecStats: the embedded server, vLLM, any URL, a fake."""

from draftwise.backends.base import Backend, BrokenStream, Exchange, Piece, ServerInfo
from draftwise.backends.embedded import EmbeddedBackend
from draftwise.backends.fake import FakeBackend, FakeScript
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
    "FakeBackend",
    "FakeScript",
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
