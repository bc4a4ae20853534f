"""Turns output tokens into text in constant time per token, and finds where a completion ends."""

from __future__ import annotations

import codecs
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from draftwise.engine.sampling.params import SamplingParams
from draftwise.knowledge.messages import refusal

if TYPE_CHECKING:
    from draftwise.engine.text.tokenizer import Tokenizer

_PROMPT_TAIL = 5
"""Number of prompt tokens that can affect the first output token's text (a leading space, a split character)."""
_LONGEST_CHARACTER = 16
"""Number of tokens after which text that still ends in a replacement character is accepted."""


class IncrementalDetokenizer:
    """A completion's growing text. Holds back a possible start of a stop string.

    Stops and truncates as vLLM does: the stop string that completes first wins, then the one listed first. The text
    ends before it, or after it with `include_stop`. An incomplete character at the end is dropped.

    Raises:
        InvalidSetup: there are stop strings, but no tokenizer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_strings: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        if stop_strings and not tokenizer.makes_text:
            raise refusal("no-tokenizer-loaded")
        self.stopped_by: str | None = None
        self._stops = tuple(stop_strings)
        self._falls = tuple(map(_find_falls, self._stops))
        self._begun = [0] * len(self._stops)
        """Characters of each stop string with which the text so far ends."""
        self._include_stop = include_stop
        self._held = ""
        """Longest suffix of the text that may start a stop string."""
        stream = _ByteStream if tokenizer.piece_bytes is not None else _WindowStream
        self._stream: _Stream = stream(tokenizer, skip_special_tokens, prompt_token_ids[-_PROMPT_TAIL:])

    def add(self, token_id: int, *, look_for_stops: bool = True) -> str:
        """Add one token and return the text that is now certain.

        Without `look_for_stops` (min_tokens not reached), stop strings that end in this token do not count.
        """
        new = self._stream.add(token_id)
        if not self._stops:
            return new
        cut = self._find_stop(new, look_for_stops)
        text = self._held + new
        out_from = len(self._held) if self._include_stop else 0
        if cut is not None:
            self._held, cut = "", len(text) - len(new) + cut
            return text[out_from:cut]
        num_held = max(self._begun)
        self._held = text[len(text) - num_held :]
        return text[out_from:] if self._include_stop else text[: len(text) - num_held]

    def finish(self) -> str:
        """Return the held-back text at the end."""
        held, self._held = self._held, ""
        return "" if self._include_stop else held

    def _find_stop(self, new: str, counts: bool) -> int | None:
        """Follow the stop strings through new text; return where to cut it at the first one to end.

        Each string is followed as Knuth, Morris and Pratt do: a character takes constant time, whatever they are.
        """
        for end, character in enumerate(new, start=1):
            for order, (stop, falls) in enumerate(zip(self._stops, self._falls, strict=True)):
                begun = self._begun[order]
                while begun and (begun == len(stop) or stop[begun] != character):
                    begun = falls[begun - 1]
                begun += stop[begun] == character
                self._begun[order] = begun
                if begun == len(stop):
                    if counts:
                        self.stopped_by = stop
                        return end if self._include_stop else end - len(stop)
                    self._begun[order] = falls[begun - 1]
        return None


@lru_cache(maxsize=256)
def _find_falls(stop: str) -> tuple[int, ...]:
    """Return for each start of a string the longest shorter start with which it ends."""
    falls, begun = [0] * len(stop), 0
    for place in range(1, len(stop)):
        while begun and stop[begun] != stop[place]:
            begun = falls[begun - 1]
        begun += stop[begun] == stop[place]
        falls[place] = begun
    return tuple(falls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a completion ended, and how many of the new tokens belong to it."""

    num_tokens: int
    finish_reason: str
    """`stop`, `length`, `abort`, or `error` if the tokenizer fails."""
    stop_reason: int | str | None = None


def find_stop(
    emitted: list[int],
    params: SamplingParams,
    detokenizer: IncrementalDetokenizer,
    *,
    num_output: int,
    room: int,
    end_ids: Set[int],
    end: str | None = None,
) -> tuple[str, Stop | None]:
    """Detokenize `emitted` up to the first stop; return the new text and the reason.

    A stop token counts as output but gives no text unless include_stop_str_in_output is set. Stop strings count only
    after min_tokens.

    Args:
        num_output: number of tokens generated before these.
        room: maximum further tokens.
        end: reason why the completion ends after these tokens, unless something else ends it first.
    """
    text = ""
    for count, token in enumerate(emitted, start=1):
        enough = num_output + count > params.min_tokens
        is_end = token in end_ids and not params.ignore_eos
        if enough and (is_end or token in params.stop_token_ids):
            if params.include_stop_str_in_output:
                text += detokenizer.add(token, look_for_stops=False)
            reason = None if is_end else token
            return text + detokenizer.finish(), Stop(num_tokens=count, finish_reason="stop", stop_reason=reason)
        text += detokenizer.add(token, look_for_stops=enough)
        if detokenizer.stopped_by is not None:
            return text, Stop(num_tokens=count, finish_reason="stop", stop_reason=detokenizer.stopped_by)
        if count == room and not (end == "stop" and count == len(emitted)):
            return text + detokenizer.finish(), Stop(num_tokens=count, finish_reason="length")
    if end is not None:
        return text + detokenizer.finish(), Stop(num_tokens=len(emitted), finish_reason=end)
    return text, None


class _Stream(Protocol):
    def add(self, token_id: int) -> str: ...


class _ByteStream:
    """Byte-level BPE: a token is bytes, so text is what a UTF-8 decoder has completed."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, prompt_tail: Sequence[int]) -> None:
        assert tokenizer.piece_bytes is not None
        self._bytes = tokenizer.piece_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for token_id in prompt_tail:
            self.add(token_id)

    def add(self, token_id: int) -> str:
        return "" if token_id in self._skipped else self._decode(self._bytes.get(token_id, b""))


class _WindowStream:
    """Any decoder: text of the last tokens with the new one, less their text without it (as in TGI and vLLM)."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, prompt_tail: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window = list(prompt_tail)
        self._num_read = len(self._window)

    def add(self, token_id: int) -> str:
        self._window.append(token_id)
        before = self._tokenizer.decode(self._window[: self._num_read], skip_special_tokens=self._skip)
        after = self._tokenizer.decode(self._window, skip_special_tokens=self._skip)
        unread = len(self._window) - self._num_read
        if unread < _LONGEST_CHARACTER and (len(after) <= len(before) or after.endswith("\ufffd")):
            return ""
        self._window = self._window[self._num_read :]
        self._num_read = len(self._window)
        return after[len(before) :]
