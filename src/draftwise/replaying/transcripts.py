"""Turns a log into transcripts (the tokens of each request and answer), and defines the replay interface.

A row with uncertain tokens is left out and counted by reason: a replay with other tokens than the model's says nothing
about its drafters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Protocol

from draftwise.core import Finding, InvalidSetup, Prompt, RecordedAnswer, Severity
from draftwise.knowledge.messages import note, refusal
from draftwise.replaying.anchors import UNLIMITED

_MANY, _TOO_MANY = 0.05, 0.2
"""Shares of rows left out for one reason that are a warning, and an error."""
_LENGTHS = (0, 1024, 4096, 16_384, 65_536)
_UNGROUPED = "none"
_LOG_IDS = 'Log token ids (vLLM: "return_token_ids": true)'


class Encoder(Protocol):
    """The target's tokenizer and chat template."""

    end_ids: frozenset[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], /, **variables: Any) -> str:
        """Return a conversation as prompt text."""
        ...


class Grouping(StrEnum):
    """Grouping of requests."""

    ROUTE = "route"
    """The `route` of a row, next to the request or in its metadata."""
    TEMPERATURE = "temperature"
    LENGTH = "length"
    """Length of the prompt in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One request and its answer in tokens."""

    id: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    limit: int = UNLIMITED
    """Maximum answer length in tokens."""
    temperature: float = 0.0
    group: str | None = None

    @property
    def num_tokens(self) -> int:
        """Number of prompt and answer tokens."""
        return len(self.prompt_ids) + len(self.answer_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcripts:
    """A log's transcripts in log order, and its skipped rows."""

    requests: tuple[Transcript, ...]
    skipped: Mapping[str, int]
    """Number of skipped rows, by finding code of the reason."""
    in_time_order: bool
    findings: tuple[Finding, ...]


class _Skip(Exception):  # noqa: N818 - it is no error: the row is counted and the next one read
    """Why a row is left out; the first argument is the code of its finding."""


def read_transcripts(
    prompts: Sequence[Prompt],
    encoder: Encoder | None,
    *,
    name: str,
    default_temperature: float,
    group_by: Grouping | None = None,
    max_model_len: int | None = None,
) -> Transcripts:
    """Return the transcripts of a log.

    Args:
        prompts: prompts of the log, with recorded answers.
        encoder: the target's tokenizer. None: only rows with token ids are readable.
        name: name of the log, for findings.
        default_temperature: temperature of rows without one.
        group_by: grouping of requests. None: no groups.
        max_model_len: maximum tokens of prompt and answer as served. None: unknown.

    Raises:
        InvalidSetup: rows hold text but there is no encoder, or no row can be replayed.
    """
    if encoder is None and needs_encoder(prompts):
        raise refusal("tokens-not-known", name=name, log_ids=_LOG_IDS)
    requests, skipped = list[Transcript](), Counter[str]()
    for prompt in prompts:
        try:
            requests.append(_read(prompt, encoder, default_temperature, group_by, max_model_len))
        except _Skip as reason:
            skipped[str(reason)] += 1
    left_out = tuple(_tell_left_out(skipped, len(prompts), name))
    if not requests:
        nothing = refusal("nothing-to-replay", name=name, log_ids=_LOG_IDS)
        raise InvalidSetup([*nothing.findings, *left_out])
    in_order = all(prompt.arrival_s is not None for prompt in prompts)
    return Transcripts(
        requests=tuple(requests),
        skipped=dict(skipped),
        in_time_order=in_order,
        findings=(*left_out, *_tell_assumed(prompts, requests, name, default_temperature, in_order=in_order)),
    )


def _read(
    prompt: Prompt, encoder: Encoder | None, temperature: float, group_by: Grouping | None, max_model_len: int | None
) -> Transcript:
    recorded = prompt.recorded
    answer_ids = recorded.token_ids or _encode_answer(recorded, encoder)
    prompt_ids = recorded.prompt_token_ids or _encode_prompt(prompt, encoder)
    limits = [UNLIMITED if recorded.max_tokens is None else recorded.max_tokens]
    limits += [] if max_model_len is None else [max_model_len - len(prompt_ids)]
    known = temperature if recorded.temperature is None else recorded.temperature
    return Transcript(
        id=prompt.id,
        prompt_ids=prompt_ids,
        answer_ids=answer_ids,
        limit=max(min(limits), len(answer_ids)),
        temperature=known,
        group=None if group_by is None else _GROUPS[group_by](recorded.route, known, len(prompt_ids)),
    )


def _encode_answer(recorded: RecordedAnswer, encoder: Encoder | None) -> tuple[int, ...]:
    """Return the answer's tokens as the model wrote them.

    Raises:
        _Skip: they are not known.
    """
    if recorded.called_tools:
        raise _Skip("tool-calls")
    if recorded.reasoned:
        raise _Skip("hidden-reasoning")
    if not recorded.answer or encoder is None:
        raise _Skip("no-answer")
    ids = encoder.encode(recorded.answer, False)
    missing = 0 if recorded.num_tokens is None else recorded.num_tokens - len(ids)
    if missing not in (0, 1):
        raise _Skip("token-drift")
    # The count of a server includes the token that ended the answer, which has no text.
    return (*ids, *encoder.end_ids) if missing and len(encoder.end_ids) == 1 else tuple(ids)


def _encode_prompt(prompt: Prompt, encoder: Encoder | None) -> tuple[int, ...]:
    """Return the prompt's tokens as the target's server makes them.

    Raises:
        _Skip: they are not what the server counted, or the template refuses the messages.
    """
    assert encoder is not None, "rows without ids were refused"
    if prompt.text is not None:
        ids = encoder.encode(prompt.text)
    else:
        try:
            text = encoder.apply_chat_template(prompt.messages, **prompt.recorded.template_variables)
        except InvalidSetup:
            raise _Skip("unrendered-prompt") from None
        ids = encoder.encode(text, False)
    if prompt.recorded.num_prompt_tokens not in (None, len(ids)):
        raise _Skip("cut-prompt")
    return tuple(ids)


def needs_encoder(prompts: Sequence[Prompt]) -> bool:
    """Return whether any row has an answer without all its tokens."""
    recorded = [prompt.recorded for prompt in prompts]
    answered = [each for each in recorded if each.answer or each.token_ids]
    return not all(each.token_ids and each.prompt_token_ids for each in answered)


def _length_group(length: int) -> str:
    low, high = next(pair for pair in pairwise((*_LENGTHS, None)) if pair[1] is None or length < pair[1])
    return f"prompt of {low} tokens or more" if high is None else f"prompt of {low}-{high - 1} tokens"


_GROUPS: Mapping[Grouping, Callable[[str | None, float, int], str]] = {
    Grouping.ROUTE: lambda route, _, __: route or _UNGROUPED,
    Grouping.TEMPERATURE: lambda _, temperature, __: f"T={temperature:g}",
    Grouping.LENGTH: lambda _, __, length: _length_group(length),
}


def _tell_left_out(skipped: Mapping[str, int], rows: int, name: str) -> Iterator[Finding]:
    """Yield why rows were left out, and how many."""

    def tell(code: str, what: str, means: str, fix: str) -> Iterator[Finding]:
        if count := skipped.get(code, 0):
            share = count / rows
            yield Finding(
                code=code,
                severity=Severity.ERROR if share > _TOO_MANY else Severity.WARNING if share > _MANY else Severity.INFO,
                message=f"{name} holds {count} of {rows} requests {what}, which draftwise leaves out: {means}.",
                where=name,
                fix=fix,
            )

    yield from tell("no-answer", "without an answer", "there is nothing to replay", "Log what was answered.")
    yield from tell(
        "token-drift",
        "whose answer encodes to another number of tokens than was logged",
        "sampled text need not be the text that a tokenizer would choose, or the target is not the model that wrote it",
        f"{_LOG_IDS}, and check that --target is the model of the log.",
    )
    yield from tell(
        "cut-prompt",
        "whose prompt encodes to another number of tokens than was logged",
        "a gateway or the server cut or changed it, or it was rendered with another chat template",
        f"{_LOG_IDS}, or the request as the server got it.",
    )
    yield from tell(
        "hidden-reasoning",
        "with reasoning next to the answer",
        "the server decoded the reasoning too, but the log does not show how the two join",
        f"{_LOG_IDS}, which hold both.",
    )
    yield from tell(
        "tool-calls",
        "with tool calls in the answer",
        "the log does not show how the model wrote the calls",
        f"{_LOG_IDS}, which hold the calls.",
    )
    yield from tell(
        "unrendered-prompt",
        "whose messages the target's chat template refuses",
        "their prompt is unknown",
        "Name the target that was served, with its chat template.",
    )


def _tell_assumed(
    prompts: Sequence[Prompt],
    requests: Sequence[Transcript],
    name: str,
    default_temperature: float,
    *,
    in_order: bool,
) -> Iterator[Finding]:
    """Yield what is not in the log and had to be assumed, and what keeps its numbers apart."""
    if silent := sum(prompt.recorded.temperature is None for prompt in prompts):
        yield note(
            "assumed-temperature",
            name=name,
            silent=silent,
            num_prompts=len(prompts),
            default_temperature=default_temperature,
        )
    temperatures = Counter(request.temperature for request in requests)
    if len(temperatures) > 1:
        counts = ", ".join(f"{count} at {temperature:g}" for temperature, count in sorted(temperatures.items()))
        yield note("several-temperatures", name=name, counts=counts)
    if not in_order:
        yield note("no-time-order", name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """The drafts at the n tokens of one answer, see `anchors.Drafts`."""

    drafted: Sequence[int]
    accepted: Sequence[int] | None = None
    chances: Sequence[Sequence[float]] | None = None
    confidence: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """A replayed request."""

    id: str
    by_k: Mapping[int, DraftRows]
    """See `Anchors.drafts`."""


class Replayer(Protocol):
    """Replays one candidate over logged answers."""

    remembers: bool
    """Whether drafts depend on earlier requests. An interrupted replay then starts over."""

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        """Yield each request once it is replayed."""
        ...


def count_accepted(draft: Sequence[int], answer: Sequence[int], at: int) -> int:
    """Return how many tokens of a draft at answer token `at` match the answer."""
    size = min(len(draft), len(answer) - at)
    if list(draft[:size]) == list(answer[at : at + size]):
        return size
    return next(place for place in range(size) if draft[place] != answer[at + place])
