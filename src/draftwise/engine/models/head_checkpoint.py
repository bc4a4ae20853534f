"""Opens the checkpoint of a drafting head, checks that it fits its target and that all of it is read.

Shape letters: H hidden size, V the target's vocabulary, U tokens that the head can name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from draftwise.checkpoints.head_faults import find_vocabulary_fault, find_width_fault
from draftwise.checkpoints.speculators_format import to_plain
from draftwise.core import Finding, InvalidSetup, ModelShape
from draftwise.engine.families import FAMILIES, Family
from draftwise.engine.kernels.cpu_layouts import QuantizedTable, Table
from draftwise.engine.models.causal_lm import CausalLM, Layer
from draftwise.engine.models.checkpoint import CheckpointReader, check_config
from draftwise.engine.models.draft_head import DraftLayers, HeadVocabulary
from draftwise.engine.models.linear import Linear
from draftwise.engine.models.quantized import RoundedBlocks
from draftwise.engine.models.rope import Rope
from draftwise.engine.models.weight_loading import WeightReader

_NEVER_READ = ("rotary_emb.inv_freq", "rotary_pos_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
"""Ends of names that old exporters wrote and every loader computes itself."""


class HeadCheckpoint:
    """The directory of a head, opened for one target; its weights are read in the target's dtype to its device.

    Heads without decoder layers use this class as it is, heads with such layers `LayeredHead`.

    Args:
        path: directory with config.json and safetensors.
        target: the model that the head was trained for.
        width_key: key of config.json for the width of the state that the head reads.

    Attributes:
        config: the parsed config.json.
        where: path of config.json, for messages.
        files: its tensors.
        reader: reads its weights.
        target: as given.

    Raises:
        InvalidSetup: the config names another width or vocabulary than the target's.
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
        """Check that every tensor was there, and that none is left over.

        vLLM 0.32 loads most heads with tensors missing, which costs acceptance in silence, but refuses extra ones.

        Args:
            ignored: says of a name that the head may bring such a tensor for nothing.

        Raises:
            InvalidSetup: some are missing, or some are unknown.
        """
        self.files.check_complete()
        unread = [name for name in self.files.unread() if not name.endswith(_NEVER_READ)]
        unknown = [name for name in unread if ignored is None or not ignored(name)]
        if unknown:
            shown = ", ".join(unknown[:8]) + (" ..." if len(unknown) > 8 else "")
            raise InvalidSetup.because(
                "tensors-unknown",
                f"{self.files.path} holds tensors that config.json gives no place ({len(unknown)}): {shown}.",
                where=str(self.files.path),
                fix="Rename or remove them, or correct config.json. A head without these weights drafts badly.",
            )


class LayeredHead(HeadCheckpoint):
    """The directory of a head with decoder layers: EAGLE, EAGLE-3, MTP, DFlash.

    Args:
        path: directory with config.json and safetensors.
        target: the model that the head was trained for.
        families: decoder family of its layers, by the `architectures` that it may name.

    Attributes:
        config: config.json in vLLM's plain format.
        shape: of the head, but as many positions as the target has: heads go wherever it goes (vLLM PR 48894), unless
            a sliding window of theirs is shorter.
        rope: its rotation.
        eps: epsilon of its norms.

    Raises:
        InvalidSetup: the config is incomplete, of another architecture or quantized, or its vocabulary is not as
            large as the target's.
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
        """Return what a head with these weights reads and names.

        It reads the target's own embedding, not a copy, if the directory holds none or an equal one.
        """
        own, embedding_VH = "embed_tokens.weight", self.target.weights.embedding_VH
        if own in self or embedding_VH.shape[1] != self.shape.hidden_size:
            own_VH = self.reader.fused([own], [self.shape.vocab_size], self.shape.hidden_size)
            embedding_VH = embedding_VH if _is_same(own_VH, embedding_VH) else own_VH
        scale = self.config.get("logit_scale")
        scale = 1.0 if scale is None else float(scale)
        return HeadVocabulary(embedding_VH=embedding_VH, head=head, logit_scale=scale, target_ids_U=target_ids_U)

    def own_vocabulary(self) -> HeadVocabulary:
        """Return what a head that may have an `lm_head` of its own, for all tokens or for `d2t`'s, reads and names.

        Raises:
            InvalidSetup: `d2t` is wrong.
        """
        target, hidden, vocab_size = self.target, self.shape.hidden_size, self.shape.vocab_size
        num_named = self.config.get("draft_vocab_size") or vocab_size
        is_own = "lm_head.weight" in self or hidden != target.shape.hidden_size or num_named != vocab_size
        head = self.reader.linear("", ["lm_head"], [num_named], hidden) if is_own else target.weights.head
        return self.vocabulary(head, None if num_named == vocab_size else self._target_ids(num_named))

    def flat(self, name: str, size: int) -> Tensor:
        """Return a tensor of `size` values in whatever shape as [size], in the target's dtype."""
        shape = self.files.shape_of(name) or ()
        tensor = self.files.read(name, shape if math.prod(shape) == size else (size,))
        return tensor.flatten().to(self.reader.device, self.reader.dtype)

    def check_width(self, *, may_differ: bool) -> None:
        """Check that the head reads states as wide as the target's.

        Args:
            may_differ: whether the head itself may have another width, if it states `target_hidden_size`.

        Raises:
            InvalidSetup: they are not.
        """
        stated = self.config.get("target_hidden_size") if may_differ else None
        key, width = ("target_hidden_size", stated) if stated else ("hidden_size", self.shape.hidden_size)
        _refuse(find_width_fault(key, width, self.target.shape.hidden_size, where=self.where))

    def _target_ids(self, num_named: int) -> Tensor:
        """Return the target's id of each token d of the draft vocabulary: d + d2t[d]."""
        offsets_U = self.files.read("d2t", (num_named,)).to(self.reader.device, torch.long)
        ids_U = torch.arange(num_named, device=offsets_U.device) + offsets_U
        if ids_U.min() < 0 or ids_U.max() >= self.shape.vocab_size or len(ids_U.unique()) < num_named:
            raise InvalidSetup.because(
                "wrong-d2t",
                "The tensor d2t names a token outside the target's vocabulary, or one twice.",
                where=self.where,
                fix="For each draft token d, d2t must hold its id in the target's vocabulary minus d.",
            )
        return ids_U

    def _family(self, families: Mapping[str, Family]) -> Family:
        named = self.config.get("architectures") or list(families)[:1]
        for architecture, family in families.items():
            if architecture in named:
                return family
        raise InvalidSetup.because(
            "unsupported-architecture",
            f"The architecture {', '.join(map(str, named))} is not supported for this method.",
            where=self.where,
            fix=f"Use a head of one of {', '.join(families)}.",
        )

    def _refuse_quantized(self) -> None:
        if self.config.get("quantization_config"):
            raise InvalidSetup.because(
                "quantized",
                "Quantized heads are not supported.",
                where=self.where,
                fix="Use the bfloat16 checkpoint of the head.",
            )

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
