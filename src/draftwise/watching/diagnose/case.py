"""What a rule reads: the windows of one pool, what they are held against, and what was found out on request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from draftwise.core import ServerLoad, SpecConfig, Window
from draftwise.knowledge.findings import DiagnosisFact
from draftwise.watching.diagnose.noise import relative_error
from draftwise.watching.fingerprint import Fingerprint
from draftwise.watching.yardstick import Yardstick

__all__ = ["Asked", "Case", "Expectation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """How the pool was when it was known to be good."""

    yardstick: Yardstick = field(default_factory=Yardstick)
    """What its run measured."""
    earlier: Window | None = None
    """A window of the same pool from a time that was good, such as before a roll-out: it knows more than a run does of
    the requests that are served."""

    @property
    def window(self) -> Window | None:
        """The earlier window, else the run's counters as one; None where neither is known."""
        expected = None if self.yardstick.baseline is None else self.yardstick.baseline.expected
        if self.earlier is not None or expected is None:
            return self.earlier
        running = expected.condition.concurrency
        load = ServerLoad(running=None if running is None else float(running))
        return Window(
            pool="", instance="", start_s=0.0, duration_s=0.0, counters=expected.counters, load=load, counts_drafts=True
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was given or found out beside the counters; None is not asked, and decides nothing."""

    spec: SpecConfig | None = None
    """The speculative config of the servers."""
    rulings: Mapping[str, str] | None = None
    """What `draftwise check` and `inspect` say of their setup: messages by code."""
    log: str | None = None
    """Text of a server's start-up log."""
    largest_graph: float | None = None
    """Tokens of the largest CUDA graph, as that log has it."""
    probe: Fingerprint | None = None
    """How the answers to the prompts of the baseline's probe differ from those that it has."""
    releases: tuple[str, str] | None = None
    """Of the engine, the baseline's and today's, where these differ and nothing else of the setup does."""

    @property
    def schedule(self) -> Sequence[tuple[int, int, int]]:
        """Rows (first, last, k) of a K schedule over the running batch; empty without one."""
        rows = None if self.spec is None else self.spec.options.get("num_speculative_tokens_per_batch_size")
        is_table = isinstance(rows, list) and all(isinstance(row, list) and len(row) == 3 for row in rows)
        return [(first, last, k) for first, last, k in rows] if is_table and rows else []

    def find_ruling(self, codes: Iterable[str]) -> str | None:
        """Return what `check` or `inspect` say under the first of some codes that they name; None for none of them."""
        rulings = self.rulings or {}
        return next((rulings[code] for code in codes if code in rulings), None)

    def find_proof(self, row: DiagnosisFact) -> str | None:
        """Return what a check of the setup, or its start-up log, says for a cause."""
        said = self.find_ruling(row.confirmed_by)
        if said is None and row.logged and self.log is not None:
            said = next((line.strip() for line in self.log.splitlines() if row.logged in line), None)
        return said

    def find_scheduled_k(self, batch: float | None) -> int | None:
        """Return the k of the row that a batch lies in; None without a schedule or outside of it."""
        rows = () if batch is None else self.schedule
        return next((k for first, last, k in rows if batch is not None and first <= batch <= last), None)


@dataclass(frozen=True)
class Case:
    """One pool over one stretch of time."""

    windows: tuple[Window, ...]
    """Of each engine; at least one."""
    expected: Expectation = field(default_factory=Expectation)
    plain: Window | None = None
    """Of the servers without speculation, pooled, over the same stretch."""
    asked: Asked = field(default_factory=Asked)

    @cached_property
    def window(self) -> Window:
        """All engines together."""
        pooled = Window.pooled(self.windows)
        assert pooled is not None, "a pool has at least one engine"
        return pooled

    @cached_property
    def good(self) -> Window | None:
        """The window of a good time."""
        return self.expected.window

    @cached_property
    def error(self) -> float:
        """Standard error of the logarithm of a reading over the good window's, as far as requests make it."""
        earlier = self.expected.earlier
        return relative_error(self.window, *([] if earlier is None else [earlier]))

    @cached_property
    def replicas(self) -> Mapping[str, Window]:
        """The engines of each server together, by instance."""
        names = dict.fromkeys(window.instance for window in self.windows)
        pooled = {name: Window.pooled(each for each in self.windows if each.instance == name) for name in names}
        return {name: window for name, window in pooled.items() if window is not None}

    @property
    def k(self) -> float | None:
        """Configured length of a draft, else what the good window drafted; None where neither is known."""
        asked = None if self.asked.spec is None else self.asked.spec.num_speculative_tokens
        return asked if asked is not None else None if self.good is None else self.good.mean_k

    @property
    def method(self) -> str | None:
        """As configured."""
        return None if self.asked.spec is None else self.asked.spec.method

    @cached_property
    def readings(self) -> frozenset[str]:
        """What is at hand, in the words of `DiagnosisFact.needs`."""
        yardstick, asked = self.expected.yardstick, self.asked
        step = yardstick.step_s(self.window.batch)
        at_hand = {
            "metrics": self.window.output_tokens is not None,
            "replicas": len(self.replicas) > 1,
            "uptime": all(window.uptime_s is not None for window in self.windows),
            "wakes": bool(self.window.sleeping),
            "baseline": self.good is not None,
            "earlier": self.expected.earlier is not None,
            "curve": step is not None,
            "break-even": yardstick.break_even is not None,
            "crossover": yardstick.crossover is not None,
            "plain": self.plain is not None,
            "probe": asked.probe is not None and asked.probe.differs is not None,
            "versions": asked.releases is not None,
            "config": asked.rulings is not None,
            "log": asked.log is not None,
            "method": self.method is not None,
            "k": self.k is not None,
        }
        return frozenset(name for name, known in at_hand.items() if known)

    def find_missing(self, needs: Iterable[str]) -> tuple[str, ...]:
        """Return those needs of which no alternative is at hand."""
        return tuple(need for need in needs if not self.readings.intersection(need.split(" or ")))
