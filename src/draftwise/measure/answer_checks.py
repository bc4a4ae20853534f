"""Compares a server's answers with a plain server's: cached prefixes, tools, JSON schemas and long contexts.

At temperature 0, the answers should be equal. Each request goes to both servers twice, because a fault may be
intermittent. Rounding may swap tokens of nearly equal likelihood: the differences between the plain server's own
answers show how far it reaches (`statistics.find_rounding_scale`, as in `decide`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from draftwise.backends import UrlBackend
from draftwise.core import Answer, BackendError, Counters, Divergence, Finding, Prompt
from draftwise.deciding.comparison.cell import OutputDifference, find_difference
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.validity.output_checks import is_apart, is_early, is_flagged, is_tie, is_too_often
from draftwise.measure.divergences import View, ask, conclude
from draftwise.measure.load.client import Client
from draftwise.measure.probe import load_probe
from draftwise.runs.turn_order import Turn
from draftwise.statistics import find_rounding_scale

Outcome = Literal["same", "different", "not judged"]
_CACHE = "cache"
_TOKENS = 48
_PREFIX_CHARS = 2400
"""Length of a shared prefix: about 600 tokens, dozens of prefix-cache blocks."""
_LONG_CHARS = 48_000
_CHARS_A_TOKEN = 1.5
"""Assumed where the server does not count prompt tokens."""
_LONG_PROMPTS = 3
_OF_CONTEXT = 0.9
"""Share of the context that the longest prompt and its answer may fill."""
_MOST_UNSTEADY = 0.5
"""Largest share of its own answers that the plain server may change and still serve as a reference."""
_MOST_NOISE = 2.0
"""Cap on the measured rounding, as a multiple of the expected rounding. Beyond it, any difference would pass."""
_REPEATS = (1, 2)
_TASKS = (
    "Name the three most important points.",
    "Explain the first part to a beginner.",
    "What would you change, and why?",
    "Write a short summary.",
)
_TOOL: Mapping[str, Any] = {
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
_SCHEMA = {"type": "object", "properties": _FIELDS, "required": [*_FIELDS], "additionalProperties": False}
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
    """Extra fields of the request body."""
    form: Mapping[str, Any] | None = None
    """JSON schema that constrains the answers. Log-probabilities without the grammar then say little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCheck:
    """Outcome of one kind of request."""

    kind: str
    about: str
    outcome: Outcome
    compared: int
    ties: int = 0
    examples: tuple[str, ...] = ()
    """Answers that differ, one per prompt: which prompt, where, and both texts."""
    reason: str = ""
    """Reason why this kind was not judged."""
    fix: str = ""
    """How to have it judged."""
    tokens: int = 0
    """Tokens of the longest prompt, as counted by the plain server; 0 if it does not count them."""


async def check_answers(server: UrlBackend, plain: UrlBackend, *, salt: str) -> tuple[AnswerCheck, ...]:
    """Return the outcome of each kind of request.

    Args:
        server: server to judge, not started yet.
        plain: server of the same model without speculation.
        salt: makes the prompts new to the servers' prefix caches.

    Raises:
        BackendError: a server does not answer.
    """
    hello = Prompt(id="hello", messages=({"role": "user", "content": "Hello."},), max_tokens=1)
    try:
        await plain.start()
        await server.start()
        clients = [await Client.greet(each, hello, salt=salt) for each in (plain, server)]
        checks = [await _check(kind, *clients) for kind in _list_kinds(salt)]
        length = (await server.describe()).max_model_len
        rate = _PREFIX_CHARS / checks[0].tokens if checks[0].tokens else _CHARS_A_TOKEN
        room = _LONG_CHARS if length is None else int(rate * (_OF_CONTEXT * length - _TOKENS))
        long = await _check(_make_long(salt, max(0, min(_LONG_CHARS, room))), *clients)
        reached = f" (up to {long.tokens:,} of {length:,} tokens)" if long.tokens and length else ""
        return *checks, replace(long, about=f"{long.about}{reached}")
    finally:
        await plain.stop()
        await server.stop()


def describe_check(check: AnswerCheck, *, where: str, decides: bool = False) -> Finding:
    """Describe the outcome of one kind as a finding; not judged is an error where it `decides`."""
    if check.outcome == "not judged":
        text = f"Cannot tell whether answers with {check.about} match the plain server's: {check.reason}."
        if decides:
            return Finding.error("answers-not-judged", text, where=where, fix=check.fix)
        return Finding.warning("answers-not-judged", text, where=where, fix=check.fix)
    if check.outcome == "different":
        text = f"{len(check.examples)} of {check.compared} answers with {check.about} differ from the plain server's: "
        return Finding.error("answers-differ", f"{text}{check.examples[0]}.", where=where)
    ties = f" ({check.ties} differ where two tokens are almost equally likely)" if check.ties else ""
    text = f"{check.compared} of {check.compared} answers with {check.about} match the plain server's{ties}."
    return Finding.info("answers-same", text, where=where)


def _list_texts() -> list[str]:
    return [prompt.text or str(prompt.messages) for each in load_probe(60) for prompt in each.prompts]


def _list_kinds(salt: str) -> Iterator[_Kind]:
    texts = _list_texts()
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
        form=_TOOL["function"]["parameters"],
    )
    yield _Kind(
        name="schema",
        about="a JSON schema",
        prompts=tuple(
            _chat(f"schema-{i}", f"[{salt}] Describe {each} as JSON.", tokens=2 * _TOKENS)
            for i, each in enumerate(_SUBJECTS)
        ),
        extra={"response_format": {"type": "json_schema", "json_schema": {"name": "subject", "schema": _SCHEMA}}},
        form=_SCHEMA,
    )


def _make_long(salt: str, room: int) -> _Kind:
    """Return requests of a third, two thirds and all of the room, in characters."""
    texts = _list_texts()
    book = "\n\n".join(texts) * (1 + room // max(1, sum(map(len, texts))))
    sizes = [room * (i + 1) // _LONG_PROMPTS for i in range(_LONG_PROMPTS)]
    prompts = (_chat(f"long-{i}", f"[{salt} {i}]\n{book[:size]}\n\n{_TASKS[i]}") for i, size in enumerate(sizes))
    return _Kind(name="long", about="a long context", prompts=tuple(prompts))


def _chat(name: str, text: str, *, tokens: int = _TOKENS) -> Prompt:
    return Prompt(id=name, messages=({"role": "user", "content": text},), max_tokens=tokens)


_TYPES: Mapping[str, type] = {"string": str, "integer": int, "array": list}


def _holds(text: str, form: Mapping[str, Any]) -> bool:
    """Return whether an answer, behind the name of a tool, is an object of a form."""
    try:
        found = json.loads(text[max(0, text.find("{")) :])
    except ValueError:
        return False
    fields = form["properties"]
    return (
        isinstance(found, dict)
        and {*form["required"]} <= found.keys() <= fields.keys()
        and all(isinstance(value, _TYPES[fields[name]["type"]]) for name, value in found.items())
        and all(value in fields[name].get("enum", [value]) for name, value in found.items())
    )


async def _check(kind: _Kind, plain: Client, server: Client) -> AnswerCheck:
    """Ask both servers twice, and say what the difference is worth."""
    theirs = [await _ask_all(kind, plain, repeat) for repeat in _REPEATS]
    nothing = AnswerCheck(
        kind=kind.name,
        about=kind.about,
        outcome="not judged",
        compared=len(kind.prompts),
        tokens=max(each.num_prompt_tokens or 0 for each in theirs[0]),
    )
    if refusal := next((each.error for answers in theirs for each in answers if each.error), None):
        fix = "Start the plain server with the same flags as the other one, apart from speculation."
        return replace(nothing, reason=f"the plain server rejects such requests ({refusal})", fix=fix)
    before = await server.backend.counters()
    ours = [await _ask_all(kind, server, repeat) for repeat in _REPEATS]
    growth = await server.backend.counters() - before
    own = [each for pair in zip(*theirs, strict=True) if (each := _differ(*pair)) is not None]
    nulls = [(await _examine(each, plain, plain, kind)).gap for each in own]
    prior, step = Thresholds().rounding["bfloat16"]
    scale = find_rounding_scale([gap for gap in nulls if gap is not None], prior, step)
    if (len(own) > _MOST_UNSTEADY * len(kind.prompts) and None in nulls) or scale > _MOST_NOISE * prior:
        reason = f"the plain server changed {len(own)} of its own {len(kind.prompts)} answers when asked again"
        fix = "Keep other traffic away from the plain server, and check that it is plain vLLM at temperature 0."
        return replace(nothing, reason=reason, fix=fix)
    faults: dict[str, str] = {}
    views: dict[str, tuple[OutputDifference, Divergence]] = {}
    for answers in ours:
        for *known, found in zip(*theirs, answers, strict=True):
            if fault := _find_fault(known, found, kind.form):
                faults.setdefault(found.prompt_id, f"{found.prompt_id}: {fault}")
            elif (each := _differ_from_all(known, found)) is not None:
                seen = each, await _examine(each, plain, server, kind)
                views[found.prompt_id] = max(views.get(found.prompt_id, seen), seen, key=lambda it: _rank(it[1], scale))
    return _judge(nothing, [*views.values()], faults, scale, growth)


def _rank(view: Divergence, scale: float) -> tuple[int, float]:
    """Return how bad a difference is: of a prompt's two answers the worse one counts."""
    return 2 if is_flagged(view, scale) else 0 if is_tie(view, scale) else 1, view.gap or 0.0


def _find_fault(known: Sequence[Answer], found: Answer, form: Mapping[str, Any] | None) -> str:
    """Return what no rounding explains: an error, another form, or other text from the same tokens; else nothing."""
    if found.error:
        return f"it rejects the request ({found.error})"
    first, is_cut = known[0], found.finish_reason == "length"
    if form is not None and not is_cut and _holds(first.text, form) and not _holds(found.text, form):
        return f"{found.text[:80]!r} does not have the requested form, but {first.text[:80]!r} does"
    alike = [each for each in known if found.token_ids and each.token_ids == found.token_ids]
    if alike and all(_is_garbled(each, found) for each in alike):
        ends = "" if alike[0].finish_reason == found.finish_reason else f" ({found.finish_reason})"
        return f"the same tokens became {found.text[:80]!r}{ends} instead of {alike[0].text[:80]!r}"
    return ""


def _is_garbled(known: Answer, found: Answer) -> bool:
    """Return whether equal tokens came out as another text; parsers of tools may withhold what was cut off."""
    a, b = ("".join(each.text.split()) for each in (known, found))
    withholds = found.finish_reason == "length" and bool(a and b) and (a.startswith(b) or b.startswith(a))
    return (a != b and not withholds) or known.finish_reason != found.finish_reason


def _judge(
    check: AnswerCheck,
    views: Sequence[tuple[OutputDifference, Divergence]],
    faults: Mapping[str, str],
    scale: float,
    growth: Counters,
) -> AnswerCheck:
    """Return what differences are worth, and whether equality was a test at all.

    Args:
        check: to complete.
        views: answers that the plain server did not give, with both servers' log-probabilities of the tokens.
        faults: what no rounding explains, by prompt.
        scale: of rounding, in nats.
        growth: of the server's counters.
    """
    ties = [each for each, view in views if is_tie(view, scale)]
    real = [each for each, view in views if is_flagged(view, scale)]
    unknown = [each for each, _ in views if each not in ties and each not in real]
    apart = [each for each, view in views if each in ties and is_apart(view, scale)]
    early = [each for each in (*unknown, *apart) if is_early(each)]
    if faults or real or is_too_often(len(early), check.compared):
        quoted = {each.unit[1]: _quote(each) for each in real or ([] if faults else early)}
        return replace(check, outcome="different", examples=(*{**quoted, **faults}.values(),), ties=len(ties))
    reason = fix = ""
    if unknown:
        lacks = "the log-probabilities of their tokens do not tell how likely both are"
        if any(each in unknown and view.among_best is None for each, view in views):
            lacks = "the servers return no log-probabilities by token"
        reason = f"{len(unknown)} of {check.compared} answers differ, and {lacks}; first {_quote(unknown[0])}"
        fix = "Pass the addresses of vLLM itself, as gateways drop token ids and log-probabilities, or read the texts."
    elif check.kind == _CACHE and growth.prefix_hits == 0:
        reason = "all answers match, but its prefix cache had no hit"
        fix = "Start the server with --enable-prefix-caching."
    elif check.kind == _CACHE and not growth.prefix_hits:
        reason = "all answers match, but it does not report the hits of its prefix cache"
        fix = "Pass the address at which the server's own /metrics can be read."
    elif not growth.spec.num_drafts:
        reason = "all answers match, but the server verified no drafts for them"
        fix = "Pass a server that speculates, at the address of its own /metrics, which counts drafts."
    return replace(check, outcome="not judged" if reason else "same", ties=len(ties), reason=reason, fix=fix)


async def _ask_all(kind: _Kind, client: Client, repeat: int) -> list[Answer]:
    turn = Turn(number=0, arm=client.backend.name, workload=kind.name, repeat=repeat, prompts=kind.prompts)
    return [await client.ask(turn, prompt, seed=0, extra=kind.extra) for prompt in kind.prompts]


def _differ(theirs: Answer, ours: Answer) -> OutputDifference | None:
    return find_difference((theirs.workload, theirs.prompt_id), theirs, ours)


def _differ_from_all(known: Sequence[Answer], found: Answer) -> OutputDifference | None:
    """Return how an answer differs from the first of the plain server's; None where it is any of them."""
    differences = [_differ(each, found) for each in known]
    return None if None in differences else differences[0]


async def _examine(difference: OutputDifference, plain: Client, server: Client, kind: _Kind) -> Divergence:
    try:
        views = [await ask(difference, client) for client in (plain, server)]
    except BackendError:
        views = [None, None]
    found = conclude(difference, views)
    return found if kind.form is None else replace(found, gap=_find_gap_within(found, views))


def _find_gap_within(found: Divergence, views: Sequence[View]) -> float | None:
    """Return how far two tokens are apart at least that a grammar allows, whatever is likelier and not allowed.

    A token that is not among the best is behind the last of them.
    """
    tokens = (found.plain_token, found.candidate_token)
    if None in tokens:
        return None
    names = [f"token_id:{token}" for token in tokens]
    known = [(view, [view[name] for name in names if name in view]) for view in views if view]
    gaps = [max(both) - (min(both) if len(both) > 1 else min(view.values())) for view, both in known if both]
    return min(gaps, default=None)


def _quote(difference: OutputDifference) -> str:
    place = "" if difference.position is None else f" from output token {difference.position} on"
    return f"{difference.unit[1]}{place}: {difference.excerpt}"
