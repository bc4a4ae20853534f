"""Reads training data: plain text and JSON lines, gzipped or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from draftwise.core import InvalidSetup
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.workloads.rows import open_plain, read_objects

__all__ = ["Sample", "read_samples"]

_PIECE = 2**16
"""Characters of plain text tokenized at a time, up to the next line end."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sequence of token ids: a prompt, then the tokens to learn."""

    tokens: NDArray[np.int32]
    num_prompt: int
    """0: no prompt, all is learnt; as many as there are tokens: a prompt without an answer."""


def read_samples(
    paths: Sequence[str | Path], tokenizer: Tokenizer, *, max_length: int, window: int
) -> Iterator[Sample]:
    """Yield the samples of files, each at most `max_length` tokens long.

    - .txt: one running text, cut into windows of `window` tokens.
    - .jsonl, a JSON object a line: `text` (cut into windows), `prompt` with or without `completion`, `messages`
      (rendered with the chat template; the last one is learnt if it is the assistant's), or `token_ids` with or
      without `num_prompt`. A sample that is too long loses its end; a prompt without an answer loses its start.

    Raises:
        InvalidSetup: a file is missing or of an unknown kind, or a line is invalid.
    """
    for path in map(Path, paths):
        kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
        if kind not in (".txt", ".jsonl"):
            raise InvalidSetup.because(
                "unknown-data",
                f"{path} is of an unknown kind.",
                where=str(path),
                fix="Give .txt, .jsonl, .txt.gz or .jsonl.gz.",
            )
        try:
            with open_plain(path) as file:
                if kind == ".txt":
                    lines = TextIOWrapper(file, encoding="utf-8")
                    yield from _windows(_encode_pieces(lines, tokenizer), window)
                else:
                    yield from _read_lines(file, path, tokenizer, max_length, window)
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise InvalidSetup.because("unreadable-data", f"{path} cannot be read: {error}.", where=str(path)) from None


def _encode_pieces(lines: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    piece: list[str] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= _PIECE:
            yield tokenizer.encode("".join(piece), False)
            piece, size = [], 0
    yield tokenizer.encode("".join(piece), False)


def _windows(pieces: Iterable[list[int]], window: int) -> Iterator[Sample]:
    """Yield consecutive windows of a text."""
    rest: list[int] = []
    for piece in pieces:
        rest += piece
        full = len(rest) - len(rest) % window
        for start in range(0, full, window):
            yield _sample(rest[start : start + window], 0)
        rest = rest[full:]
    if rest:
        yield _sample(rest, 0)


def _read_lines(file: IO[bytes], path: Path, tokenizer: Tokenizer, max_length: int, window: int) -> Iterator[Sample]:
    for where, entry in read_objects(file, str(path)):
        try:
            if "text" in entry:
                yield from _windows([tokenizer.encode(entry["text"], False)], window)
            else:
                yield from _read_entry(entry, tokenizer, max_length, where)
        except (TypeError, KeyError, OverflowError) as error:
            text = f"{where} holds a value of the wrong type: {error}."
            raise InvalidSetup.because("bad-entry", text, where=where) from None


def _read_entry(entry: dict[str, Any], tokenizer: Tokenizer, max_length: int, where: str) -> Iterator[Sample]:
    if "prompt" in entry:
        prompt = tokenizer.encode(entry["prompt"])
        answer = tokenizer.encode(entry.get("completion") or "", False)
    elif "messages" in entry:
        prompt, answer = _encode_messages(entry["messages"], tokenizer)
    elif "token_ids" in entry:
        tokens, num_prompt = entry["token_ids"], int(entry.get("num_prompt", 0))
        prompt, answer = tokens[:num_prompt], tokens[num_prompt:]
    else:
        raise InvalidSetup.because(
            "bad-entry",
            f"{where} has none of text, prompt, messages and token_ids; its keys are {', '.join(entry) or 'none'}.",
            where=where,
            fix="Give one of them in each line.",
        )
    tokens = (prompt + answer)[:max_length] if answer else prompt[-max_length:]
    if tokens:
        yield _sample(tokens, min(len(prompt), len(tokens)))


def _encode_messages(messages: list[dict[str, Any]], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the conversation up to the last answer, and that answer as the template ends it."""
    has_answer = bool(messages) and messages[-1]["role"] == "assistant"
    before = tokenizer.apply_chat_template(messages[:-1] if has_answer else messages)
    if not has_answer:
        return tokenizer.encode(before, False), []
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    answer = whole.removeprefix(before) if whole.startswith(before) else messages[-1]["content"]
    return tokenizer.encode(before, False), tokenizer.encode(answer, False)


def _sample(tokens: list[int], num_prompt: int) -> Sample:
    return Sample(np.array(tokens, dtype=np.int32), num_prompt)
