"""Deploys a decision, and rolls it back: writes the files that serve a setup, and its twin without speculation.

A name's module is imported on first use: rendering needs far more than verifying a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.core.lazy import import_on_use

if TYPE_CHECKING:
    from draftwise.deploying.deployment import deploy
    from draftwise.deploying.deployment_folder import Folder
    from draftwise.deploying.order import Mode, Platform, RunEvidence, ServiceOrder, make_order
    from draftwise.deploying.targets import TARGETS
    from draftwise.deploying.weights_layout import read_layout

__all__ = [
    "TARGETS", "Folder", "Mode", "Platform", "RunEvidence", "ServiceOrder", "deploy", "make_order", "read_layout",
]  # fmt: skip

_MODULES = {
    "deployment_folder": "Folder",
    "weights_layout": "read_layout",
    "order": "RunEvidence Mode ServiceOrder Platform make_order",
    "deployment": "deploy",
    "targets": "TARGETS",
}
__getattr__ = import_on_use(__name__, _MODULES)
