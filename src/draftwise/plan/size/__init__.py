"""Plans memory before loading: a setup's share of each GPU, and the remaining contexts and concurrency."""

from draftwise.plan.size.memory_budget import measure
from draftwise.plan.size.size_request import SizeRequest, read_request
from draftwise.plan.size.sizing import Sizing, size

__all__ = ["SizeRequest", "Sizing", "measure", "read_request", "size"]
