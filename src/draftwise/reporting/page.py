"""Writes report.html, summary.json and rollback.rules.yml, from only the raw readings of a run directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from draftwise.core import Comparison, Crossover, Decision, Interval
from draftwise.core.documents import to_json
from draftwise.core.grouping import group_by
from draftwise.deciding.comparison.latencies import QUANTILES, Latencies
from draftwise.deciding.comparison.pooled_acceptance import ACCEPTANCE_QUANTILES, Conversion, PooledAcceptance
from draftwise.deciding.conclusions import Conclusions
from draftwise.deciding.validity.output_checks import TextQuality
from draftwise.knowledge.signals import TOKENS_PER_STEP
from draftwise.reporting.appearance import NO_PLOTS, VERDICT_COLOURS, Plot, can_draw
from draftwise.reporting.conditions import (
    describe_missing,
    describe_rollback,
    describe_scope,
    describe_single_settings,
    describe_unmeasured,
    describe_way_back,
    list_actions,
)
from draftwise.reporting.predictions import MeasuredForecast, describe_forecasts, hold_forecasts
from draftwise.reporting.promql import ALERTS, write_alerts
from draftwise.reporting.sentences import describe_reason, list_clauses
from draftwise.reporting.summary import Summary, summarise
from draftwise.reporting.tables import (
    Grid,
    group_findings,
    list_band_rows,
    list_context_rows,
    list_crossover_rows,
    make_grids,
    name_workload,
    sort_comparisons,
)
from draftwise.reporting.units import LATE_FIRST_TOKEN, count_prompts, format_change, format_number, format_points
from draftwise.runs import RunDirectory
from draftwise.statistics import CONFIDENCE

_FOLDED = 16
"""Rows from which a table is folded away: a summary stands before it."""
_MOST_RULES = 12
"""Rollback rules that stand open; a sweep over many workloads and temperatures has more."""
_LONGEST = 280
"""Characters of a sentence up to which it reads well as one."""


def write_conclusions(directory: RunDirectory, found: Conclusions) -> tuple[Decision, Summary]:
    """Write page, summary and alerts of a run; return its decision and the summary.

    Raises:
        StorageError: the disk is full.
    """
    summary = summarise(found)
    directory.write("summary.json", json.dumps(to_json(summary), indent=2) + "\n")
    directory.write("report.html", render_page(found))
    directory.write(ALERTS, write_alerts(found.decision.rollback))
    return found.decision, summary


def render_page(found: Conclusions) -> str:
    """Return the report as one HTML page without scripts or other files."""
    run, decision = found.run, found.decision
    headline, *clauses = _split_clauses(list_clauses(decision))
    return (
        open_templates()
        .get_template("page.html.j2")
        .render(
            run=run,
            plan=run.plan,
            title=decision.scope.model or "unknown model",
            started=run.context.started,
            headline=headline,
            clauses=clauses,
            not_evidence=describe_missing(decision),
            unmeasured=describe_unmeasured(decision),
            actions=list_actions(decision, run),
            rollback=describe_rollback(decision),
            most_rules=_MOST_RULES,
            way_back=describe_way_back(decision, run),
            alerts=write_alerts(decision.rollback),
            single_settings=describe_single_settings(decision),
            scope=describe_scope(decision.scope),
            thresholds=found.thresholds,
            bands=list_band_rows(decision.bands),
            findings=group_findings(decision),
            context=list_context_rows(run),
            plots=_draw(found),
            no_plots=NO_PLOTS,
            forecast_errors=describe_forecasts(hold_forecasts(run.expected, decision.comparisons)),
            colours=VERDICT_COLOURS,
            confidence=CONFIDENCE,
            folded=_FOLDED,
            definitions={"tokens per step": TOKENS_PER_STEP.definition},
            **_tabulate(found),
        )
    )


def _draw(found: Conclusions) -> dict[str, Plot]:
    if not can_draw():
        return {}
    from draftwise.reporting.plots import draw_plots

    return draw_plots(found)


def _tabulate(found: Conclusions) -> dict[str, PageTable | list[PageTable]]:
    decision, with_goodput = found.decision, found.thresholds.has_slo
    comparisons = sort_comparisons(decision.comparisons)
    several = len({each.condition for each in comparisons}) > 1
    return {
        "verdicts": tabulate_verdicts(comparisons),
        "readings": tabulate_readings(comparisons),
        "grids": list(map(tabulate_grid, make_grids(comparisons))) if several else [],
        "crossovers": tabulate_crossovers(decision.crossovers),
        "forecasts": tabulate_forecasts(hold_forecasts(found.run.expected, comparisons)),
        "quality": tabulate_quality(found.quality),
        "conversions": tabulate_conversions(found.conversions),
        "acceptances": tabulate_acceptances(found.acceptances),
        "percentiles": tabulate_percentiles(comparisons, with_goodput=with_goodput),
        "latencies": tabulate_latencies(found.latencies, with_goodput=with_goodput),
    }


def open_templates() -> Environment:
    """Return the environment that renders the templates of this folder."""

    def load(name: str) -> str:
        return (files("draftwise.reporting") / name).read_text(encoding="utf-8")

    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(load)
    )


def _split_clauses(clauses: Sequence[str]) -> list[str]:
    """Return the clauses of a sentence, one by one where all of it is too long to be read as one."""
    whole = f"{'; '.join(clauses)}."
    return [whole] if len(whole) <= _LONGEST else [f"{each}." for each in clauses]


_TIMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "e2e"}
_SHOWN = (50, 99)
"""Percentiles with a column; summary.json has the others."""
_POSITIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """The content of a cell."""

    text: str
    small: str = ""
    """Small print below the text."""
    kind: str = ""
    """`text` (left-aligned and broken into lines), `warning`, or a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row: its name, and a cell for every further column."""

    name: str
    cells: tuple[TableCell, ...]
    group: str = ""
    """Group under whose name the row appears."""


def make_row(name: str, *cells: TableCell | str, group: str = "") -> TableRow:
    """Return a row whose cells may be given by their texts."""
    made = (each if isinstance(each, TableCell) else TableCell(text=each) for each in cells)
    return TableRow(name=name, cells=tuple(made), group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """A table whose first column names the rows."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]

    @property
    def texts(self) -> frozenset[int]:
        """Columns of text, which are left-aligned."""
        return frozenset(i for row in self.rows[:1] for i, each in enumerate(row.cells, 1) if each.kind == "text")

    @property
    def groups(self) -> dict[str, list[TableRow]]:
        """The rows by the name of their group, in order."""
        return group_by(lambda row: row.group, self.rows)


def tabulate_verdicts(comparisons: Sequence[Comparison]) -> PageTable:
    """Return verdict and reason of every comparison, with its main numbers."""
    several = len({each.condition.label for each in comparisons}) > 1
    rows = (
        make_row(
            each.candidate,
            TableCell(text=str(each.verdict), kind=str(each.verdict)),
            _ratio(each.deciding),
            format_number(each.counters.tokens_per_step),
            TableCell(text=format_change(each.ttft), kind="warning" if _delays_first_token(each) else ""),
            TableCell(text=format_change(each.tpot), small=_tell_tail(each)),
            "-" if each.equal_outputs is None else "{}/{}".format(*each.equal_outputs),
            TableCell(text=_explain(each), kind="text"),
            group=_group(each, several=several),
        )
        for each in comparisons
    )
    columns = ("candidate", "verdict", "speed-up", "tokens per step", "TTFT", "TPOT", "outputs equal", "reason")
    return PageTable(caption="Every comparison", columns=columns, rows=tuple(rows))


def _group(each: Comparison, *, several: bool) -> str:
    passes = len(each.repetitions)
    parts = [name_workload(each.workload), *([each.condition.label] if several else [])]
    parts += [count_prompts(each.num_prompts), f"{passes} {'repetition' if passes == 1 else 'repetitions'}"]
    return " · ".join(parts)


def _tell_tail(each: Comparison) -> str:
    """Return P99 of the time per token where the requests can bound it."""
    found = each.percentiles.get("tpot", {}).get(99)
    return "" if found is None else f"P99\u00a0{format_change(found)}"


def _delays_first_token(each: Comparison) -> bool:
    return each.ttft is not None and each.ttft.value >= LATE_FIRST_TOKEN


def _explain(each: Comparison) -> str:
    parts = [describe_reason(each.reason)]
    parts += [
        f"{guard.of} not judged: {guard.count} of {guard.needed} prompts"
        for guard in each.guards
        if guard.answer == "no power" and each.verdict == "adopt"
    ]
    if each.log_itself is not None:
        parts.append(f"these {each.population} prompts themselves: {each.log_itself.span}")
    if each.adjusted_p is not None:
        parts.append(f"p = {each.adjusted_p:.3g}")
    if each.prompts_needed and each.verdict == "inconclusive":
        parts.append(f"about {each.prompts_needed} prompts would settle it")
    if each.warm_speedup is not None:
        parts.append("first repetition only")
    return "; ".join(filter(None, parts))


def _ratio(ratio: Interval | None) -> TableCell:
    return TableCell(text="-") if ratio is None else TableCell(text=f"{ratio.value:.2f}x", small=ratio.span)


def tabulate_readings(comparisons: Sequence[Comparison]) -> PageTable:
    """Return the ratios and acceptance behind the verdicts."""
    rows = (
        make_row(
            _place(each),
            _ratio(each.speedup),
            _ratio(each.throughput),
            f"{each.total.value:.2f}x",
            format_number(each.counters.spec.acceptance_length),
            _positions(each.counters.spec.rate_per_pos),
            _share(each.conversion),
        )
        for each in comparisons
    )
    columns = (
        *("workload · load · candidate", "request tokens/s", "server tokens/s", "whole workload"),
        *("acceptance length", "accepted by position (%)", "conversion"),
    )
    return PageTable(caption="Ratios and acceptance", columns=columns, rows=tuple(rows))


def _place(each: Comparison) -> str:
    return f"{name_workload(each.workload)} · {each.condition.label} · {each.candidate}"


def _positions(rates: Sequence[float]) -> str:
    return " ".join(f"{100 * rate:.0f}" for rate in rates[:_POSITIONS]) + (" …" if len(rates) > _POSITIONS else "")


def tabulate_grid(grid: Grid) -> PageTable:
    """Return the verdicts on one workload at one temperature: a row per candidate, a column per load."""
    rows = (make_row(candidate, *map(_verdict, row)) for candidate, row in grid.rows)
    name = name_workload(grid.workload) + (f" · T={grid.temperature:g}" if grid.temperature else "")
    return PageTable(caption=name, columns=("candidate", *grid.loads), rows=tuple(rows))


def _verdict(each: Comparison | None) -> TableCell:
    if each is None:
        return TableCell(text="-")
    late = f", TTFT {format_change(each.ttft)}" if _delays_first_token(each) else ""
    small = f"{each.deciding.span} {each.verdict}{late}"
    return TableCell(text=f"{each.deciding.value:.2f}x", small=small, kind=str(each.verdict))


def tabulate_crossovers(crossovers: Iterable[Crossover]) -> PageTable:
    """Return where each candidate stops paying."""
    rows = (make_row(*texts) for texts in list_crossover_rows(crossovers))
    columns = ("workload · candidate", "load", f"{100 * CONFIDENCE:.0f} % interval", "adopted up to", "unit")
    return PageTable(caption="Where each candidate stops paying", columns=columns, rows=tuple(rows))


def tabulate_quality(quality: Iterable[TextQuality]) -> PageTable:
    """Return how repetitive the baseline's outputs are."""
    rows = (
        make_row(each.workload, f"{each.num_outputs}", _share(each.loop_share), _share(each.distinct_4grams))
        for each in quality
    )
    columns = ("workload", "outputs", "end in a loop", "distinct 4-grams")
    return PageTable(caption="Text of the baseline's outputs", columns=columns, rows=tuple(rows))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def tabulate_conversions(conversions: Iterable[Conversion]) -> PageTable:
    """Return the steps from acceptance length to realized speed-up."""
    rows = (
        make_row(
            f"{each.workload} · {each.load}{_temperature(each.temperature)} · {each.candidate}",
            *map(format_number, (each.acceptance_length, each.tokens_per_step, each.step_cost)),
            *(f"{ratio:.2f}x" for ratio in (each.decoding, each.realised)),
        )
        for each in conversions
    )
    columns = (
        *("workload · load · candidate", "acceptance length", "tokens per step"),
        *("cost of a step", "decoding", "realized"),
    )
    return PageTable(caption="From acceptance length to speed-up", columns=columns, rows=tuple(rows))


def _temperature(temperature: float) -> str:
    return f" T={temperature:g}" if temperature else ""


def tabulate_forecasts(held: Iterable[MeasuredForecast]) -> PageTable:
    """Return forecasts made before the run, compared with its measurements."""
    rows = (
        make_row(
            f"{name_workload(each.workload)} · {each.load} · {each.candidate}",
            TableCell(text=f"{each.expected.value:.2f}x", small=f"{each.expected.low:.2f}-{each.expected.high:.2f}"),
            _ratio(each.measured),
            TableCell(text=f"{100 * each.error:+.1f} %", kind="" if each.is_inside else "warning"),
        )
        for each in held
    )
    columns = ("workload · load · candidate", "forecast (90 %)", "measured", "error")
    return PageTable(caption="Forecast before the run, and measured", columns=columns, rows=tuple(rows))


def tabulate_acceptances(acceptances: Iterable[PooledAcceptance]) -> PageTable:
    """Return tokens per step of individual requests, and acceptance by position."""
    rows = (
        make_row(
            f"{each.workload} · T={each.temperature:g} · {each.candidate}",
            str(each.num_requests),
            *map(format_number, each.quantiles or [None] * len(ACCEPTANCE_QUANTILES)),
            each.source,
            TableCell(text=" ".join(f"{100 * rate:.0f}" for rate in each.stats.rate_per_pos), kind="text"),
        )
        for each in acceptances
    )
    columns = (
        *("workload · temperature · candidate", "requests", *(f"P{each}" for each in ACCEPTANCE_QUANTILES)),
        *("counted from", "accepted by position (%)"),
    )
    return PageTable(caption="Tokens per step of a request", columns=columns, rows=tuple(rows))


def tabulate_percentiles(comparisons: Iterable[Comparison], *, with_goodput: bool) -> PageTable:
    """Return the percentiles of latencies, candidate over baseline."""
    rows = (
        make_row(
            _place(each),
            *(_ratio(each.percentiles.get(name, {}).get(q)) for name in _TIMES for q in _SHOWN),
            *([_goodput(each)] if with_goodput else []),
        )
        for each in comparisons
    )
    columns = ("workload · load · candidate", *_name_percentiles(), *(["goodput"] if with_goodput else []))
    return PageTable(caption="Latency percentiles, candidate over baseline", columns=columns, rows=tuple(rows))


def _name_percentiles() -> list[str]:
    return [f"{name} P{q}" for name in _TIMES.values() for q in _SHOWN]


def _goodput(each: Comparison) -> TableCell:
    if each.goodput is None:
        return TableCell(text="-")
    small = "" if each.goodput_change is None else format_points(each.goodput_change)
    return TableCell(text=" → ".join(map(_share, each.goodput)), small=small)


def tabulate_latencies(latencies: Iterable[Latencies], *, with_goodput: bool) -> PageTable:
    """Return the latencies of every arm in milliseconds."""
    rows = (
        make_row(
            f"{each.workload} · {each.condition} · {each.arm}",
            TableCell(text=str(each.num_requests), small=f"{each.num_failed} failed" if each.num_failed else ""),
            f"{each.tokens_per_s:.0f}",
            "-" if each.throughput is None else f"{each.throughput:.0f}",
            *(_milliseconds(each, name, q) for name in _TIMES for q in _SHOWN),
            *([_share(each.goodput)] if with_goodput else []),
        )
        for each in latencies
    )
    columns = (
        *("workload · load · arm", "requests", "tokens/s of a stream", "tokens/s of the server"),
        *(*_name_percentiles(), *(["goodput"] if with_goodput else [])),
    )
    return PageTable(caption="Latencies of every arm, in milliseconds", columns=columns, rows=tuple(rows))


def _milliseconds(each: Latencies, name: str, quantile: int) -> str:
    values = each.percentiles_ms[name]
    return f"{values[QUANTILES.index(quantile)]:.3g}" if values else "-"
