"""Plans memory before loading: a setup's memory on each GPU, and the context lengths and concurrency left."""

from draftwise.plan.size.memory_budget import measure
from draftwise.plan.size.size_request import SizeRequest, read_request
from draftwise.plan.size.sizing import Sizing, size

__all__ = ["SizeRequest", "Sizing", "measure", "read_request", "size"]
