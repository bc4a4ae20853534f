"""The decoder of all families (`engine.families`) over paged keys and values.

Shape letters: N new tokens of the step, R rows that need logits, H hidden size, A query heads, G key-value
heads, D head dimension, S = A + 2G, X width of an attention's input, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from draftwise.core import Finding, ModelShape
from draftwise.core.grouping import copy_fields
from draftwise.engine.attention import attend
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.families import Multipliers
from draftwise.engine.kernels import Kernels, Rotations, make_kernels
from draftwise.engine.kernels.cpu_layouts import Table
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.linear import Linear, last_outputs
from draftwise.engine.models.mixture import MixtureShape
from draftwise.engine.models.rope import Rope

if TYPE_CHECKING:
    from draftwise.engine.kernels.cpu_layers import Ends, QuantizedChain, QuantizedLayers, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMlp:
    """Weights of a gated MLP; gate and up are one matrix."""

    gate_up: Linear
    down: Linear
    gelu: bool = False
    """Whether the gate's activation is GELU instead of SiLU."""

    def __call__(self, kernels: Kernels, x_NH: Tensor) -> Tensor:
        """Return what the layer adds for the normed rows x."""
        return self.down(kernels.gated(self.gate_up, x_NH, gelu=self.gelu))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one decoder layer; q, k, v are one matrix."""

    input_norm: Tensor | None
    """None if the layer's caller norms its input (EAGLE heads)."""
    qkv: Linear
    qk_norms: tuple[Tensor, Tensor] | None
    o: Linear
    post_norm: Tensor
    mlp: Callable[[Kernels, Tensor], Tensor]
    """`GatedMlp` or `ExpertsMlp`."""
    output_norms: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
    """Weights of norms over the outputs of attention and the MLP."""
    kind: int = 0
    """Index of its kind among the model's kinds of attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of a model."""

    embedding_VH: Table
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """Attention settings shared by some of a model's layers."""

    rope: Rope
    window: int | None = None
    """Number of positions, own included, that a token attends to; None: all."""


def decoder_layer(
    kernels: Kernels,
    layer: Layer,
    index: int,
    x_NH: Tensor,
    normed_NX: Tensor,
    rotations: Rotations,
    kv: PagedKV,
    plan: AttentionPlan,
    *,
    is_last: bool = False,
    scale: float | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run one decoder layer and store its keys and values.

    Args:
        kernels: the model's kernels, which know its heads and epsilon.
        index: index of the layer in `kv`.
        x_NH: incoming residual stream.
        normed_NX: input of attention, usually x after the input norm. X is the width of `layer.qkv`'s input.
        is_last: whether only wanted rows are read afterwards (`AttentionPlan.wanted`).
        scale: factor on attention scores. None: 1 / sqrt(D).
        window: number of positions, own included, that a token attends to. None: all.

    Returns:
        the residual stream after attention, and the MLP's output before its output norm, if any; for a last layer, only
        of the wanted rows, or of any row if none are.
    """
    if is_last and plan.only_stores:
        kv_size = 2 * kernels.shape.num_kv_heads * kernels.shape.head_dim
        kv_NSD = last_outputs(layer.qkv, normed_NX, kv_size).unflatten(-1, (-1, kernels.shape.head_dim))
        kernels.rotate_and_store(kv_NSD, layer.qk_norms, rotations, kv, index, plan.slots_N)
        return x_NH[:1], x_NH[:1]
    qkv_NSD = layer.qkv(normed_NX).unflatten(-1, (-1, kernels.shape.head_dim))
    q_NAD = kernels.rotate_and_store(qkv_NSD, layer.qk_norms, rotations, kv, index, plan.slots_N)
    if is_last and plan.wanted is not None:
        rows_R, plan = plan.wanted.rows_R, plan.wanted.plan
        x_NH, q_NAD = x_NH.index_select(0, rows_R), q_NAD.index_select(0, rows_R)
    delta_NH = layer.o(attend(q_NAD, kv, index, plan, scale=scale, window=window))
    x_NH, normed_NH = kernels.add_norm(x_NH, delta_NH, layer.post_norm, delta_weight_H=layer.output_norms[0])
    return x_NH, layer.mlp(kernels, normed_NH)


def join_layers(
    layers: Sequence[Layer],
    shape: ModelShape,
    rope: Rope,
    *,
    eps: float,
    scale: float | None = None,
    window: int | None = None,
    is_normed: bool = False,
    ends: Ends | None = None,
) -> QuantizedLayers | None:
    """Return quantized layers as a single call equivalent to `decoder_layer`; None if any layer is of an unsupported
    kind.

    Args:
        is_normed: whether the caller norms the first layer's input.
        ends: see `QuantizedLayers`.
    """
    from draftwise.engine.kernels.cpu import QuantizedLinear  # numba is slow to import and useless elsewhere
    from draftwise.engine.kernels.cpu_layers import LayerParts, QuantizedLayers

    parts = list[LayerParts]()
    if shape.head_dim % 16 or shape.num_heads // shape.num_kv_heads * shape.head_dim % 32:
        return None
    for layer in layers:
        mlp = layer.mlp
        if not isinstance(mlp, GatedMlp) or mlp.gelu or layer.output_norms[0] is not None:
            return None
        input_norm = None if is_normed and not parts else _input_norm(layer)
        norms = filter(lambda norm: norm is not None, (input_norm, layer.post_norm, *(layer.qk_norms or ())))
        products = (layer.qkv, layer.o, mlp.gate_up, mlp.down)
        if any(norm.dtype != torch.float32 for norm in norms) or not all(
            isinstance(product, QuantizedLinear) for product in products
        ):
            return None
        parts.append(copy_fields(LayerParts, layer, input_norm=input_norm, gate_up=mlp.gate_up, down=mlp.down))
    scale = scale or shape.head_dim**-0.5
    return QuantizedLayers(parts, shape, rope, eps=eps, scale=scale, window=window, ends=ends)


def rows_of(plan: AttentionPlan) -> Rows:
    """Return a plan's rows in the form for a single call of all layers."""
    from draftwise.engine.kernels.cpu_layers import Rows

    wanted_R = None if plan.wanted is None else plan.wanted.rows_R.contiguous()
    return Rows(
        slots_N=plan.slots_N.contiguous(), page_table_BP=plan.page_table_BP, looks=plan.looks, wanted_R=wanted_R
    )


class CausalLM:
    """A model on one device in one dtype. Call it under `torch.inference_mode`.

    Attributes:
        shape: dimensions. max_position_embeddings is the longest context that it can compute.
        config: parsed config.json.
        mixture: shape of its experts. None: every layer has an MLP.
        multipliers: the family's multipliers.
        windows: sliding windows of its layers. None: some layers attend to all tokens.
        is_quantized: whether 4- to 8-bit matrices are multiplied directly. The rest is then float32.
        picks_tokens: whether a pass over pages that are not narrow can pick the likeliest tokens itself.
        notes: findings for the operator on how it was loaded.
    """

    def __init__(
        self,
        config: dict[str, Any],
        shape: ModelShape,
        kinds: Sequence[AttentionKind],
        weights: Weights,
        mixture: MixtureShape | None = None,
        multipliers: Multipliers = Multipliers(),  # noqa: B008 (frozen)
        *,
        is_quantized: bool = False,
        notes: tuple[Finding, ...] = (),
    ) -> None:
        self.is_quantized, self.notes = is_quantized, notes
        self.config, self.shape, self.weights, self.mixture = config, shape, weights, mixture
        # The residual stream is kept divided by the residual's multiplier: what a layer adds then needs no factor, and
        # a norm differs in nothing but its epsilon.
        self.multipliers, self.windows = multipliers, {kind.window for kind in kinds}
        eps = float(config.get("rms_norm_eps") or 1e-6) / multipliers.residual**2
        self._kinds = [
            (make_kernels(shape, kind.rope, eps=eps, dtype=self.dtype, device=self.device), kind.window)
            for kind in kinds
        ]
        self._kernels = self._kinds[0][0]
        self._at_once, self.picks_tokens = None, False
        if is_quantized and len(kinds) == 1:
            from draftwise.engine.kernels.cpu import QuantizedLinear  # numba is slow to import and useless elsewhere
            from draftwise.engine.kernels.cpu_layers import Ends

            kind, factor = kinds[0], multipliers.embedding / multipliers.residual
            head = weights.head if isinstance(weights.head, QuantizedLinear) and multipliers.logits == 1.0 else None
            ends = Ends(embedding=weights.embedding_VH, factor=factor, norm=weights.norm, head=head)
            self._at_once = join_layers(
                weights.layers, shape, kind.rope, eps=eps, scale=multipliers.attention, window=kind.window, ends=ends
            )
            self.picks_tokens = self._at_once is not None and head is not None

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache."""
        return self.weights.embedding_VH.dtype

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.weights.embedding_VH.device

    @property
    def mlp_values(self) -> int:
        """Values per token in the widest MLP: both halves and their product, or all of its experts."""
        experts = self.mixture.row_values(self.shape.hidden_size) if self.mixture else 0
        return max(3 * self.shape.intermediate_size, experts)

    def compile(self) -> None:
        """Compile its kernels, and those of its drafters, which the first step would compile otherwise."""
        self._kernels.compile()
        if self._at_once is not None:
            self._at_once.compile()

    def forward(
        self,
        tokens_N: Tensor,
        positions_N: Tensor,
        kv: PagedKV,
        plan: AttentionPlan,
        aux_layers: tuple[int, ...] = (),
        features_NF: Tensor | None = None,
        likeliest_R: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Run a step's tokens, sequence after sequence, and store their keys and values.

        Args:
            tokens_N: int64 token ids.
            positions_N: int64 position of each token in its sequence.
            plan: from `plan_attention`, for the same step.
            aux_layers: hidden states to return. i is the input of layer i, L (the number of layers) the last layer's
                output before the final norm (vLLM's numbering for EAGLE-3), and L + 1 the same after it.
            features_NF: output buffer for the concatenated auxiliary hidden states; F = H times their number.
            likeliest_R: output buffer for the likeliest token after each wanted row, int64; see `picks_tokens`.

        Returns:
            hidden_NH after the final norm, only of the wanted rows if the plan selects some (`AttentionPlan.wanted`;
            without auxiliary states after the last layer), and the auxiliary hidden states in the order of
            `aux_layers`.
        """
        kernels, weights, last = self._kernels, self.weights, self.shape.num_layers
        assert plan.wanted is None or max(aux_layers, default=0) < last
        places = (
            dict(zip(aux_layers, features_NF.chunk(len(aux_layers), dim=-1), strict=True))
            if features_NF is not None
            else {}
        )
        states: dict[int, Tensor] = {}
        delta_norm: Tensor | None = None
        if self._at_once is not None and not kv.is_narrow and len(tokens_N):
            size = len(tokens_N), self.shape.hidden_size
            states = {i: places[i] if i in places else torch.empty(size) for i in aux_layers if i < last}
            x_NH, tokens_N = torch.empty(size), tokens_N.contiguous()
            x_NH, normed_NH = self._at_once(
                x_NH, positions_N, kv, rows_of(plan), states, tokens_N=tokens_N, likeliest_R=likeliest_R
            )
            states |= {last: places[last].copy_(x_NH) if last in places else x_NH, last + 1: normed_NH}
            return self._finish(states, places, aux_layers)
        rotations = [kind.rotations(positions_N) for kind, _ in self._kinds]
        first_norm, factor = _input_norm(weights.layers[0]), self.multipliers.embedding / self.multipliers.residual
        x_NH, normed_NH = kernels.embed(tokens_N, weights.embedding_VH, first_norm, places.get(0), factor=factor)
        delta_NH: Tensor | None = None
        for i, layer in enumerate(weights.layers):
            if i > 0:
                x_NH, normed_NH = kernels.add_norm(
                    x_NH, delta_NH, _input_norm(layer), places.get(i), delta_weight_H=delta_norm
                )
            if i in aux_layers:
                states[i] = x_NH
            is_last = i == len(weights.layers) - 1
            (own, window), turns = self._kinds[layer.kind], rotations[layer.kind]
            x_NH, delta_NH = decoder_layer(
                own, layer, i, x_NH, normed_NH, turns, kv, plan,
                is_last=is_last, scale=self.multipliers.attention, window=window,
            )  # fmt: skip
            delta_norm = layer.output_norms[1]
        assert delta_NH is not None, "a model has layers"
        states[last], states[last + 1] = kernels.add_norm(
            x_NH, delta_NH, weights.norm, places.get(last), delta_weight_H=delta_norm
        )
        return self._finish(states, places, aux_layers)

    def _finish(
        self, states: dict[int, Tensor], places: dict[int, Tensor], aux_layers: tuple[int, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return what `forward` does, from all states."""
        last = self.shape.num_layers
        if last + 1 in places:
            places[last + 1].copy_(states[last + 1])
        for i in places.keys() - states.keys():  # of layers that a rehearsal leaves out
            states[i] = places[i].zero_()
        features = [states[i] for i in aux_layers]
        if self.multipliers.residual != 1.0:  # readers of the stream know nothing of how it is kept
            features = [
                torch.mul(state, self.multipliers.residual, out=places.get(i)) if i <= last else state
                for i, state in zip(aux_layers, features, strict=True)
            ]
        return states[last + 1], features

    __call__ = forward

    def chain(self) -> QuantizedChain | None:
        """Return this model as a drafter that makes all tokens in one call; None if unsupported."""
        if self._at_once is None:
            return None
        from draftwise.engine.kernels.cpu import QuantizedLinear  # as above
        from draftwise.engine.kernels.cpu_layers import ChainParts, QuantizedChain

        head, many = self.weights.head, self.multipliers
        if not isinstance(head, QuantizedLinear) or many.logits <= 0:
            return None
        parts = ChainParts(
            embedding=self.weights.embedding_VH,
            factor=many.embedding / many.residual,
            reads_state=False,
            last_norm=self.weights.norm,
            carries_normed=False,
            head=head,
            target_ids_U=None,
        )
        return QuantizedChain(self._at_once, parts)

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RV in the model's dtype, from hidden states after the final norm."""
        factor = self.multipliers.logits
        return self.weights.head(hidden_RH if factor == 1.0 else hidden_RH * factor)


def _input_norm(layer: Layer) -> Tensor:
    assert layer.input_norm is not None, "a model's layers norm their input themselves"
    return layer.input_norm
