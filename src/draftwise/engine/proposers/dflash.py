"""DFlash: a small decoder that fills a whole block of masked tokens at once, given the target's states.

Source: DFlash, arXiv 2602.06036; checkpoints as vLLM 0.32 reads them (`model_executor/models/qwen3_dflash.py`).

Shape letters: B sequences, N rows of a pass, R draft tokens of all sequences, F features of a token (the target's
hidden size for each auxiliary state), H hidden size, L layers, G key-value heads, D head dimension, S = 2G, V the
target's vocabulary, U tokens that the drafter can name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.checkpoints.config_values import TARGET_KEY, AuxLayers, find_aux_layers, find_mask_token, get_int
from draftwise.checkpoints.head_fit import find_layers_fault, find_mask_fault, mask_missing
from draftwise.core import InvalidSetup
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.families import FAMILIES
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.causal_lm import CausalLM
from draftwise.engine.models.draft_head import DraftHead, LayeredHead
from draftwise.engine.proposers.paged import PagedProposer, find_longest_context
from draftwise.engine.proposers.proposer import Confirmed, Proposer, find_weights
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.engine.sampling.draft import Draft
from draftwise.knowledge.messages import refusal

_FAMILIES = {"DFlashDraftModel": FAMILIES["qwen3"]}
_MASK_KEY = "dflash_config.mask_token_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a drafter's config.json, except layer dimensions."""

    aux_layers: AuxLayers
    """Hidden states of the target that it reads (see `Proposer.aux_layers`)."""
    mask_token_id: int
    """Token id that marks a position to draft."""
    causal_layers: tuple[bool, ...]
    """Whether the tokens of a block attend only to earlier ones, by layer."""
    block_size: int | None
    """Block length in training, including the last known token; None: unknown."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, where: str) -> Settings:
        """Return the settings of a plain config.json.

        Raises:
            InvalidSetup: the layers to read or the mask token are missing.
        """
        own = config.get("dflash_config") or {}
        layers, mask_token_id = find_aux_layers(config), find_mask_token(config)
        if layers is None:
            raise refusal("config-incomplete", case="dflash", target_key=TARGET_KEY, where=where)
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


class DFlash(DraftHead):
    """The drafting network; call it under `torch.inference_mode`.

    Attributes:
        settings: parsed settings of config.json.
    """

    def __init__(self, checkpoint: LayeredHead, settings: Settings) -> None:
        super().__init__(settings.aux_layers.ids, checkpoint.shape, checkpoint.own_vocabulary())
        self.settings = settings
        reader, shape, hidden = checkpoint.reader, checkpoint.shape, checkpoint.shape.hidden_size
        num_features = len(settings.aux_layers.ids) * checkpoint.target.shape.hidden_size
        self._fc = reader.linear("", ["fc"], [hidden], num_features)
        """Maps the auxiliary hidden states of a token to one vector."""
        self._hidden_norm = reader.vector("hidden_norm.weight", hidden)
        names = [f"layers.{i}.self_attn.{kind}_proj" for i in range(shape.num_layers) for kind in ("k", "v")]
        sizes = [shape.num_kv_heads * shape.head_dim] * len(names)
        biased = bool(checkpoint.config.get("attention_bias"))
        self._context_kv = reader.linear("", names, sizes, hidden, bias=biased)
        """Maps that vector to keys and values of every layer, [2 * L * G * D]."""
        layers = tuple(reader.layer(f"layers.{i}.") for i in range(shape.num_layers))
        assert layers[0].input_norm is not None
        self._layers, self._input_norm = checkpoint.layers(*layers), layers[0].input_norm
        self._qk_norms = [layer.qk_norms for layer in layers]
        self._norm = reader.vector("norm.weight", hidden)

    def store_context(self, features_NF: Tensor, positions_N: Tensor, kv: PagedKV, slots_N: Tensor) -> None:
        """Store each layer's keys and values of the target's states at the given positions."""
        kernels, shape = self._layers.kernels, self.kv_shape
        _, context_NH = kernels.add_norm(self._fc(features_NF), None, self._hidden_norm)
        rotations = kernels.rotations(positions_N)
        sizes = (len(positions_N), shape.num_layers, 2 * shape.num_kv_heads, shape.head_dim)
        kv_NLSD = self._context_kv(context_NH).view(sizes)
        for i, qk_norms in enumerate(self._qk_norms):
            kernels.rotate_and_store(kv_NLSD[:, i], qk_norms, rotations, kv, i, slots_N)

    def forward(
        self, tokens_N: Tensor, positions_N: Tensor, kv: PagedKV, plans: Mapping[bool, AttentionPlan]
    ) -> Tensor:
        """Run blocks of a known token and masks after the stored context; return hidden_NH for `logits`.

        Args:
            tokens_N: int64 token ids.
            positions_N: int64 position of each token.
            plans: plans for causal layers and for others.
        """
        kernels = self._layers.kernels
        x_NH, normed_NH = kernels.embed(tokens_N, self._embedding_VH, self._input_norm)
        own = [plans[causal] for causal in self.settings.causal_layers]
        x_NH, delta_NH = self._layers.forward(x_NH, normed_NH, positions_N, kv, *own)
        return kernels.add_norm(x_NH, delta_NH, self._norm)[1]


class DFlashProposer(PagedProposer):
    """Drafts with a DFlash network, from each sequence's last token and a mask per draft token.

    Its context is the target's states: their keys and values go to the page slots of their positions. Those of the
    block come after them, and the next confirmed states overwrite them.

    It drafts up to the end of the context: loading rejects a drafter with a shorter sliding window.

    Args:
        max_model_len: see `PagedProposer`.
        probabilistic: see `PagedProposer`. Draft tokens of a block are drawn independently.
    """

    nests = False  # the tokens of a block look at each other

    def __init__(self, network: DFlash, *, max_model_len: int, probabilistic: bool = False) -> None:
        super().__init__(network, probabilistic=probabilistic, max_model_len=max_model_len)
        self._drafter = network

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Store the context of `new`; draft up to k tokens for each sequence that wants some."""
        assert new.features_NF is not None
        # A token comes with the states of the position before it.
        context = self._plan(new, new.spans.shift(-1))
        self._drafter.store_context(new.features_NF, context.positions_N, self.kv, context.slots_N)
        counts_B = new.limits_B.clamp(0, k)
        draft = self._begin(new, counts_B, k)
        if draft.num_steps > 0:
            draft.add_all(self._draft_logits(new, counts_B, draft.num_steps))
        return draft.to_draft()

    def _draft_logits(self, new: Confirmed, counts_B: Tensor, num_steps: int) -> Tensor:
        """Return logits_RU of the masks of all sequences; those behind a shorter block are another mask's."""
        spans, settings = new.spans, self._drafter.settings
        blocks = spans.with_runs(spans.starts_B + spans.lengths_B - 1, counts_B + 1, num_steps + 1)
        last_B1 = new.tokens_N[spans.last_row_B].unsqueeze(1)
        tokens_N = blocks.pack(F.pad(last_B1, (0, num_steps), value=settings.mask_token_id))
        plans = {causal: self._plan(new, blocks, causal=causal) for causal in sorted(set(settings.causal_layers))}
        positions_N = plans[settings.causal_layers[0]].positions_N
        hidden_NH = self._drafter.forward(tokens_N, positions_N, self.kv, plans)
        return self._drafter.logits(blocks.unpack(hidden_NH)[:, 1:].flatten(0, 1))


def build(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of a DFlash drafter."""
    longest = find_longest_context(config, target)
    network = load_dflash(find_weights(spec, config), target, max_model_len=longest, k=spec.k)
    return DFlashProposer(network, max_model_len=longest, probabilistic=spec.probabilistic)


def load_dflash(path: str | Path, target: CausalLM, *, max_model_len: int, k: int | None = None) -> DFlash:
    """Return the DFlash drafter of a checkpoint directory, plain or of the speculators library.

    Args:
        target: the model that it was trained for; provides embedding and head if the directory has none.
        max_model_len: longest context. A sliding window must be at least as long, so attention is never cut.
        k: maximum draft tokens, to check against the drafter's block.

    Raises:
        InvalidSetup: the checkpoint is not a DFlash drafter, does not match the target, has missing or unknown tensors,
            uses an unsupported feature, or was trained on blocks shorter than k needs.
    """
    checkpoint = LayeredHead(path, target, _FAMILIES)
    config, where = checkpoint.config, checkpoint.where
    _check_supported(config, max_model_len=max_model_len, where=where)
    settings = Settings.from_config(config, where=where)
    _check_fits(settings, checkpoint, target)
    network = DFlash(checkpoint, settings)
    checkpoint.check_read(lambda name: name == "t2d")
    if k is not None and settings.block_size is not None and k >= settings.block_size:
        raise refusal("block-too-long", block_size=settings.block_size, k=k, where=where, most=settings.block_size - 1)
    return network


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
        raise refusal("unsupported-drafter", unsupported=", ".join(unsupported), where=where)
    window = get_int(own, "swa_window_size") or config.get("sliding_window")
    slides = "sliding_attention" in (config.get("layer_types") or []) or own.get("use_swa")
    if slides and (window is None or window < max_model_len):
        raise InvalidSetup.because(
            "unsupported-sliding-window",
            f"Layers look back {window} tokens only; contexts here may grow to {max_model_len}.",
            where=where,
            fix=f"Set max_model_len to {window} or less." if window else "Write the window into sliding_window.",
        )


def _check_fits(settings: Settings, checkpoint: LayeredHead, target: CausalLM) -> None:
    """Raise InvalidSetup where the drafter belongs to another target."""
    checkpoint.check_width(may_differ=True)
    where, shape = checkpoint.where, target.shape
    faults = [
        find_layers_fault(settings.aux_layers, shape.num_layers, where=where),
        find_mask_fault(settings.mask_token_id, shape.vocab_size, key=_MASK_KEY, where=where),
    ]
    if any(faults):
        raise InvalidSetup(filter(None, faults))
