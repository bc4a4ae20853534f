"""Drafting networks: the interface for proposers, and the parts and checkpoints of heads over the target's states.

Shape letters: N rows of a pass, R rows that need logits, F features of a token, H hidden size, X width of the first
layer's attention input, V the target's vocabulary, U tokens that the network can name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from draftwise.checkpoints.head_fit import find_vocabulary_fault, find_width_fault
from draftwise.checkpoints.recognize import to_plain
from draftwise.core import Finding, InvalidSetup, ModelShape
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.families import FAMILIES, Family, check_layers, names_quantization
from draftwise.engine.kernels import Kernels, make_kernels
from draftwise.engine.kernels.cpu_layouts import QuantizedTable, Table
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.causal_lm import CausalLM, Layer, decoder_layer, join_layers, rows_of
from draftwise.engine.models.checkpoint import NEVER_READ, CheckpointReader, check_config
from draftwise.engine.models.linear import Linear
from draftwise.engine.models.quantized import RoundedBlocks
from draftwise.engine.models.rope import Rope
from draftwise.engine.models.weight_loading import WeightReader
from draftwise.knowledge.messages import refusal

if TYPE_CHECKING:
    from draftwise.engine.kernels.cpu_layers import QuantizedChain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mask:
    """Placeholder for an unknown token if several tokens are drafted in one pass."""

    token_id: int
    features_F: Tensor | None = None
    """Input in place of the target's states; None for a network that reads no states."""


class DraftNetwork(Protocol):
    """The interface of every drafting network with keys and values."""

    aux_layers: tuple[int, ...]
    """Hidden states of the target that it reads (see `Proposer.aux_layers`); empty for a draft model."""
    kv_shape: ModelShape
    """Shape of its own cache: layers, key-value heads, head dimension. max_position_embeddings limits its drafts."""
    vocab_size: int
    """V."""
    target_ids_U: Tensor | None
    """int64, target id of each token in its vocabulary; None: its vocabulary is the target's."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RU in the dtype of the network's head."""


class ChainDrafter(DraftNetwork, Protocol):
    """A network that drafts token by token. Each row gives the next token's input and the next row's state."""

    mask: Mask | None
    """Mask for parallel drafting; None if the head was not trained for it."""
    chain: QuantizedChain | None
    """Makes the likeliest draft tokens in one call; None if its weights are not quantized."""

    def enter(self, features_NF: Tensor) -> Tensor:
        """Return the input of `forward` for the target's states, [N, H]."""

    def forward(
        self, tokens_N: Tensor, carry_NH: Tensor | None, positions_N: Tensor, kv: PagedKV, plan: AttentionPlan
    ) -> tuple[Tensor, Tensor | None]:
        """Run rows of (token, state before it).

        Args:
            tokens_N: int64 token ids.
            carry_NH: state from `enter` or from the row before; None for a network that reads no states.
            positions_N: int64 position of each row.

        Returns:
            hidden_NH for `logits`, and the state for the next draft token's row; both of the rows that `plan` wants.
        """


class DraftLayers:
    """Decoder layers with separate pages, at the target's positions.

    Attributes:
        kernels: the layers' kernels, also for a head's own operations.
        at_once: all layers as one call; None if they are not quantized or unsupported.
    """

    def __init__(
        self, shape: ModelShape, layers: tuple[Layer, ...], rope: Rope, eps: float, like: Table, *, is_quantized: bool
    ) -> None:
        self._layers = layers
        self.at_once = join_layers(layers, shape, rope, eps=eps, is_normed=True) if is_quantized else None
        self.kernels: Kernels = make_kernels(shape, rope, eps=eps, dtype=like.dtype, device=like.device)

    def forward(
        self, x_NH: Tensor, normed_NX: Tensor, positions_N: Tensor, kv: PagedKV, *plans: AttentionPlan
    ) -> tuple[Tensor, Tensor]:
        """Run all layers.

        Args:
            x_NH: incoming residual stream.
            normed_NX: input of the first layer's attention.
            positions_N: int64 position of each row.
            plans: plan for these rows; one for all layers, or one per layer.

        Returns:
            the residual stream after the last attention, and the last MLP's output, only of the wanted rows if the plan
            selects some (`AttentionPlan.wanted`).
        """
        plan, alike = plans[0], all(plan is plans[0] for plan in plans)
        if self.at_once is not None and alike and not kv.is_narrow and len(x_NH):
            # A copy, because the stream that enters is overwritten.
            normed_NX = normed_NX.float().contiguous()
            return self.at_once(x_NH.float().clone(), positions_N, kv, rows_of(plan), {}, normed_NX=normed_NX)
        rotations = self.kernels.rotations(positions_N)
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
    """The input and output vocabulary of a head."""

    embedding_VH: Table
    head: Linear
    logit_scale: float = 1.0
    target_ids_U: Tensor | None = None
    """int64, target id of each token in its vocabulary; None: its vocabulary is the target's."""


class DraftHead:
    """Base class of drafters (see `ChainDrafter`).

    Attributes:
        aux_layers: hidden states of the target that it reads.
        kv_shape: shape of its own pages.
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
            self.chain = QuantizedChain(layers.at_once, about)

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache: the target's."""
        return self._embedding_VH.dtype

    @property
    def device(self) -> torch.device:
        """Device of the head: the target's."""
        return self._embedding_VH.device

    def enter(self, features_NF: Tensor) -> Tensor:
        """Return the input of `forward` for the target's states, [N, H]: the states themselves."""
        return features_NF

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RU in the head's dtype."""
        logits_RU = self._head(hidden_RH)
        return logits_RU if self._logit_scale == 1.0 else logits_RU * self._logit_scale


class HeadCheckpoint:
    """A head's checkpoint directory, opened for one target. Weights are read in the target's dtype to its device.

    Heads with decoder layers use `LayeredHead`; others use this class.

    Args:
        path: directory with config.json and safetensors.
        target: target model of the head.
        width_key: key in config.json for the width of the state that the head reads.

    Attributes:
        config: parsed config.json.
        where: path of config.json, for messages.
        files: its tensors.
        reader: reads its weights.
        target: the target model.

    Raises:
        InvalidSetup: the width or vocabulary differs from the target's.
    """

    def __init__(self, path: str | Path, target: CausalLM, *, width_key: str = "hidden_size") -> None:
        self._open(path, target)
        width, vocab_size = self.config.get(width_key), self.config.get("vocab_size")
        _refuse(
            find_width_fault(width_key, width, target.shape.hidden_size, where=self.where),
            find_vocabulary_fault(vocab_size, target.shape.vocab_size, where=self.where),
        )
        # Without decoder layers it does not matter of which family they would be.
        self.reader = _reader(self.files, target.shape, FAMILIES["llama"], target)

    def _open(self, path: str | Path, target: CausalLM) -> None:
        self.files, self.target = CheckpointReader(path), target
        self.where, self.config = str(Path(path) / "config.json"), self.files.config

    def __contains__(self, name: str) -> bool:
        return name in self.files.files

    def __iter__(self) -> Iterator[str]:
        return iter(self.files.files)

    def check_read(self, ignored: Callable[[str], bool] | None = None) -> None:
        """Check that no tensor is missing and no tensor is left over.

        vLLM 0.32 silently loads most heads with missing tensors, which lowers acceptance, but rejects extra ones.

        Args:
            ignored: returns whether an extra tensor of this name is allowed.

        Raises:
            InvalidSetup: tensors are missing or unknown.
        """
        self.files.check_complete()
        unread = [name for name in self.files.unread() if not name.endswith(NEVER_READ)]
        unknown = [name for name in unread if ignored is None or not ignored(name)]
        if unknown:
            shown = ", ".join(unknown[:8]) + (" ..." if len(unknown) > 8 else "")
            raise refusal("tensors-unknown", path=self.files.path, num_unknown=len(unknown), shown=shown)


class LayeredHead(HeadCheckpoint):
    """Checkpoint directory of a head with decoder layers: EAGLE, EAGLE-3, MTP, DFlash.

    Args:
        families: decoder family of its layers, by allowed architecture.

    Attributes:
        config: config.json in vLLM's plain format.
        shape: the head's shape, but with the target's number of positions (vLLM PR 48894), unless the head's sliding
            window is shorter.
        rope: its rotary embedding.
        eps: epsilon of its norms.

    Raises:
        InvalidSetup: the config is incomplete, of another architecture or quantized, or its vocabulary size differs
            from the target's.
    """

    def __init__(self, path: str | Path, target: CausalLM, families: Mapping[str, Family]) -> None:
        self._open(path, target)
        self.files.config = self.config = to_plain(self.config, where=self.where)
        check_config(self.config, where=self.where)
        shape = ModelShape.from_hf_config(self.config, where=self.where)
        family = self._family(families)
        self._refuse_quantized()
        _refuse(find_vocabulary_fault(shape.vocab_size, target.shape.vocab_size, where=self.where))
        reach = max(shape.max_position_embeddings, target.shape.max_position_embeddings)
        shape = dataclasses.replace(shape, max_position_embeddings=reach)
        rope = Rope.from_hf_config(self.config, shape, where=self.where)
        self.rope = dataclasses.replace(rope, frequencies_D=rope.frequencies_D.to(target.device))
        limit = min(target.shape.max_position_embeddings, self._window() or reach)
        self.shape = dataclasses.replace(shape, max_position_embeddings=limit)
        self.reader = _reader(self.files, self.shape, family, target)
        self.eps = float(self.config.get("rms_norm_eps") or 1e-6)

    def layers(self, *layers: Layer) -> DraftLayers:
        """Return the layers ready to run."""
        like, quantized = self.target.weights.embedding_VH, self.target.is_quantized
        return DraftLayers(self.shape, layers, self.rope, self.eps, like, is_quantized=quantized)

    def vocabulary(self, head: Linear, target_ids_U: Tensor | None = None) -> HeadVocabulary:
        """Return the vocabulary of a head with these weights.

        Shares the target's embedding if the directory holds none or an equal one.
        """
        own, embedding_VH = "embed_tokens.weight", self.target.weights.embedding_VH
        if own in self or embedding_VH.shape[1] != self.shape.hidden_size:
            own_VH = self.reader.fused([own], [self.shape.vocab_size], self.shape.hidden_size)
            embedding_VH = embedding_VH if _is_same(own_VH, embedding_VH) else own_VH
        scale = self.config.get("logit_scale")
        scale = 1.0 if scale is None else float(scale)
        return HeadVocabulary(embedding_VH=embedding_VH, head=head, logit_scale=scale, target_ids_U=target_ids_U)

    def own_vocabulary(self) -> HeadVocabulary:
        """Return the vocabulary of a head that may have its own `lm_head`, for all tokens or for `d2t`'s.

        Raises:
            InvalidSetup: `d2t` is invalid.
        """
        target, hidden, vocab_size = self.target, self.shape.hidden_size, self.shape.vocab_size
        num_named = self.config.get("draft_vocab_size") or vocab_size
        is_own = "lm_head.weight" in self or hidden != target.shape.hidden_size or num_named != vocab_size
        head = self.reader.linear("", ["lm_head"], [num_named], hidden) if is_own else target.weights.head
        return self.vocabulary(head, None if num_named == vocab_size else self._target_ids(num_named))

    def flat(self, name: str, size: int) -> Tensor:
        """Return a tensor of `size` values, in any shape, as [size] in the target's dtype."""
        shape = self.files.shape_of(name) or ()
        tensor = self.files.read(name, shape if math.prod(shape) == size else (size,))
        return tensor.flatten().to(self.reader.device, self.reader.dtype)

    def check_width(self, *, may_differ: bool) -> None:
        """Check that the head reads states as wide as the target's.

        Args:
            may_differ: whether the head may have another width, if it gives `target_hidden_size`.

        Raises:
            InvalidSetup: the widths differ.
        """
        stated = self.config.get("target_hidden_size") if may_differ else None
        key, width = ("target_hidden_size", stated) if stated else ("hidden_size", self.shape.hidden_size)
        _refuse(find_width_fault(key, width, self.target.shape.hidden_size, where=self.where))

    def _target_ids(self, num_named: int) -> Tensor:
        """Return the target's id of each token d of the draft vocabulary: d + d2t[d]."""
        offsets_U = self.files.read("d2t", (num_named,)).to(self.reader.device, torch.long)
        ids_U = torch.arange(num_named, device=offsets_U.device) + offsets_U
        if ids_U.min() < 0 or ids_U.max() >= self.shape.vocab_size or len(ids_U.unique()) < num_named:
            raise refusal("wrong-d2t", where=self.where)
        return ids_U

    def _family(self, families: Mapping[str, Family]) -> Family:
        named = self.config.get("architectures") or list(families)[:1]
        for architecture, family in families.items():
            if architecture in named:
                check_layers(self.config, family, where=self.where)
                return family
        raise refusal(
            "unsupported-architecture",
            case="head",
            named=", ".join(map(str, named)),
            where=self.where,
            families=", ".join(families),
        )

    def _refuse_quantized(self) -> None:
        if names_quantization(self.config):
            raise refusal("quantized", case="head", where=self.where)

    def _window(self) -> int | None:
        """Return the sliding window that some layer uses: up to its length attention is the full one."""
        kinds = (self.config.get("layer_types") or [])[: self.config["num_hidden_layers"]]
        return self.config.get("sliding_window") if "sliding_attention" in kinds else None


def _reader(files: CheckpointReader, shape: ModelShape, family: Family, target: CausalLM) -> WeightReader:
    """Return what reads a head's weights, in eight bits where the target's are quantized."""
    blocks = RoundedBlocks("q8") if target.is_quantized else None
    return WeightReader(files, shape, family, target.dtype, target.device, blocks=blocks)


def _is_same(own_VH: Tensor, embedding_VH: Table) -> bool:
    if isinstance(embedding_VH, QuantizedTable):
        return embedding_VH.holds(own_VH)
    return torch.equal(own_VH, embedding_VH)


def _refuse(*faults: Finding | None) -> None:
    """Raise InvalidSetup where there is a fault."""
    if any(faults):
        raise InvalidSetup(filter(None, faults))
