"""`draftwise schedule`: how many tokens to draft: one k, or a schedule where an operator's release makes it pay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from draftwise.core import Calibration
from draftwise.plan.schedule.draft_lengths import WORTH_A_CHANGE
from draftwise.plan.schedule.length_advice import FORMATS, LengthAdvice, advise_lengths, emit
from draftwise.runs.documents import read_calibration, read_profile

__all__ = ["schedule"]


@click.command(short_help="Choose the draft length, or a schedule of it where that pays.")
@click.argument("profile", type=click.Path(path_type=Path))
@click.argument("calibration", type=click.Path(path_type=Path))
@click.option(
    "--vllm", "version", metavar="VERSION", help="Release that is to follow it  [default: the calibrated one]"
)
@click.option("--max-num-seqs", type=click.IntRange(1), metavar="N",
              help="Largest batch  [default: the calibrated servers']")  # fmt: skip
@click.option("--format", "form", type=click.Choice(tuple(FORMATS)), default="vllm", show_default=True,
              help="Whose form a schedule is written in; TensorRT-LLM's key has had two meanings.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def schedule(
    profile: Path, calibration: Path, version: str | None, max_num_seqs: int | None, form: str, as_json: bool
) -> None:
    """Choose how many tokens to draft, from PROFILE (of `replay`) and CALIBRATION (of `calibrate`).

    One k for every load comes first. A schedule by batch size is written only where it gains 2 % over that on the
    release that is to follow it: some releases draft the largest k whatever the schedule says. What `check` says of
    it is shown. Neither is measured: make it a candidate of `decide`.

    \b
    Examples:
      draftwise schedule profile/ calibration.json --vllm 0.32.0 --max-num-seqs 128
    """
    steps = read_calibration(calibration)
    most = max_num_seqs or _find_most(steps)
    advice = advise_lengths(read_profile(profile), steps, batches=_list_batches(most), version=version)
    if as_json:
        click.echo(json.dumps([_to_dict(each, form) for each in advice], indent=1))
        return
    for each in advice:
        for line in _describe(each, version or steps.engine_version, form):
            click.echo(line)


def _find_most(calibration: Calibration) -> int:
    given = calibration.args.get("max_num_seqs")
    return given if isinstance(given, int) else round(max(point.batch for point in calibration.points))


def _list_batches(most: int) -> list[int]:
    """Return the batch sizes at which a range may end: 1, 2, 4 ... and the steps half-way, up to the largest."""
    powers = [2**power for power in range(most.bit_length())]
    return sorted({size for power in powers for size in (power, power + power // 2) if size <= most} | {most})


def _describe(advice: LengthAdvice, version: str, form: str) -> Iterator[str]:
    """Yield the best fixed k, and the schedule or why there is none."""
    choice, about = advice.choice, " ".join(f"[{part}]" for part in (advice.group,) if part)
    heading = f"{advice.setting.name}{about and ' ' + about}"
    if choice.fixed_speedup <= 1:
        yield f"{heading}: no k pays over these loads; the best, {choice.fixed_k}, makes {choice.fixed_speedup:.2f}x."
        return
    yield f"{heading}: num_speculative_tokens {choice.fixed_k} for every load: {choice.fixed_speedup:.2f}x in the mean."
    gain, ideal = 100 * (choice.schedule_gain - 1), 100 * (advice.ideal_gain - 1)
    if advice.scheduled is not None:
        yield f"  A schedule gains {gain:.1f} % more:"
        yield f"  {emit(form, advice.fixed, choice.ranges)}"
    elif advice.judged is not None and not advice.judged.is_honoured:
        yield f"  vLLM {version} does not follow a schedule here; one that is followed would gain {ideal:.1f} %."
    elif advice.judged is not None and advice.judged.drafts_in_full:
        yield f"  vLLM {version} drafts in full whatever a schedule says: it would change the speed by {gain:+.1f} %."
    elif choice.is_schedule_worth_it:
        yield f"  vLLM {version} loses graphs by a schedule; one that costs nothing else would gain {gain:.1f} %."
    else:
        yield f"  One k is enough: a schedule would gain {gain:.1f} %, less than {100 * (WORTH_A_CHANGE - 1):.0f} %."
    if advice.judged is not None and advice.ideal_gain >= WORTH_A_CHANGE:
        yield from (f"  {remark}" for remark in advice.judged.remarks)
    yield "  Not measured: make it a candidate of `draftwise decide`."


def _to_dict(advice: LengthAdvice, form: str) -> dict[str, Any]:
    scheduled = advice.scheduled
    return {
        "setting": advice.setting.name,
        "group": advice.group,
        "temperature": advice.temperature,
        **asdict(advice.choice),
        "ideal_gain": advice.ideal_gain,
        "fixed": advice.fixed.to_dict(),
        "scheduled": None if scheduled is None else emit(form, advice.fixed, advice.choice.ranges),
        "remarks": [] if advice.judged is None else list(advice.judged.remarks),
    }
