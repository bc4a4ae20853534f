"""A checkpoint's tokenizer: text to ids and back, end tokens, chat template; also a stand-in without one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders

from draftwise.checkpoints.text_files import check_directory, quote, read_bytes, read_json
from draftwise.core import InvalidSetup
from draftwise.engine.text.chat_template import ChatTemplate, failing_as, find_chat_template
from draftwise.knowledge.messages import refusal

_MOST_IDS = 2**24
"""One more than the largest id: grammars take memory for every id up to a tokenizer's largest."""
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A `tokenizers` tokenizer, with settings from the checkpoint's JSON files.

    Attributes:
        end_ids: tokens that end a completion, from generation_config.json (else config.json) and the tokenizer.
        special_ids: tokens that `skip_special_tokens` leaves out.
        named_tokens: text of `bos_token`, `eos_token` ..., if the checkpoint names them.
        piece_bytes: bytes of each token by id for byte-level BPE; None for other kinds.
        chat_template: the chat template; None without one.
        makes_text: whether token ids have text; False for `NoTokenizer`.
    """

    makes_text = True

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        end_ids: Sequence[int] = (),
        named_tokens: Mapping[str, str] | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._token_by_id = {token_id: token for token, token_id in backend.get_vocab().items()}
        added = backend.get_added_tokens_decoder().items()
        self.special_ids = frozenset(token_id for token_id, token in added if token.special)
        self.named_tokens = dict(named_tokens or {})
        own_end = backend.token_to_id(self.named_tokens.get("eos_token", ""))
        self.end_ids = frozenset(end_ids) | (frozenset() if own_end is None else {own_end})
        self.piece_bytes = _piece_bytes(self._token_by_id) if isinstance(backend.decoder, decoders.ByteLevel) else None
        self.chat_template = chat_template
        self._texts: dict[int, str] = {}

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Tokenizer:
        """Return the tokenizer of a checkpoint directory.

        Raises:
            InvalidSetup: the directory does not exist, or tokenizer.json or another JSON file is missing or invalid.
        """
        directory = _existing(directory)
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise refusal("no-tokenizer", directory=directory)
        named = directory / "tokenizer_config.json"
        settings, content = _read_settings(named), read_bytes(path)
        with failing_as("bad-tokenizer", f"{path} cannot be read", str(path), "Download or export it again."):
            backend = tokenizers.Tokenizer.from_buffer(content)
            _check_ids(backend, json.loads(content), path)
            read = cls(
                backend,
                end_ids=_end_ids(directory),
                named_tokens={name: _content(settings, name, named) for name in _NAMED_TOKENS if settings.get(name)},
                chat_template=find_chat_template(directory, settings),
            )
        if read.vocab_size > _MOST_IDS:
            what = f"gives a token the id {read.vocab_size - 1}, larger than any model's"
            raise refusal("bad-tokenizer", what=what, file=path)
        return read

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, which bounds the length of a prompt's text."""
        return max(map(len, self._token_by_id.values()), default=1)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return max(self._token_by_id, default=-1) + 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, with `add_special_tokens` including those that the tokenizer adds.

        Raises:
            InvalidSetup: the tokenizer fails on the text.
            TypeError: `text` is not a string.
        """
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.60} is no text")
        with failing_as("tokenizer-failed", "The model's tokenizer fails on this text", "prompt"):
            return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids.

        Raises:
            InvalidSetup: the tokenizer fails on the ids.
        """
        with failing_as("tokenizer-failed", "The model's tokenizer fails on these tokens", "tokens"):
            return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return one token as text, also special tokens. Incomplete characters become U+FFFD.

        A token on which the tokenizer fails is as in the vocabulary.
        """
        text = self._texts.get(token_id)
        if text is None:
            try:
                text = self.decode([token_id], skip_special_tokens=False)
            except InvalidSetup:
                text = self.piece(token_id)
            self._texts[token_id] = text
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Return one token as bytes: exact for byte-level BPE, else the UTF-8 of its text."""
        if self.piece_bytes is not None:
            return self.piece_bytes.get(token_id, b"")
        return self.token_text(token_id).encode()

    def piece(self, token_id: int) -> str:
        """Return one token as spelled in the vocabulary."""
        return self._token_by_id.get(token_id, "")

    def to_json(self, vocab_size: int) -> str:
        """Return the content of tokenizer.json, without ids that a model of this vocabulary cannot write."""
        if self.vocab_size <= vocab_size:
            return self._backend.to_str()
        content = json.loads(self._backend.to_str())
        content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocab_size]
        model = content["model"]
        if isinstance(model["vocab"], list):
            model["vocab"] = model["vocab"][:vocab_size]
        else:
            vocab = model["vocab"] = {token: each for token, each in model["vocab"].items() if each < vocab_size}
            if "merges" in model:
                model["merges"] = [pair for pair in model["merges"] if vocab.keys() >= {*pair, "".join(pair)}]
        return json.dumps(content)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Return a conversation as prompt text. Encode it without adding special tokens.

        `variables` are further template variables, such as `enable_thinking`.

        Raises:
            InvalidSetup: the checkpoint has no chat template, or the template rejects the messages.
        """
        if self.chat_template is None:
            raise refusal("no-chat-template")
        given = {"add_generation_prompt": add_generation_prompt, "tools": None, "documents": None}
        return self.chat_template.render(messages, given | self.named_tokens | variables)


class NoTokenizer(Tokenizer):
    """Stand-in for a tokenizer with `skip_tokenizer_init`: token ids have no text, and text has no ids."""

    makes_text = False

    def __init__(self, *, end_ids: Sequence[int] = ()) -> None:
        self._token_by_id = {}
        self.special_ids = frozenset()
        self.named_tokens = {}
        self.end_ids = frozenset(end_ids)
        self.piece_bytes = {}
        self.chat_template = None
        self._texts = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002
        """Raise InvalidSetup."""
        raise refusal("no-tokenizer-loaded", case="prompt", where="prompt")

    def to_json(self, vocab_size: int) -> str:  # noqa: ARG002
        """Raise InvalidSetup."""
        raise refusal("no-tokenizer-loaded", case="prompt", where="structured_outputs")

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], /, **_: Any) -> str:  # noqa: ARG002
        """Refuse the conversation with InvalidSetup."""
        raise refusal("no-tokenizer-loaded", case="prompt", where="messages")

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:  # noqa: ARG002
        """Return an empty text."""
        return ""


def load_tokenizer(directory: str | Path, *, skip: bool) -> Tokenizer:
    """Return a checkpoint's tokenizer; with `skip`, read only its end tokens.

    Raises:
        InvalidSetup: the directory does not exist, or one of its files is missing or invalid.
    """
    return NoTokenizer(end_ids=_end_ids(_existing(directory))) if skip else Tokenizer.from_pretrained(directory)


def _check_ids(backend: tokenizers.Tokenizer, content: Mapping[str, Any], path: Path) -> None:
    """Raise InvalidSetup for an added token to which the library gives another id than the file."""
    stated: dict[str, list[int]] = {}
    for token in content.get("added_tokens") or ():
        stated.setdefault(token["content"], []).append(token["id"])
    for token, ids in stated.items():
        if (found := backend.token_to_id(token)) not in ids:
            what = f"gives {quote(token)} the id {ids[0]}, but its vocabulary leads to {found}"
            raise refusal("bad-tokenizer", what=what, file=path)


def _existing(directory: str | Path) -> Path:
    """Return the directory of a checkpoint.

    Raises:
        InvalidSetup: it is missing.
    """
    check_directory(Path(directory))
    return Path(directory)


def _end_ids(directory: Path) -> list[int]:
    """Return the tokens that end a completion: generation_config.json goes before config.json."""
    for name in ("generation_config.json", "config.json"):
        ends = _read_settings(directory / name).get("eos_token_id")
        if ends is None:
            continue
        ends = ends if isinstance(ends, list) else [ends]
        if not all(type(each) is int for each in ends):
            raise refusal("bad-end-token", directory=directory / name)
        return [each for each in ends if 0 <= each < _MOST_IDS]  # -1 means that no token ends a completion
    return []


def _piece_bytes(token_by_id: Mapping[int, str]) -> dict[int, bytes]:
    """Return each token's bytes under GPT-2's printable alphabet; tokens outside it stand for themselves."""
    alphabet = _byte_alphabet()

    def to_bytes(token: str) -> bytes:
        try:
            return bytes([alphabet[character] for character in token])
        except KeyError:
            return token.encode()

    return {token_id: to_bytes(token) for token_id, token in token_by_id.items()}


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each printable stand-in means: printable Latin-1 bytes are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(shifted)}


def _content(settings: Mapping[str, Any], name: str, file: Path) -> str:
    """Return the text of a token that tokenizer_config.json names, or describes."""
    token = settings[name]
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise refusal("bad-tokenizer", what=f"gives {name} no text", file=file)
    return text


def _read_settings(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty when there is no such file."""
    return read_json(path) if path.is_file() else {}
