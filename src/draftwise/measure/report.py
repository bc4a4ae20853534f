"""Writes report.html and summary.json from the raw readings in a run directory, and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, StrictUndefined

from draftwise.core import Decision, Interval, Run
from draftwise.measure.cell import ALL
from draftwise.measure.decide import TOKENS_PER_STEP, decide
from draftwise.measure.guards import text_quality
from draftwise.measure.latency import QUANTILES, latencies
from draftwise.measure.plots import VERDICT_COLOURS, draw_plots
from draftwise.measure.run_directory import RunDirectory
from draftwise.measure.statistics import CONFIDENCE, RESAMPLES
from draftwise.measure.summary import summarise
from draftwise.measure.thresholds import thresholds_of

__all__ = ["write_report"]


def write_report(directory: RunDirectory) -> tuple[Decision, dict[str, Any]]:
    """Write both files and return the decision and the summary.

    Raises:
        InvalidSetup: the directory is not a run.
    """
    run = directory.read()
    decision, thresholds = decide(run), thresholds_of(run)
    rows, quality = latencies(run, decision.comparisons, thresholds), text_quality(run)
    summary = summarise(run, decision, rows, quality, thresholds)
    page = _environment().from_string((files("draftwise.measure") / "report.html.j2").read_text(encoding="utf-8"))
    html = page.render(
        run=run,
        plan=run.plan,
        **{part: run.context.get(part) or {} for part in ("hardware", "software", "model", "servers")},
        started=run.context.get("started"),
        decision=decision,
        groups=[(name, list(group)) for name, group in groupby(decision.comparisons, key=lambda each: each.workload)],
        findings=_all_findings(decision),
        latencies=rows,
        quality=quality,
        thresholds=thresholds,
        plots=draw_plots(run, decision.comparisons, thresholds),
        lengths=_mean_lengths(run),
        colours=VERDICT_COLOURS,
        quantiles=QUANTILES,
        confidence=CONFIDENCE,
        resamples=RESAMPLES,
        all_name=ALL,
        tokens_per_step=TOKENS_PER_STEP,
    )
    directory.write("report.html", html)
    directory.write("summary.json", json.dumps(summary, indent=2) + "\n")
    return decision, summary


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "x": lambda value: "-" if value is None else f"{value:.2f}",
        "percent": lambda value: "-" if value is None else f"{value:.0%}",
        "change": _change,
        "span": _span,
        "million": lambda value: f"{value / 1e6:.1f} million",
    }
    return environment


def _change(ratio: Interval | None) -> str:
    """Return a ratio of times as a signed percentage."""
    return "-" if ratio is None else f"{ratio.value - 1:+.0%}"


def _span(ratio: Interval) -> str:
    return f"{ratio.low:.2f} - {'∞' if ratio.high == float('inf') else f'{ratio.high:.2f}'}"


def _all_findings(decision: Decision) -> list[tuple[str, Any]]:
    """Return every finding with where it applies, the gravest first."""
    of_cells = [(f"{each.workload} · {each.candidate}", f) for each in decision.comparisons for f in each.findings]
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted([*(("the run", f) for f in decision.findings), *of_cells], key=lambda item: order[item[1].severity])


def _mean_lengths(run: Run) -> Mapping[str, tuple[float | None, float | None]]:
    """Return the mean prompt and output lengths in tokens of the plain arm, by workload."""
    plain = run.plan.arms[0].name
    lengths = {}
    for workload in run.plan.workloads:
        mine = [a for a in run.answers if a.arm == plain and a.workload == workload.name and a.error is None]
        prompts = [a.num_prompt_tokens for a in mine if a.num_prompt_tokens is not None]
        lengths[workload.name] = (_mean(prompts), _mean(a.timing.num_tokens for a in mine))
    return lengths


def _mean(values: Iterable[int]) -> float | None:
    given = list(values)
    return sum(given) / len(given) if given else None
