"""Makes prompts from the rows of a prompt file or a log, or reports each row's fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from draftwise.core import Origin, Prompt
from draftwise.workloads.conversation import Turns, as_chat, plain_text, split_turns, to_messages
from draftwise.workloads.log_formats import SHAPES, LoggedRequest, find_logged, join_batches
from draftwise.workloads.logged_answers import LIMITS, read_answer_tokens, read_recorded, token_ids_of
from draftwise.workloads.logged_spans import join_messages
from draftwise.workloads.text_lengths import Tokens
from draftwise.workloads.workload_rows import Faults, FileRow, from_begin, to_seconds

DEFAULT_MAX_TOKENS = 128
_KEYS = ("id", "prompt", "messages", "max_tokens", "arrival_s", "ignore_eos")
_EXAMPLE = """Each line: {"id": "a1", "prompt": "def add(", "max_tokens": 128}, or "messages" instead of "prompt"."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A prompt whose place among the others is not known yet."""

    prompt: Prompt
    time: float | None
    bare: bool
    where: str


class LogReader:
    """Reads rows into prompts, and counts skipped rows.

    Args:
        turns: turns of a conversation to use; None for the first of a recorded conversation (as in vLLM's
            benchmarks) and the last of a request.
        logged: whether the length of the logged answer becomes `max_tokens`.
        tokens: counts answers whose length the log does not have.
        faults: collects faults.
        takes_ids: whether a prompt may be token ids, which can be replayed but not sent to another model.
    """

    def __init__(
        self, *, turns: Turns | None, logged: bool, tokens: Tokens, faults: Faults, takes_ids: bool = False
    ) -> None:
        self._takes_ids = takes_ids
        self._turns, self._logged, self._tokens, self._faults = turns, logged, tokens, faults
        self.passed_over: Counter[str] = Counter()
        self._bodiless: tuple[str, LoggedRequest] | None = None

    def read(self, rows: Sequence[FileRow], file: str, *, rebase: bool = True) -> tuple[Prompt, ...]:
        """Return the prompts of all rows, in order of arrival if every row has a time.

        `rebase`: whether to count arrivals from the first one.
        """
        values = join_batches(join_messages([row.value for row in rows]))
        joined = [replace(row, value=value) for row, value in zip(rows, values, strict=True) if value is not None]
        drafts = [draft for row in joined for draft in self._drafts_of(row)]
        if not drafts and self._bodiless is not None:
            where, logged = self._bodiless
            self._faults.add("no-request", f"{where} {logged.lacks}", where, logged.fix)
        self._refuse_duplicates(drafts, file)
        times = from_begin([draft.time for draft in drafts]) if rebase else [draft.time for draft in drafts]
        seen: Counter[str] = Counter()
        prompts = []
        for draft, time in zip(drafts, times, strict=True):
            seen[draft.prompt.id] += 1
            # Logs hold retries under the same id; a file made for measuring must not.
            again = f"@{draft.where.rpartition(':')[2]}" if seen[draft.prompt.id] > 1 else ""
            prompts.append(replace(draft.prompt, id=draft.prompt.id + again, arrival_s=time))
        if drafts and times[0] is not None:
            prompts.sort(key=lambda prompt: prompt.arrival_s or 0)
        elif any(draft.time is not None for draft in drafts):
            self.passed_over["without a time, so that no arrival times are kept"] += sum(
                draft.time is None for draft in drafts
            )
        return tuple(prompts)

    def _refuse_duplicates(self, drafts: Sequence[_Draft], file: str) -> None:
        ids = Counter(draft.prompt.id for draft in drafts if draft.bare)
        if twice := [each for each, count in ids.items() if count > 1]:
            others = f" (and {len(twice) - 1} others)." if twice[1:] else "."
            text = f"{file} has the id {twice[0]!r} more than once" + others
            self._faults.add("duplicate-id", text, file, "Give every prompt a unique id.")

    def _drafts_of(self, row: FileRow) -> list[_Draft]:
        try:
            return list(self._drafts(row))
        except RecursionError:
            self._faults.add("not-json", f"{row.where} is nested too deeply.", row.where, _EXAMPLE)
            return []

    def _drafts(self, row: FileRow) -> Iterator[_Draft]:
        logged = find_logged(row.value) if isinstance(row.value, Mapping) else None
        if logged is not None and logged.skipped:
            self.passed_over[logged.skipped] += 1
            return
        if logged is not None and logged.lacks:
            self.passed_over["without its request"] += 1
            self._bodiless = self._bodiless or (row.where, logged)
            return
        if faults := list(_find_faults(row.value, logged, takes_ids=self._takes_ids)):
            for fault in faults:
                fix = _EXAMPLE if logged else f"{_EXAMPLE} {SHAPES}"
                self._faults.add("bad-prompt", f"{row.where} {fault}", row.where, fix)
            return
        assert logged is not None
        for place, (content, said) in enumerate(self._contents(logged)):
            recorded = read_recorded(row.value, logged, said)
            prompt = Prompt(
                id=(logged.id or row.where) + (f"/{place}" if place else ""),
                max_tokens=self._limit(logged, recorded.answer),
                ignore_eos=logged.bare and logged.body.get("ignore_eos") is True,
                recorded=recorded,
                origin=Origin(row=0, place=0, stretch=row.stretch),
                **content,
            )
            yield _Draft(prompt, to_seconds(logged.time), logged.bare and not place, row.where)

    def _contents(self, logged: LoggedRequest) -> Iterator[tuple[dict[str, Any], str | None]]:
        """Yield (text or messages, what the conversation goes on with)."""
        given = _messages_of(logged.body)
        if given is None:
            text = logged.body.get("prompt")
            if not token_ids_of(text):
                yield {"text": text if isinstance(text, str) else text[0]}, None  # type: ignore[index]
            else:
                yield {}, None
            return
        turns = self._turns or (Turns.FIRST if logged.conversation else Turns.LAST)
        for messages, answer in split_turns(given, turns):
            yield {"messages": messages}, answer

    def _limit(self, logged: LoggedRequest, answer: str | None) -> int:
        own = next((logged.body[key] for key in LIMITS if logged.body.get(key) is not None), None)
        if not self._logged:
            return own or DEFAULT_MAX_TOKENS
        tokens = read_answer_tokens(logged) or self._tokens.count(answer or "")
        if not tokens:
            self.passed_over["without a logged answer, whose own max_tokens stands"] += 1
        return tokens or own or DEFAULT_MAX_TOKENS


def _messages_of(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    """Return the chat of a request; None where it is a text to continue. Responses API: `instructions` go first."""
    if body.get("messages") is not None:
        messages = to_messages(body["messages"])
        above = plain_text(body.get("system"))  # of Anthropic's Messages API
        return ({"role": "system", "content": above}, *messages) if messages and above else messages
    given = body.get("input")
    if given is None:
        return None
    messages = as_chat(given) if isinstance(given, str) else to_messages(given)
    if messages and isinstance(body.get("instructions"), str):
        return ({"role": "system", "content": body["instructions"]}, *messages)
    return messages


def _find_faults(value: Any, logged: LoggedRequest | None, *, takes_ids: bool) -> Iterator[str]:
    """Yield what is wrong with a row, as a predicate whose subject is the row's place."""
    if not isinstance(value, Mapping):
        yield "is not a JSON object."
        return
    body = value if logged is None else logged.body
    prompt, messages, given = body.get("prompt"), body.get("messages"), body.get("input")
    if sum(each is not None for each in (prompt, messages, given)) != 1:
        yield "needs either a prompt or messages."
    elif prompt is not None and not (_is_text(prompt) or (takes_ids and token_ids_of(prompt))):
        yield f"has a prompt that is empty or no text{_what_is(prompt)}."
    elif prompt is None and not _is_chat(_messages_of(body)):
        yield """has messages that are no list of {"role": ..., "content": ...}, or are all the assistant's."""
    for key in LIMITS:
        limit = body.get(key)
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            yield f"has {limit!r} as {key}, which must be a positive whole number."
    if logged is None or logged.bare:
        yield from _find_slips(body)


def _find_slips(row: Mapping[str, Any]) -> Iterator[str]:
    time = row.get("arrival_s")
    if time is not None and (isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1e11):
        yield f"has {time!r} as arrival_s, which must be seconds from the beginning of the recording."
    for key in row:
        # Operators' logs carry keys of their own; only a slip of the pen is an error.
        near = get_close_matches(key, _KEYS, 1, cutoff=0.8) if key not in _KEYS else []
        if near and near[0] not in row:
            yield f"has the unknown key {key!r}; did you mean {near[0]!r}?"


def _is_text(prompt: Any) -> bool:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    return isinstance(prompt, str) and bool(prompt)


def _what_is(prompt: Any) -> str:
    return " (it holds token ids, which no other model shares)" if token_ids_of(prompt) else ""


def _is_chat(messages: tuple[Mapping[str, Any], ...] | None) -> bool:
    return bool(messages) and any(message["role"] != "assistant" for message in messages or ())
