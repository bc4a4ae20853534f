"""A run of draftwise in the form that results of other tools have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from draftwise.core import Run, SpecStats
from draftwise.core.documents import to_json
from draftwise.core.grouping import group_by
from draftwise.deciding.conclusions import Conclusions
from draftwise.deciding.interchange import ArmResults, Results

__all__ = ["TOOL", "make_results"]

TOOL = "draftwise"
_PLACES = ("--port", "--host", "--log-dir", "--uds")
"""Flags of a serve command that say where it runs, not what it does."""


def make_results(found: Conclusions, source: str) -> Results:
    """Return a cell per workload, condition and arm that was measured."""
    run = found.run
    measured = (answer for answer in run.answers if answer.measured)
    answers = group_by(lambda answer: (answer.workload, answer.condition, answer.arm), measured)
    spec: dict[tuple[str, str, str], SpecStats] = {}
    for turn in run.turns:
        place = (turn.workload, turn.condition, turn.arm)
        spec[place] = spec.get(place, SpecStats()) + turn.counters.spec
    rows = {(row.workload, row.condition, row.arm): row for row in found.latencies}
    cells = (
        ArmResults(
            workload=place[0],
            condition=place[1],
            arm=place[2],
            answers=tuple(mine),
            num_requests=sum(answer.error is None for answer in mine),
            num_failed=sum(answer.error is not None for answer in mine),
            output_tokens_per_s=rows[place].throughput if place in rows else None,
            spec=spec.get(place),
        )
        for place, mine in answers.items()
    )
    return Results(source=source, tool=TOOL, context=_context(run), cells=tuple(cells))


def _context(run: Run) -> dict[str, Any]:
    """Return the context, flat, with what differs from start to start left out."""
    plan, context = run.plan, run.context
    found: dict[str, Any] = {}
    for part, described in (("hardware", context.hardware), ("software", context.software), ("model", context.model)):
        found |= _flat(part, to_json(described))
    for arm in plan.arms:
        server = context.server(arm.name)
        found |= _flat(f"version.{arm.name}", server.version)
        found[f"command.{arm.name}"] = _same_everywhere(server.command)
        found[f"speculation.{arm.name}"] = arm.spec.to_json() if arm.spec else "none"
    for workload in plan.workloads:
        found[f"workload.{workload.name}"] = f"{len(workload.prompts)} prompts, sha256 {workload.sha256[:16]}"
    # How many repetitions were made is no difference in what was measured: it is in the intervals.
    found |= {"parameters.seed": plan.seed, "parameters.warmup": plan.warmup}
    return found


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(f"{prefix}.{name}", value)
        else:
            found[f"{prefix}.{name}"] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return found


def _same_everywhere(command: Any) -> Any:
    """Return a serve command without the flags that say where it runs."""
    if not isinstance(command, str):
        return command
    for flag in _PLACES:
        command = re.sub(rf"\s{re.escape(flag)}[= ](?:'[^']*'|\S+)", "", command)
    return shlex.join(shlex.split(command)) if command.count("'") % 2 == 0 else command
