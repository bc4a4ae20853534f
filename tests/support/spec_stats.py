"""SpecStats of single drafts, from which tests add up whole ones."""

from __future__ import annotations

from draftwise.core import SpecStats

__all__ = ["stats_of"]


def stats_of(*, drafted: int, accepted: int) -> SpecStats:
    """Return the counts of one draft of `drafted` tokens of which the first `accepted` were accepted."""
    if not 0 <= accepted <= drafted:
        raise ValueError(f"accepted must lie in 0..{drafted}, got {accepted}")
    return SpecStats(
        num_drafts=min(1, drafted),
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        accepted_per_pos=(1,) * accepted + (0,) * (drafted - accepted),
        drafted_per_pos=(1,) * drafted,
    )
