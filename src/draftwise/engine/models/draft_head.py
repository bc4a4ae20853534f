"""Defines drafting networks: the interface for proposers, and the parts shared by heads over the target's states.

Shape letters: N rows of a pass, R rows that need logits, F features of a token, H hidden size, X width of the first
layer's attention input, V the target's vocabulary, U tokens that the network can name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.kernels import Kernels, make_kernels
from draftwise.engine.kernels.cpu_layouts import Table
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.causal_lm import Layer, decoder_layer, join_layers, rows_of
from draftwise.engine.models.linear import Linear
from draftwise.engine.models.rope import Rope

if TYPE_CHECKING:
    from draftwise.engine.kernels.cpu_layers import QuantizedChain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mask:
    """Stands in for a token that is not known yet when several tokens are drafted in one pass."""

    token_id: int
    features_F: Tensor | None = None
    """What the drafter reads in place of the target's states; None for a network that reads no states."""


class DraftNetwork(Protocol):
    """What proposers must know of every network that keeps keys and values."""

    aux_layers: tuple[int, ...]
    """Hidden states of the target that it reads (see `Proposer.aux_layers`); none for a draft model."""
    kv_shape: ModelShape
    """Its own cache: layers, key-value heads, head dimension; max_position_embeddings bounds how far it drafts."""
    vocab_size: int
    """V."""
    target_ids_U: Tensor | None
    """int64, the target's id of each token it can name; None: they are the target's own."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RU in the dtype of the network's head."""


class ChainDrafter(DraftNetwork, Protocol):
    """A network that drafts token by token: each row says what follows, and what the next row needs of it."""

    mask: Mask | None
    """Mask for parallel drafting; None if the head was not trained for it."""
    chain: QuantizedChain | None
    """Makes the likeliest draft tokens in one call; None where its weights are not quantized."""

    def enter(self, features_NF: Tensor) -> Tensor:
        """Return what `forward` gets, [N, H], for the target's states."""

    def forward(
        self,
        tokens_N: Tensor,
        carry_NH: Tensor | None,
        positions_N: Tensor,
        kv: PagedKV,
        plan: AttentionPlan,
    ) -> tuple[Tensor, Tensor | None]:
        """Run rows of (token, state before it).

        Args:
            tokens_N: int64 token ids.
            carry_NH: from `enter` or from the row before; None for a network that reads no states.
            positions_N: int64 position of each row.

        Returns:
            hidden_NH for `logits`, and what the row for the next draft token gets; both of the rows that `plan` wants.
        """


class DraftLayers:
    """Decoder layers over pages of their own, at the target's positions.

    Attributes:
        kernels: those of the layers, for what a head does around them.
        at_once: all layers as one call; None where they are not quantized, or of another kind.
    """

    def __init__(
        self, shape: ModelShape, layers: tuple[Layer, ...], rope: Rope, eps: float, like: Table, *, is_quantized: bool
    ) -> None:
        self._layers = layers
        self.at_once = join_layers(layers, shape, eps=eps, is_normed=True) if is_quantized else None
        self.kernels: Kernels = make_kernels(shape, rope, eps=eps, dtype=like.dtype, device=like.device)

    def forward(
        self, x_NH: Tensor, normed_NX: Tensor, positions_N: Tensor, kv: PagedKV, *plans: AttentionPlan
    ) -> tuple[Tensor, Tensor]:
        """Run all layers.

        Args:
            x_NH: the residual stream that enters.
            normed_NX: what the first layer's attention reads.
            positions_N: int64 position of each row.
            plans: for these rows; one for all layers, or one for each.

        Returns:
            the residual stream after the last attention, and what the last MLP adds to it, of the wanted rows if not
            all are (`AttentionPlan.wanted`).
        """
        rotations = self.kernels.rotations(positions_N)
        plan, alike = plans[0], all(plan is plans[0] for plan in plans)
        if self.at_once is not None and alike and not kv.is_narrow and len(x_NH):
            # A copy, because the stream that enters is overwritten.
            return self.at_once(x_NH.float().clone(), rotations, kv, rows_of(plan), {}, normed_NX.float().contiguous())
        delta_NH: Tensor | None = None
        for i, layer in enumerate(self._layers):
            if delta_NH is not None:
                assert layer.input_norm is not None
                x_NH, normed_NX = self.kernels.add_norm(x_NH, delta_NH, layer.input_norm)
            is_last = i == len(self._layers) - 1
            own = plan if alike else plans[i]
            x_NH, delta_NH = decoder_layer(self.kernels, layer, i, x_NH, normed_NX, rotations, kv, own, is_last=is_last)
        assert delta_NH is not None, "a head has a layer"
        return x_NH, delta_NH


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadVocabulary:
    """How a head reads tokens, and how it names them."""

    embedding_VH: Table
    head: Linear
    logit_scale: float = 1.0
    target_ids_U: Tensor | None = None
    """int64, the target's id of each token it can name; None: they are the target's own."""


class DraftHead:
    """The part of a drafter (see `ChainDrafter`) that does not depend on its kind.

    Attributes:
        aux_layers: hidden states of the target that it reads.
        kv_shape: what its own pages hold.
        vocab_size: V.
        target_ids_U: see `HeadVocabulary`.
        mask: mask for parallel drafting; None if the head was not trained for it.
    """

    def __init__(
        self, aux_layers: tuple[int, ...], shape: ModelShape, vocabulary: HeadVocabulary, mask: Mask | None = None
    ) -> None:
        self.aux_layers: tuple[int, ...] = aux_layers
        self.kv_shape: ModelShape = shape
        self.vocab_size: int = shape.vocab_size
        self.target_ids_U: Tensor | None = vocabulary.target_ids_U
        self.mask: Mask | None = mask
        self._embedding_VH, self._head = vocabulary.embedding_VH, vocabulary.head
        self._logit_scale = vocabulary.logit_scale
        self.chain: QuantizedChain | None = None

    def _join(self, layers: DraftLayers, **parts: Any) -> None:
        """Make the chain of a head whose layers are quantized; `parts` are those of `ChainParts` that it states."""
        if layers.at_once is None or self._logit_scale <= 0:
            return
        from draftwise.engine.kernels.cpu import QuantizedLinear  # numba is slow to import and useless elsewhere
        from draftwise.engine.kernels.cpu_layers import ChainParts, QuantizedChain

        if isinstance(self._head, QuantizedLinear) and isinstance(parts.get("projection"), QuantizedLinear | None):
            about = ChainParts(embedding=self._embedding_VH, head=self._head, target_ids_U=self.target_ids_U, **parts)
            self.chain = QuantizedChain(layers.at_once, about, layers.kernels.rope)

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache: the target's."""
        return self._embedding_VH.dtype

    @property
    def device(self) -> torch.device:
        """Where it runs: with the target."""
        return self._embedding_VH.device

    def enter(self, features_NF: Tensor) -> Tensor:
        """Return what `forward` gets, [N, H], for the target's states: themselves."""
        return features_NF

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RU in the head's dtype."""
        logits_RU = self._head(hidden_RH)
        return logits_RU if self._logit_scale == 1.0 else logits_RU * self._logit_scale
