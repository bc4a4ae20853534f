"""Computes acceptance from logged answers by walking over the steps of serving. Uses no torch."""

from draftwise.replaying.acceptance_profile import ServingWalk, walk
from draftwise.replaying.anchors import Anchors, Drafts, read_anchors, write_anchors
from draftwise.runs.documents import read_profile

__all__ = ["Anchors", "Drafts", "ServingWalk", "read_anchors", "read_profile", "walk", "write_anchors"]
