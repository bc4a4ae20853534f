"""DFlash: a small decoder that fills in a whole block of masked tokens at once, looking at the target's states.

Source: DFlash, arXiv 2602.06036; checkpoints as vLLM 0.32 reads them (`model_executor/models/qwen3_dflash.py`).

Shape letters: N rows of a pass, R rows that need logits, F features of a token (H_target for each tap), H hidden size,
L layers, G key-value heads, D head dimension, U tokens that the drafter can name, V the target's vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.core import InvalidSetup, ModelShape
from draftwise.engine.attention import AttentionPlan, PagedKV
from draftwise.engine.kernels import make_kernels
from draftwise.engine.models.checkpoint import Checkpoint
from draftwise.engine.models.decoder import CausalLM, Layer, decoder_layer
from draftwise.engine.models.families import FAMILIES
from draftwise.engine.models.linear import Linear
from draftwise.engine.models.loading import WeightReader
from draftwise.engine.models.rope import Rope
from draftwise.engine.models.speculators_format import to_plain

__all__ = ["DFlash", "Settings", "load_dflash"]

_ROPE_THETA = 1_000_000.0
"""Where config.json names none: DFlash's own default, unlike that of the families."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a drafter's config.json says beyond the dimensions of its layers."""

    taps: tuple[int, ...]
    """Hidden states of the target that it reads (see `Proposer.taps`)."""
    mask_token_id: int
    """Stands for a token still to be guessed."""
    causal_layers: tuple[bool, ...]
    """For each layer whether the tokens of a block look only at those before them."""
    block_size: int | None
    """Length of the blocks it was trained on, the last known token included; None: not said."""
    draft_vocab_size: int
    logit_scale: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, max_model_len: int, where: str) -> Settings:
        """Return the settings of a plain config.json.

        Raises:
            InvalidSetup: something that it says is not supported, or missing.
        """
        own = config.get("dflash_config") or {}
        zero_based = own.get("target_layer_ids") or config.get("target_layer_ids") or []
        taps = config.get("eagle_aux_hidden_state_layer_ids") or [i + 1 for i in zero_based]
        masks = (own.get("mask_token_id"), *(config.get(k) for k in ("mask_token_id", "pard_token", "ptd_token_id")))
        mask_token_id = next((mask for mask in masks if mask is not None), None)
        if not taps or mask_token_id is None:
            lacking = "dflash_config.mask_token_id" if taps else "dflash_config.target_layer_ids"
            raise InvalidSetup.because(
                "config-incomplete", f"lacks {lacking}.", where=where, fix="Export or download the drafter again."
            )
        _check_supported(config, own, max_model_len=max_model_len, where=where)
        return cls(
            taps=tuple(sorted(set(taps))),  # vLLM hands the states over in the target's order, whatever the file's
            mask_token_id=mask_token_id,
            causal_layers=_causal_layers(config, own),
            block_size=config.get("block_size") or own.get("block_size"),
            draft_vocab_size=config.get("draft_vocab_size") or config["vocab_size"],
            logit_scale=float(config.get("logit_scale") or 1.0),
        )


def _causal_layers(config: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return which layers are causal: as stated, else those with a sliding window in `layer_types`."""
    num_layers = config["num_hidden_layers"]
    stated = next((v for v in (config.get("is_causal"), own.get("causal")) if v is not None), None)
    if stated is not None or not config.get("layer_types"):
        return (bool(stated),) * num_layers
    return tuple(kind == "sliding_attention" for kind in config["layer_types"])


def _check_supported(config: Mapping[str, Any], own: Mapping[str, Any], *, max_model_len: int, where: str) -> None:
    refused = {
        "quantization_config": bool(config.get("quantization_config")),
        "dflash_config.attention_value_scale": own.get("attention_value_scale") not in (None, 1.0),
        "dflash_config.attention_sink_bias": bool(
            own.get("attention_sink_bias", config.get("add_swa_attention_sink_bias"))
        ),
        "dflash_config.sample_from_anchor": bool(own.get("sample_from_anchor")),
        "use_aux_hidden_state: false": not own.get("use_aux_hidden_state", config.get("use_aux_hidden_state", True)),
        "is_neox_style: false": not config.get("is_neox_style", True),
    }
    unsupported = [name for name, used in refused.items() if used]
    if unsupported:
        raise InvalidSetup.because(
            "unsupported-drafter",
            f"{', '.join(unsupported)} is not supported for DFlash drafters.",
            where=where,
            fix="Use another checkpoint of the drafter, or vLLM.",
        )
    kinds = config.get("layer_types") or []
    window = own.get("swa_window_size", config.get("sliding_window"))
    if ("sliding_attention" in kinds or own.get("use_swa")) and (window is None or window < max_model_len):
        raise InvalidSetup.because(
            "unsupported-sliding-window",
            f"layers look back {window} tokens only; contexts here may grow to {max_model_len}.",
            where=where,
            fix=f"Set max_model_len to {window} or less." if window else "Write the window into sliding_window.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    embedding_VH: Tensor
    fc: Linear
    hidden_norm: Tensor
    context_kv: Linear
    """[H] -> [2 * L * G * D]: keys and values of every layer, of the projected states of the target."""
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear


class DFlash:
    """The drafting network; call it under `torch.inference_mode`.

    Attributes:
        kv_shape: what its cache must hold.
        target_ids_U: int64, the target's id of each token that it can name; None: they are the target's own.
    """

    def __init__(
        self,
        settings: Settings,
        shape: ModelShape,
        rope: Rope,
        weights: _Weights,
        target_ids_U: Tensor | None,
        eps: float,
    ) -> None:
        self.settings, self.kv_shape, self.target_ids_U = settings, shape, target_ids_U
        self._weights, self._rope = weights, rope
        self._kernels = make_kernels(shape, eps=eps, dtype=self.dtype, device=self.device)
        # Context asks nothing: it has keys and values but no query heads.
        no_queries = dataclasses.replace(shape, num_heads=0)
        self._context_kernels = make_kernels(no_queries, eps=eps, dtype=self.dtype, device=self.device)

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache."""
        return self._weights.embedding_VH.dtype

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._weights.embedding_VH.device

    def store_context(self, features_NF: Tensor, positions_N: Tensor, kv: PagedKV, slots_N: Tensor) -> None:
        """Store each layer's keys and values of the target's states at the given positions."""
        weights, kernels, shape = self._weights, self._context_kernels, self.kv_shape
        _, context_NH = kernels.add_norm(weights.fc(features_NF), None, weights.hidden_norm)
        rotations = self._rope.rotations(positions_N, kernels.rotation_dtype)
        kv_NLSD = weights.context_kv(context_NH).view(
            len(positions_N), shape.num_layers, 2 * shape.num_kv_heads, shape.head_dim
        )
        for i, layer in enumerate(weights.layers):
            kernels.rotate_and_store(kv_NLSD[:, i].contiguous(), layer.qk_norms, rotations, kv, i, slots_N)

    def forward(
        self, tokens_N: Tensor, positions_N: Tensor, kv: PagedKV, plans: Mapping[bool, AttentionPlan]
    ) -> Tensor:
        """Run blocks of a known token and masks behind stored context; return hidden_NH after the final norm.

        Args:
            tokens_N: int64 token ids.
            positions_N: int64 position of each.
            kv: its pages.
            plans: for causal layers and for others.
        """
        weights, kernels = self._weights, self._kernels
        rotations = self._rope.rotations(positions_N, kernels.rotation_dtype)
        x_NH, delta_NH = F.embedding(tokens_N, weights.embedding_VH), None
        for i, (layer, causal) in enumerate(zip(weights.layers, self.settings.causal_layers, strict=True)):
            assert layer.input_norm is not None
            x_NH, normed_NH = kernels.add_norm(x_NH, delta_NH, layer.input_norm)
            x_NH, delta_NH = decoder_layer(kernels, layer, i, x_NH, normed_NH, rotations, kv, plans[causal])
        return kernels.add_norm(x_NH, delta_NH, weights.norm)[1]

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RU in float32 (float64 for a float64 network)."""
        logits_RU = self._weights.head(hidden_RH) * self.settings.logit_scale
        return logits_RU if self.dtype == torch.float64 else logits_RU.float()


def load_dflash(path: str | Path, target: CausalLM, *, max_model_len: int) -> DFlash:
    """Return the DFlash drafter of a checkpoint directory, plain or of the speculators library.

    It runs in the target's dtype and device, and with the target's embedding and head where it has none of its own.

    Raises:
        InvalidSetup: the checkpoint is no DFlash drafter, does not fit the target, lacks tensors or has others (vLLM
            0.32 takes one that lacks tensors, and drafts nonsense), or uses a feature that is not supported.
    """
    checkpoint = Checkpoint(path)
    where = str(Path(path) / "config.json")
    config = checkpoint.config = to_plain(checkpoint.config, where=where)
    names = config.get("architectures") or []
    if not any("DFlash" in name for name in names):
        raise InvalidSetup.because(
            "unsupported-architecture",
            f"architecture {', '.join(names) or config.get('model_type')!r} is no DFlash drafter.",
            where=where,
            fix="Give the directory of a DFlashDraftModel, or the method of this drafter.",
        )
    shape = ModelShape.from_hf_config(config, where=where)
    settings = Settings.from_config(config, max_model_len=max_model_len, where=where)
    _check_fits(shape, settings, config, target, where)
    rope = Rope.from_hf_config({"rope_theta": _ROPE_THETA} | config, shape, where=where)
    rope = dataclasses.replace(rope, frequencies_D=rope.frequencies_D.to(target.device))
    reader = WeightReader(checkpoint, shape, FAMILIES["qwen3"], target.dtype, target.device)
    weights = _read_weights(reader, checkpoint, shape, settings, target)
    target_ids_U = _read_target_ids(checkpoint, settings, target)
    checkpoint.check_complete()
    checkpoint.check_used(ignored=("t2d",))
    return DFlash(settings, shape, rope, weights, target_ids_U, float(config.get("rms_norm_eps") or 1e-6))


def _check_fits(shape: ModelShape, settings: Settings, config: Mapping[str, Any], target: CausalLM, where: str) -> None:
    """Raise InvalidSetup where the drafter belongs to another target."""
    width = config.get("target_hidden_size") or shape.hidden_size
    faults = []
    if width != target.shape.hidden_size:
        faults.append(f"reads states of {width} values, the target's have {target.shape.hidden_size}")
    if settings.taps[-1] > target.shape.num_layers or settings.taps[0] < 0:
        faults.append(f"reads the states {settings.taps} of a target of {target.shape.num_layers} layers")
    if shape.vocab_size != target.shape.vocab_size:
        faults.append(f"has a vocabulary of {shape.vocab_size} tokens, the target of {target.shape.vocab_size}")
    if not 0 <= settings.mask_token_id < shape.vocab_size:
        faults.append(f"has its mask token {settings.mask_token_id} outside its vocabulary")
    if faults:
        raise InvalidSetup.because(
            "drafter-mismatch", f"{'; it '.join(faults)}.", where=where, fix="Use a drafter made for this target."
        )


def _read_weights(
    reader: WeightReader, checkpoint: Checkpoint, shape: ModelShape, settings: Settings, target: CausalLM
) -> _Weights:
    hidden, num_features = shape.hidden_size, len(settings.taps) * target.shape.hidden_size
    names = [f"layers.{i}.self_attn.{kind}_proj" for i in range(shape.num_layers) for kind in ("k", "v")]
    sizes = [shape.num_kv_heads * shape.head_dim] * len(names)
    embedding_VH, head = target.weights.embedding_VH, target.weights.head
    fits = hidden == target.shape.hidden_size
    if "embed_tokens.weight" in checkpoint.files or not fits:
        embedding_VH = reader.fused(["embed_tokens.weight"], [shape.vocab_size], hidden)
    if "lm_head.weight" in checkpoint.files or not fits or settings.draft_vocab_size != shape.vocab_size:
        head = reader.linear("", ["lm_head"], [settings.draft_vocab_size], hidden)
    return _Weights(
        embedding_VH=embedding_VH,
        fc=reader.linear("", ["fc"], [hidden], num_features),
        hidden_norm=reader.vector("hidden_norm.weight", hidden),
        context_kv=reader.linear("", names, sizes, hidden, bias=bool(checkpoint.config.get("attention_bias"))),
        layers=tuple(reader.layer(f"layers.{i}.") for i in range(shape.num_layers)),
        norm=reader.vector("norm.weight", hidden),
        head=head,
    )


def _read_target_ids(checkpoint: Checkpoint, settings: Settings, target: CausalLM) -> Tensor | None:
    """Return d + d2t[d] for each token d of the drafter's vocabulary; None when that is the target's."""
    size, vocab_size = settings.draft_vocab_size, target.shape.vocab_size
    if size == vocab_size and "d2t" not in checkpoint.files:
        return None
    target_ids_U = torch.arange(size) + checkpoint.read("d2t", (size,)).long()
    if size > vocab_size or not bool(((target_ids_U >= 0) & (target_ids_U < vocab_size)).all()):
        raise InvalidSetup.because(
            "drafter-mismatch",
            f"tensor d2t names tokens that the target's vocabulary of {vocab_size} lacks.",
            where=str(checkpoint.path),
            fix="Use a drafter made for this target.",
        )
    return target_ids_U.to(target.device)
