"""Prompts to measure with, as values with an identity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """What a recording says of one request and its answer; None and empty where it does not say."""

    answer: str | None = None
    token_ids: tuple[int, ...] = ()
    """Tokens of the answer, as the recorded model wrote them."""
    prompt_token_ids: tuple[int, ...] = ()
    num_tokens: int | None = None
    """Number of answer tokens that the server counted."""
    num_prompt_tokens: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    route: str | None = None
    """Which part of an application sent it."""
    tenant: str | None = None
    """Who sent it: an organization, a user, a key."""
    conversation: str | None = None
    """Which conversation or session it is part of."""
    reasoned: bool = False
    """Whether the model also wrote what `answer` does not show: reasoning."""
    called_tools: bool = False
    """Likewise: calls of tools."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """What else than the messages the chat template was given, such as `tools`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A prompt's place in its log: what it was drawn over, and what it has in common with others."""

    row: int
    """Row in the order of the log, from 0."""
    place: int
    """Place among all prompts of the log, sorted by route, then by tenant or conversation, then by row: what is alike
    stands together."""
    route: str = ""
    """Part of the traffic with a name of its own: a route, one of a few tenants."""
    cluster: str = ""
    """Whom it comes from, where many send several: a tenant, a conversation."""
    stretch: int = 0
    """Which kept stretch of a recording that is too long to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request to send: plain text to continue, or chat messages to answer."""

    id: str
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    """Given instead of `text`; sent to the chat endpoint."""
    max_tokens: int
    arrival_s: float | None = None
    """When it arrived in a recording, in seconds from the recording's begin."""
    ignore_eos: bool = False
    """Whether the answer goes on to `max_tokens` whatever the model says: for lengths that were recorded."""
    recorded: RecordedAnswer = field(default=RecordedAnswer(), compare=False)
    """What became of it when it was recorded; never sent, and no part of the prompt's identity."""
    origin: Origin | None = field(default=None, compare=False)
    """None where it is not known: in runs from before prompts were drawn."""

    @property
    def content(self) -> tuple[str | None, str]:
        """What is to be continued or answered: what caches know a prompt by."""
        return self.text, repr(self.messages)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON line of what is sent, as a workload file has it."""
        content = {"messages": list(self.messages)} if self.messages else {"prompt": self.text}
        arrival = {} if self.arrival_s is None else {"arrival_s": self.arrival_s}
        forced = {"ignore_eos": True} if self.ignore_eos else {}
        return {"id": self.id, **content, "max_tokens": self.max_tokens, **arrival, **forced}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A named list of prompts, sent in this order."""

    name: str
    source: str
    """Where it came from: `bundled` or a file name."""
    prompts: tuple[Prompt, ...]
    random_tokens: bool = False
    """Whether the prompts are noise: good for loading a server, no measure of acceptance."""
    description: str = ""
    """What it is made of, in words: statistics of a synthetic one, the filter of a log."""
    population: int = 0
    """Prompts of the log that these were drawn from; 0: not known."""
    choice: str = ""
    """How these came to stand for others, where the operator chose: `the first 200 of 12000`; empty where they were
    drawn, or are all."""

    @property
    def sha256(self) -> str:
        """Hash of exactly what is sent: two runs with equal hashes measured the same prompts."""
        lines = [json.dumps(prompt.to_dict(), sort_keys=True) for prompt in self.prompts]
        return sha256("\n".join(lines).encode()).hexdigest()

    @property
    def num_repeats(self) -> int:
        """Prompts whose content an earlier one has."""
        return len(self.prompts) - len({prompt.content for prompt in self.prompts})

    def without_answers(self) -> Workload:
        """Return the workload as it is sent: without what was answered when it was recorded."""
        return replace(self, prompts=tuple(replace(prompt, recorded=RecordedAnswer()) for prompt in self.prompts))

    def first(self, count: int | None) -> Workload:
        """Return the workload cut to its first `count` prompts (None: all of them)."""
        return replace(self, prompts=self.prompts[:count])
