"""A small speculative config of every method, with random drafters where one is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.dflash_checkpoint import write_dflash
from tests.support.made_drafters import write_eagle, write_eagle3, write_mtp

PARALLEL = {"parallel_drafting": True}


def write_medusa(folder: Path, target_config: dict[str, Any], *, num_heads: int = 3) -> Path:
    """Write random Medusa heads for a target of this config.json; return their folder."""
    hidden, vocab = target_config["hidden_size"], target_config["vocab_size"]
    config = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": hidden, "vocab_size": vocab}
    shapes: dict[str, tuple[int, ...]] = {f"blocks.{i}.layers.0.weight": (hidden, hidden) for i in range(num_heads)}
    shapes |= {f"lm_heads.{i}.weight": (vocab, hidden) for i in range(num_heads)}
    return _write(folder, config | {"num_heads": num_heads, "num_hidden_layers": 1}, shapes)


def write_mlp_speculator(folder: Path, target_config: dict[str, Any], *, n_predict: int = 3, inner: int = 24) -> Path:
    """Write a random MLP speculator for a target of this config.json; return its folder."""
    hidden, vocab = target_config["hidden_size"], target_config["vocab_size"]
    config = {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "emb_dim": hidden}
    config |= {"vocab_size": vocab, "inner_dim": inner, "n_predict": n_predict, "n_candidates": 1}
    config |= {"tie_weights": False, "scale_input": True, "top_k_tokens_per_head": [1] * n_predict}
    shapes: dict[str, tuple[int, ...]] = {}
    for s in range(n_predict):
        shapes[f"speculator.emb.{s}.weight"] = shapes[f"speculator.head.{s}.weight"] = (vocab, inner)
        shapes[f"speculator.proj.{s}.weight"] = (inner, inner if s else hidden)
        shapes[f"speculator.ln.{s}.weight"] = shapes[f"speculator.ln.{s}.bias"] = (inner,)
    return _write(folder, config, shapes)


def write_draft_model(folder: Path, target: Path, draft: Path) -> Path:
    """Copy `draft` with a mask token, as for PARD; return its folder."""
    folder.mkdir(parents=True)
    for file in draft.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((draft / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pard_token": config["vocab_size"] - 1}))
    return folder


def _write(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(6)
    tensors = {name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


_HEADS: dict[str, tuple[str, Callable[[Path, dict[str, Any]], Path], dict[str, Any]]] = {
    "medusa": ("medusa", write_medusa, {}),
    "mlp_speculator": ("mlp_speculator", write_mlp_speculator, {}),
    "eagle": ("eagle", write_eagle, {}),
    "eagle3": ("eagle3", write_eagle3, {}),
    "eagle3 draft vocabulary": ("eagle3", lambda f, c: write_eagle3(f, c, draft_vocab_size=80, num_layers=2), {}),
    "p_eagle": ("eagle3", lambda f, c: write_eagle3(f, c, parallel=True), PARALLEL),
    "mtp": ("mtp", write_mtp, {}),
    "dflash": ("dflash", write_dflash, {}),
}

_PLAIN = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "ngram_gpu": {"method": "ngram_gpu", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "suffix": {"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_min_token_prob": 0.0},
}

METHODS = (*_PLAIN, "draft_model", "self_draft", "pard", *_HEADS)
"""Names that `make_config` knows: the methods, and variations of them."""

WITH_MODEL = ("draft_model", "self_draft", "pard", *_HEADS)
"""Those that can draft by chance."""


def make_config(name: str, target: Path, draft: Path, folder: Path) -> dict[str, Any]:
    """Return the speculative config of a name in METHODS; what drafter it needs is written to `folder`."""
    if name in _PLAIN:
        return _PLAIN[name]
    if name in ("draft_model", "self_draft", "pard"):
        parallel = PARALLEL if name == "pard" else {}
        model = {"self_draft": target, "draft_model": draft}.get(name) or write_draft_model(folder, target, draft)
        return {"method": "draft_model", "num_speculative_tokens": 3, "model": str(model)} | parallel
    method, write, extra = _HEADS[name]
    model = write(folder, json.loads((target / "config.json").read_text()))
    return {"method": method, "num_speculative_tokens": 3, "model": str(model)} | extra
