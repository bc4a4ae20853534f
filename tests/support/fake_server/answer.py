"""The bytes of one answer: made piece by piece, fast enough for tens of thousands of pieces a second."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any
from zlib import crc32

from tests.support.fake_server.script import FakeScript

__all__ = ["FakeAnswer", "read_prompt"]

_VOCABULARY = 5000
_DONE = b"data: [DONE]\n\n"


def read_prompt(request: Mapping[str, Any], *, chat: bool) -> str:
    """Return the prompt of a request as JSON text; each of its bytes is a token.

    Raises:
        ValueError: there is none, or several.
    """
    prompt = request.get("messages" if chat else "prompt")
    if not chat and isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not prompt or (not chat and isinstance(prompt, list) and not isinstance(prompt[0], int)):
        raise ValueError("one prompt is needed")
    return json.dumps(prompt)


class FakeAnswer:
    """Turns "tokens i to j are out" into what OpenAI's API sends.

    JSON is written by hand: the parts that stay the same are made once, the rest is a few `%d`.
    """

    def __init__(
        self, script: FakeScript, request: Mapping[str, Any], prompt: bytes, *, chat: bool, number: int
    ) -> None:
        self.prompt = prompt
        self.streams = bool(request.get("stream"))
        wanted = int(request.get("max_completion_tokens") or request.get("max_tokens") or 16)
        self.checksum = crc32(prompt)
        span = int(wanted * (1 - script.shortest))
        self.num_tokens = max(1, wanted - (self.checksum % (span + 1)))
        self.finish_reason = "length" if self.num_tokens == wanted else "stop"
        self._differs_at = script.differs_at
        options = request.get("stream_options") or {}
        self._usage = bool(options.get("include_usage"))
        self._running_usage = bool(options.get("continuous_usage_stats")) and script.reports_tokens
        self._token_ids = bool(request.get("return_token_ids")) and script.reports_tokens
        self._chat = chat
        kind = "chat.completion" if chat else "text_completion"
        self._about: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{number}",
            "object": kind + ".chunk" * (chat and self.streams),
            "created": 0,
            "model": script.model,
        }
        self._head = b"data: " + json.dumps(self._about)[:-1].encode() + b', "choices": [{"index": 0, '

    def tokens(self, start: int, end: int) -> list[int]:
        """Return output tokens by position: a function of the prompt alone, but for the script's difference."""
        found = [crc32(b"%d" % position, self.checksum) % _VOCABULARY for position in range(start, end)]
        if self._differs_at is not None and start <= self._differs_at < end:
            found[self._differs_at - start] = _VOCABULARY
        return found

    def piece(self, start: int, end: int) -> bytes:
        """Return the event that brings the tokens from `start` to `end`; nothing when the answer is not streamed."""
        if not self.streams:
            return b""
        tokens = self.tokens(start, end)
        if len(tokens) == 1 and start > 0 and end < self.num_tokens:
            values = (*tokens, *tokens) if self._token_ids else (*tokens,)
            return self._middle % ((*values, end, len(self.prompt) + end) if self._running_usage else values)
        reason = b'"%b"' % self.finish_reason.encode() if end == self.num_tokens else b"null"
        parts = [self._head, self._content(tokens, start), b', "finish_reason": ', reason]
        if self._token_ids:
            parts.append(b', "token_ids": ' + _numbers(tokens))
            if not start:
                parts.append(b', "prompt_token_ids": ' + _numbers(self.prompt))
        parts.append(b"}]")
        if self._running_usage:
            counts = (len(self.prompt), end, len(self.prompt) + end)
            parts.append(b', "usage": {"prompt_tokens": %d, "completion_tokens": %d, "total_tokens": %d}' % counts)
        parts.append(b"}\n\n")
        return b"".join(parts)

    @cached_property
    def _middle(self) -> bytes:
        """What `piece` returns for one token that is neither the first nor the last, with %d for what differs."""
        head, content = self._head.replace(b"%", b"%%"), self._content([], 1).replace(b'""', b'" %d"')
        usage = b', "usage": {"prompt_tokens": %d, "completion_tokens": %%d, "total_tokens": %%d}' % len(self.prompt)
        ids = b', "token_ids": [%d]' if self._token_ids else b""
        return b"".join(
            (head, content, b', "finish_reason": null', ids, b"}]", usage if self._running_usage else b"", b"}\n\n")
        )

    def _content(self, tokens: Sequence[int], start: int) -> bytes:
        text = b"".join([b" %d" % token for token in tokens])
        if not self._chat:
            return b'"text": "%b"' % text
        return b'"delta": {%b"content": "%b"}' % (b"" if start else b'"role": "assistant", ', text)

    def ending(self, metrics: Mapping[str, Any]) -> bytes:
        """Return what comes after the last token; `metrics` goes beside the usage."""
        usage = {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": self.num_tokens,
            "total_tokens": len(self.prompt) + self.num_tokens,
        }
        last = {**self._about, "choices": [], "usage": usage} | ({"metrics": metrics} if metrics else {})
        if self.streams:
            return (b"data: " + json.dumps(last).encode() + b"\n\n" if self._usage else b"") + _DONE
        text = "".join(f" {token}" for token in self.tokens(0, self.num_tokens))
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return json.dumps(last | {"choices": [{"index": 0, **said, "finish_reason": self.finish_reason}]}).encode()

    def failure(self, message: str) -> bytes:
        """Return the error that ends the answer before its last token."""
        error = json.dumps({"error": {"message": message, "type": "InternalServerError", "code": 500}}).encode()
        return b"data: " + error + b"\n\n" + _DONE if self.streams else error


def _numbers(values: Sequence[int]) -> bytes:
    return str(list(values)).encode()
