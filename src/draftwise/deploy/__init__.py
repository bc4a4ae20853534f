"""From a decision to a running service and back: the files that serve a setup, and its twin without speculation."""

from draftwise.deploy.files import Folder
from draftwise.deploy.order import Evidence, Order, make_order
from draftwise.deploy.plan import TARGETS, deploy

__all__ = ["TARGETS", "Evidence", "Folder", "Order", "deploy", "make_order"]
