"""From a decision to a running service and back: the files that serve a setup, and its twin without speculation."""

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
