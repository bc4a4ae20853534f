"""When a completion ends: end and stop tokens, stop strings, length."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.text.detokenizer import IncrementalDetokenizer

__all__ = ["Stop", "find_stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a completion ended, and how many of the new tokens belong to it."""

    num_tokens: int
    finish_reason: str
    """`stop`, `length` or `abort`."""
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
    """Detokenise `emitted` up to the first reason to stop; return the new text and that reason.

    A stop token counts as output but leaves no text unless include_stop_str_in_output is set. Stop strings are looked
    for once min_tokens are there.

    Args:
        emitted: the new tokens.
        params: what ends the completion.
        detokenizer: its text so far.
        num_output: tokens generated before these.
        room: how many more it may have.
        end_ids: end-of-sequence tokens.
        end: why the completion ends after these tokens, if nothing but a lack of room ends it earlier or there.
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
