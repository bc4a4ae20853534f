"""DFlash: a small decoder that fills in a whole block of masked tokens at once, looking at the target's states.

Source: DFlash, arXiv 2602.06036; checkpoints as vLLM 0.32 reads them (`model_executor/models/qwen3_dflash.py`).

Shape letters: N rows of a pass, F features of a token (the target's hidden size for each auxiliary state), H hidden
size, L layers, G key-value heads, D head dimension, S = 2G, V the target's vocabulary, U tokens that the drafter can
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from draftwise.checkpoints.config_values import TARGET_KEY, AuxLayers, find_aux_layers, find_mask_token
from draftwise.checkpoints.head_faults import find_layers_fault, find_mask_fault, mask_missing
from draftwise.core import InvalidSetup, ModelShape
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.kernels import make_kernels
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.decoder import CausalLM, Layer, decoder_layer
from draftwise.engine.models.draft_head import DraftHead, Vocabulary
from draftwise.engine.models.families import FAMILIES
from draftwise.engine.models.head_checkpoint import HeadCheckpoint
from draftwise.engine.models.linear import Linear
from draftwise.engine.models.rope import Rope

__all__ = ["DFlash", "Settings", "load_dflash"]

_FAMILIES = {"DFlashDraftModel": FAMILIES["qwen3"]}
_MASK_KEY = "dflash_config.mask_token_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a drafter's config.json says beyond the dimensions of its layers."""

    aux_layers: AuxLayers
    """Hidden states of the target that it reads (see `Proposer.aux_layers`)."""
    mask_token_id: int
    """Stands for a token still to be drafted."""
    causal_layers: tuple[bool, ...]
    """For each layer whether the tokens of a block look only at those before them."""
    block_size: int | None
    """Length of the blocks it was trained on, the last known token included; None: not said."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, where: str) -> Settings:
        """Return the settings of a plain config.json.

        Raises:
            InvalidSetup: the layers to read or the mask token are missing.
        """
        own = config.get("dflash_config") or {}
        layers, mask_token_id = find_aux_layers(config), find_mask_token(config)
        if layers is None:
            raise InvalidSetup.because(
                "config-incomplete",
                f"The head's config.json lacks {TARGET_KEY}.",
                where=where,
                fix="Export or download the drafter again.",
            )
        if mask_token_id is None:
            raise InvalidSetup(mask_missing(_MASK_KEY, where=where))
        return cls(
            aux_layers=layers,
            mask_token_id=mask_token_id,
            causal_layers=_causal_layers(config, own),
            block_size=config.get("block_size"),
        )


def _causal_layers(config: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return which layers are causal: as stated, else those with a sliding window in `layer_types`."""
    num_layers = config["num_hidden_layers"]
    stated = next((value for value in (config.get("is_causal"), own.get("causal")) if value is not None), None)
    if stated is not None or not config.get("layer_types"):
        return (bool(stated),) * num_layers
    return tuple(kind == "sliding_attention" for kind in config["layer_types"][:num_layers])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Network:
    """All but embedding and head."""

    fc: Linear
    """From the auxiliary hidden states of a token to one vector."""
    hidden_norm: Tensor
    context_kv: Linear
    """From that to keys and values of every layer, [2 * L * G * D]."""
    layers: tuple[Layer, ...]
    norm: Tensor
    rope: Rope
    eps: float


class DFlash(DraftHead):
    """The drafting network; call it under `torch.inference_mode`.

    Attributes:
        settings: what its config.json says.
    """

    def __init__(self, settings: Settings, shape: ModelShape, vocabulary: Vocabulary, network: _Network) -> None:
        super().__init__(settings.aux_layers.ids, shape, vocabulary)
        self.settings, self._network = settings, network
        self._kernels = make_kernels(shape, network.rope, eps=network.eps, dtype=self.dtype, device=self.device)

    def store_context(self, features_NF: Tensor, positions_N: Tensor, kv: PagedKV, slots_N: Tensor) -> None:
        """Store each layer's keys and values of the target's states at the given positions."""
        network, kernels, shape = self._network, self._kernels, self.kv_shape
        _, context_NH = kernels.add_norm(network.fc(features_NF), None, network.hidden_norm)
        rotations = kernels.rotations(positions_N)
        sizes = (len(positions_N), shape.num_layers, 2 * shape.num_kv_heads, shape.head_dim)
        kv_NLSD = network.context_kv(context_NH).view(sizes)
        for i, layer in enumerate(network.layers):
            kernels.rotate_and_store(kv_NLSD[:, i], layer.qk_norms, rotations, kv, i, slots_N)

    def forward(
        self, tokens_N: Tensor, positions_N: Tensor, kv: PagedKV, plans: Mapping[bool, AttentionPlan]
    ) -> Tensor:
        """Run blocks of a known token and masks behind stored context; return hidden_NH for `logits`.

        Args:
            tokens_N: int64 token ids.
            positions_N: int64 position of each.
            kv: its pages.
            plans: for causal layers and for others.
        """
        network, kernels = self._network, self._kernels
        rotations = kernels.rotations(positions_N)
        delta_NH: Tensor | None = None
        for i, (layer, causal) in enumerate(zip(network.layers, self.settings.causal_layers, strict=True)):
            assert layer.input_norm is not None
            if delta_NH is None:
                x_NH, normed_NH = kernels.embed(tokens_N, self._embedding_VH, layer.input_norm)
            else:
                x_NH, normed_NH = kernels.add_norm(x_NH, delta_NH, layer.input_norm)
            x_NH, delta_NH = decoder_layer(kernels, layer, i, x_NH, normed_NH, rotations, kv, plans[causal])
        return kernels.add_norm(x_NH, delta_NH, network.norm)[1]


def load_dflash(path: str | Path, target: CausalLM, *, max_model_len: int) -> DFlash:
    """Return the DFlash drafter of a checkpoint directory, plain or of the speculators library.

    Args:
        path: directory with config.json and safetensors.
        target: the model that it was trained for; lends its embedding and head where the directory has none.
        max_model_len: longest context; a sliding window must be as long, for up to there attention is the full one.

    Raises:
        InvalidSetup: the checkpoint is no DFlash drafter, does not fit the target, lacks tensors or has others, or uses
            a feature that is not supported.
    """
    checkpoint = HeadCheckpoint(path, target, _FAMILIES)
    config, where = checkpoint.config, checkpoint.where
    _check_supported(config, max_model_len=max_model_len, where=where)
    settings = Settings.from_config(config, where=where)
    _check_fits(settings, checkpoint, target)
    vocabulary = checkpoint.own_vocabulary()
    network = _read_network(checkpoint, len(settings.aux_layers.ids) * target.shape.hidden_size)
    checkpoint.check_read(lambda name: name == "t2d")
    return DFlash(settings, checkpoint.shape, vocabulary, network)


def _check_supported(config: Mapping[str, Any], *, max_model_len: int, where: str) -> None:
    own = config.get("dflash_config") or {}
    sink = own.get("attention_sink_bias", config.get("add_swa_attention_sink_bias"))
    refused = {
        "dflash_config.attention_value_scale": own.get("attention_value_scale") not in (None, 1.0),
        "dflash_config.attention_sink_bias": bool(sink),
        "dflash_config.sample_from_anchor": bool(own.get("sample_from_anchor")),
        "use_aux_hidden_state: false": not own.get("use_aux_hidden_state", config.get("use_aux_hidden_state", True)),
        "is_neox_style: false": not config.get("is_neox_style", True),
        "mask_embedding.pt": (Path(where).parent / "mask_embedding.pt").exists(),
    }
    unsupported = [name for name, used in refused.items() if used]
    if unsupported:
        raise InvalidSetup.because(
            "unsupported-drafter",
            f"{', '.join(unsupported)} is not supported for DFlash drafters.",
            where=where,
            fix="Use another checkpoint of the drafter, or vLLM.",
        )
    window = own.get("swa_window_size", config.get("sliding_window"))
    slides = "sliding_attention" in (config.get("layer_types") or []) or own.get("use_swa")
    if slides and (window is None or window < max_model_len):
        raise InvalidSetup.because(
            "unsupported-sliding-window",
            f"Layers look back {window} tokens only; contexts here may grow to {max_model_len}.",
            where=where,
            fix=f"Set max_model_len to {window} or less." if window else "Write the window into sliding_window.",
        )


def _check_fits(settings: Settings, checkpoint: HeadCheckpoint, target: CausalLM) -> None:
    """Raise InvalidSetup where the drafter belongs to another target."""
    checkpoint.check_width(may_differ=True)
    where, shape = checkpoint.where, target.shape
    faults = [
        find_layers_fault(settings.aux_layers, shape.num_layers, where=where),
        find_mask_fault(settings.mask_token_id, shape.vocab_size, key=_MASK_KEY, where=where),
    ]
    if any(faults):
        raise InvalidSetup(filter(None, faults))


def _read_network(checkpoint: HeadCheckpoint, num_features: int) -> _Network:
    reader, shape = checkpoint.reader, checkpoint.shape
    names = [f"layers.{i}.self_attn.{kind}_proj" for i in range(shape.num_layers) for kind in ("k", "v")]
    sizes = [shape.num_kv_heads * shape.head_dim] * len(names)
    biased = bool(checkpoint.config.get("attention_bias"))
    return _Network(
        fc=reader.linear("", ["fc"], [shape.hidden_size], num_features),
        hidden_norm=reader.vector("hidden_norm.weight", shape.hidden_size),
        context_kv=reader.linear("", names, sizes, shape.hidden_size, bias=biased),
        layers=tuple(reader.layer(f"layers.{i}.") for i in range(shape.num_layers)),
        norm=reader.vector("norm.weight", shape.hidden_size),
        rope=checkpoint.rope,
        eps=checkpoint.eps,
    )
