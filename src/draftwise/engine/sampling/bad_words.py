"""Encodes bad words as token sequences that an output must not contain. Uses no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftwise.knowledge.messages import refusal


def encode_bad_words(words: Sequence[str], encode: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences to forbid: each word as at the start of a text and, if it differs, after a space.

    As in vLLM, the form after a space counts only if it has the same number of tokens and a different first one.

    Args:
        words: `SamplingParams.bad_words`.
        encode: converts text to token ids, without special tokens.

    Raises:
        InvalidSetup: a word encodes to no token.
    """
    encoded: list[tuple[int, ...]] = []
    for word in words:
        bare, spaced = (tuple(encode(prefix + word.lstrip())) for prefix in ("", " "))
        if not bare:
            raise refusal("empty-bad-word", word=word)
        encoded.append(bare)
        if spaced and spaced[0] != bare[0] and len(spaced) == len(bare):
            encoded.append(spaced)
    return tuple(encoded)
