"""The tokenizer that a GGUF file describes, as the files of a Hugging Face checkpoint.

Sources: llama.cpp's src/llama-vocab.cpp (commit 00ad355), whose pre-tokenizers go by name; for SentencePiece models the
merges that transformers' `integrations/ggml.py` derives from the pieces' scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from draftwise.checkpoints.gguf_files import GgufHeader
from draftwise.checkpoints.text_files import quote
from draftwise.core import InvalidSetup

__all__ = ["write_tokenizer"]

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Types of tokens (`llama_token_type`)."""
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {"llama3": _WORDS % r"\p{N}{1,3}", "qwen2": _WORDS % r"\p{N}", "tekken": _CASED, "gpt2": "", "digits": ""}
"""Kind of pre-tokenizer -> its pattern; empty for GPT-2's own, with every digit for itself in `digits`."""
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), "qwen2"),
    "tekken": "tekken",
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "mpt"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), "digits"),
}
"""`tokenizer.ggml.pre` -> kind."""
_WHOLE_WORDS = frozenset({"llama3", "tekken"})
"""Kinds in which a word that is a token is that token, whatever the merges would make of it."""


def write_tokenizer(header: GgufHeader, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into a folder.

    Raises:
        InvalidSetup: the tokenizer is of a kind that is not known, or incomplete.
    """
    tokens = _get(header, "tokens", list)
    kinds = {"gpt2": _make_byte_level, "llama": _make_sentencepiece}
    kind = header.metadata.get("tokenizer.ggml.model")
    if kind not in kinds:
        raise _unknown(header, f"tokenizer {quote(kind)}", f"Known: {', '.join(kinds)}.")
    backend, puts_start = kinds[kind](header, tokens)
    backend.add_tokens(
        [AddedToken(text, special=special, normalized=False) for text, special in _added(header, tokens)]
    )
    named = {name: _named(header, tokens, key) for name, key in _NAMES.items()}
    if header.metadata.get("tokenizer.ggml.add_bos_token", puts_start) and (start := named["bos_token"]):
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, tokens.index(start))]
        )
    backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {name: token for name, token in named.items() if token is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if template := header.metadata.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(str(template), "utf-8")


_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def _make_byte_level(header: GgufHeader, tokens: Sequence[str]) -> tuple[tokenizers.Tokenizer, bool]:
    """Return a byte-level BPE, and whether it starts texts with a token where the file does not say."""
    name = str(header.metadata.get("tokenizer.ggml.pre"))
    if name not in _KINDS:
        raise _unknown(header, f"pre-tokenizer {quote(name)}", f"Known: {', '.join(_KINDS)}.")
    kind = _KINDS[name]
    merges = [tuple(merge.split(" ", 1)) for merge in _get(header, "merges", list)]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=kind in _WHOLE_WORDS))
    backend.decoder = decoders.ByteLevel()
    pattern = _SPLITS[kind]
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)]
    if pattern:
        steps.insert(0, pre_tokenizers.Split(Regex(pattern), "isolated"))
    elif kind == "digits":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if kind == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend, kind in _WHOLE_WORDS


def _make_sentencepiece(header: GgufHeader, tokens: Sequence[str]) -> tuple[tokenizers.Tokenizer, bool]:
    """Return a SentencePiece BPE, which falls back to bytes, and that it starts texts with a token."""
    scores = _get(header, "scores", list)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    unknown = next((tokens[i] for i, kind in enumerate(_types(header)) if kind == _UNKNOWN), None)
    merges = list(_derive_merges(ids, scores))
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    has_prefix = header.metadata.get("tokenizer.ggml.add_space_prefix", True)
    prefix: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend, True


def _derive_merges(ids: Mapping[str, int], scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yield the merges that SentencePiece would make, best piece first."""
    pieces = sorted(ids.items(), key=lambda piece: -scores[piece[1]])
    for piece, _ in pieces:
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        known = [(left, right) for left, right in halves if left in ids and right in ids]
        yield from sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def _added(header: GgufHeader, tokens: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the tokens that are matched before a text is split, and whether they are left out of answers."""
    for token, kind in zip(tokens, _types(header), strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            yield token, kind == _CONTROL


def _types(header: GgufHeader) -> Sequence[int]:
    return header.metadata.get("tokenizer.ggml.token_type") or ()


def _named(header: GgufHeader, tokens: Sequence[str], key: str) -> str | None:
    token_id = header.metadata.get(f"tokenizer.ggml.{key}")
    return tokens[token_id] if isinstance(token_id, int) and 0 <= token_id < len(tokens) else None


def _get(header: GgufHeader, key: str, kind: type) -> Any:
    value = header.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, kind):
        raise _unknown(header, f"tokenizer without {key}", "Convert the model anew.")
    return value


def _unknown(header: GgufHeader, what: str, fix: str) -> InvalidSetup:
    return InvalidSetup.because(
        "unsupported-tokenizer", f"The GGUF file has a {what}, which is not supported.", where=str(header.file), fix=fix
    )
