"""Computes a comparison's numbers from a cell's requests, without a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from draftwise.core import (
    Answer,
    ClosedLoop,
    Comparison,
    Counters,
    Interval,
    Origin,
    Run,
    Settled,
    Timing,
    TurnRecord,
    Verdict,
    Workload,
)
from draftwise.core.comparison import ALL, GuardedHarm
from draftwise.core.grouping import group_by
from draftwise.deciding.comparison.cell import Cell, PairedRequest, Unit, make_cells
from draftwise.deciding.comparison.latencies import LATENCIES, keeps_promise, measure_output
from draftwise.deciding.comparison.recall import Recall, divide_cell
from draftwise.deciding.disturbance import LostPair
from draftwise.deciding.thresholds import Thresholds
from draftwise.statistics import (
    FEWEST_FOR,
    PERCENTILES,
    Array,
    Conclusion,
    Design,
    GuardReading,
    LeaveReason,
    Looks,
    OrderBreak,
    PowerOutlook,
    RatioEstimate,
    adjust_family,
    bound_log_itself,
    find_drift_apart,
    find_lead,
    find_order_break,
    find_outlook,
    find_pace_change,
    find_pauses,
    find_split_apart,
    find_step_noise,
    find_unrest,
    find_warm_noise,
    find_waves,
    goodput_change,
    guard_delay,
    guard_tail,
    has_moved,
    has_slowed,
    percentile_ratios,
    prompt_ratio,
    server_ratio,
    settle,
    total_ratio,
    weigh,
)

_AT_ONCE = 0.25
"""Share of the mean seconds between arrivals below which two came at once: a gateway or the client held one up."""
_MOST_LONGER, _ROUNDING = 0.25, 1e-9
"""By how much (log) one more draft token may lengthen a step: a drafter's own pass, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Ratios of candidate over baseline for a cell's requests; None if an arm lacks the reading."""

    paired: Sequence[PairedRequest]
    design: Design
    """Which requests share a source of variance."""
    speedup: RatioEstimate
    """Output tokens per second of a request."""
    total: RatioEstimate
    """Total output tokens over total request seconds."""
    ttft: RatioEstimate | None
    tpot: RatioEstimate | None
    throughput: RatioEstimate | None
    """The server's output tokens per second; None with one request in flight."""
    deciding: RatioEstimate
    """Ratio named by `Comparison.decided_by`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """A cell's estimates, and the interim looks at it."""

    whole: Cell
    cell: Cell
    """Requests that the numbers rest on. For a server that may remember answers, only prompts new to it."""
    repeated: Cell | None
    """Requests left out for that reason, from both arms; None without any."""
    recall: Recall
    """Whether the candidate gains from earlier answers."""
    is_new: bool
    """Whether no number can rest on remembered answers."""
    ratios: Ratios
    warm_speedup: float | None
    """Speed-up on repeated prompts; None if they did not gain from repetition."""
    looks: Looks
    """Earlier interim looks."""
    done: int
    """Number of measured pairs."""
    is_end: bool
    """Whether this is the final analysis, not one stopped at an interim look."""
    draw: Draw | None
    """How its prompts were drawn; None for pooled workloads."""
    unseen: float
    """Share of the log's prompts, or of the tokens they ask for, in routes of which no prompt was answered."""

    @property
    def level(self) -> float:
        """Two-sided p-value below which a result is significant."""
        return self.looks.level(self.done, is_end=self.is_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceDoubt:
    """A change of a server's own pace during the run that drafting does not explain."""

    arm: str
    """The arm; empty if repeated prompts gained differently and the responsible server is unknown."""
    ratio: float
    """Ratio, after over before: of a decoding step's seconds, or without an arm of the speed-up."""
    share: float | None
    """Share of the blocks before the change; None for a drift or for spells, 0 for the time since the warm-up."""
    in_spells: bool = False
    is_relative: bool = False
    """Whether the ratio is that to the other arm, which may have changed as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    """Another candidate that is faster on the same prompts."""

    candidate: str
    ratio: float
    count: int
    """Number of prompts that both answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLoss:
    """Pairs of turns that do not count because every attempt was disturbed."""

    count: int
    of: int
    """Total number of pairs."""
    reason: str
    """Cause of the first disturbance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonNumbers:
    """A comparison without its verdict, and the basis of its numbers."""

    comparison: Comparison
    estimates: Estimates
    outlook: PowerOutlook
    """Power outlook of the deciding ratio."""
    distinct: int
    """Number of different prompts: a log may hold one many times."""
    pace: PaceDoubt | None = None
    """None if both servers kept their pace."""
    lost: PairLoss | None = None
    """None if every pair counts."""
    behind: Better | None = None
    """None if no other candidate is shown to be faster."""
    left: str = ""
    """Why it left the race (`Settled.reason`); empty if it did not."""
    leader: str = ""
    """Fastest candidate on its workload under its load."""
    promise: Interval | None = None
    """Change of the share of requests within the SLO, at the level for all comparisons of the run together."""
    conclusion: Conclusion | None = None
    """Conclusion at which this comparison may stop; None: continue."""
    order_break: tuple[int, OrderBreak] | None = None
    """Last log row before gains change, and the break; None if the order does not matter."""


def compare_cells(run: Run, lost: Sequence[LostPair], thresholds: Thresholds) -> list[ComparisonNumbers]:
    """Return the numbers of all comparisons of a run, pooled rows last.

    Args:
        run: the run without disturbed turns.
        lost: pairs that candidates lost to disturbances.
        thresholds: the run's thresholds.
    """
    found = [_compare(run, each, lost, thresholds) for each in estimate_cells(run, thresholds)]
    return _correct_for_number(found, thresholds)


def estimate_cells(run: Run, thresholds: Thresholds) -> tuple[Estimates, ...]:
    """Return the estimates of every workload, condition and candidate, pooled rows last."""
    draws = {workload.name: Draw.of(workload) for workload in run.plan.workloads}
    found: list[Estimates] = []
    for cell in make_cells(run):
        estimates = _estimate(run, cell, thresholds, draws)
        if cell.workload == ALL:
            place = (cell.condition.label, cell.candidate)
            parts = [each for each in found if (each.cell.condition.label, each.cell.candidate) == place]
            if len(parts) == len(cell.workloads):
                unseen = max(each.unseen for each in parts)
                estimates = replace(estimates, ratios=_pool(estimates.ratios, parts, run), unseen=unseen)
        found.append(estimates)
    return tuple(found)


def _pool(pooled: Ratios, parts: Sequence[Estimates], run: Run) -> Ratios:
    """Return the ratios of all workloads together: each counts by the prompts it stands for, not by those measured."""
    sizes = {each.name: each.population or len(each.prompts) for each in run.plan.workloads}
    weights = [sizes[each.cell.workload] for each in parts]

    def mean(read: Callable[[Ratios], RatioEstimate | None]) -> RatioEstimate | None:
        known = [read(each.ratios) for each in parts]
        return weigh([each for each in known if each is not None], weights) if None not in known else None

    speedup = mean(lambda ratios: ratios.speedup)
    deciding = mean(lambda ratios: ratios.deciding)
    assert speedup is not None, "every part has a speed-up"
    assert deciding is not None, "and one that decides"
    return replace(
        pooled,
        speedup=speedup,
        ttft=mean(lambda ratios: ratios.ttft),
        tpot=mean(lambda ratios: ratios.tpot),
        throughput=mean(lambda ratios: ratios.throughput),
        deciding=deciding,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How a workload's prompts were drawn."""

    places: Mapping[Hashable, float] | None
    """Place of each prompt in the log's order; None if unknown."""
    rows: Mapping[Hashable, int] | None
    """Row of each prompt in the log."""
    clusters: Mapping[Hashable, Hashable] | None
    """Cluster of each prompt; None without clusters."""
    routes: Mapping[Hashable, str] | None
    """Route of each prompt, by which places are sorted."""
    population: int
    """Number of prompts in the log; 0: unknown."""
    tokens: Mapping[Hashable, int]
    """The most tokens that each prompt asks for."""

    @classmethod
    def of(cls, workload: Workload) -> Draw:
        """Return how a workload's prompts were drawn."""
        origins = {(workload.name, each.id): each.origin for each in workload.prompts}
        known: dict[Hashable, Origin] = {unit: each for unit, each in origins.items() if each is not None}
        if len(known) < len(origins):
            return cls(places=None, rows=None, clusters=None, routes=None, population=0, tokens={})
        clusters = {unit: each.cluster or f"row {each.row}" for unit, each in known.items()}
        return cls(
            places={unit: float(each.place) for unit, each in known.items()},
            rows={unit: each.row for unit, each in known.items()},
            clusters=clusters if any(each.cluster for each in known.values()) else None,
            routes={unit: each.route for unit, each in known.items()},
            population=workload.population or len(workload.prompts),
            tokens={(workload.name, each.id): each.max_tokens for each in workload.prompts},
        )

    def find_unseen(self, asked: Iterable[Hashable]) -> float:
        """Return the share of prompts, or of the tokens they ask for, in routes of which none was asked."""
        routes = self.routes or {}
        seen = {routes[unit] for unit in asked if unit in routes}
        rest = [unit for unit, route in routes.items() if route not in seen]
        if not rest:
            return 0.0
        return max(len(rest) / len(routes), sum(self.tokens[unit] for unit in rest) / sum(self.tokens.values()))


def _estimate(run: Run, whole: Cell, thresholds: Thresholds, draws: Mapping[str, Draw]) -> Estimates:
    memory = divide_cell(run, whole, thresholds)
    cell, repeated = memory.cell, memory.repeated
    is_helped = memory.recall is Recall.SHOWN and repeated is not None and repeated.units
    draw = draws[cell.workload] if len(cell.workloads) == 1 else None
    ratios = estimate_ratios(cell, draw)
    done = ratios.design.num_blocks
    looks, is_end = _find_looks(run, whole, done)
    return Estimates(
        whole=whole,
        cell=cell,
        repeated=repeated,
        recall=memory.recall,
        is_new=memory.is_new,
        ratios=ratios,
        warm_speedup=estimate_ratios(repeated).speedup.value if repeated is not None and is_helped else None,
        looks=looks,
        done=done,
        is_end=is_end,
        draw=draw,
        unseen=0.0 if draw is None else draw.find_unseen(cell.units),
    )


def _find_looks(run: Run, cell: Cell, done: int) -> tuple[Looks, bool]:
    """Return the looks at a cell before what is there now, and whether that is its end."""
    key = (cell.workload, cell.condition.label, cell.candidate)
    looks = [each for each in run.looks if each.key == key]
    stopped = _find_end(run, key)
    if not looks:
        # In earlier runs every repetition was a look, and a cell that was stopped has no more of them.
        is_early = stopped is not None and stopped.blocks is None and 0 < stopped.passes < run.plan.repeats
        planned = round(done * run.plan.repeats / stopped.passes) if stopped is not None and is_early else done
        return Looks(planned=max(1, planned)), not is_early
    last = looks[-1]
    is_stopped = stopped is not None and stopped.reason == "settled" and done <= last.pairs
    before = looks[:-1] if is_stopped else looks
    return Looks(pairs=tuple(each.pairs for each in before), planned=last.planned), not is_stopped


def estimate_ratios(cell: Cell, draw: Draw | None = None) -> Ratios:
    """Return the ratios of a cell in which both arms answered at least one common prompt.

    Args:
        draw: how its prompts were drawn; None: unknown.
    """
    paired = cell.paired
    design = Design.of(
        [(each.unit, each.block) for each in paired],
        places=None if draw is None else draw.places,
        clusters=None if draw is None else draw.clusters,
        routes=None if draw is None else draw.routes,
        population=0 if draw is None else draw.population,
    )

    def ratio(reading: Callable[[Timing], float | None]) -> RatioEstimate | None:
        return prompt_ratio(*_read(paired, reading), design)

    speedup = ratio(lambda timing: timing.tokens_per_s)
    tokens, seconds = _read(paired, lambda timing: timing.num_tokens), _read(paired, lambda timing: timing.e2e_s)
    total = total_ratio(tokens[0], seconds[0], tokens[1], seconds[1], design)
    assert speedup is not None, "a cell has a prompt that both arms answered"
    assert total is not None, "what has a speed-up has tokens and seconds"
    throughput = _estimate_throughput(cell, speedup, total)
    closed = isinstance(cell.condition.load, ClosedLoop)
    return Ratios(
        paired=paired,
        design=design,
        speedup=speedup,
        total=total,
        ttft=ratio(lambda timing: timing.ttft_s),
        tpot=ratio(lambda timing: timing.tpot_s),
        throughput=throughput,
        deciding=throughput if closed and throughput is not None else speedup,
    )


def _read(paired: Sequence[PairedRequest], reading: Callable[[Timing], float | None]) -> tuple[Array, Array]:
    """Return [N] a reading of every request on the candidate and on the baseline, NaN where it failed or has none."""

    def value(timing: Timing, error: str | None) -> float:
        found = None if error is not None else reading(timing)
        return float("nan") if found is None else found

    candidate = [value(each.candidate.timing, each.candidate.error) for each in paired]
    baseline = [value(each.baseline.timing, each.baseline.error) for each in paired]
    return np.array(candidate, dtype=np.float64), np.array(baseline, dtype=np.float64)


def _estimate_throughput(cell: Cell, speedup: RatioEstimate, total: RatioEstimate) -> RatioEstimate | None:
    """Return the ratio of the servers' output tokens per second, as sure as other prompts would leave it.

    The value is counted on the servers, turn by turn. How sure it is cannot be seen from a few turns of one and the
    same prompts; in a full closed loop it equals all tokens over all request seconds (Little's law: the requests in
    flight are given), whose uncertainty over prompts and paired blocks is known.
    """
    if cell.condition.concurrency == 1:
        return None
    sides = [
        (ours.per_s, theirs.per_s)
        for candidate, baseline in cell.pair_turns()
        if (ours := measure_output(cell.answers_by_turn[candidate.turn])) is not None
        and (theirs := measure_output(cell.answers_by_turn[baseline.turn])) is not None
        and ours.tokens
        and theirs.tokens
    ]
    if not sides:
        return None
    counted_T = np.array(sides, dtype=np.float64)
    server = server_ratio(counted_T[:, 0], counted_T[:, 1])
    wider = max(total.spread, server.spread, key=lambda each: each.variance)
    spread = replace(total.spread, variance=wider.variance, degrees=wider.degrees)
    return replace(server, spread=spread, log_by_prompt=speedup.log_by_prompt)


def _compare(run: Run, estimates: Estimates, lost: Sequence[LostPair], thresholds: Thresholds) -> ComparisonNumbers:
    """Return the numbers of a comparison.

    All intervals hold at whichever look it stopped; p-values are corrected for these looks.
    """
    cell, ratios, confidence = estimates.cell, estimates.ratios, 1 - estimates.level
    outlook = find_outlook(ratios.deciding, len(cell.repetitions), margin=thresholds.margin, alpha=estimates.level)
    goodput, change = _estimate_goodput(ratios, thresholds, confidence)
    counts = {each.name: each.population or len(each.prompts) for each in run.plan.workloads}
    differences, num_units = estimates.whole.differences, len(estimates.whole.units)
    comparison = Comparison(
        workload=cell.workload,
        candidate=cell.candidate,
        condition=cell.condition,
        num_prompts=len(cell.units),
        population=sum(counts[each] for each in cell.workloads),
        repetitions=cell.repetitions,
        speedup=ratios.speedup.interval(confidence),
        total=ratios.total.interval(confidence),
        ttft=_find_interval(ratios.ttft, confidence),
        tpot=_find_interval(ratios.tpot, confidence),
        guards=tuple(_list_guards(ratios, thresholds)),
        share_slower=_find_share_below(ratios.speedup, 1 - thresholds.margin),
        counters=cell.counters[cell.candidate],
        equal_outputs=None if differences is None else (num_units - len(differences), num_units),
        warm_speedup=estimates.warm_speedup,
        verdict=Verdict.INCONCLUSIVE,
        reason=None,
        throughput=_find_interval(ratios.throughput, confidence),
        percentiles=_estimate_percentiles(ratios, confidence),
        goodput=goodput,
        goodput_change=change,
        p_value=estimates.looks.adjust(outlook.p_value, estimates.done, is_end=estimates.is_end),
        detectable=outlook.detectable if math.isfinite(outlook.detectable) else None,
        prompts_needed=outlook.prompts,
        log_itself=_bound_log_itself(estimates),
    )
    return ComparisonNumbers(
        comparison=comparison,
        estimates=estimates,
        outlook=outlook,
        distinct=_count_distinct(run, cell),
        pace=_find_doubt_of_pace(run, cell, _find_claim(ratios)),
        lost=_sum_up(lost, run, estimates.whole),
        order_break=_find_order_break(estimates),
        left=_find_why_left(run, comparison.key, estimates.done),
    )


def _count_distinct(run: Run, cell: Cell) -> int:
    asked = {unit[:2] for unit in cell.units}
    prompts = [(each.name, prompt) for each in run.plan.workloads for prompt in each.prompts]
    return len({prompt.content for name, prompt in prompts if (name, prompt.id) in asked})


def _find_end(run: Run, key: tuple[str, str, str]) -> Settled | None:
    """Return the last word on why a cell was stopped: those that left for lack of time may have come back."""
    return next((each for each in reversed(run.settled) if each.key == key), None)


def _find_why_left(run: Run, key: tuple[str, str, str], done: int) -> str:
    """Return why a cell was not measured on; empty if it was, as there was time after all."""
    last = _find_end(run, key)
    if last is None or (last.reason == LeaveReason.NO_TIME and done > (last.blocks or done)):
        return ""
    return last.reason


def _bound_log_itself(estimates: Estimates) -> Interval | None:
    """Return the interval for the prompts of the log themselves: of one workload, with a single request in flight."""
    cell, draw = estimates.cell, estimates.draw
    if draw is None or draw.clusters is not None or cell.condition.concurrency != 1:
        return None
    return bound_log_itself(estimates.ratios.speedup, _compare_again(cell), draw.population)


def _find_order_break(estimates: Estimates) -> tuple[int, OrderBreak] | None:
    """Return from which row of the log on its prompts gain otherwise."""
    rows, logs = estimates.draw.rows if estimates.draw is not None else None, estimates.ratios.speedup.log_by_prompt
    if rows is None or estimates.cell.condition.concurrency != 1 or not logs.keys() <= rows.keys():
        return None
    ordered = sorted(logs, key=lambda unit: rows[unit])
    found = find_order_break(np.array([logs[unit] for unit in ordered]))
    return None if found is None else (rows[ordered[found.place - 1]], found)


def _find_claim(ratios: Ratios) -> float:
    """Return the logarithm of what decoding has of the deciding ratio: first tokens are judged by themselves."""
    whole = ratios.deciding.log
    if ratios.tpot is None or ratios.throughput is not None:
        return whole
    return min(max(-ratios.tpot.log, min(0.0, whole)), max(0.0, whole))


def _find_doubt_of_pace(run: Run, cell: Cell, claimed: float) -> PaceDoubt | None:
    """Return which of the two servers changed its pace in the course of the run, by its own decoding steps or by
    prompts that were asked again; None where neither did.

    Where arrivals do not wait the pace is that of bursts, which are part of that load.
    """
    if cell.condition.concurrency is None:
        return None
    times, paces = _read_paces(run, cell)
    for own, name in enumerate((cell.baseline, cell.candidate)):
        if change := find_pace_change(paces[own], paces[1 - own], claimed=claimed):
            return PaceDoubt(arm=name, ratio=change.ratio, share=change.place / len(times))
    slower = int(claimed < 0)
    # A baseline that is faster part of the time may answer from a cache: without drafts all its steps are alike.
    for own in sorted({0, slower}):
        waves = find_waves(paces[own], paces[1 - own], claimed=abs(claimed))
        if ratio := waves or find_unrest(*_read_requests(cell, own), claimed=abs(claimed)):
            return PaceDoubt(arm=(cell.baseline, cell.candidate)[own], ratio=ratio, share=None, in_spells=True)
    gaps = [(_read_gaps(each.baseline, 1), _read_gaps(each.candidate, 2)) for each in cell.paired]
    if ratio := find_pauses(*([each[arm] for each in gaps] for arm in (slower, 1 - slower)), claimed=abs(claimed)):
        return PaceDoubt(arm=(cell.baseline, cell.candidate)[slower], ratio=ratio, share=None, in_spells=True)
    drift = find_drift_apart(paces[1], paces[0], times, claimed=claimed)
    if change := drift or find_split_apart(paces[1], paces[0], claimed=claimed):
        arm, ratio = (cell.candidate, change.ratio) if change.ratio > 1 else (cell.baseline, 1 / change.ratio)
        return PaceDoubt(arm=arm, ratio=ratio, share=None if drift else change.place / len(times), is_relative=True)
    if slowed := _find_slowed(run, cell, paces, claimed):
        return slowed
    moved = _compare_again(cell)
    return PaceDoubt(arm="", ratio=math.exp(fmean(moved)), share=None) if has_moved(moved) else None


def _find_slowed(run: Run, cell: Cell, paces: tuple[Array, Array], claimed: float) -> PaceDoubt | None:
    """Return which server, more than the other, takes longer for warm-up prompts at the end of the run than before."""
    arms, taken = (cell.baseline, cell.candidate), group_by(lambda each: (each.arm, each.is_late), run.warm_paces)
    if len(paces[0]) < 2:
        return None
    if claimed < 0 and (quick := _find_quick(run, cell, paces, claimed)):
        return quick
    logs = {key: math.log((max if key[1] else min)(each.seconds for each in mine)) for key, mine in taken.items()}
    by_arm = {arm: logs[arm, True] - logs[arm, False] for arm, is_late in logs if is_late and (arm, False) in logs}
    if not by_arm.keys() >= {*arms}:
        return None
    changes = [by_arm[arm] for arm in arms]
    error = max(find_step_noise(paces[1] - paces[0]), find_warm_noise([*by_arm.values()]))
    for own, arm in enumerate(arms):
        if has_slowed(changes[own], changes[1 - own], error, claimed=claimed):
            ratio = math.exp(changes[own] - changes[1 - own])
            return PaceDoubt(arm=arm, ratio=ratio, share=0.0, is_relative=True)
    return None


def _find_quick(run: Run, cell: Cell, paces: tuple[Array, Array], claimed: float) -> PaceDoubt | None:
    """Return that the baseline's steps, and not the candidate's, take less time than for short warm-up prompts: a cache
    answers for it."""
    if cell.condition.concurrency != min(each.concurrency or math.inf for each in run.conditions):
        return None
    saved = []
    for arm, per_step in ((cell.baseline, 1.0), (cell.candidate, cell.counters[cell.candidate].tokens_per_step)):
        warm = [each.seconds for each in run.warm_paces if each.arm == arm]
        answers = [each for turn in cell.turns if turn.arm == arm for each in cell.answers_by_turn[turn.turn]]
        pace = _read_pace(answers, per_step)
        if not warm or pace is None:
            return None
        saved.append(math.log(min(warm)) - pace)
    if not has_slowed(saved[0], saved[1], find_step_noise(paces[1] - paces[0]), claimed=claimed):
        return None
    return PaceDoubt(arm=cell.baseline, ratio=math.exp(saved[1] - saved[0]), share=0.0, is_relative=True)


def _read_paces(run: Run, cell: Cell) -> tuple[Array, tuple[Array, Array]]:
    """Return [T] when paired blocks began, and [T] logarithms of both arms' seconds per decoding step in them.

    All workloads under the condition tell of a server's pace, each as far as it is from its own mean. A step that
    drafts more takes longer: that is no pace.
    """
    answers = group_by(lambda answer: answer.turn, run.answers)
    blocks: dict[tuple[object, ...], dict[str, TurnRecord]] = {}
    for turn in run.turns:
        if turn.condition == cell.condition.label and turn.arm in (cell.baseline, cell.candidate):
            blocks.setdefault(turn.attempt_key, {})[turn.arm] = turn
    rows = []
    for pair in blocks.values():
        if len(pair) == 2:
            paces = [
                _read_pace(
                    answers.get(pair[arm].turn, ()),
                    1.0 if arm == cell.baseline else pair[arm].counters.tokens_per_step,
                )
                for arm in (cell.baseline, cell.candidate)
            ]
            if None not in paces:
                drafting = pair[cell.candidate]
                rows.append((drafting.turn, drafting.workload, *paces, _count_drafts(drafting.counters)))
    rows.sort()
    kinds = np.array([row[1] for row in rows])
    read_CT = np.array([row[2:] for row in rows], dtype=np.float64).reshape(-1, 3).T
    for kind in dict.fromkeys(kinds.tolist()):
        mine_T = kinds == kind
        read_CT[:, mine_T] -= read_CT[:, mine_T].mean(axis=1, keepdims=True)
    plain_T, candidate_T, drafts_T = read_CT
    # From one block to the next, so that what changes with time stays a change of pace.
    more_T, slower_T = np.diff(drafts_T), np.diff(candidate_T)
    longer = min(_MOST_LONGER, max(0.0, float(more_T @ slower_T)) / max(float(more_T @ more_T), _ROUNDING))
    return np.array([row[0] for row in rows], dtype=np.float64), (plain_T, candidate_T - longer * drafts_T)


def _count_drafts(counters: Counters) -> float:
    """Return the draft tokens of a step."""
    return counters.spec.num_draft_tokens / max(
        1, (counters.generation_tokens or 0) - counters.spec.num_accepted_tokens
    )


def _read_requests(cell: Cell, slower: int) -> tuple[Array, Array, Array | None]:
    """Return [N] logarithms of the seconds per decoding step of requests to the slower arm and to the other one, and
    [N, C] what the former depend on, if it drafts: a step that drafts more takes longer.

    Under a load a turn is the mean of its requests, and hides how unlike they are.
    """
    counters = {turn.turn: turn.counters for turn in cell.turns}
    rows: dict[str, list[tuple[float, ...]]] = {}
    for each in cell.paired:
        mine, timing = counters[each.candidate.turn], each.candidate.timing
        is_alone = len(cell.answers_by_turn[each.candidate.turn]) == 1
        plain = _read_pace((each.baseline,), 1.0)
        drafting = _read_pace((each.candidate,), mine.tokens_per_step if is_alone else None)
        if plain is not None and drafting is not None:
            drafted = _count_drafts(mine)
            paces = (drafting, plain) if slower else (plain, drafting)
            rows.setdefault(each.unit[0], []).append((*paces, drafted, timing.num_tokens / len(timing.chunks)))
    by_kind = [np.array(found) - np.mean(found, axis=0) for found in rows.values()]
    found_NC = np.concatenate(by_kind) if by_kind else np.zeros((0, 4))
    return found_NC[:, 0], found_NC[:, 1], found_NC[:, 2:] if slower else None


def _read_pace(answers: Sequence[Answer], per_step: float | None) -> float | None:
    """Return the logarithm of the seconds per decoding step of answers; None where nothing was decoded.

    Args:
        answers: of a turn.
        per_step: tokens of a step, where a server counts its drafts; None: what arrives at once is taken for a step.
            Without drafts each token is one: several arrive at once where the client stalls.
    """
    whole = [each for each in answers if each.error is None and len(each.timing.chunks) > 1]
    seconds = sum(each.timing.chunks[-1][0] - each.timing.chunks[0][0] for each in whole)
    tokens = sum(each.timing.num_tokens - each.timing.chunks[0][1] for each in whole)
    steps = tokens / per_step if per_step else sum(each.steps[0] for each in whole)
    return math.log(seconds / steps) if seconds > 0 and steps > 0 else None


def _read_gaps(answer: Answer, least: int) -> Array:
    """Return the seconds before each arrival of `least` tokens or more. Arrivals at once with another one do not count.

    A step that verifies drafts takes longer, and one that brought a single token may not have.
    """
    times, counts = np.array(answer.timing.chunks, dtype=np.float64).reshape(-1, 2).T
    gaps = np.diff(times)
    if answer.error is not None or not len(gaps):
        return np.zeros(0)
    kept: Array = gaps[(gaps > _AT_ONCE * gaps.mean()) & ((counts[1:] >= least) | (not answer.counts_exact))]
    return kept


def _compare_again(cell: Cell) -> list[float]:
    """Return by how much (log) prompts that came back gained otherwise the last time than the first: the mean of those
    whose last time was in the same turn."""
    gains: dict[Unit, list[float]] = {}
    turns: dict[Unit, int] = {}
    for each in sorted(cell.paired, key=lambda pair: pair.candidate.turn):
        ours, theirs = each.candidate.timing.tokens_per_s, each.baseline.timing.tokens_per_s
        if ours and theirs and each.candidate.error is None and each.baseline.error is None:
            gains.setdefault(each.unit, []).append(math.log(ours / theirs))
            turns[each.unit] = each.candidate.turn
    moved: dict[int, list[float]] = {}
    for unit, mine in gains.items():
        if len(mine) > 1:
            moved.setdefault(turns[unit], []).append(mine[-1] - mine[0])
    return [fmean(each) for each in moved.values()]


def _sum_up(of_run: Sequence[LostPair], run: Run, cell: Cell) -> PairLoss | None:
    lost = [
        each
        for each in of_run
        if (each.candidate, each.block[1]) == (cell.candidate, cell.condition.label) and each.block[0] in cell.workloads
    ]
    if not lost:
        return None
    place = (cell.candidate, cell.condition.label)
    mine = (turn for turn in run.turns if (turn.arm, turn.condition) == place and turn.workload in cell.workloads)
    left = {turn.block_key for turn in mine}
    return PairLoss(count=len(lost), of=len(lost) + len(left), reason=lost[0].reason)


def _find_interval(estimate: RatioEstimate | None, confidence: float) -> Interval | None:
    return None if estimate is None else estimate.interval(confidence)


def _find_share_below(estimate: RatioEstimate, ratio: float) -> float:
    """Return the share of the prompts whose own ratio lies below a ratio."""
    logs = estimate.log_by_prompt.values()
    return sum(math.exp(log) < ratio for log in logs) / len(logs)


def _estimate_goodput(
    ratios: Ratios, thresholds: Thresholds, confidence: float
) -> tuple[tuple[float, float] | None, Interval | None]:
    """Return the shares of the requests within the SLO (baseline, candidate), and candidate minus baseline of them.

    None without an SLO.
    """
    if not thresholds.has_slo:
        return None, None
    candidate_N = np.array([float(keeps_promise(each.candidate, thresholds)) for each in ratios.paired])
    baseline_N = np.array([float(keeps_promise(each.baseline, thresholds)) for each in ratios.paired])
    change = goodput_change(candidate_N, baseline_N, ratios.design, confidence=confidence)
    return (float(baseline_N.mean()), float(candidate_N.mean())), change


def _estimate_percentiles(ratios: Ratios, confidence: float) -> dict[str, dict[int, Interval]]:
    """Return candidate over baseline of P50 to P99 over requests, by latency; those that can be bounded."""
    found = {}
    known = [each for each in PERCENTILES if len(ratios.paired) >= FEWEST_FOR[each]]
    sides = [each.candidate for each in ratios.paired], [each.baseline for each in ratios.paired]
    for name, reading in LATENCIES.items():
        candidate, baseline = ([_read_latency(answer, reading) for answer in side] for side in sides)
        if percentiles := percentile_ratios(
            candidate, baseline, ratios.design, percentiles=known, confidence=confidence
        ):
            found[name] = percentiles
    return found


def _read_latency(answer: Answer, reading: Callable[[Timing], Sequence[float | None]]) -> list[float]:
    return [] if answer.error is not None else [value for value in reading(answer.timing) if value is not None]


def _list_guards(ratios: Ratios, thresholds: Thresholds) -> Iterator[GuardedHarm]:
    """Yield what is known of harm that a gain may hide; where the operator promised latencies, those are judged."""
    if thresholds.has_slo:
        return
    if ratios.ttft is not None:
        yield _tell("first token", guard_delay(ratios.ttft, thresholds.ttft_damage))
    sides = _read(ratios.paired, lambda timing: timing.tpot_s)
    tail = guard_tail(*(side[np.isfinite(side)] for side in sides))
    if tail is not None:
        yield _tell("tail", tail)


def _tell(of: str, reading: GuardReading) -> GuardedHarm:
    return GuardedHarm(
        of=of, answer=str(reading.answer), value=reading.value, count=reading.count, needed=reading.needed
    )


def _correct_for_number(found: Sequence[ComparisonNumbers], thresholds: Thresholds) -> list[ComparisonNumbers]:
    """Return the comparisons with what they say corrected for the others of the run.

    A gain is tested against the margin, a loss against 1, each as one of a family: it is what is printed that is rarely
    false. Pooled rows are a family of their own: they repeat what the others say, and would only make them weaker.
    """
    corrected = list(found)
    for pooled in (False, True):
        places = [place for place, each in enumerate(found) if (each.comparison.workload == ALL) is pooled]
        sides = [
            adjust_family([_test(found[place].estimates, 1 + thresholds.margin, gains=True) for place in places]),
            adjust_family([_test(found[place].estimates, 1.0, gains=False) for place in places]),
        ]
        for number, place in enumerate(places):
            comparison, estimates, family = found[place].comparison, found[place].estimates, len(places)
            leader = _find_leader(found[place], [found[each] for each in places])
            ratios, looks, done = estimates.ratios, estimates.looks, estimates.done
            corrected[place] = replace(
                found[place],
                comparison=replace(comparison, adjusted_p=sides[comparison.deciding.value < 1][number]),
                promise=_estimate_goodput(ratios, thresholds, 1 - estimates.level / family)[1],
                conclusion=settle(ratios.deciding, looks, done, margin=thresholds.margin, family=family),
                behind=_find_better(found[place], leader),
                leader=leader.comparison.candidate,
            )
    return corrected


def _test(estimates: Estimates, ratio: float, *, gains: bool) -> float:
    """Return twice the one-sided p-value of no gain beyond a ratio, or of no loss, corrected for looks."""
    p = estimates.ratios.deciding.p_above(ratio)
    return estimates.looks.adjust(2 * (p if gains else 1 - p), estimates.done, is_end=estimates.is_end)


def _find_leader(mine: ComparisonNumbers, others: Sequence[ComparisonNumbers]) -> ComparisonNumbers:
    place = (mine.comparison.workload, mine.comparison.condition)
    here = [each for each in others if (each.comparison.workload, each.comparison.condition) == place]
    return max(here, key=lambda each: each.comparison.deciding.value)


def _find_better(mine: ComparisonNumbers, best: ComparisonNumbers) -> Better | None:
    """Return the candidate that is ahead of this one on the same prompts; None where that may be chance, and the race
    did not show it either."""
    if best.comparison.deciding.value <= mine.comparison.deciding.value:
        return None
    logs = (each.estimates.ratios.deciding.log_by_prompt for each in (best, mine))
    lead = find_lead(*logs, is_shown=mine.left == "behind")
    return None if lead is None else Better(candidate=best.comparison.candidate, ratio=lead[0], count=lead[1])
