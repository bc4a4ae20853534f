"""Reads logged lines: their prompts and answers, and the request's settings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from draftwise.core import Origin, Prompt, RecordedAnswer
from draftwise.workloads.conversation import Turns, as_chat, from_json_text, plain_text, split_turns, to_messages
from draftwise.workloads.log_formats import SHAPES, Line, LoggedRequest, find_logged, join_requests
from draftwise.workloads.logged_spans import join_messages
from draftwise.workloads.text_lengths import Tokens
from draftwise.workloads.workload_rows import Faults, FileRow, from_begin, to_seconds

_NO_REQUEST = "without a request"
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Keys of a request's maximum answer length."""
_BY_ID = "token_id:"
"""How vLLM writes a token with `return_tokens_as_token_ids`."""
_HIDDEN = ("reasoning_content", "reasoning")
_REASONED = ("reasoning", "thinking")
_CALLED = ("function_call", "custom_tool_call", "tool_use")
"""Types of what an answer is made of: Responses API, Anthropic's Messages API."""


def read_recorded(row: Line, logged: LoggedRequest, said: str | None) -> RecordedAnswer:
    """Return the recorded data of a request and its answer.

    Args:
        row: the whole line.
        logged: the request in it.
        said: the recorded next turn, if the answer is a turn of a conversation.
    """
    body, response = logged.body, _body_of(logged.response)
    choice = _first_choice(response) or {}
    message = _mapping(choice.get("message"))
    usage = _mapping(response.get("usage"))
    parts = (*_output_items(response), *_items(response.get("content")))
    items = {str(_mapping(each).get("type")) for each in parts}
    limit = next((body[key] for key in LIMITS if _is_count(body.get(key))), None)
    return RecordedAnswer(
        answer=said or _answer_text(logged.response) or None,
        token_ids=() if said is not None else _answer_ids(row, choice),
        prompt_token_ids=_prompt_ids(row, body, response, choice),
        num_tokens=read_answer_tokens(logged) if said is None else None,
        num_prompt_tokens=_to_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        temperature=_to_temperature(body.get("temperature")),
        max_tokens=limit,
        route=_find_name(_ROUTES, row, body),
        tenant=_find_name(_TENANTS, row, body),
        conversation=logged.session or _find_name(_CONVERSATIONS, row, body),
        reasoned=any(map(message.get, _HIDDEN)) or bool(items & {*_REASONED}) or _reasoning_tokens(usage) > 0,
        called_tools=any(map(message.get, ("tool_calls", "function_call"))) or bool(items & {*_CALLED}),
        template_variables=_template_variables(body),
    )


def read_answer_tokens(logged: LoggedRequest) -> int | None:
    """Return the server's token count of the logged answer; None if the log does not have it."""
    body = _body_of(logged.response)
    if len(_items(body.get("choices"))) > 1:
        return None  # the count is that of all answers together
    usage = _mapping(body.get("usage")) or _mapping(_mapping(logged.response).get("usage"))
    values = (logged.output_tokens, usage.get("completion_tokens"), usage.get("output_tokens"))
    return next((count for value in values if (count := _to_count(value)) is not None), None)


def token_ids_of(value: Any) -> tuple[int, ...]:
    """Return a list of token ids; empty for any other value."""
    is_ids = isinstance(value, Sequence) and not isinstance(value, str) and all(type(each) is int for each in value)
    return tuple(value) if is_ids else ()


def _answer_text(response: Any) -> str:
    """Return the text of a logged answer: a completion, a chat completion, a response, a message or plain text."""
    if isinstance(response, str):
        return response
    body = _body_of(response)
    generations = body.get("generations")  # LangChain: a list for each prompt
    while isinstance(generations, list) and generations:
        generations = generations[0]
    if isinstance(generations, Mapping):
        return plain_text(generations.get("text"))
    choice = _first_choice(body)
    said = choice.get("message") or choice.get("text") if choice is not None else body.get("message")
    if choice is not None or isinstance(said, Mapping):
        return said if isinstance(said, str) else plain_text(_mapping(said).get("content"))
    texts = (plain_text(body.get(key)) for key in ("content", "output_text", "generated_text"))
    return next(filter(None, texts), "") or _output_text(_output_items(body))


def _answer_ids(row: Line, choice: Line) -> tuple[int, ...]:
    """Return the answer's token ids: vLLM's `return_token_ids`, else its log-probabilities by token id."""
    return (
        token_ids_of(choice.get("token_ids"))
        or token_ids_of(row.get("answer_token_ids"))
        or _ids_of_logprobs(_mapping(choice.get("logprobs")))
    )


def _ids_of_logprobs(logprobs: Line) -> tuple[int, ...]:
    content = logprobs.get("content")
    tokens = [_mapping(each).get("token") for each in content] if isinstance(content, list) else logprobs.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(each, str) and each.startswith(_BY_ID) for each in tokens):
        return ()
    digits = [each.removeprefix(_BY_ID) for each in tokens]
    return tuple(map(int, digits)) if all(map(str.isdecimal, digits)) else ()


def _prompt_ids(row: Line, body: Line, response: Line, choice: Line) -> tuple[int, ...]:
    given = (response.get("prompt_token_ids"), choice.get("prompt_token_ids"), row.get("prompt_token_ids"))
    return next((ids for each in (*given, body.get("prompt")) if (ids := token_ids_of(each))), ())


_ROUTES = ("route",)
_TENANTS = (
    *("tenant", "tenant_id", "organization", "organization_id", "org_id", "team_id", "team", "customer_id", "customer"),
    *("user_id", "userId", "user", "end_user", "api_key_hash", "user_api_key_hash"),
)
_CONVERSATIONS = (
    *("conversation_id", "conversationId", "conversation", "session_id", "sessionId", "thread_id", "chat_id"),
    *("traceId", "trace_id"),
)


def _find_name(keys: Sequence[str], row: Line, body: Line) -> str | None:
    """Return the value that a gateway or an application wrote under a key, next to the request or in its metadata."""
    places = (row, _mapping(row.get("metadata")), body, _mapping(body.get("metadata")))
    values = (place[key] for key in keys for place in places if key in place)
    return next((str(each) for each in values if isinstance(each, str | int) and each != ""), None)


def _template_variables(body: Line) -> dict[str, Any]:
    """Return vLLM's arguments to a chat template besides the messages."""
    tools = {"tools": body["tools"]} if body.get("tools") else {}
    return tools | dict(_mapping(body.get("chat_template_kwargs")))


def _mapping(value: Any) -> Line:
    value = from_json_text(value)
    return value if isinstance(value, Mapping) else {}


def _reasoning_tokens(usage: Line) -> int:
    details = _mapping(usage.get("completion_tokens_details")) or _mapping(usage.get("output_tokens_details"))
    return _to_count(details.get("reasoning_tokens")) or 0


def _body_of(response: Any) -> Line:
    """Return the answer itself, where a log has it next to a status."""
    whole = response if isinstance(response, Mapping) else {}
    return _mapping(whole.get("body")) or whole


def _first_choice(body: Line) -> Line | None:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _output_text(output: Sequence[Any]) -> str:
    """Return the text of the messages that the Responses API puts out."""
    return "".join(plain_text(each.get("content")) for each in output if isinstance(each, Mapping))


def _output_items(body: Line) -> Sequence[Any]:
    return _items(body.get("output"))


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _to_count(value: Any) -> int | None:
    is_number = isinstance(value, int | float | str) and re.fullmatch(r"\d{1,15}(\.0)?", str(value))
    return int(float(value)) if is_number else None


def _to_temperature(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if is_number else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


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
        self.notes: Counter[str] = Counter()
        """What is said about rows that are used, and how many."""
        self._bodiless: tuple[str, LoggedRequest] | None = None

    def read(self, rows: Sequence[FileRow], file: str, *, rebase: bool = True) -> tuple[Prompt, ...]:
        """Return the prompts of all rows, in order of arrival if every row has a time.

        `rebase`: whether to count arrivals from the first one.
        """
        values = join_requests(join_messages([row.value for row in rows]))
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
            untimed = sum(draft.time is None for draft in drafts)
            self.notes["without a time, so that no arrival times are kept"] += untimed
        return tuple(prompts)

    def _refuse_duplicates(self, drafts: Sequence[_Draft], file: str) -> None:
        if not all(draft.bare for draft in drafts):
            return
        ids = Counter(draft.prompt.id for draft in drafts)
        if twice := [each for each, count in ids.items() if count > 1]:
            others = f" (and {len(twice) - 1} others)." if twice[1:] else "."
            text = f"{file} has the id {twice[0]!r} more than once" + others
            self._faults.add("duplicate-id", text, file, "Give every prompt a unique id.")

    def _drafts_of(self, row: FileRow) -> list[_Draft]:
        try:
            return list(self._drafts(row))
        except RecursionError:
            text = f"{row.where} is nested too deeply."
            self._faults.add("not-json", text, row.where, _EXAMPLE, reason="nested too deeply")
            return []

    def _drafts(self, row: FileRow) -> Iterator[_Draft]:
        logged = find_logged(row.value) if isinstance(row.value, Mapping) else None
        if logged is not None and logged.skipped:
            self._faults.leave_out(logged.skipped, row.where)
            return
        if logged is not None and logged.lacks:
            self._faults.leave_out(_NO_REQUEST, row.where, unread=True)
            self._bodiless = self._bodiless or (row.where, logged)
            return
        if faults := list(_find_faults(row.value, logged, takes_ids=self._takes_ids)):
            for reason, fault in faults:
                fix = _EXAMPLE if logged else f"{_EXAMPLE} {SHAPES}"
                self._faults.add("bad-prompt", f"{row.where} {fault}", row.where, fix, reason=reason)
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
            yield _Draft(prompt, to_seconds(logged.time), logged.bare, row.where)

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
            self.notes["without a logged answer, whose own max_tokens stands"] += 1
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


def _find_faults(value: Any, logged: LoggedRequest | None, *, takes_ids: bool) -> Iterator[tuple[str, str]]:
    """Yield why a row is left out, and what is wrong with it, as a predicate whose subject is the row's place."""
    if not isinstance(value, Mapping):
        yield _NO_REQUEST, "is not a JSON object."
        return
    body = value if logged is None else logged.body
    prompt, messages, given = body.get("prompt"), body.get("messages"), body.get("input")
    if sum(each is not None for each in (prompt, messages, given)) != 1:
        yield _NO_REQUEST, "needs either a prompt or messages."
    elif prompt is not None and not (_is_text(prompt) or (takes_ids and token_ids_of(prompt))):
        yield _NO_REQUEST, f"has a prompt that is empty or no text{_what_is(prompt)}."
    elif prompt is None and not _is_chat(_messages_of(body)):
        what = """has messages that are no list of {"role": ..., "content": ...}, or are all the assistant's."""
        yield _NO_REQUEST, what
    for key in LIMITS:
        limit = body.get(key)
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            yield f"with {key} out of range", f"has {limit!r} as {key}, which must be a positive whole number."
    if logged is None or logged.bare:
        yield from _find_slips(body)


def _find_slips(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    time = row.get("arrival_s")
    if time is not None and (isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1e11):
        text = f"has {time!r} as arrival_s, which must be seconds from the beginning of the recording."
        yield "with arrival_s out of range", text
    for key in row:
        # Operators' logs have keys of their own (MongoDB's _id, SGLang's rid); only a slip of the pen is an error.
        if not key.startswith("_") and (near := _find_near(key)) is not None and near not in row:
            yield f"with the unknown key {key!r}", f"has the unknown key {key!r}; did you mean {near!r}?"


@lru_cache(1024)
def _find_near(key: str) -> str | None:
    return None if key in _KEYS else next(iter(get_close_matches(key, _KEYS[1:], 1, cutoff=0.8)), None)


def _is_text(prompt: Any) -> bool:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    return isinstance(prompt, str) and bool(prompt)


def _what_is(prompt: Any) -> str:
    return " (it holds token ids, which no other model shares)" if token_ids_of(prompt) else ""


def _is_chat(messages: tuple[Mapping[str, Any], ...] | None) -> bool:
    return bool(messages) and any(message["role"] != "assistant" for message in messages or ())
