"""Decoding without a drafter."""

from __future__ import annotations

from draftwise.engine.proposers.base import Confirmed, Proposer
from draftwise.engine.sampling.draft import Draft

__all__ = ["PlainDecoding"]


class PlainDecoding(Proposer):
    """Drafts nothing, so that a step gives each sequence one token."""

    def propose(self, new: Confirmed, k: int) -> Draft:  # noqa: ARG002
        """Return empty drafts."""
        return Draft.empty(len(new.slots_B), device=new.slots_B.device)

    def release(self, slot: int) -> None:
        """Nothing to forget."""
