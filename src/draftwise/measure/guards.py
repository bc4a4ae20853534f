"""Findings about a measurement: what takes a speed-up away, and what a reader must know beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from draftwise.core import Answer, Divergence, Finding, Interval, Run, Severity
from draftwise.measure.cell import Cell, cells
from draftwise.measure.degeneration import distinct_ngram_ratio, find_loop
from draftwise.measure.outputs import Difference, find_difference, find_differences, is_tie
from draftwise.measure.statistics import FEWEST_PROMPTS
from draftwise.measure.thresholds import Thresholds

__all__ = [
    "TextQuality",
    "check_cell",
    "check_outputs",
    "check_run",
    "finds_prompts_cached",
    "has_memory",
    "text_quality",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuality:
    """How far the plain outputs of a workload repeat themselves."""

    workload: str
    num_outputs: int
    loop_share: float
    distinct_4grams: float
    """Mean over outputs of distinct 4-grams over all 4-grams."""


def has_memory(cell: Cell, thresholds: Thresholds) -> bool:
    """Return whether the candidate drafts better for prompts it has answered before.

    Repeating a prompt then measures that memory and not the method: a global suffix tree, for one, holds the
    whole answer the second time. Prompts whose answer wavers from pass to pass are left out: other text drafts
    better or worse for reasons of its own.
    """
    first, later = _in_time(_without_wavering(cell))
    for workload in cell.workloads:
        new, old = (each.counters(cell.candidate, workload=workload).tokens_per_step for each in (first, later))
        if new and old and old > new * (1 + thresholds.memory):
            return True
    return False


def _without_wavering(cell: Cell) -> Cell:
    wavering = set()
    for unit in cell.units:
        first, *later = cell.outputs(cell.candidate, unit)
        if any(find_difference(unit, first, answer) is not None for answer in later):
            wavering |= {answer.turn for answer in (first, *later)}
    return replace(cell, windows=tuple(window for window in cell.windows if window.turn not in wavering))


def finds_prompts_cached(cell: Cell, thresholds: Thresholds) -> bool:
    """Return whether plain's prefix cache serves later passes with the prompts of the first one."""
    new, old = (each.counters(cell.plain).prefix_hit_rate for each in _in_time(cell))
    return new is not None and old is not None and old > new + thresholds.prefix_hit_loss


def _in_time(cell: Cell) -> tuple[Cell, Cell]:
    """Return the cell of the first pass and the cell of all later ones."""
    passes = cell.passes(cell.candidate)
    return cell.only(passes[:1]), cell.only(passes[1:])


def check_cell(cell: Cell, speedup: Interval, ttft: Interval | None, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what is wrong with one comparison, outputs aside."""
    plain, candidate = cell.counters(cell.plain), cell.counters(cell.candidate)
    if not candidate.spec.num_drafts:
        why = "/metrics counted no draft" if candidate.generation_tokens else "its /metrics has no counters"
        yield _error("not-speculating", f"there is no proof that it speculated: {why}.")
    if plain.spec.num_drafts:
        yield _error("plain-speculates", f"the plain server drafted {plain.spec.num_draft_tokens} tokens.")
    most = candidate.tokens_per_step
    if candidate.spec.num_drafts and most and speedup.low > 1 and speedup.value > most * (1 + thresholds.margin):
        text = f"{speedup.value:.2f}x is more than its {most:.2f} tokens per step can give."
        yield _error("unexplained-speedup", text, "Something else differs between the servers, or the machine is busy.")
    before, after = plain.prefix_hit_rate, candidate.prefix_hit_rate
    if before is not None and after is not None and before - after > thresholds.prefix_hit_loss:
        yield _error(
            "prefix-hits-lost", f"the prefix cache served {after:.0%} of the prompt tokens, plain {before:.0%}."
        )
    if ttft is not None and ttft.low > 1 + thresholds.ttft_damage:
        yield _warning("ttft-damaged", f"the first token comes {ttft.value:.2f}x as late as plain's.")
    if len(cell.units) < FEWEST_PROMPTS:
        yield _info("few-prompts", f"{len(cell.units)} prompts say little about others.", "Give more with --prompts.")


def check_outputs(
    cell: Cell, divergences: Sequence[Divergence], tie_gap: float
) -> tuple[tuple[int, int], list[Finding]]:
    """Return how many prompts got the plain output (of how many), and what the differences mean. Temperature 0."""
    differences = find_differences(cell)
    examined = {(each.workload, each.prompt_id): each for each in divergences if each.candidate == cell.candidate}
    real = [each for each in differences if each.unit not in examined or not is_tie(examined[each.unit], tie_gap)]
    findings = [_describe(cell, real, examined)] if real else []
    if ties := len(differences) - len(real):
        gap = max(each.gap or 0.0 for each in examined.values() if is_tie(each, tie_gap))
        text = f"{ties} outputs part from plain's where both servers hold the two best tokens for equal (at most "
        findings.append(_info("numeric-ties", f"{text}{gap:.2g} nats apart, {tie_gap:g} is within rounding)."))
    return (len(cell.units) - len(differences), len(cell.units)), findings


def _describe(cell: Cell, real: list[Difference], examined: dict[Any, Divergence]) -> Finding:
    first = real[0]
    where = "" if first.position is None else f" at output token {first.position}"
    view = examined.get(first.unit)
    gap = "not examined" if view is None or view.gap is None else f"the best two tokens are {view.gap:.2g} nats apart"
    return _error(
        "outputs-differ",
        f"{len(real)} of {len(cell.units)} outputs differ from plain's at temperature 0; first {first.unit[1]}{where} "
        f"({gap}): {first.excerpt}.",
        "Greedy speculation must not change the output: report it to the engine's maintainers.",
    )


def check_run(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what is wrong with a run as a whole."""
    if failed := [answer for answer in run.answers if answer.error is not None]:
        why = f"{failed[0].workload} prompt {failed[0].prompt_id!r}: {(failed[0].error or '').rstrip('.')}."
        text = f"{len(failed)} of {len(run.answers)} requests failed and are left out; the first: {why}"
        yield _warning("failed-requests", text)
    else:
        yield from _check_traffic(run, thresholds)
    if not all(answer.counts_exact for answer in run.answers):
        text = "a server does not say how many tokens a chunk holds: one each is assumed, the totals are exact."
        yield _warning("token-counts-estimated", text)
    busy, wall = sum(w.client_cpu_s for w in run.windows), sum(w.wall_s for w in run.windows)
    if busy > wall * thresholds.client_share:
        text = f"the load generator used {busy / wall:.0%} of a core and may slow what it measures."
        yield _warning("client-saturated", text, "Lower --concurrency or measure from another machine.")
    spread = _plain_spread(run)
    if spread > thresholds.noise:
        text = f"the plain server's time for one and the same prompt varies by {spread:.0%}: the machine is busy."
        yield _warning("noisy-machine", text, "Stop what else runs there and measure again.")
    if run.plan.temperature == 0 and (unstable := _count_unstable(run)):
        text = f"the plain server itself answers {unstable} prompts differently from pass to pass."
        yield _warning("plain-unstable", text)
    for quality in text_quality(run):
        if quality.loop_share > thresholds.loop_share:
            text = (
                f"{quality.loop_share:.0%} of the {quality.workload} outputs end in a loop (over "
                f"{thresholds.loop_share:.0%}): lookup methods look better here than on text that does not repeat."
            )
            yield _warning("outputs-loop", text)
    if any(finds_prompts_cached(cell, thresholds) for cell in cells(run)):
        text = "later passes find their prompts in the prefix cache, in all arms alike: TTFT there is a cached one."
        yield _info("prefix-cache-warm", text)


def _plain_spread(run: Run) -> float:
    """Return the median over prompts of (largest - smallest) / median of the plain seconds per token."""
    seconds: dict[Any, list[float]] = {}
    for answer in run.answers:
        if answer.arm == run.plan.arms[0].name and answer.error is None:
            pace = answer.timing.e2e_s / answer.timing.num_tokens
            seconds.setdefault((answer.workload, answer.prompt_id), []).append(pace)
    return median([(max(each) - min(each)) / median(each) for each in seconds.values()] or [0.0])


def _count_unstable(run: Run) -> int:
    """Return how many prompts the plain arm did not always answer alike."""
    first: dict[Any, Answer] = {}
    unstable = set()
    for answer in run.answers:
        if answer.arm == run.plan.arms[0].name and answer.error is None:
            unit = (answer.workload, answer.prompt_id)
            if find_difference(unit, first.setdefault(unit, answer), answer) is not None:
                unstable.add(unit)
    return len(unstable)


def _check_traffic(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield the servers that generated much more than this run received."""
    for arm in run.plan.arms:
        generated = sum(w.counters.generation_tokens or 0 for w in run.windows if w.arm == arm.name)
        received = sum(answer.timing.num_tokens for answer in run.answers if answer.arm == arm.name)
        if generated > received * (1 + thresholds.foreign_tokens):
            text = f"{arm.name} generated {generated} tokens and this run received {received}: others use the server."
            yield _error("other-traffic", text, "Measure on servers that nothing else talks to.")


def text_quality(run: Run) -> list[TextQuality]:
    """Return the text quality of the plain arm's first answers, workload by workload."""
    plain, rows = run.plan.arms[0].name, []
    for workload in run.plan.workloads:
        mine = (a for a in run.answers if a.arm == plain and a.workload == workload.name and a.error is None)
        first: dict[str, Answer] = {}
        for answer in mine:
            first.setdefault(answer.prompt_id, answer)
        outputs = [_tokens(answer) for answer in first.values()]
        if outputs:
            rows.append(
                TextQuality(
                    workload=workload.name,
                    num_outputs=len(outputs),
                    loop_share=sum(find_loop(tokens) is not None for tokens in outputs) / len(outputs),
                    distinct_4grams=sum(map(distinct_ngram_ratio, outputs)) / len(outputs),
                )
            )
    return rows


def _tokens(answer: Answer) -> list[int]:
    """Return an output without its end token; characters stand in where the server gives no ids."""
    if not answer.token_ids:
        return list(map(ord, answer.text))
    return list(answer.token_ids[: -1 if answer.finish_reason == "stop" else None])


def _error(code: str, message: str, fix: str = "") -> Finding:
    return Finding(code=code, severity=Severity.ERROR, message=message, fix=fix)


def _warning(code: str, message: str, fix: str = "") -> Finding:
    return Finding(code=code, severity=Severity.WARNING, message=message, fix=fix)


def _info(code: str, message: str, fix: str = "") -> Finding:
    return Finding(code=code, severity=Severity.INFO, message=message, fix=fix)
