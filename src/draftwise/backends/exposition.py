"""Parses Prometheus text: counters of work done, gauges of load."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from draftwise.core import Counters, ServerLoad, SpecStats, Sums
from draftwise.knowledge.metrics import CACHE_CONFIG, KnownSample, counts_drafts, find_sample

_STARTS = tuple(
    re.compile(rf"^{name}(?:\{{[^}}]*\}})? (\S+)", re.MULTILINE)
    for name in ("process_start_time_seconds", r"(?:\w+_)?vllm[:_]generation_tokens_created")
)
"""Start of the process, else of its counters: proxies and exporters may drop metrics that are not vLLM's."""
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SAMPLE = re.compile(r'[\w:.]+\s*(?:\{([^"}]*(?:"(?:[^"\\]|\\.)*"[^"}]*)*)\})?\s*(\S+)')
"""Labels and value, optionally followed by a timestamp or an OpenMetrics exemplar."""
_ENGINE_LABELS = ("instance", "ReplicaId", "engine")
"""Labels of a server on a collector's page, and of a rank in Ray and vLLM. (SGLang counts tokens over all ranks.)"""
_TOLD_BY_LABELS = frozenset({"sleeping", "adapters", "cache_dtype"})
_SUMS = tuple(each.name for each in fields(Sums))
_OF_DRAFTS = frozenset({"num_drafts", "num_draft_tokens", "num_accepted_tokens"})
DRAFT_NAMES = r"([\w:.]*[_:.])?vllm[_:.][\w:.]*(spec|draft|accept)[\w:.]*"
"""Possible names of draft counters, also in unknown releases and spellings."""
_CREATED = re.compile("[_.]created$")
_QUOTED = re.compile(r'^\{"([^"\\]+)"\s*,?\s*', re.MULTILINE)
"""Prometheus 3 writes names with dots in quotation marks, as the first label."""
_DEEP = re.compile(r'^\S*per_pos[^\n]*\bposition="\d{3,}"[^\n]*\n?', re.MULTILINE)
"""Draft positions from 100 on, which are left out: a page with thousands of them is read in bounded time."""
_DEEP_POSITION = re.compile(r'position="\d{3}')
"""Without it on a page there is no deep position: a server is scraped all the time, and its pages are long."""
_KINDS: Mapping[str, Mapping[str, str]] = {
    "ended": {"abort": "aborted", "error": "failed", "length": "capped", "repetition": "capped"},
    "answered": {"4": "refused", "5": "broken"},
}
"""Names that have several readings, by their labels."""
_OF_SERVER = frozenset({"refused", "broken"})
"""Counters of the server, without an engine label, that appear only once nonzero."""
_UNTOLD = frozenset({"waiting", "kv_usage", *_TOLD_BY_LABELS, *_OF_SERVER})
"""Readings that may be absent from a process's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One reading of an engine's metrics: counters since its start, current gauges."""

    engine: str
    """The engine's label; empty without one."""
    counters: Counters
    load: ServerLoad
    sums: Sums
    counts_drafts: bool | None
    """Whether draft counters exist; None if their absence means nothing."""
    sleeping: bool | None
    """Whether the engine is asleep; None if not reported."""
    adapters: Mapping[str, float]
    """Last time each LoRA adapter was seen running, in seconds since the epoch."""
    cache_dtype: str | None
    model: str = ""
    """Name that the server gives its model; empty where it gives none."""
    slower_than: tuple[tuple[float, float], ...] = ()
    """(edge in seconds, requests with a longer mean time per output token). The edge 0 counts all requests."""
    is_sparse: bool = False
    """Whether a counter is shown from its first increment on only."""
    tells_acceptance: bool | None = True
    """Whether accepted tokens are counted; None if counters exist that may stay at zero without speculation."""
    told: frozenset[str] = frozenset()
    """Readings on the page of a server that always shows all counters; empty for others."""


def parse_counters(text: str) -> Counters:
    """Return the counters of a /metrics page, summed over engines. Absent ones are None or zero."""
    return parse_load_and_counters(text)[1]


Sample = tuple[KnownSample, str, float]
"""(meaning, labels, value)."""


def parse_engines(text: str) -> tuple[EngineReading, ...]:
    """Return the reading of each engine on a /metrics page, in one pass; empty if no sample is known."""
    server = find_engine(text)
    found = () if server is None else gather_engines(_samples(text), server)
    if any(each.counts_drafts is False for each in found) and find_unknown(text):
        return leave_drafts_unknown(found)
    return found


def leave_drafts_unknown(engines: Iterable[EngineReading]) -> tuple[EngineReading, ...]:
    """Return the readings with a missing draft counter treated as unknown."""
    return tuple(
        each if each.counts_drafts else replace(each, counts_drafts=None, tells_acceptance=False) for each in engines
    )


def find_unknown(text: str) -> tuple[str, ...]:
    """Return metric names about drafts on a page that no known release has."""
    return leave_out_known(name for name, _ in _list_lines(text) if re.fullmatch(DRAFT_NAMES, name))


def leave_out_known(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name that no known release has, once. Ignores creation timestamps of series."""
    return tuple(dict.fromkeys(each for each in names if find_sample(each) is None and not _CREATED.search(each)))


def gather_engines(samples: Iterable[Sample], server: str) -> tuple[EngineReading, ...]:
    """Return the reading of each engine from one page's samples.

    Args:
        samples: all known samples of the page.
        server: engine that the metrics belong to.
    """
    found = _gather(samples, apart=True)
    shared = found.pop("") if len(found) > 1 and "" in found else _EngineSamples()  # vLLM's adapters name no engine
    for number, engine in enumerate(sorted(found)):
        found[engine].take_shared(shared, is_first=not number)
    return tuple(each.to_reading(engine, server) for engine, each in sorted(found.items()))


def parse_start(text: str) -> float | None:
    """Return the start of the process in seconds since the epoch (a default of Prometheus clients); None if absent."""
    found = next(filter(None, (each.search(text) for each in _STARTS)), None)
    return None if found is None else _number(found[1])


def parse_gauges(text: str) -> ServerLoad:
    """Return a server's load: requests summed over engines, and the KV usage of the fullest engine."""
    return parse_load_and_counters(text)[0]


def parse_load_and_counters(text: str) -> tuple[ServerLoad, Counters]:
    """Return the results of `parse_gauges` and `parse_counters` in one pass."""
    gathered = _gather(_samples(text), apart=False).get("", _EngineSamples())
    return gathered.to_load(), gathered.to_counters()


def find_engine(text: str) -> str | None:
    """Return the engine that the metrics belong to; None if no sample is known."""
    known = (find_sample(name) for name, _ in _list_lines(text))
    return next((each.server for each in known if each is not None and each.server), None)


def has_spec_counters(text: str) -> bool:
    """Return whether the server has draft counters. vLLM has them exactly if it speculates."""
    return any(known.reading == "num_drafts" for known, *_ in _samples(text))


def parse_cache_tokens(text: str) -> int | None:
    """Return the capacity of vLLM's KV cache in tokens, summed over engines, from the labels of its config metric.

    Older releases report only blocks and block size, which overstates the capacity if layers keep different amounts.
    None if not reported.
    """
    total = 0
    for line in text.splitlines():
        if line.startswith(CACHE_CONFIG):
            labels = dict(_LABEL.findall(line))
            given = labels.get("kv_cache_size_tokens", "None")
            blocks, size = (labels.get(name, "None") for name in ("num_gpu_blocks", "block_size"))
            if _is_number(given, digits=15):
                total += int(given)
            elif _is_number(blocks) and _is_number(size):
                total += int(blocks) * int(size)
    return total or None


class _EngineSamples:
    """The samples of one engine, or of all: totals by reading, and what labels tell."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self._positions: dict[int, int] = {}
        self._cache_dtypes: set[str] = set()
        self._at_most: dict[float, float] = {}
        self._lengths: dict[str, float] = {}
        self._busy: set[str] = set()
        self.adapters: dict[str, float] = {}
        self.model = ""
        self.is_sparse = False

    def add(self, reading: str, labels: str, value: float) -> None:
        """Add one sample."""
        if reading == "kv_usage":
            self.totals[reading] = max(value, self.totals.get(reading, value))
        elif reading == "reported_length":
            rank, _ = _find_rank(labels)
            self._lengths[rank] = math.nan if rank in self._lengths else value
        elif reading == "accepted_per_pos":
            if _is_number(position := _parse_labels(labels).get("position", ""), digits=2):
                index = int(position)
                self._positions[index] = self._positions.get(index, 0) + int(value)
        elif reading == "at_most":
            if edge := _parse_labels(labels).get("le"):
                self._at_most[float(edge)] = self._at_most.get(float(edge), 0.0) + value
        elif reading in _KINDS:
            self._read_kinds(_KINDS[reading], _parse_labels(labels), value)
        elif reading in _TOLD_BY_LABELS:
            self._read_labels(reading, _parse_labels(labels), value)
        else:
            self.totals[reading] = self.totals.get(reading, 0.0) + value
            if reading == "running" and value:
                self._busy.add(_find_rank(labels)[0])
            if reading == "generation_tokens":
                self.model = _parse_labels(labels).get("model_name") or self.model

    def _read_kinds(self, kinds: Mapping[str, str], labels: Mapping[str, str], value: float) -> None:
        """Count a sample of a kind in, and the other kinds as none."""
        for name in kinds.values():
            self.totals.setdefault(name, 0.0)
        is_answer = labels.get("handler", "").startswith("/v1/") and labels.get("method") == "POST"
        kind = labels.get("finished_reason") or (labels.get("status", "")[:1] if is_answer else "")
        if kind in kinds:
            self.totals[kinds[kind]] += value

    def take_shared(self, other: _EngineSamples, *, is_first: bool) -> None:
        """Add the values without an engine label. Counts go to the first engine."""
        self.adapters |= other.adapters
        for name in _OF_SERVER:
            if (total := other.totals.get(name)) is not None:
                self.totals[name] = total if is_first else 0.0

    def _read_labels(self, reading: str, labels: Mapping[str, str], value: float) -> None:
        if reading == "sleeping" and labels.get("sleep_state") == "awake":
            self.totals[reading] = max(float(value == 0), self.totals.get(reading, 0.0))
        elif reading == "cache_dtype" and reading in labels:
            self._cache_dtypes.add(labels[reading])
        for name in filter(None, labels.get("running_lora_adapters", "").split(",")):
            self.adapters[name] = max(value, self.adapters.get(name, value))

    @property
    def cache_dtype(self) -> str | None:
        """The cache type if all engines agree; otherwise None."""
        return next(iter(self._cache_dtypes)) if len(self._cache_dtypes) == 1 else None

    def to_counters(self) -> Counters:
        """Return the counters among the totals, including those by position."""
        totals = self.totals
        per_pos = self._positions
        return Counters(
            spec=SpecStats(
                num_drafts=int(totals.get("num_drafts", 0)),
                num_draft_tokens=int(totals.get("num_draft_tokens", 0)),
                num_accepted_tokens=_count_accepted(totals),
                accepted_per_pos=tuple(per_pos.get(i, 0) for i in range(max(per_pos, default=-1) + 1)),
            ),
            generation_tokens=_whole(totals.get("generation_tokens")),
            prefix_queries=_whole(totals.get("prefix_queries")),
            prefix_hits=_whole(totals.get("prefix_hits")),
        )

    def to_reading(self, engine: str, server: str) -> EngineReading:
        """Return the reading of one engine from these samples."""
        totals = self.totals
        sleeping, counters = totals.get("sleeping"), self.to_counters()
        counting = _counts_drafts(totals, server, self.is_sparse)
        is_whole = counts_drafts(server) and not self.is_sparse
        if counting is None and is_whole:
            counters = replace(counters, spec=SpecStats())
        return EngineReading(
            engine=engine,
            counters=counters,
            load=self.to_load(),
            sums=Sums(**{name: totals.get(name) for name in _SUMS}),
            counts_drafts=counting,
            sleeping=None if sleeping is None else bool(sleeping),
            adapters=self.adapters,
            cache_dtype=self.cache_dtype,
            model=self.model,
            slower_than=self._slower_than(),
            is_sparse=self.is_sparse,
            tells_acceptance=_tells_acceptance(totals, counters.spec, counting),
            told=self._list_told() if is_whole else frozenset(),
        )

    def to_load(self) -> ServerLoad:
        """Return the load among the totals."""
        totals, known = self.totals, {rank: each for rank, each in self._lengths.items() if each >= 1}
        return ServerLoad(
            running=totals.get("running"),
            waiting=totals.get("waiting"),
            kv_usage=totals.get("kv_usage"),
            reported_length=next(iter(known.values()), None) if len(self._lengths) == 1 else None,
            lengths={rank: each for rank, each in known.items() if rank in self._busy},
        )

    def _list_told(self) -> frozenset[str]:
        positions = {f"position {index}" for index in self._positions}
        return frozenset(self.totals.keys() - _UNTOLD | positions)

    def _slower_than(self) -> tuple[tuple[float, float], ...]:
        total = self._at_most.get(math.inf)
        edges = sorted(edge for edge in self._at_most if math.isfinite(edge))
        return () if total is None else ((0.0, total), *((edge, total - self._at_most[edge]) for edge in edges))


def _counts_drafts(totals: Mapping[str, float], server: str, is_sparse: bool) -> bool | None:
    """Return whether drafts are counted; None where their absence tells nothing.

    Ray shows a counter from its first increment on only.
    Servers that always show it have drafted once it is above zero.
    """
    if counts_drafts(server) and not is_sparse:
        known = totals.keys() & _OF_DRAFTS  # a release that renames one of them has the others: nothing is known then
        return True if known == _OF_DRAFTS else None if known else False
    if is_sparse:
        return True if "num_drafts" in totals else None
    return True if totals.get("num_drafts") else None


def _tells_acceptance(totals: Mapping[str, float], spec: SpecStats, counting: bool | None) -> bool | None:
    if counting is not None or totals.get("verifications") or spec.num_draft_tokens or spec.num_accepted_tokens:
        return True
    return None if totals.keys() & _OF_DRAFTS else False


def _count_accepted(totals: Mapping[str, float]) -> int:
    """Return the accepted draft tokens; of SGLang, what finished requests have beyond a token a prefill and a step.

    Where some of its steps verify nothing, these tokens count as accepted. Without any, no draft was verified.
    """
    told, steps = totals.get("num_accepted_tokens"), totals.get("verifications")
    if told is not None or not steps:
        return int(told or 0)
    return max(0, int(totals.get("generation_tokens", 0.0) - totals.get("finished", 0.0) - steps))


def _gather(samples: Iterable[Sample], *, apart: bool) -> dict[str, _EngineSamples]:
    """Return what each engine's samples say, by its label; of all engines together under the empty label."""
    engines: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        engines[_find_engine_label(sample[1]) if apart else ""].append(sample)
    found = {}
    for engine, own in engines.items():
        gathered = found[engine] = _EngineSamples()
        best: dict[str, tuple[int, str]] = {}
        first: dict[str, tuple[int, ...]] = {}
        for known, labels, _ in own:
            best[known.reading] = min(known.rank, best.get(known.reading, known.rank))
            rank, place = _find_rank(labels)
            first[rank] = min(place, first.get(rank, place))
        for known, labels, value in own:
            rank, place = _find_rank(labels)
            # SGLang's schedulers may all export: what they say is a copy of what the first of their rank says.
            if known.rank == best[known.reading] and place == first[rank]:
                gathered.is_sparse |= known.is_sparse
                gathered.add(known.reading, labels, value)
    return found


@lru_cache(maxsize=4096)
def _parse_labels(labels: str) -> Mapping[str, str]:
    """Return the values of labels as a page writes them, by name."""
    return dict(_LABEL.findall(labels))


@lru_cache(maxsize=4096)
def _find_engine_label(labels: str) -> str:
    """Return which engine of the page samples with these labels are of: data-parallel rank, and replica under Ray."""
    return " ".join(found for name in _ENGINE_LABELS if (found := _parse_labels(labels).get(name)))


@lru_cache(maxsize=4096)
def _find_rank(labels: str) -> tuple[str, tuple[int, ...]]:
    """Return the data-parallel rank of an SGLang scheduler, and its place in it."""
    known = _parse_labels(labels)
    place = [known.get(name, "0") for name in ("pp_rank", "tp_rank")]
    return known.get("dp_rank", ""), tuple(int(each) if _is_number(each) else 0 for each in place)


def _is_number(label: str, *, digits: int = 8) -> bool:
    """Return whether a label is a whole number of few digits. Python refuses to convert thousands of them."""
    return label.isdecimal() and len(label) <= digits


def tidy_page(text: str) -> str:
    """Return a page on which names with dots stand in front of their labels, with the first 100 draft positions."""
    if _DEEP_POSITION.search(text):
        text = _DEEP.sub("", text)
    return _QUOTED.sub(r"\1{", text) if '{"' in text else text


def _list_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the line of every sample."""
    for line in tidy_page(text).splitlines():
        yield line.partition("{")[0].partition(" ")[0], line


def _samples(text: str) -> Iterator[Sample]:
    """Yield every sample that is known; damaged lines are passed over."""
    for name, line in _list_lines(text):
        if find_sample(name) is not None and (found := _SAMPLE.match(line)) is not None:
            sample = make_sample(name, found[1] or "", found[2])
            if sample is not None:
                yield sample


def make_sample(name: str, labels: str, word: str) -> Sample | None:
    """Return a sample; None for an unknown name, or a value that is not a number."""
    known, value = find_sample(name), _number(word)
    return None if known is None or value is None else (known, labels, value)


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
