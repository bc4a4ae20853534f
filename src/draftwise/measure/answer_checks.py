"""Asks a server and a plain one the same requests, one by one: cached prefixes, tools, JSON by a schema, long contexts.

Answers at temperature 0 are to be the plain server's. Rounding may swap tokens that are all but equally likely: how far
it goes is what the plain server's own answers differ by when it is asked again (`statistics.find_rounding_scale`, as
`decide` has it).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from draftwise.backends import UrlBackend
from draftwise.core import Answer, BackendError, Counters, Divergence, Finding, Prompt
from draftwise.deciding.comparison.cell import OutputDifference, find_difference
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.validity.output_checks import is_early, is_tie, is_too_often
from draftwise.measure.divergences import View, ask, conclude
from draftwise.measure.load.client import Client
from draftwise.measure.probe import load_probe
from draftwise.runs.turn_order import Turn
from draftwise.statistics import find_rounding_scale

Outcome = Literal["same", "different", "not judged"]
_CACHE = "cache"
_TOKENS = 48
_PREFIX_CHARS = 2400
"""Some 600 tokens: dozens of blocks of a prefix cache."""
_LONG_CHARS = 24_000
_CHARS_A_TOKEN = 3
_LONG_PROMPTS = 3
_MOST_UNSTEADY = 0.5
"""Share of its own answers that the plain server may change before nothing can be held against it."""
_TASKS = (
    "Name the three most important points.",
    "Explain the first part to a beginner.",
    "What would you change, and why?",
    "Write a short summary.",
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "find_orders",
        "description": "Finds the orders of a customer.",
        "parameters": {
            "type": "object",
            "properties": {
                "customer": {"type": "string"},
                "state": {"type": "string", "enum": ["open", "sent", "returned"]},
                "most": {"type": "integer"},
            },
            "required": ["customer", "state"],
        },
    },
}
_FIELDS = {
    "name": {"type": "string"},
    "year": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}},
}
_SCHEMA = {
    "type": "object",
    "properties": _FIELDS,
    "required": [*_FIELDS],
    "additionalProperties": False,
}
_CUSTOMERS = ("Ada Lovelace", "Kurt Goedel", "Emmy Noether", "Alan Turing", "Grace Hopper", "Claude Shannon")
_STATES = ("open", "sent", "returned")
_SUBJECTS = (
    *("the first moon landing", "the printing press", "the theory of relativity", "the telegraph", "penicillin"),
    "the transistor",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Requests of one kind, in the order in which they are sent."""

    name: str
    about: str
    prompts: tuple[Prompt, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request's body."""
    is_constrained: bool = False
    """Whether a grammar decides what may be sampled: what is likely without it says little."""
    holds: Callable[[str], bool] | None = None
    """Whether an answer is of the form that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCheck:
    """What came of one kind of requests."""

    kind: str
    about: str
    outcome: Outcome
    compared: int
    ties: int = 0
    examples: tuple[str, ...] = ()
    """Answers that differ: which, where, and both texts."""
    reason: str = ""
    """Why nothing is judged."""


async def check_answers(server: UrlBackend, plain: UrlBackend, *, salt: str) -> tuple[AnswerCheck, ...]:
    """Return what became of each kind of requests.

    Args:
        server: that is judged, not started yet.
        plain: of the same model, without speculation.
        salt: makes the prompts new to the servers' prefix caches.

    Raises:
        BackendError: a server does not answer.
    """
    hello = Prompt(id="hello", messages=({"role": "user", "content": "Hello."},), max_tokens=1)
    try:
        await plain.start()
        await server.start()
        clients = [await Client.greet(each, hello, salt=salt) for each in (plain, server)]
        length = (await server.describe()).max_model_len
        return tuple([await _check(kind, *clients) for kind in _list_kinds(salt, length)])
    finally:
        await plain.stop()
        await server.stop()


def describe_check(check: AnswerCheck, *, where: str) -> Finding:
    """Return the outcome of one kind as a finding."""
    if check.outcome == "not judged":
        text = f"Cannot tell whether answers with {check.about} match the plain server's: {check.reason}."
        return Finding.warning("answers-not-judged", text, where=where)
    if check.outcome == "different":
        text = f"{len(check.examples)} of {check.compared} answers with {check.about} differ from the plain server's: "
        return Finding.error("answers-differ", f"{text}{check.examples[0]}.", where=where)
    ties = f" ({check.ties} differ where two tokens are almost equally likely)" if check.ties else ""
    text = f"{check.compared} of {check.compared} answers with {check.about} match the plain server's{ties}."
    return Finding.info("answers-same", text, where=where)


def _list_kinds(salt: str, length: int | None) -> Iterator[_Kind]:
    texts = [prompt.text or str(prompt.messages) for each in load_probe(60) for prompt in each.prompts]
    pages = [f"[{salt}]\n" + "\n\n".join([texts[-i], *texts])[:_PREFIX_CHARS] for i in range(len(_TASKS))]
    a_b_a = [(i, j) for i in range(len(pages)) for j in (0, 1, 0)]
    yield _Kind(
        name=_CACHE,
        about="a cached prefix (A, B, A)",
        prompts=tuple(
            _chat(f"cache-{i}-{'AB'[j]}-{n}", f"{pages[i]}\n\n{_TASKS[(i + j) % len(_TASKS)]}")
            for n, (i, j) in enumerate(a_b_a)
        ),
    )
    yield _Kind(
        name="tools",
        about="tools",
        prompts=tuple(
            _chat(f"tools-{i}", f"[{salt}] Which {_STATES[i % 3]} orders does {name} have? Show {i + 2} at most.")
            for i, name in enumerate(_CUSTOMERS)
        ),
        extra={"tools": [_TOOL], "tool_choice": "required"},
        is_constrained=True,
    )
    yield _Kind(
        name="schema",
        about="a JSON schema",
        prompts=tuple(_chat(f"schema-{i}", f"[{salt}] Describe {each} as JSON.") for i, each in enumerate(_SUBJECTS)),
        extra={"response_format": {"type": "json_schema", "json_schema": {"name": "subject", "schema": _SCHEMA}}},
        is_constrained=True,
        holds=_is_subject,
    )
    room = _LONG_CHARS if length is None else min(_LONG_CHARS, _CHARS_A_TOKEN * (length - 2 * _TOKENS) // 2)
    book = "\n\n".join(texts) * (1 + room // max(1, sum(map(len, texts))))
    yield _Kind(
        name="long",
        about="a long context",
        prompts=tuple(_chat(f"long-{i}", f"[{salt} {i}]\n{book[:room]}\n\n{_TASKS[i]}") for i in range(_LONG_PROMPTS)),
    )


def _chat(name: str, text: str) -> Prompt:
    return Prompt(id=name, messages=({"role": "user", "content": text},), max_tokens=_TOKENS)


def _is_subject(text: str) -> bool:
    """Return whether a whole answer is what the schema wants; one that was cut off may still become it."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() == set(_FIELDS) and isinstance(found["year"], int)


async def _check(kind: _Kind, plain: Client, server: Client) -> AnswerCheck:
    """Ask the plain server twice and the other one once, and say what the difference is worth."""
    nothing = AnswerCheck(kind=kind.name, about=kind.about, outcome="not judged", compared=0)
    first, again = [await _ask_all(kind, plain, repeat) for repeat in (1, 2)]
    if refusal := next((each.error for each in (*first, *again) if each.error), None):
        return replace(nothing, reason=f"the plain server rejects such requests ({refusal})")
    before = await server.backend.counters()
    found = await _ask_all(kind, server, 1)
    growth = await server.backend.counters() - before
    if refusal := next((each.error for each in found if each.error), None):
        return replace(nothing, outcome="different", compared=len(found), examples=(f"it rejects them ({refusal})",))
    own = [each for pair in zip(first, again, strict=True) if (each := _differ(*pair)) is not None]
    nulls = [(await _examine(each, plain, plain, kind)).gap for each in own]
    if len(own) > _MOST_UNSTEADY * len(first) and None in nulls:
        reason = f"the plain server changed {len(own)} of its own {len(first)} answers when asked again"
        return replace(nothing, reason=reason)
    prior, step = Thresholds().rounding["bfloat16"]
    scale = find_rounding_scale([gap for gap in nulls if gap is not None], prior, step)
    differences = [each for trio in zip(first, again, found, strict=True) if (each := _differ_from_both(*trio))]
    views = [(each, await _examine(each, plain, server, kind)) for each in differences]
    broken = [
        f"{theirs.prompt_id}: {ours.text[:80]!r} does not have the requested form, but {theirs.text[:80]!r} does"
        for theirs, ours in zip(first, found, strict=True)
        if kind.holds is not None and kind.holds(theirs.text) and not kind.holds(ours.text)
    ]
    return _judge(replace(nothing, compared=len(found)), views, broken, scale, growth)


def _judge(
    check: AnswerCheck,
    views: Sequence[tuple[OutputDifference, Divergence]],
    broken: Sequence[str],
    scale: float,
    growth: Counters,
) -> AnswerCheck:
    """Return what differences are worth, and whether equality was a test at all.

    Args:
        check: to complete.
        views: answers that the plain server did not give, with both servers' log-probabilities of the tokens.
        broken: answers of a form that was not asked for.
        scale: of rounding, in nats.
        growth: of the server's counters.
    """
    ties = [each for each, view in views if is_tie(view, scale)]
    real = [each for each, view in views if view.gap is not None and not is_tie(view, scale)]
    unknown = [each for each, view in views if view.gap is None]
    early = [each for each in unknown if is_early(each)]
    if broken or real or is_too_often(len(early), check.compared):
        examples = (*broken, *map(_quote, real or early or unknown))
        return replace(check, outcome="different", examples=examples, ties=len(ties))
    reason = ""
    if unknown:
        reason = f"{len(unknown)} of {check.compared} answers differ, and the servers return no log-probabilities by "
        reason += f"token; first {_quote(unknown[0])}"
    elif check.kind == _CACHE and not growth.prefix_hits:
        told = (
            "its prefix cache had no hit"
            if growth.prefix_hits == 0
            else ("it does not report the hits of its prefix cache")
        )
        reason = f"all answers match, but {told}"
    elif not growth.spec.num_drafts:
        reason = "all answers match, but the server verified no drafts for them"
    return replace(check, outcome="not judged" if reason else "same", ties=len(ties), reason=reason)


async def _ask_all(kind: _Kind, client: Client, repeat: int) -> list[Answer]:
    turn = Turn(number=0, arm=client.backend.name, workload=kind.name, repeat=repeat, prompts=kind.prompts)
    return [await client.ask(turn, prompt, seed=0, extra=kind.extra) for prompt in kind.prompts]


def _differ(theirs: Answer, ours: Answer) -> OutputDifference | None:
    return find_difference((theirs.workload, theirs.prompt_id), theirs, ours)


def _differ_from_both(first: Answer, again: Answer, ours: Answer) -> OutputDifference | None:
    """Return how an answer differs from the first of a plain server's two; None where it is one of them."""
    return None if _differ(again, ours) is None else _differ(first, ours)


async def _examine(difference: OutputDifference, plain: Client, server: Client, kind: _Kind) -> Divergence:
    try:
        views = [await ask(difference, client) for client in (plain, server)]
    except BackendError:
        views = [None, None]
    found = conclude(difference, views)
    return replace(found, gap=_find_gap_within(found, views)) if kind.is_constrained else found


def _find_gap_within(found: Divergence, views: Sequence[View]) -> float | None:
    """Return how far two tokens are apart that a grammar allows, whatever is likelier and not allowed."""
    names = [f"token_id:{token}" for token in (found.plain_token, found.candidate_token)]
    gaps = [abs(view[names[0]] - view[names[1]]) for view in views if view is not None and view.keys() >= set(names)]
    return min(gaps, default=None)


def _quote(difference: OutputDifference) -> str:
    place = "" if difference.position is None else f" from output token {difference.position} on"
    return f"{difference.unit[1]}{place}: {difference.excerpt}"
