"""The answers of a pretend engine: known latencies, known acceptance, no model."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any
from zlib import crc32

from draftwise.core import Counters, SpecStats
from draftwise.facts.metrics import (
    SPEC_NUM_ACCEPTED_TOKENS,
    SPEC_NUM_ACCEPTED_TOKENS_PER_POS,
    SPEC_NUM_DRAFT_TOKENS,
    SPEC_NUM_DRAFTS,
    get_metric,
)

__all__ = ["FakeEngine", "FakeReply", "FakeScript"]

_VOCABULARY = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeScript:
    """How a fake behaves. Its output depends on the prompt alone, so that any two fakes agree."""

    first_token_s: float = 0.020
    step_s: float = 0.004
    k: int = 0
    """Draft tokens a step; 0 is plain decoding."""
    accepted: tuple[int, ...] = (0,)
    """Draft tokens that stand, step by step, over and over."""
    jitter: float = 0.0
    """Standard deviation of the logarithm of a request's slowness."""
    seed: int = 0
    remembers: bool = False
    """Whether all drafts stand for a prompt that it has answered before (as a global suffix tree would do)."""
    differs_at: int | None = None
    """Position of an output token that differs from what other fakes answer."""
    gap: float = 1.0
    """Log-probability gap between the two best tokens that it reports when asked for logprobs."""
    reports_tokens: bool = True
    """Whether chunks carry token ids and running usage."""
    refuses: tuple[str, ...] = ()
    """Request fields that get a 400."""
    dies_after: int | None = None
    """Generation requests answered before the connection breaks."""
    version: Mapping[str, Any] = field(default_factory=lambda: {"version": "fake-1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeReply:
    """An HTTP answer: one body, or server-sent events with the seconds to let pass before each."""

    status: int = 200
    body: str = ""
    events: Iterator[tuple[float, str]] | None = None


class FakeEngine:
    """Answers requests as its script says and counts what it did."""

    def __init__(self, script: FakeScript) -> None:
        self.script = script
        self.counters = Counters(generation_tokens=0, prefix_queries=0, prefix_hits=0)
        self._random = random.Random(script.seed)
        self._seen: set[str] = set()
        self._num_requests = 0

    def reply(self, path: str, body: bytes) -> FakeReply:
        """Return the answer to a request; ConnectionError where the script lets the server die."""
        if path == "/v1/models":
            return FakeReply(body=json.dumps({"data": [{"id": "fake", "max_model_len": 4096}]}))
        if path == "/version":
            return FakeReply(body=json.dumps(dict(self.script.version)))
        if path == "/metrics":
            return FakeReply(body=self._exposition())
        if path in ("/v1/completions", "/v1/chat/completions"):
            return self._generate(json.loads(body), chat="chat" in path)
        return FakeReply(body="{}") if path == "/health" else FakeReply(status=404, body="{}")

    def _generate(self, request: dict[str, Any], *, chat: bool) -> FakeReply:
        if refused := [name for name in self.script.refuses if name in request]:
            return FakeReply(status=400, body=json.dumps({"error": {"message": f"unknown field {refused[0]}"}}))
        self._num_requests += 1
        if self.script.dies_after is not None and self._num_requests > self.script.dies_after:
            raise ConnectionError("the fake is dead")
        if request.get("logprobs"):
            top = {"a": -0.5, "b": -0.5 - self.script.gap}
            return FakeReply(body=json.dumps({"choices": [{"logprobs": {"top_logprobs": [top]}}]}))
        return FakeReply(events=self._stream(request, chat=chat))

    def _stream(self, request: dict[str, Any], *, chat: bool) -> Iterator[tuple[float, str]]:
        prompt = json.dumps(request["messages"] if chat else request["prompt"])
        tokens = self._output(prompt, request["max_tokens"])
        known, done = prompt in self._seen and self.script.remembers, 0
        self._seen.add(prompt)
        self._count(queries=len(prompt))
        slowness = math.exp(self._random.gauss(0, self.script.jitter))
        pattern = cycle((self.script.k,) if known else self.script.accepted)
        while done < len(tokens):
            accepted = 0
            if done and self.script.k:
                accepted = min(next(pattern), self.script.k, len(tokens) - done - 1)
                self._count(spec=SpecStats.of_draft(drafted=self.script.k, accepted=accepted))
            emitted = tokens[done : done + accepted + 1]
            delay = self.script.step_s if done else self.script.first_token_s
            done += len(emitted)
            self._count(generated=len(emitted))
            yield delay * slowness, self._chunk(prompt, emitted, done, done == len(tokens), chat=chat)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": done}
        yield 0.0, json.dumps({"choices": [], "usage": usage})
        yield 0.0, "[DONE]"

    def _output(self, prompt: str, length: int) -> list[int]:
        tokens = [crc32(f"{prompt}{i}".encode()) % _VOCABULARY for i in range(length)]
        if self.script.differs_at is not None and self.script.differs_at < length:
            tokens[self.script.differs_at] = _VOCABULARY
        return tokens

    def _chunk(self, prompt: str, emitted: list[int], done: int, last: bool, *, chat: bool) -> str:
        text = "".join(f" {token}" for token in emitted)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
        choice |= {"delta": {"content": text}} if chat else {"text": text}
        chunk: dict[str, Any] = {"choices": [choice]}
        if self.script.reports_tokens:
            choice["token_ids"] = emitted
            if done == len(emitted):
                choice["prompt_token_ids"] = list(prompt.encode())
            chunk["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": done}
        return json.dumps(chunk)

    def _count(self, *, spec: SpecStats | None = None, generated: int = 0, queries: int = 0) -> None:
        self.counters += Counters(
            spec=spec or SpecStats(), generation_tokens=generated, prefix_queries=queries, prefix_hits=0
        )

    def _exposition(self) -> str:
        spec = self.counters.spec
        samples: dict[str, int | None] = {
            get_metric("generation_tokens").sample: self.counters.generation_tokens,
            get_metric("prefix_cache_queries").sample: self.counters.prefix_queries,
            get_metric("prefix_cache_hits").sample: self.counters.prefix_hits,
        }
        if self.script.k:
            samples |= {
                SPEC_NUM_DRAFTS.sample: spec.num_drafts,
                SPEC_NUM_DRAFT_TOKENS.sample: spec.num_draft_tokens,
                SPEC_NUM_ACCEPTED_TOKENS.sample: spec.num_accepted_tokens,
            }
        labels = 'model_name="fake",engine="0"'
        lines = [f"{name}{{{labels}}} {value}" for name, value in samples.items()]
        lines += [
            f'{SPEC_NUM_ACCEPTED_TOKENS_PER_POS.sample}{{{labels},position="{position}"}} {count}'
            for position, count in enumerate(spec.accepted_per_pos)
        ]
        return "\n".join(lines) + "\n"
