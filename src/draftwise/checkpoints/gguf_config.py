"""A GGUF file's metadata as the config.json, and its tensors under the names, of the checkpoint it was made from.

Sources: `MODEL_TENSORS` and `Keys` of the gguf package 0.19; convert_hf_to_gguf.py of llama.cpp, whose inverse this is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import isclose, pi
from typing import Any

from draftwise.checkpoints.gguf import GgufHeader
from draftwise.checkpoints.headers import Headers, Tensor
from draftwise.checkpoints.quoting import quote
from draftwise.core import InvalidSetup

__all__ = ["ROPE_FACTORS", "has_paired_rotation", "list_tensors", "make_config", "rename_tensor"]

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""GGUF's `llama` also stands for Mistral, whose network is the same."""
ROPE_FACTORS = "rope_freqs.weight"
"""By how much each frequency is divided: Llama 3's scaling."""
_PLACES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
"""Of the scaling of Llama 3.1 to 3.3; a GGUF file holds only what comes out of them."""


def has_paired_rotation(header: GgufHeader) -> bool:
    """Return whether rows of q and k are stored for a rotation of neighbours, not halves: so with `llama`."""
    return header.architecture == "llama"


def rename_tensor(name: str) -> str | None:
    """Return a tensor's name in a Hugging Face checkpoint; None for one that has no place there."""
    stem, _, kind = name.rpartition(".")
    if stem in _PLACES:
        return f"{_PLACES[stem]}.{kind}"
    found = _LAYER.fullmatch(name)
    if found is None or found[2] not in _PARTS:
        return None
    return f"model.layers.{found[1]}.{_PARTS[found[2]]}.{found[3]}"


def list_tensors(header: GgufHeader) -> Headers:
    """Return the tensors under their names in a Hugging Face checkpoint; those without one keep their own."""
    renamed = (replace(each, name=rename_tensor(name) or name) for name, each in header.tensors.items())
    tensors = {each.name: each for each in sorted(renamed, key=lambda each: each.name)}
    return Headers(directory=header.file, tensors=tensors, files=(header.file.name,))


def make_config(header: GgufHeader) -> dict[str, Any]:
    """Return the config.json of the model.

    Raises:
        InvalidSetup: the architecture is none that draftwise knows from GGUF files, or a value is missing.
    """
    where, architecture = str(header.file), header.architecture
    if architecture not in _ARCHITECTURES or header.get("expert_count"):
        what = f"{architecture} with experts" if architecture in _ARCHITECTURES else architecture
        raise InvalidSetup.because(
            "unsupported-architecture",
            f"The GGUF file is of architecture {quote(what)}, which is not supported.",
            where=where,
            fix=f"Supported from GGUF files: {', '.join(_ARCHITECTURES)}, dense.",
        )
    hidden, heads = _need(header, "embedding_length"), _need(header, "attention.head_count")
    vocabulary = header.tensors.get("token_embd.weight")
    if vocabulary is None:
        raise _missing(header, "tensor token_embd.weight")
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": vocabulary.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _need(header, "feed_forward_length"),
        "num_hidden_layers": _need(header, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.get("attention.head_count_kv", heads),
        "head_dim": header.get("attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "rms_norm_eps": _need(header, "attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": _need(header, "context_length"),
        "rope_theta": header.get("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "torch_dtype": _find_dtype(header),
    }
    if scaling := _find_scaling(header):
        config["rope_scaling"] = scaling
    if architecture == "llama" and "blk.0.attn_q.bias" in header.tensors:
        config["attention_bias"] = True
    ids = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
    given = {name: header.metadata.get(f"tokenizer.ggml.{key}") for key, name in ids.items()}
    return config | {name: value for name, value in given.items() if value is not None}


def _need(header: GgufHeader, key: str) -> Any:
    value = header.get(key)
    if value is None:
        raise _missing(header, f"value {header.architecture}.{key}")
    return value


def _missing(header: GgufHeader, what: str) -> InvalidSetup:
    return InvalidSetup.because(
        "incomplete-gguf", f"The file has no {what}.", where=str(header.file), fix="Convert the model anew."
    )


def _find_dtype(header: GgufHeader) -> str:
    """Return the type to compute in: that of the matrices; bfloat16 where these are quantized."""
    found = {tensor.dtype for tensor in header.tensors.values() if len(tensor.shape) > 1}
    known = {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}
    return known.get(frozenset(found), "bfloat16")


def _find_scaling(header: GgufHeader) -> Mapping[str, Any] | None:
    """Return how positions are scaled, as config.json says it; None for not at all."""
    if ROPE_FACTORS in header.tensors:
        return _find_llama3_scaling(header, header.tensors[ROPE_FACTORS])
    kind = header.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": header.get("rope.scaling.factor", 1.0)}
    original = header.get("rope.scaling.original_context_length")
    return scaling | ({} if original is None else {"original_max_position_embeddings": original})


def _find_llama3_scaling(header: GgufHeader, stored: Tensor) -> Mapping[str, Any]:
    """Return the scaling whose divisors of the frequencies these are.

    Raises:
        InvalidSetup: it is another one.
    """
    with header.file.open("rb") as stream:
        stream.seek(stored.start)
        divisors = struct.unpack(f"<{stored.num_elements}f", stream.read(stored.num_bytes)) if _is_float(stored) else ()
    factor, base = max(divisors, default=1.0), header.get("rope.freq_base", 10000.0)
    expected = [_divide(factor, 2 * pi * base ** (i / len(divisors))) for i in range(len(divisors))]
    if not divisors or not all(map(partial(isclose, rel_tol=1e-3), divisors, expected)):
        raise InvalidSetup.because(
            "unsupported-rope",
            f"The frequencies' divisors in {ROPE_FACTORS} are not those of Llama 3's scaling.",
            where=str(header.file),
            fix="Use the model's own checkpoint, whose config.json says how positions are scaled.",
        )
    bounds = {"low_freq_factor": _LOW, "high_freq_factor": _HIGH, "original_max_position_embeddings": _ORIGINAL}
    return {"rope_type": "llama3", "factor": factor, **bounds}


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype == "F32"


def _divide(factor: float, wavelength: float) -> float:
    """Return what a frequency is divided by: nothing where it is high, the factor where it is low."""
    share = min(max((_ORIGINAL / wavelength - _LOW) / (_HIGH - _LOW), 0.0), 1.0)
    return 1 / ((1 - share) / factor + share)
