"""A checkpoint's vocabulary: the token of each id, read without the tokenizers library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from draftwise.checkpoints.gguf_files import GgufHeader
from draftwise.checkpoints.text_files import read_bytes, read_json, read_lines
from draftwise.core import InvalidSetup
from draftwise.knowledge.messages import refusal

_PIECES = 1
"""Number of the field `pieces` in ModelProto, and of the field `piece` in each (sentencepiece_model.proto)."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_pieces(file: Path) -> list[str]:
    """Return the pieces in the order of their ids; empty if the file is not a sentencepiece model.

    Files of that name can also be tiktoken's, which is not an error.

    Raises:
        InvalidSetup: the file cannot be read, or is a Git LFS pointer.
    """
    data = memoryview(read_bytes(file))
    try:
        return [
            next(str(value, "utf-8") for inner, value in _fields(field) if inner == _PIECES)
            for number, field in _fields(data)
            if number == _PIECES
        ]
    except (ValueError, IndexError, StopIteration):
        return []


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and bytes of each field; numbers yield no bytes.

    Raises:
        ValueError, IndexError: this is no protobuf message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, length = key & 7, 0
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(data):
            raise ValueError("field beyond the end")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("number of more than ten bytes")


_SPLITTING = ("normalizer", "pre_tokenizer")
"""Parts of tokenizer.json that, with the merges, decide which ids a text becomes."""
_NAMED = ("bos_token", "eos_token", "pad_token")
_GGUF_NAMES = {"bos_token_id": "bos_token", "eos_token_id": "eos_token", "padding_token_id": "pad_token"}
_ADDED_KINDS = (3, 4)
"""GGUF token types: control tokens and user-defined ones."""
_MAX_ID = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokens by id."""

    tokens: Mapping[int, str]
    added: frozenset[int]
    """Ids that are matched as a whole before a text is split, mostly control tokens."""
    named: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ids of bos_token, eos_token and pad_token, by name; without those that the files do not name."""
    splitting: Mapping[str, str] = field(default_factory=dict)
    """Digest of each part that decides how a text is split; empty if the format does not have them."""
    source: str
    """File that it was read from."""

    @property
    def identity(self) -> str:
        """SHA-256 over the table of ids and tokens, as draftwise.json records it under `tokenizer`."""
        return _digest(sorted(self.tokens.items()))


def read_vocabulary(directory: Path) -> Vocabulary | None:
    """Return the vocabulary of a checkpoint; None without a tokenizer file that can be read offline.

    Raises:
        InvalidSetup: a file is damaged.
    """
    file = next((directory / name for name in _READERS if (directory / name).is_file()), None)
    vocabulary = None if file is None else _READERS[file.name](file)
    if vocabulary is None or not vocabulary.tokens:
        return None
    settings = _read_optional(directory / "tokenizer_config.json")
    added = dict(_declared(settings.get("added_tokens_decoder"))) | {
        token_id: token
        for token, token_id in _read_optional(directory / "added_tokens.json").items()
        if _is_id(token_id)
    }
    tokens = {**added, **vocabulary.tokens}
    return Vocabulary(
        tokens=tokens,
        added=vocabulary.added | added.keys(),
        named=_find_named(directory, settings, tokens),
        splitting=vocabulary.splitting,
        source=vocabulary.source,
    )


def read_gguf_vocabulary(header: GgufHeader) -> Vocabulary | None:
    """Return the vocabulary in a GGUF file; None without one."""
    values = {key: header.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", *_GGUF_NAMES)}
    if not isinstance(tokens := values["tokens"], list):
        return None
    kinds = values["token_type"] or ()
    named = {name: (token_id,) for key, name in _GGUF_NAMES.items() if _is_id(token_id := values[key])}
    added = frozenset(token_id for token_id, kind in enumerate(kinds) if kind in _ADDED_KINDS)
    return Vocabulary(tokens=dict(enumerate(tokens)), added=added, named=named, source=header.file.name)


def _from_tokenizer_json(file: Path) -> Vocabulary:
    content = read_json(file)
    model = content.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict) and all(_is_id(token_id) for token_id in vocab.values()):
        tokens = {token_id: token for token, token_id in vocab.items()}
    elif isinstance(vocab, list) and all(isinstance(row, list) and row and isinstance(row[0], str) for row in vocab):
        tokens = {i: row[0] for i, row in enumerate(vocab)}  # Unigram: [piece, score]
    else:
        raise _bad(file, "has no `model.vocab` that gives each token its id")
    rows = _list(content.get("added_tokens"))
    if not all(_is_added(row) for row in rows):
        raise _bad(file, "has `added_tokens` without id or content")
    added = {row["id"]: row["content"] for row in rows}
    try:
        splitting = _splitting(content, model or {})
    except RecursionError:
        raise _bad(file, "is nested too deeply") from None
    return Vocabulary(tokens=tokens | added, added=frozenset(added), splitting=splitting, source=file.name)


def _splitting(content: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, str]:
    merges = model.get("merges")
    # Both spellings are in use: "a b" until tokenizers 0.20, ["a", "b"] since.
    pairs = [" ".join(map(str, merge)) if isinstance(merge, list) else merge for merge in _list(merges)]
    return {"merges": _digest(pairs)} | {part: _digest(content.get(part)) for part in _SPLITTING}


def _from_vocab_json(file: Path) -> Vocabulary:
    vocab = read_json(file)
    if not all(_is_id(token_id) for token_id in vocab.values()):
        raise _bad(file, "does not give each token its id")
    splitting = {}
    merges = file.with_name("merges.txt")
    if merges.is_file():
        splitting["merges"] = _digest([line for line in read_lines(merges) if line and not line.startswith("#version")])
    tokens = {token_id: token for token, token_id in vocab.items()}
    return Vocabulary(tokens=tokens, added=frozenset(), splitting=splitting, source=file.name)


def _from_sentencepiece(file: Path) -> Vocabulary:
    return Vocabulary(tokens=dict(enumerate(read_pieces(file))), added=frozenset(), source=file.name)


def _from_lines(file: Path) -> Vocabulary:
    lines = [line.rstrip("\r") for line in read_lines(file)]
    tokens = dict(enumerate(lines[:-1] if lines[-1] == "" else lines))
    return Vocabulary(tokens=tokens, added=frozenset(), source=file.name)


_READERS: Mapping[str, Callable[[Path], Vocabulary]] = {
    "tokenizer.json": _from_tokenizer_json,
    "vocab.json": _from_vocab_json,
    "tokenizer.model": _from_sentencepiece,
    "vocab.txt": _from_lines,
}
"""Key: file name. The first existing file is read, as in transformers."""


def _find_named(directory: Path, settings: Mapping[str, Any], tokens: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """Return the ids that generation_config.json or config.json give, else those of the tokenizer's own names."""
    configs = [_read_optional(directory / name) for name in ("generation_config.json", "config.json")]
    id_of = {token: token_id for token_id, token in tokens.items()}
    found = {}
    for name in _NAMED:
        stated = next((ids for config in configs if (ids := _ids(config.get(f"{name}_id")))), ())
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        own = id_of.get(text) if isinstance(text, str) else None
        if stated or own is not None:
            found[name] = tuple(sorted({*stated, *(() if own is None else (own,))}))
    return found


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(each for each in (value if isinstance(value, list) else [value]) if _is_id(each))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _declared(rows: object) -> Iterable[tuple[int, str]]:
    for key, row in rows.items() if isinstance(rows, dict) else ():
        if str(key).isdecimal() and len(key) < 10 and isinstance(row, dict) and isinstance(row.get("content"), str):
            yield int(key), row["content"]


def _is_added(row: object) -> bool:
    return isinstance(row, dict) and _is_id(row.get("id")) and isinstance(row.get("content"), str)


def _is_id(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MAX_ID


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _bad(file: Path, what: str) -> InvalidSetup:
    return refusal("bad-tokenizer", what=what, file=file)
