"""An engine whose device is only a clock, for http_overhead.py: `Engine`'s methods and pipeline, no arithmetic."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

from draftwise.core import SpecStats
from draftwise.engine.config import EngineConfig
from draftwise.engine.outputs import Delta, EngineStats
from draftwise.engine.step.sequence import Request
from draftwise.engine.text.detokenizer import IncrementalDetokenizer
from draftwise.engine.text.tokenizer import Tokenizer

TOKENS_PER_STEP = (2, 3)
"""In turns: 2.5 is the acceptance length of a drafter that pays."""


Pending = tuple[tuple[float, list[SimpleNamespace]], ...]
"""When a step ends, and whose it is."""


@dataclass
class Clock:
    """What the device did."""

    steps: int = 0
    busy_s: float = 0.0
    idle_s: float = 0.0
    """Device time lost because the next step came late."""
    latest_s: float = 0.0
    """Longest single wait for the next step."""

    def note(self, step_s: float, *, idle_s: float) -> None:
        """Count a step and the wait before it."""
        self.steps += 1
        self.busy_s += step_s
        self.idle_s += idle_s
        self.latest_s = max(self.latest_s, idle_s)


class PacedEngine:
    """`Engine`'s methods over a device that is only a clock."""

    def __init__(self, config: EngineConfig, step_s: float, host_s: float, report: Path | None = None) -> None:
        self.config = config
        self.tokenizer = Tokenizer.from_pretrained(config.model)
        self.spec = None
        self.findings = ()
        self.num_pages = 1
        self.clock = Clock()
        self._step_s, self._host_s = step_s, host_s
        self._report = report
        self._running: list[SimpleNamespace] = []
        self._device_free = 0.0
        self._generated = 0

    def add(self, request: Request) -> None:
        """Run a request from the next step on."""
        detokenizer = IncrementalDetokenizer(self.tokenizer, prompt_token_ids=request.prompt_token_ids)
        self._running.append(SimpleNamespace(request=request, detokenizer=detokenizer, done=0))

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        self._running = [each for each in self._running if each.request.request_id != request_id]

    def has_work(self) -> bool:
        """Whether a step is wanted."""
        return bool(self._running)

    def step(self, pending: Pending) -> tuple[Pending, list[Delta]]:
        """Launch a step, then wait for the one before; return the step launched and what the other gave."""
        if not self._running:
            return (), []
        work(self._host_s)
        now = time.perf_counter()
        self.clock.note(self._step_s, idle_s=max(now - self._device_free, 0.0) if pending else 0.0)
        self._device_free = max(now, self._device_free) + self._step_s
        launched = ((self._device_free, list(self._running)),)
        deltas = []
        for ends, sequences in pending:
            time.sleep(max(ends - time.perf_counter(), 0.0))
            deltas += [self._advance(each) for each in sequences if each in self._running]
        if not self._running:
            self._rest()
            return (), deltas
        return launched, deltas

    def stats(self) -> EngineStats:
        """Return the counters."""
        return EngineStats(
            num_running=len(self._running),
            num_waiting=0,
            kv_cache_usage=0.0,
            prompt_tokens=0,
            generation_tokens=self._generated,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            num_preemptions=0,
            spec=SpecStats(),
        )

    def _rest(self) -> None:
        """Write down what the device did, and begin anew."""
        if self._report is not None:
            self._report.write_text(json.dumps(asdict(self.clock) | {"cpu_s": time.process_time()}))
        self.clock = Clock()

    def _advance(self, sequence: SimpleNamespace) -> Delta:
        number = TOKENS_PER_STEP[self.clock.steps % len(TOKENS_PER_STEP)]
        number = min(number, sequence.request.params.max_tokens - sequence.done)
        tokens = [261 + (sequence.done + i) * 37 % 3000 for i in range(number)]
        sequence.done += number
        self._generated += number
        text = "".join(map(sequence.detokenizer.add, tokens))
        over = sequence.done == sequence.request.params.max_tokens
        if over:
            self._running.remove(sequence)
        return Delta(
            request_id=sequence.request.request_id,
            index=0,
            token_ids=tokens,
            text=text,
            finish_reason="length" if over else None,
        )


def work(seconds: float, calls: int = 40) -> None:
    """Use the processor like Python code that makes so many torch calls: each lets go of the GIL for a moment."""
    for _ in range(calls):
        end = time.thread_time() + seconds / calls
        while time.thread_time() < end:
            pass
        time.sleep(0)


def build(
    step_s: float, host_s: float, report: Path, config: EngineConfig, _spec: str | None, _startup: object
) -> PacedEngine:
    """Make the engine in its own process."""
    return PacedEngine(config, step_s, host_s, report)
