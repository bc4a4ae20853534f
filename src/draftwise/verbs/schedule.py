"""`schedule`: chooses how many tokens to draft: one k, or a schedule where your release makes it pay."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Annotated, ClassVar

from draftwise.core import Calibration, Profile, SpecConfig
from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress
from draftwise.plan.schedule.draft_lengths import WORTH_A_CHANGE
from draftwise.plan.schedule.length_advice import FORMATS, LengthAdvice, advise_lengths, emit
from draftwise.runs.documents import read_calibration, read_profile
from draftwise.verbs.field_types import Range
from draftwise.verbs.verb import Result, refuse, verb

__all__ = ["FORMATS", "WORTH_A_CHANGE", "ScheduleRequest", "ScheduleResult", "ScheduleRow", "schedule"]


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """A replay, a calibration, and the release that follows the schedule."""

    profile: Profile | str | PathLike[str]
    """Profile from `replay`: its folder, its file, or the value."""
    calibration: Calibration | str | PathLike[str]
    """Calibration from `calibrate`: its file, or the value."""
    _: KW_ONLY
    vllm: str | None = None
    """Release that is to follow the schedule; None for the calibrated one."""
    max_num_seqs: Annotated[int, Range(1)] | None = None
    """Largest batch; None for that of the calibrated servers."""
    format: str = "vllm"
    """Engine whose format to write: one of `FORMATS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """The schedule of one server."""

    setting: str
    """Name of the calibrated server."""
    group: str | None
    """Group of the replayed log; null for all requests."""
    temperature: float
    fixed_k: int
    fixed_speedup: float
    """Mean speed-up of the best fixed k over plain decoding, over the batch sizes."""
    ranges: tuple[tuple[int, int, int], ...]
    """(first batch size, last batch size, k) of each range."""
    schedule_gain: float
    """Speed-up of the schedule over the best fixed k, as the release applies it."""
    ideal_gain: float
    """Likewise, on a release that follows the schedule exactly."""
    fixed: SpecConfig
    """Config with the best fixed k."""
    scheduled: str | None
    """Schedule in the requested format; null if one k is enough or the release does not follow it."""
    remarks: tuple[str, ...]
    """What `check` says about the schedule."""
    advice: LengthAdvice = field(metadata=HIDDEN)

    @classmethod
    def of(cls, advice: LengthAdvice, form: str) -> ScheduleRow:
        """Return the row of a server."""
        choice, is_scheduled = advice.choice, advice.scheduled is not None
        return cls(
            setting=advice.setting.name,
            group=advice.group,
            temperature=advice.temperature,
            fixed_k=choice.fixed_k,
            fixed_speedup=choice.fixed_speedup,
            ranges=choice.ranges,
            schedule_gain=choice.schedule_gain,
            ideal_gain=advice.ideal_gain,
            fixed=advice.fixed,
            scheduled=emit(form, advice.fixed, choice.ranges) if is_scheduled else None,
            remarks=() if advice.judged is None else advice.judged.remarks,
            advice=advice,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult(Result):
    """The schedule of each server that was replayed and calibrated."""

    VERB: ClassVar[str] = "schedule"
    JSON_OF: ClassVar[str] = "rows"
    rows: tuple[ScheduleRow, ...]
    vllm: str
    """Release that is to follow the schedules."""


@verb(ScheduleRequest)
def schedule(request: ScheduleRequest, _progress: Progress) -> ScheduleResult:
    """Choose how many tokens to draft, from a replayed log and calibrated servers.

    The first choice is one k for every load. You get a schedule by batch size only if it gains 2 % over that k on the
    release that will run it. Neither is measured: make it a candidate of `decide`.
    """
    if request.format not in FORMATS:
        refuse(f"Unknown format {request.format!r}: give one of {', '.join(FORMATS)}.", where="--format")
    given = request.calibration
    steps = given if isinstance(given, Calibration) else read_calibration(Path(given))
    profile = request.profile if isinstance(request.profile, Profile) else read_profile(Path(request.profile))
    batches = _list_batches(request.max_num_seqs or _find_most(steps))
    advice = advise_lengths(profile, steps, batches=batches, version=request.vllm)
    return ScheduleResult(
        rows=tuple(ScheduleRow.of(each, request.format) for each in advice), vllm=request.vllm or steps.engine_version
    )


def _find_most(calibration: Calibration) -> int:
    given = calibration.args.get("max_num_seqs")
    return given if isinstance(given, int) and given > 0 else round(max(point.batch for point in calibration.points))


def _list_batches(most: int) -> list[int]:
    """Return the batch sizes at which a range may end: 1, 2, 4 ... and the steps half-way, up to the largest."""
    powers = [2**power for power in range(most.bit_length())]
    return sorted({size for power in powers for size in (power, power + power // 2) if size <= most} | {most})
