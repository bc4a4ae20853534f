"""From a decision to a running service and back: the files that serve a setup, and its twin without speculation.

A name's module is imported with its first use: rendering needs far more than verifying a file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwise.deploy.files import Folder
    from draftwise.deploy.layout import read_layout
    from draftwise.deploy.order import Evidence, Mode, Order, Platform, make_order
    from draftwise.deploy.plan import TARGETS, deploy

__all__ = [
    "TARGETS",
    "Evidence",
    "Folder",
    "Mode",
    "Order",
    "Platform",
    "deploy",
    "make_order",
    "read_layout",
]

_MODULES = {
    "files": "Folder",
    "layout": "read_layout",
    "order": "Evidence Mode Order Platform make_order",
    "plan": "TARGETS deploy",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
