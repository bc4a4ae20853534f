"""Memory before loading: what a setup takes of each GPU, and the contexts and concurrency that are left."""

from draftwise.plan.size.measure import Sizing, measure, size
from draftwise.plan.size.request import Request, read_request

__all__ = ["Request", "Sizing", "measure", "read_request", "size"]
