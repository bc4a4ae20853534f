"""What a forecast rests on that may not hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import Acceptance, CalibratedSetting, Calibration, Finding, ForecastCell, Profile
from draftwise.core.finding import join_names

__all__ = ["find_doubts"]


def find_doubts(
    profile: Profile,
    calibration: Calibration,
    matched: Sequence[tuple[CalibratedSetting, Acceptance]],
    rows: Sequence[ForecastCell],
) -> Iterator[Finding]:
    """Yield what the forecast rests on that may not hold."""
    if left := [each.name for each in calibration.candidates if each.name not in {one.name for one, _ in matched}]:
        yield Finding.warning(
            "not-replayed",
            f"What {join_names(left)} would accept is not known: the profile does not have it.",
            fix="Replay the log with it as a candidate.",
        )
    if far := [row for row in rows if row.is_extrapolated]:
        first = min(far, key=lambda row: row.load)
        yield Finding.error(
            "far-from-calibrated",
            f"From {first.axis} {first.load:g} on, {first.setting} decodes more than twice as many sequences "
            "as were calibrated: nothing is known of such steps.",
            fix="Calibrate with a larger --concurrency, or ask for smaller loads.",
        )
    if profile.target.name and calibration.target and not _same_model(profile.target.name, calibration.target):
        yield Finding.warning(
            "two-models",
            f"The log was replayed for {profile.target.name}, and {calibration.target} was calibrated.",
            fix="Use a replay and a calibration of one model.",
        )


def _same_model(one: str, other: str) -> bool:
    return one.rstrip("/").rpartition("/")[2].lower() == other.rstrip("/").rpartition("/")[2].lower()
