"""Unpacks GGUF files, weights and tokenizer, once into a Hugging Face checkpoint in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from draftwise.checkpoints.gguf_files import (
    ROPE_FACTORS,
    GgufHeader,
    has_paired_rotation,
    is_gguf,
    make_config,
    read_gguf,
    rename_tensor,
)
from draftwise.checkpoints.headers import INDEX
from draftwise.checkpoints.headers import Tensor as StoredTensor
from draftwise.checkpoints.text_files import quote, quote_some
from draftwise.core import InvalidSetup, SpecConfig, StorageError, cause_of
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models.checkpoint import write_tensors
from draftwise.engine.models.quantized import KINDS, Blocks, BlockSource, read_blocks, round_weights
from draftwise.knowledge.messages import refusal
from draftwise.machine.folders import cache_folder, one_at_a_time

_SAMPLES, _SAMPLE = 64, 65536
"""Number and bytes of weight samples that distinguish files with the same header."""
_SHARD_BYTES = 2 * 2**30
_SOURCE = "source.gguf"
"""Link in a checkpoint folder to its source file."""
_ROOM = 1.05
"""Required disk space, relative to a checkpoint's weights."""
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
"""Kind of pre-tokenizer -> pattern; empty for GPT-2's own. In `digits`, every digit is separate."""
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), "qwen2"),
    "tekken": "tekken",
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "mpt"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), "digits"),
}
"""`tokenizer.ggml.pre` -> kind."""
_WHOLE_WORDS = frozenset({"llama3", "tekken"})
"""Kinds in which a word that is a token becomes that token, regardless of merges."""
_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def checkpoint_of(model: str, say: Callable[[str], None] = lambda _text: None) -> str:
    """Return the checkpoint folder of a model: for a GGUF file, the unpacked one; otherwise, `model` itself.

    Concurrent processes wait for the one that unpacks. A folder appears only when complete.

    Args:
        model: a folder, a name or a GGUF file.
        say: called with a notice before unpacking begins.

    Raises:
        InvalidSetup: the file is damaged, or its model is not supported. Checked before reading any weight.
        StorageError: the cache has no room for it.
    """
    if not is_gguf(model):
        return model
    header = read_gguf(model)
    folder = cache_folder() / "gguf" / _identify(header)
    with one_at_a_time("gguf"):
        if not folder.is_dir():
            say(f"Unpacking {Path(model).name} into {folder}")
            _unpack(header, folder)
        with suppress(OSError):  # then the unpacked weights have to do
            _link(folder / _SOURCE, Path(model).resolve())
    return str(folder)


def _link(place: Path, file: Path) -> None:
    """Make a symbolic link, in place of one to where the file was before."""
    if place.is_symlink() and place.readlink() == file:
        return
    new = place.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.symlink_to(file)
    os.replace(new, place)


class GgufWeights(BlockSource):
    """The original weights of the file that a checkpoint folder was unpacked from.

    Attributes:
        file: path of the GGUF file.
        is_quantized: whether its matrices have fewer than 16 bits per weight.
    """

    def __init__(self, header: GgufHeader, config: dict[str, Any]) -> None:
        self._header, self._config, self._places = header, config, _find_places(header)
        self.file = header.file
        types = {each.dtype for each in self._places.values() if len(each.shape) > 1}
        self.is_quantized = bool(types - {"F16", "BF16", "F32", "F64"})

    @classmethod
    def of(cls, folder: Path, config: dict[str, Any]) -> GgufWeights | None:
        """Return the weights of a folder; None if it was not unpacked from a file, or the file is gone."""
        file = folder / _SOURCE
        if not file.is_file():
            return None
        with suppress(InvalidSetup):
            header = read_gguf(file)
            return cls(header, config) if _identify(header) == folder.name else None
        return None

    def values(self, name: str) -> Tensor:
        """Return a tensor's values in float32."""
        return _read(self._header, name, self._places[name], self._config).float()

    def kind_of(self, name: str) -> str:
        """See `BlockSource`. Types that cannot be multiplied directly become 8-bit."""
        return KINDS.get(self._places[name].dtype, "q8") if name in self._places else "q8"

    def read(self, kind: str, name: str, values: Callable[[], Tensor]) -> Blocks:
        """See `BlockSource`."""
        stored = self._places.get(name)
        if stored is None or KINDS.get(stored.dtype) != kind:
            return round_weights(kind, values())
        rows_OX = torch.from_numpy(_rows(self._header, stored))
        return read_blocks(stored.dtype, _reorder(self._header, name, rows_OX, self._config).numpy())


def unpack_models(
    config: EngineConfig, spec: SpecConfig | None, say: Callable[[str], None] = lambda _text: None
) -> tuple[EngineConfig, SpecConfig | None]:
    """Return the config and spec with checkpoint folders in place of GGUF files, see `checkpoint_of`."""
    if spec is not None and spec.model is not None:
        spec = replace(spec, model=checkpoint_of(spec.model, say))
    return replace(config, model=checkpoint_of(config.model, say)), spec


def _identify(header: GgufHeader) -> str:
    """Return a digest over the header and samples of the weights: reading all of them takes as long as loading."""
    size, start = header.file.stat().st_size, min(each.start for each in header.tensors.values())
    hashed = hashlib.sha256(str(size).encode())
    with header.file.open("rb") as stream:
        hashed.update(stream.read(start))
        for i in range(_SAMPLES):
            stream.seek(start + (size - start) * i // _SAMPLES)
            hashed.update(stream.read(_SAMPLE))
    return hashed.hexdigest()[:24]


def _unpack(header: GgufHeader, folder: Path) -> None:
    config = make_config(header)
    places = _find_places(header)
    dtype: torch.dtype = getattr(torch, config["torch_dtype"])
    needed = int(sum(each.num_elements for each in header.tensors.values()) * dtype.itemsize * _ROOM)
    part = folder.with_suffix(".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        if (free := shutil.disk_usage(part).free) < needed:
            raise OSError(f"{needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free")
        write_tokenizer(header, part)
        _write_weights(header, places, config, dtype, part)
        ends = [config.get("eos_token_id"), header.metadata.get("tokenizer.ggml.eot_token_id")]
        _write_json(part / "generation_config.json", {"eos_token_id": sorted({end for end in ends if end is not None})})
        _write_json(part / "config.json", {"_name_or_path": header.file.name} | config)
        os.replace(part, folder)
    except OSError as error:
        raise StorageError(
            f"{header.file.name} cannot be unpacked into {folder.parent} ({cause_of(error)}). Make room there, "
            "or set DRAFTWISE_CACHE_DIR to a folder that has it."
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_json(file: Path, values: Any) -> None:
    file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _find_places(header: GgufHeader) -> dict[str, StoredTensor]:
    """Return the tensors by their names in the checkpoint.

    Raises:
        InvalidSetup: one of them has no place there, so that the network is another than its architecture says.
    """
    given = {name: each for name, each in header.tensors.items() if name != ROPE_FACTORS}
    if strange := sorted(name for name in given if rename_tensor(name) is None):
        raise refusal(
            "unsupported-architecture",
            case="gguf-tensors",
            architecture=header.architecture,
            strange=quote_some(strange),
            file=header.file,
        )
    return {str(rename_tensor(name)): each for name, each in given.items()}


def _write_weights(
    header: GgufHeader, places: dict[str, StoredTensor], config: dict[str, Any], dtype: torch.dtype, folder: Path
) -> None:
    shards = list(_share_out(places, dtype))
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file, names in zip(files, shards, strict=True):
        write_tensors(folder / file, {name: _read(header, name, places[name], config).to(dtype) for name in names})
    index = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    _write_json(folder / INDEX, {"metadata": {}, "weight_map": index})


def _share_out(places: dict[str, StoredTensor], dtype: torch.dtype) -> Iterator[list[str]]:
    """Yield the names of each shard: what is in memory at a time."""
    shard: list[str] = []
    size = 0
    for name, each in places.items():
        shard.append(name)
        size += each.num_elements * dtype.itemsize
        if size >= _SHARD_BYTES:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _read(header: GgufHeader, name: str, stored: StoredTensor, config: dict[str, Any]) -> Tensor:
    """Return a tensor's values, its rows in the order of the checkpoint; F32 unless it is stored as F16."""
    from gguf import GGMLQuantizationType, dequantize

    values = dequantize(_rows(header, stored), GGMLQuantizationType[stored.dtype]).reshape(stored.shape)
    tensor = torch.from_numpy(np.require(values, requirements=("C", "W")))  # what is stored as F32 is the file itself
    return _reorder(header, name, tensor, config)


def _rows(header: GgufHeader, stored: StoredTensor) -> Any:
    """Return the bytes of a tensor's rows."""
    return np.fromfile(header.file, np.uint8, stored.num_bytes, offset=stored.start).reshape(*stored.shape[:-1], -1)


def _reorder(header: GgufHeader, name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """Return the rows of a tensor in the order of the checkpoint."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None or not has_paired_rotation(header):
        return tensor
    return tensor.unflatten(0, (config[heads], -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def write_tokenizer(header: GgufHeader, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into a folder.

    Raises:
        InvalidSetup: the tokenizer is of an unknown kind, or incomplete.
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
    return refusal("unsupported-tokenizer", what=what, file=header.file, fix=fix)
