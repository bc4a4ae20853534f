"""What a release makes of a schedule: whether it follows it, and whether its drafter then drafts less too."""

from __future__ import annotations

from dataclasses import dataclass

from draftwise.core import Effect, Ruling, Setup
from draftwise.plan.check import check
from draftwise.plan.schedule.ranges import KEY

__all__ = ["JudgedSchedule", "judge_schedule"]

_NOT_HONOURED = (Effect.REJECTED, Effect.INEFFECTIVE, Effect.FAILS_LATER)
_FULL_DRAFTS = "schedule-drafts-in-full"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSchedule:
    """A schedule as a release sees it."""

    is_honoured: bool
    drafts_in_full: bool
    """Whether the drafter drafts the largest k in every batch, and only fewer tokens are verified."""
    acts_as_written: bool
    """Whether it is followed, and costs nothing else: neither drafts in full nor a loss of CUDA graphs."""
    remarks: tuple[str, ...]
    """What `check` says of it, with what to do."""


def judge_schedule(setup: Setup) -> JudgedSchedule:
    """Return what the setup's release makes of the schedule in its speculative config.

    Raises:
        InvalidSetup: the release is not known.
    """
    about = [each for each in check(setup).findings if each.where == KEY]
    rulings = [each for each in about if isinstance(each, Ruling)]
    lost = any(each.effect in _NOT_HONOURED or each.becomes == "null" for each in rulings)
    return JudgedSchedule(
        is_honoured=not lost,
        acts_as_written=not lost and all(each.effect is not Effect.CHANGED for each in rulings),
        drafts_in_full=any(each.code == _FULL_DRAFTS for each in about),
        remarks=tuple(f"{each.message} {each.fix}".strip() for each in about),
    )
