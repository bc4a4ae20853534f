"""Prompts to measure with, as values with an identity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """The recorded data of one request and its answer; None or empty if not recorded."""

    answer: str | None = None
    token_ids: tuple[int, ...] = ()
    """Token ids of the answer, as the model generated them."""
    prompt_token_ids: tuple[int, ...] = ()
    num_tokens: int | None = None
    """Number of answer tokens that the server counted."""
    num_prompt_tokens: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    route: str | None = None
    """Part of an application that sent it."""
    tenant: str | None = None
    """Sender: an organization, a user, or a key."""
    conversation: str | None = None
    """Conversation or session that it belongs to."""
    reasoned: bool = False
    """Whether the model also generated reasoning that `answer` does not show."""
    called_tools: bool = False
    """Whether the model also generated tool calls that `answer` does not show."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """Inputs of the chat template in addition to the messages, such as `tools`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A prompt's place in its log, and what it shares with other prompts."""

    row: int
    """Row in the order of the log, from 0."""
    place: int
    """Place among all prompts of the log, sorted by route, then by tenant or conversation, then by row, so that similar
    prompts are neighbors."""
    route: str = ""
    """Part of the traffic: a route, one of a few tenants, prompts or answers far longer than most."""
    cluster: str = ""
    """Tenant or conversation that sends several requests, if there are many."""
    stretch: int = 0
    """Number of the kept section of a recording that is too long to keep in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request to send: plain text to continue, or chat messages to answer."""

    id: str
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    """Chat messages instead of `text`; sent to the chat endpoint."""
    max_tokens: int
    arrival_s: float | None = None
    """Recorded arrival time, in seconds since the start of the recording."""
    ignore_eos: bool = False
    """Whether the answer continues to `max_tokens` past end tokens, for recorded lengths."""
    recorded: RecordedAnswer = field(default=RecordedAnswer(), compare=False)
    """The recorded answer; never sent, and not part of the prompt's identity."""
    origin: Origin | None = field(default=None, compare=False)
    """None if unknown, as in runs of earlier releases."""

    @property
    def content(self) -> tuple[str | None, str]:
        """The content to continue or answer, by which caches identify a prompt."""
        return self.text, repr(self.messages)

    def to_dict(self) -> dict[str, Any]:
        """Return what is sent as a row of a workload file."""
        content = {"messages": list(self.messages)} if self.messages else {"prompt": self.text}
        arrival = {} if self.arrival_s is None else {"arrival_s": self.arrival_s}
        forced = {"ignore_eos": True} if self.ignore_eos else {}
        return {"id": self.id, **content, "max_tokens": self.max_tokens, **arrival, **forced}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A named list of prompts, sent in this order."""

    name: str
    source: str
    """`bundled`, or a file name."""
    prompts: tuple[Prompt, ...]
    random_tokens: bool = False
    """Whether the prompts are noise, which can load a server but not measure acceptance."""
    description: str = ""
    """Its content in words: statistics of a synthetic workload, or the filter of a log."""
    left_out: str = ""
    """Rows of the log that are not used: why, how many and where; empty if all are used."""
    unread: bool = False
    """Whether some of these hold no request, or are damaged."""
    population: int = 0
    """Prompts in the log that these were drawn from; 0 if unknown."""
    choice: str = ""
    """How the operator chose these from a log, e.g. `the first 200 of 12000`; empty if they were drawn at random, or
    are all."""

    @property
    def sha256(self) -> str:
        """Hash of what is sent: runs with equal hashes measured the same prompts."""
        lines = [json.dumps(prompt.to_dict(), sort_keys=True) for prompt in self.prompts]
        return sha256("\n".join(lines).encode()).hexdigest()

    @property
    def num_repeats(self) -> int:
        """Number of prompts that repeat the content of an earlier one."""
        return len(self.prompts) - len({prompt.content for prompt in self.prompts})

    def without_answers(self) -> Workload:
        """Return the workload as it is sent, without recorded answers."""
        return replace(self, prompts=tuple(replace(prompt, recorded=RecordedAnswer()) for prompt in self.prompts))

    def first(self, count: int | None) -> Workload:
        """Return the workload cut to its first `count` prompts (None: all of them)."""
        return replace(self, prompts=self.prompts[:count])
