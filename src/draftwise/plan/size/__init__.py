"""Memory before loading: what a setup takes of each GPU, and the contexts and concurrency that are left."""

from draftwise.plan.size.memory_budget import measure
from draftwise.plan.size.size_request import SizeRequest, read_request
from draftwise.plan.size.sizing import Sizing, size

__all__ = ["SizeRequest", "Sizing", "measure", "read_request", "size"]
