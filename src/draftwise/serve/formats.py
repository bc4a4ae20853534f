"""Formats choices of /v1/completions and /v1/chat/completions as JSON, as vLLM does."""

from __future__ import annotations

import json
import uuid
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from draftwise.engine.engine_outputs import Delta, Logprob, LogprobsOfToken
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.serve.tools import CallPart, ToolParser, ToolUse

_NULLS_OF_ANSWER = ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
_NULLS_OF_MESSAGE = ("refusal", "annotations", "audio", "function_call", "reasoning")
"""Fields that vLLM always sends as null."""
_LOWEST = -9999.0
"""Value in place of minus infinity, which JSON lacks."""
_LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class JsonItems(list[str]):
    """A list of values already encoded as JSON: encoding a long list at once would delay other answers."""


Logprobs = dict[str, JsonItems]
"""Log-probabilities of a part of a choice, as lists that grow token by token."""


class AnswerFormat(Protocol):
    """Turns increments into choices. One object per HTTP call."""

    whole_object: str
    chunk_object: str

    def make_openings(self) -> list[dict[str, Any]]:
        """Return the chunks of each choice in a stream before its first increment."""

    def describe_prompt(self) -> dict[str, Any]:
        """Return the fields about the prompt in a stream's first chunks."""

    def describe_answer(self) -> dict[str, Any]:
        """Return the fields of a complete answer around its choices. Call it after the choices are made."""

    def note_prompt(self, prompt_index: int, positions: list[LogprobsOfToken | None], /) -> None:
        """Record log-probabilities of the prompt's next tokens. All arrive before the first choice."""

    def make_logprobs(self, prompt_index: int, delta: Delta, /) -> Logprobs | None:
        """Return an increment's log-probabilities; None if not requested."""

    def make_choice(self, prompt_index: int, delta: Delta, logprobs: Logprobs | None, /) -> dict[str, Any]:
        """Return an increment (or a whole completion, as one increment) as a choice without its index.

        `logprobs` belong to the increment, or to all increments of the completion.
        """


class _TokenNames:
    """Names of tokens next to their log-probabilities: their text, or `token_id:N` with `by_id`."""

    def __init__(self, tokenizer: Tokenizer, *, by_id: bool) -> None:
        self._tokenizer = tokenizer
        self._by_id = by_id or not tokenizer.makes_text

    def of(self, token: int) -> str:
        return f"token_id:{token}" if self._by_id else self._tokenizer.token_text(token)

    def distinct(self, token: int) -> str:
        """Return a unique name of a token: OpenAI's `bytes:\\x..` for a part of a character."""
        name = self.of(token)
        if "\ufffd" not in name:
            return name
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self._tokenizer.token_bytes(token))


class CompletionFormat:
    """Choices of /v1/completions.

    Args:
        prompts: tokens of the prompts, if an answer shows them.
        texts: texts of the prompts to echo at the start of choices. None: no echo.
        streamed: whether choices are chunks.
        num_logprobs: number of alternatives per token. None: no log-probabilities.
        only_prompt: whether choices hold nothing but the prompt.
        return_token_ids: whether choices include token ids.
        name_by_id: whether tokens are named by their ids.
    """

    whole_object = chunk_object = "text_completion"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompts: list[array[int]],
        texts: list[str] | None,
        streamed: bool,
        num_logprobs: int | None,
        only_prompt: bool,
        return_token_ids: bool,
        name_by_id: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._names = _TokenNames(tokenizer, by_id=name_by_id)
        self._prompts = prompts
        self._num_logprobs = num_logprobs
        self._texts, self._streamed = texts, streamed
        self._only_prompt = only_prompt
        self._return_token_ids = return_token_ids
        self._offsets: dict[tuple[int, int], int] = {}
        """Characters so far of each choice whose log-probabilities have begun."""
        self._begun: set[tuple[int, int]] = set()
        """Choices already begun."""
        self._echoed: dict[int, tuple[Logprobs, int]] = {}
        """Log-probabilities of echoed prompts, and the text offset after them."""
        self._prompt_logprobs: dict[int, JsonItems] = {}

    def make_openings(self) -> list[dict[str, Any]]:
        """Return nothing: a completion stream has no opening."""
        return []

    def describe_prompt(self) -> dict[str, Any]:
        """Return nothing: each choice has its own prompt."""
        return {}

    def describe_answer(self) -> dict[str, Any]:
        """Return the fields that vLLM sends as null."""
        return dict.fromkeys(_NULLS_OF_ANSWER)

    def note_prompt(self, prompt_index: int, positions: list[LogprobsOfToken | None], /) -> None:
        """Record them for the choices that include them."""
        if not self._streamed:
            self._prompt_logprobs.setdefault(prompt_index, JsonItems()).extend(map(_encode_candidates, positions))
        if self._texts is not None and self._num_logprobs is not None:
            sent, offset = self._echoed.get(prompt_index, (_no_logprobs(), 0))
            begun = len(sent["tokens"])
            tokens = self._prompts[prompt_index][begun : begun + len(positions)]
            self._echoed[prompt_index] = sent, self._write(sent, offset, tokens, positions)

    def make_logprobs(self, prompt_index: int, delta: Delta, /) -> Logprobs | None:
        """Return an increment's log-probabilities. The first one includes those of an echoed prompt."""
        if self._num_logprobs is None:
            return None
        key, sent = (prompt_index, delta.index), _no_logprobs()
        if key not in self._offsets:
            echoed, self._offsets[key] = self._echoed.get(prompt_index, (sent, 0))
            sent = {name: JsonItems(items) for name, items in echoed.items()}
        if not self._only_prompt:
            self._offsets[key] = self._write(sent, self._offsets[key], delta.token_ids, delta.logprobs or [])
        return sent

    def make_choice(self, prompt_index: int, delta: Delta, logprobs: Logprobs | None, /) -> dict[str, Any]:
        """Return a choice from an increment or a whole completion."""
        key, is_empty = (prompt_index, delta.index), self._only_prompt
        first, ids = key not in self._begun, self._return_token_ids
        self._begun.add(key)
        text, token_ids = ("", []) if is_empty else (delta.text, delta.token_ids)
        if first and self._texts is not None:
            text = self._texts[prompt_index] + text
        choice = {
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": self._prompts[prompt_index].tolist() if ids and first else None,
            "token_ids": token_ids if ids else None,
        }
        if self._streamed:
            return choice
        of_prompt = self._prompt_logprobs.get(prompt_index) if delta.index == 0 else None
        return choice | {"prompt_logprobs": of_prompt or None, "routed_experts": None, "weight_versions": None}

    def _write(
        self, sent: Logprobs, offset: int, tokens: Iterable[int], positions: Sequence[LogprobsOfToken | None]
    ) -> int:
        """Add tokens to lists; return the offset of the text that follows."""
        name = self._names.distinct
        for token, candidates in zip(tokens, positions, strict=True):
            sent["text_offset"].append(str(offset))
            sent["tokens"].append(encode(name(token)))
            sent["token_logprobs"].append(encode(candidates and _clamp(candidates[token])))
            top = {name(i): _clamp(each) for i, each in (candidates or {}).items()}
            sent["top_logprobs"].append(encode(top or None))
            offset += len(self._tokenizer.token_text(token))
        return offset


class ChatFormat:
    """Choices of /v1/chat/completions.

    Args:
        prompt: tokens of the prompt, if the answer shows them.
        role: role of the message.
        said: text at the start of the message.
        streamed: whether choices are chunks.
        num_logprobs: alternatives of each token; None: no log-probabilities.
        name_by_id: whether tokens are named by their ids.
    """

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt: array[int] | None,
        role: str,
        said: str,
        tool_use: ToolUse | None,
        streamed: bool,
        num_logprobs: int | None,
        name_by_id: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._names = _TokenNames(tokenizer, by_id=name_by_id)
        self._prompt = prompt
        self._role, self._said = role, said
        self._tool_use = tool_use
        self._parsers: dict[int, ToolParser] = {}
        self._called: set[int] = set()
        """Choices with a call."""
        self._streamed = streamed
        self._num_logprobs = num_logprobs
        self._prompt_logprobs = JsonItems()

    def make_openings(self) -> list[dict[str, Any]]:
        """Return the chunk with the role, and one with the initial text."""
        nothing = {"logprobs": None, "finish_reason": None}
        opening = {"delta": {"role": self._role, "content": ""}} | nothing
        return [opening, {"delta": {"content": self._said}} | nothing] if self._said else [opening]

    def describe_prompt(self) -> dict[str, Any]:
        """Return the prompt's tokens, if requested."""
        return {"prompt_token_ids": None if self._prompt is None else self._prompt.tolist()}

    def describe_answer(self) -> dict[str, Any]:
        """Return the prompt's tokens and log-probabilities, and the fields that vLLM sends as null."""
        about = {"prompt_logprobs": self._prompt_logprobs or None}
        return dict.fromkeys((*_NULLS_OF_ANSWER, "prompt_text")) | about | self.describe_prompt()

    def note_prompt(self, _prompt_index: int, positions: list[LogprobsOfToken | None], /) -> None:
        """Record them for the end of the answer."""
        if not self._streamed:
            self._prompt_logprobs.extend(map(_encode_candidates, positions))

    def make_logprobs(self, _prompt_index: int, delta: Delta, /) -> Logprobs | None:
        """Return an increment's log-probabilities."""
        if self._num_logprobs is None:
            return None
        sent = JsonItems()
        for token, candidates in zip(delta.token_ids, delta.logprobs or [], strict=True):
            best = sorted(candidates.items(), key=lambda item: item[1].rank)[: self._num_logprobs]
            top = [self._candidate(i, each) for i, each in best]
            sent.append(encode(self._candidate(token, candidates[token]) | {"top_logprobs": top}))
        return {"content": sent}

    def make_choice(self, _prompt_index: int, delta: Delta, logprobs: Logprobs | None, /) -> dict[str, Any]:
        """Return a choice from an increment or a whole message."""
        message, finish_reason = self._make_message(delta)
        choice = {
            **message,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": delta.stop_reason,
            "token_ids": None if self._prompt is None else delta.token_ids,
        }
        return choice if self._streamed else choice | {"routed_experts": None, "weight_versions": None}

    def _make_message(self, delta: Delta) -> tuple[dict[str, Any], str | None]:
        """Return the message or the change to it, with the calls in its text, and the finish reason."""
        content, calls, reason = delta.text, list[CallPart](), delta.finish_reason
        use = self._tool_use
        if use is not None and use.make_parser is not None:
            content, calls = self._find_calls(delta, use.make_parser)
            calls = [call for call in calls if use.parallel or call.index == 0]
            self._called |= {delta.index} if calls else set()
            if reason == "stop" and use.ends_in_calls and delta.index in self._called:
                reason = "tool_calls"
        if self._streamed:
            shown: dict[str, Any] = {"content": content} if content or not calls else {}
            if calls:
                shown["tool_calls"] = [{"index": call.index} | _tool_call(call) for call in calls]
            return {"delta": shown}, reason
        content = self._said + content
        chose_calls = bool(calls) and use is not None and use.structured_outputs is None
        whole = {"role": self._role, "content": content or (None if chose_calls else "")}
        whole |= dict.fromkeys(_NULLS_OF_MESSAGE)
        return {"message": whole | ({"tool_calls": list(map(_tool_call, calls))} if calls else {})}, reason

    def _find_calls(self, delta: Delta, make_parser: Callable[[], ToolParser]) -> tuple[str, list[CallPart]]:
        if delta.index not in self._parsers:
            self._parsers[delta.index] = make_parser()
        parser = self._parsers[delta.index]
        content, calls = parser.feed(delta.text)
        if delta.finish_reason is not None:
            rest, more = parser.finish()
            content, calls = content + rest, calls + more
        return content, calls

    def _candidate(self, token: int, each: Logprob) -> dict[str, Any]:
        # Exact bytes, from which a character that spans several tokens can be reassembled.
        exact = list(self._tokenizer.token_bytes(token))
        return {"token": self._names.of(token), "logprob": _clamp(each), "bytes": exact}


def _tool_call(call: CallPart) -> dict[str, Any]:
    """Return a call, or a part of it, as OpenAI writes it; the first part of a call has its id and name."""
    if call.name is None:
        return {"function": {"arguments": call.arguments}}
    named = {"name": call.name, "arguments": call.arguments}
    return {"id": f"chatcmpl-tool-{uuid.uuid4().hex}", "type": "function", "function": named}


def _no_logprobs() -> Logprobs:
    return {name: JsonItems() for name in _LISTS}


def _encode_candidates(candidates: LogprobsOfToken | None) -> str:
    """Return the candidates at a position of a prompt as vLLM writes them."""
    told = {
        token: {"logprob": _clamp(each), "rank": each.rank, "decoded_token": each.decoded_token}
        for token, each in (candidates or {}).items()
    }
    return encode(candidates and told)


def _clamp(each: Logprob) -> float:
    return max(each.logprob, _LOWEST)
