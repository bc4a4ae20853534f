"""A fleet: every service that a Prometheus recorded, from its counters at two times and its run's numbers.

Labels set by `draftwise deploy` distinguish services: namespace, service, pool and revision. Without a `service` label,
the model name or the job stands in.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import exp

from draftwise.core import (
    Baseline,
    Condition,
    Counters,
    Diagnosis,
    Expected,
    Finding,
    OpenLoop,
    Relation,
    Rollback,
    RollbackBasis,
    Severity,
    SpecConfig,
    SpecStats,
    Window,
)
from draftwise.core.grouping import group_by
from draftwise.knowledge.messages import fault
from draftwise.knowledge.signals import LOAD_SIGNALS, TOKENS_PER_STEP
from draftwise.watching.prometheus import (
    COPIES,
    MOVES,
    MUTE,
    NEVER,
    PLACE,
    RESTARTS,
    TURNS,
    PrometheusApi,
    Selection,
    Series,
    alternates,
    ask_unknown,
    contradicts,
    leave_out_copies,
    leave_unknown,
    list_targets,
    nameless,
    put_together,
    select,
    tell_copied,
    tell_mute,
    tell_unread,
)
from draftwise.watching.stalls import HUNG, Stalls, tell_hung_or_copied
from draftwise.watching.watcher import PLAIN, Look, find_renamed, grow, tell_several, unread
from draftwise.watching.yardstick import Yardstick

_KEPT = (
    *(*PLACE, "namespace", "service", "revision", "job", "model_name"),
    *("engine", "ReplicaId", "position", "sleep_state"),
)
"""Labels that distinguish services, servers and readings. Others only make the answer longer."""
_CONSTANTS = (
    *("draftwise:breakeven_tokens_per_step", "draftwise:expected_tokens_per_step", "draftwise:expected_coverage"),
    *("draftwise:crossover_in_flight", "draftwise:configured_k"),
)
"""Series that the rules of `draftwise deploy` record from a run, by service and revision."""
_HEAVY = frozenset({"at_most", "adapters", "cache_dtype"})
"""Readings to leave out: histograms have as many series as all others together."""
_DOWN = "max by (instance) (max_over_time(up[2m])) == 0"
"""Query: targets that were not scraped for two minutes."""
_STOOD_S = 120
"""Seconds without a token after which an engine counts as hung."""
_ENGINES = "sum by (namespace, service, pool, instance, engine)"
_MANY = 10**6
"""Steps of the window that represents a run with only ratios recorded."""
ServiceName = tuple[str, str]
"""Namespace and service."""
_Constants = Mapping[tuple[str, str], Mapping[str, float]]
"""Recorded values of a run, by service and revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetService:
    """One service of a fleet."""

    name: ServiceName
    model: str
    windows: tuple[Window, ...]
    """One per engine."""
    yardstick: Yardstick
    found: tuple[Diagnosis, ...]

    @property
    def cost(self) -> float | None:
        """Cost of the most expensive finding, in servers; None if no loss is known."""
        losses = [each.loss for each in self.found if not each.follows_from and each.loss]
        servers = len({window.instance for window in self.windows if window.pool != PLAIN})
        return servers * (1 - exp(-max(losses))) if losses else None

    @property
    def gravity(self) -> int:
        """Severity of the worst independent finding: 3 error, 2 warning, 1 note, 0 none."""
        ranks = {Severity.ERROR: 3, Severity.WARNING: 2, Severity.INFO: 1}
        return max((ranks[each.severity] for each in self.found if not each.follows_from), default=0)


def name_service(labels: Mapping[str, str]) -> ServiceName:
    """Return the service of a series."""
    name = labels.get("service") or labels.get("model_name") or labels.get("job", "")
    return labels.get("namespace", ""), name


async def list_services(api: PrometheusApi, selection: Selection) -> list[ServiceName]:
    """Return the services recorded in the last minutes.

    Raises:
        BackendError: Prometheus does not answer.
    """
    counter = select(selection, {"generation_tokens"})
    series = await api.query(f"count by (namespace, service, model_name, job) ({counter})")
    labels = [each["metric"] for each in series]
    told = [each for each in labels if each.get("service")]
    return sorted({name_service(each) for each in told or labels})


async def see_fleet(
    api: PrometheusApi, selection: Selection, *, now_s: float, span_s: float
) -> tuple[FleetService, ...]:
    """Return the state of every service in the last minutes, most expensive first, then those of unknown cost.

    `now_s` is of this machine: the time of Prometheus counts where it tells it.

    Raises:
        BackendError: Prometheus does not answer.
    """
    if told := await api.query("vector(time())"):
        now_s = float(told[0]["value"][1])
    counters = f"max by ({', '.join(_KEPT)}) ({select(selection, without=_HEAVY)})"
    tokens = select(selection, {"generation_tokens"})
    of_services = f" and on (job, instance) {tokens}"
    start = f"process_start_time_seconds[{span_s:.0f}s]"
    present = (
        f"process_start_time_seconds{of_services}",
        f'{{__name__=~"{"|".join(_CONSTANTS)}"}}',
        TURNS.format(start) + of_services,
        MOVES.format(start) + of_services,
        RESTARTS + of_services,
        _DOWN,
        NEVER.format(selection.of_targets, "instance, service, namespace", span_s),
        MUTE.format(selection.of_targets, "instance, service, namespace", tokens),
        _ask_stalls(selection),
        COPIES + of_services,
    )
    looked, unknown, answers, _ = await asyncio.gather(
        api.query_range(counters, start_s=now_s - span_s, end_s=now_s, step_s=span_s),
        ask_unknown(api, selection),
        asyncio.gather(*(api.query(each, at_s=now_s) for each in present)),
        asyncio.to_thread(import_module, "draftwise.watching.diagnose"),  # while Prometheus works
    )
    starts, constants, turns, moves, again, down, never, up, stood, copies = answers
    began, known = group_by(lambda each: each["metric"].get("instance"), starts), _read_constants(constants)
    faults = {
        name: fault("engine-dies", case="restarts", where=name, count=count, span="an hour")
        for (_, name), count in list_targets(again, lambda count: 2 < count < 3600).items()
    }
    faults[""] = unread(api.url, nameless(api.url))
    for labels, count in ((each["metric"], float(each["value"][1])) for each in stood if "value" in each):
        if 1 <= count < _MANY and (name := labels.get("instance", "")) not in faults:
            engine = f", engine {labels['engine']}" if labels.get("engine") else ""
            stands = f"but has generated no token for {_STOOD_S} s at least."
            text = f"{name}{engine} has {count:.0f} requests in flight, {stands}"
            hung = fault("engine-hung", text=text, where=name)
            faults[name] = hung if name in began else tell_hung_or_copied(hung)
    for _, name in list_targets(turns, lambda count: 0 < count < span_s):
        faults[name] = tell_several(name, is_start=False)
    for _, name in list_targets(copies, lambda changes: changes == 0):
        faults[name] = tell_copied(api.url, name)
    for _, name in list_targets(down, lambda value: value == 0):
        faults[name] = tell_unread(api.url, name)
    moved = list_targets(moves, lambda seconds: seconds > 0)
    groups, shown = _group(looked), {each["metric"].get("instance") for each in looked}
    for _, name in list_targets(
        (each for each in up if each["metric"].get("instance") not in shown), lambda on: on == 1
    ):
        faults[name] = tell_mute(api.url, name)
    for labels in (each["metric"] for each in (*never, *up) if each["metric"].get("instance") in faults.keys() - shown):
        groups[name_service(labels)].append({"metric": {**labels, "__name__": "up"}, "values": ()})
    services = [_judge(*each, began, known, faults, unknown, moved, now_s - span_s) for each in groups.items()]
    return tuple(sorted(services, key=lambda each: (-(each.cost or 0.0), -each.gravity, each.name)))


def _ask_stalls(selection: Selection) -> str:
    """Return the query for engines that had requests in the last minutes, and made neither a token nor a step."""

    def write(function: str, reading: str) -> str:
        return f"{_ENGINES} ({function}({select(selection, {reading})}[{_STOOD_S}s]))"

    in_flight = " or ".join(f"{write('min_over_time', each)} >= 1" for each in ("running", "waiting"))
    steps = write("increase", "engine_steps")
    keys = _ENGINES.removeprefix("sum by ")
    return f"({in_flight}) and on {keys} {write('increase', 'generation_tokens')} == 0 unless on {keys} {steps} > 0"


def _pair(looks: Sequence[Look], since_s: float) -> Sequence[Look]:
    """Return looks at the two ends; of a server that has begun since, what it counted since then."""
    only = looks[0]
    if len(looks) == 1 and only.started_s is not None and since_s < only.started_s < only.at_s:
        return (replace(only, at_s=only.started_s, clock_s=only.started_s, started_s=0.0), only)
    return looks


def _group(looked: Sequence[Series]) -> dict[ServiceName, list[Series]]:
    """Return the series of each service; targets that are scraped twice count once."""
    groups: dict[ServiceName, list[Series]] = defaultdict(list)
    for each in leave_out_copies(looked):
        groups[name_service(each["metric"])].append(each)
    return groups


def _judge(
    name: ServiceName,
    series: Sequence[Series],
    starts: Mapping[str, Sequence[Series]],
    constants: _Constants,
    faults: Mapping[str, Finding],
    unknown: Mapping[tuple[str, str], tuple[str, ...]],
    moved: Mapping[tuple[str, str], float],
    since_s: float,
) -> FleetService:
    from draftwise.watching.diagnose import PoolExpectation, SideInfo, diagnose

    instances = {each["metric"].get("instance", "") for each in series}
    instances = instances - {""} or instances
    began = [start for instance in instances for start in starts.get(instance, ())]
    pages = leave_unknown(put_together(series, began), unknown)
    several = {each[0].instance: False for each in pages if alternates(each)}
    several |= {each[0].instance: True for each in pages if contradicts(each, moved)}
    ill = [faults[each] for each in sorted(instances & faults.keys())]
    odd = sorted(instances & several.keys() - faults.keys())
    ill += [tell_several(each, is_start=several[each]) for each in odd]
    ill += find_renamed(each[-1] for each in pages if each[-1].instance in instances - several.keys())
    hidden = several.keys() | {instance for instance, each in faults.items() if each.code not in ("engine-dies", HUNG)}
    pairs = [_pair(each, since_s) for each in pages]
    looks = [each for each in pairs if len(each) == 2 and each[-1].instance not in hidden]
    windows = tuple(window for before, after in looks for window in grow(before, after))
    stalls = Stalls()
    stalls.add(windows)
    ill += stalls.find_silent()
    told = [
        Diagnosis(**{name: getattr(each, name) for name in ("code", "severity", "message", "where", "fix")})
        for each in ill
    ]
    revisions = {window.revision for window in windows}
    said = [constants.get((name[1], revision)) for revision in revisions]
    known = next((each for each in said if each is not None), {}) if sum(each is not None for each in said) == 1 else {}
    yardstick = Yardstick(baseline=_make_baseline(known) if known else None)
    k = known.get("draftwise:configured_k")
    asked = SideInfo(spec=None if k is None else SpecConfig(num_speculative_tokens=round(k)))
    pools: dict[str, list[Window]] = defaultdict(list)
    for window in windows:
        pools[window.pool].append(window)
    plain = pools.pop(PLAIN, [])
    if not windows and not told:
        pools["spec"] = []  # which had data, and has none now
    return FleetService(
        name=name,
        model=next((each["metric"]["model_name"] for each in series if "model_name" in each["metric"]), ""),
        windows=windows,
        yardstick=yardstick,
        found=(*told, *diagnose(pools, PoolExpectation(yardstick=yardstick), plain, asked)),
    )


def _read_constants(constants: Sequence[Series]) -> _Constants:
    """Return what was recorded of runs, by service and revision; not what is recorded twice with two values."""
    known: dict[tuple[str, str], dict[str, set[float]]] = defaultdict(lambda: defaultdict(set))
    for each in constants:
        labels = each["metric"]
        known[labels.get("service", ""), labels.get("revision", "")][labels["__name__"]].add(float(each["value"][1]))
    return {
        place: {record: next(iter(values)) for record, values in records.items() if len(values) == 1}
        for place, records in known.items()
    }


def _make_baseline(known: Mapping[str, float]) -> Baseline:
    """Return what a run found, as far as its ratios were recorded."""
    even, tokens, coverage, crossover, k = (known.get(record) for record in _CONSTANTS)
    condition = Condition(load=OpenLoop.steady(1.0))
    rules = (
        (TOKENS_PER_STEP.name, RollbackBasis.BREAK_EVEN, Relation.BELOW, even),
        (LOAD_SIGNALS["concurrency"].name, RollbackBasis.BAND_END, Relation.ABOVE, crossover),
    )
    expected = None
    if tokens is not None and coverage is not None and k is not None:
        drafts, accepted = round(coverage * _MANY), round((tokens - 1) * _MANY)
        stats = SpecStats(
            num_drafts=drafts, num_draft_tokens=round(k * drafts), num_accepted_tokens=accepted, accepted_per_pos=()
        )
        counters = Counters(spec=stats, generation_tokens=_MANY + accepted)
        expected = Expected(workload="", condition=condition, counters=counters)
    rollback = tuple(
        Rollback(workload="", arm="spec", metric=metric, relation=relation, value=value, for_s=0.0, basis=basis,
                 condition=condition)
        for metric, basis, relation, value in rules if value is not None
    )  # fmt: skip
    return Baseline(setup_sha256="", arm="spec", expected=expected, rollback=rollback)
