"""Loads a checkpoint directory as a model, for all decoder families."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwise.core import Finding, ModelShape
from draftwise.engine.families import Family, Multipliers, get_family
from draftwise.engine.kernels.cpu_layouts import BLOCK, GROUP, LAYOUT_VERSION, PackedMatrix, QuantizedTable, Table
from draftwise.engine.models.causal_lm import AttentionKind, CausalLM, GatedMlp, Layer, Weights
from draftwise.engine.models.checkpoint import CheckpointReader
from draftwise.engine.models.gguf_unpacking import GgufWeights
from draftwise.engine.models.linear import ALIGNMENT, Linear, align, keeps_amx, make_linear
from draftwise.engine.models.mixture import CpuExperts, CudaExperts, Experts, ExpertsMlp, MixtureShape
from draftwise.engine.models.packed import PackedFile, open_packed
from draftwise.engine.models.quantized import (
    BlockSource,
    RoundedBlocks,
    join_blocks,
    num_bytes,
    pack_blocks,
    round_weights,
)
from draftwise.engine.models.rope import Rope
from draftwise.knowledge.messages import refusal, warning

_DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float64")}

CPU_QUANTIZATIONS = ("int8", "int4")
_FULL, _SLIDING = "full_attention", "sliding_attention"

_WHOLE_COLUMNS = 256
"""Columns of a weight row, folded in four, that our kernels read as whole tiles. On an H200, an MLP of 14,400 takes a
sixth longer than one of 14,592 (benchmarks/h200/results/alignment.json)."""

_MOST_DUPLICATED = 512 * 2**20
"""Maximum bytes of a tied embedding to hold twice, the second time in the head's fast layout."""


def load_model(
    path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    load_format: str = "auto",
    quantization: str | None = None,
    keep_blocks: bool | None = None,
) -> CausalLM:
    """Return the model of a Hugging Face checkpoint directory.

    Args:
        path: directory with config.json and safetensors, single or sharded.
        dtype: `auto` (the checkpoint's), bfloat16, float16, float32 or float64.
        device: `auto` is CUDA if available, else the CPU.
        load_format: `auto` reads the weights; `dummy` makes random ones.
        quantization: `fp8` quantizes layer matrices while loading, one scale per output channel. On a CPU, `int8` and
            `int4` use blocks of 32 inputs, with 8 bits for head and embedding. A GGUF file's quantized blocks are
            multiplied directly on a CPU, regardless of this, unless `dtype` names a type.
        keep_blocks: whether to use these blocks. None: if `dtype` is `auto`.

    Raises:
        InvalidSetup: the checkpoint's family is not in `engine.families`, it is incomplete, or the dtype or device is
            not available.
    """
    checkpoint = CheckpointReader(path, dummy=load_format == "dummy")
    config, where = checkpoint.config, str(Path(path) / "config.json")
    family = get_family(config, where=where)
    shape = ModelShape.from_hf_config(config, where=where)
    ropes = _ropes(config, shape, where)
    limit = min(rope.context_limit for rope in ropes.values())
    shape = dataclasses.replace(shape, max_position_embeddings=limit)
    mixture = MixtureShape.from_hf_config(config, where=where) if family.has_experts else None
    multipliers = Multipliers.from_hf_config(config, family)
    kind, place = _resolve_dtype(dtype, config), find_device(device)
    blocks: BlockSource | None = None
    notes = list[Finding]()
    gguf = GgufWeights.of(checkpoint.path, config) if place.type == "cpu" and load_format != "dummy" else None
    if gguf and gguf.is_quantized and (keep_blocks if keep_blocks is not None else str(dtype) == "auto"):
        blocks = gguf
    elif quantization in CPU_QUANTIZATIONS:
        _check_place(quantization, place)
        blocks = RoundedBlocks("q8" if quantization == "int8" else "q4")
    if blocks is not None and not _multiplies_blocks():
        notes.append(warning("no-integer-products", kind=str(kind).removeprefix("torch.")))
        blocks = None
    if blocks is not None:
        kind = torch.float32
    if gguf and kind in (torch.float32, torch.float64):
        checkpoint.read_exactly = gguf.values
    if family.is_gemma:  # whose factor is a tensor
        factor = torch.tensor(multipliers.embedding, dtype=kind).item()
        multipliers = dataclasses.replace(multipliers, embedding=factor)
    as_stored = checkpoint.files and (quantization is None or blocks is not None)
    files = [*checkpoint.files.values(), checkpoint.path / "config.json"] if as_stored else []
    files += [gguf.file] if gguf and checkpoint.read_exactly else []
    how = "" if blocks is None else f"{quantization or 'blocks'} {LAYOUT_VERSION}"
    quantization = quantization if blocks is None else None
    with open_packed(files, kind, place, how) as packed:
        reader = WeightReader(
            checkpoint, shape, family, kind, place, quantization=quantization, packed=packed, blocks=blocks
        )
        types = _layer_types(config, family, shape.num_layers, where)
        names = sorted(set(types))
        weights = _read_weights(reader, shape, mixture, [names.index(name) for name in types])
        checkpoint.check_complete()
        checkpoint.check_explained(shape.num_layers, is_tied=shape.tie_word_embeddings)
    kinds = [
        AttentionKind(
            rope=dataclasses.replace(
                ropes[name], frequencies_D=ropes[name].frequencies_D.to(place), context_limit=limit
            ),
            window=int(config["sliding_window"]) if name == _SLIDING else None,
        )
        for name in names
    ]
    quantized = blocks is not None
    if kind == torch.bfloat16 and place.type == "cpu" and keeps_amx():
        notes.append(warning("amx-kept"))
    return CausalLM(config, shape, kinds, weights, mixture, multipliers, is_quantized=quantized, notes=tuple(notes))


def _multiplies_blocks() -> bool:
    from draftwise.engine.kernels.cpu_vectors import find_mode  # numba is slow to import and useless elsewhere

    return find_mode() is not None


def _check_place(quantization: str, place: torch.device) -> None:
    """Refuse a quantization that a device has no products for."""
    if place.type != "cpu":
        raise refusal("quantization-not-here", quantization=quantization)


def _layer_types(config: Mapping[str, Any], family: Family, num_layers: int, where: str) -> list[str]:
    """Return how each layer attends, in the words of transformers' `layer_types`."""
    on = family.window_switch is None or config.get(family.window_switch)
    if not config.get("sliding_window") or not on:
        return [_FULL] * num_layers
    if named := config.get("layer_types"):
        if len(named) < num_layers or not {_FULL, _SLIDING}.issuperset(named):
            raise refusal(
                "bad-config-value",
                case="layer-types",
                num_layers=num_layers,
                full=_FULL,
                sliding=_SLIDING,
                named=str(named)[:60],
                where=where,
            )
        return list(named[:num_layers])
    if family.window_period is not None:
        period = config.get("sliding_window_pattern") or family.window_period
        return [_SLIDING if (i + 1) % period else _FULL for i in range(num_layers)]
    first = config.get("max_window_layers", 28) if family.window_switch is not None else 0
    return [_SLIDING if i >= first else _FULL for i in range(num_layers)]


def _ropes(config: Mapping[str, Any], shape: ModelShape, where: str) -> dict[str, Rope]:
    """Return the rotation of each kind of layers: one for all, or one for each where config.json says so."""
    names = (_FULL, _SLIDING)
    given = config.get("rope_parameters") or {}
    by_kind = {name: given.get(name) for name in names}
    if by_kind[_FULL] is None and config.get("rope_local_base_freq"):
        by_kind[_SLIDING] = {"rope_theta": config["rope_local_base_freq"]}
    if not any(by_kind.values()):
        rope = Rope.from_hf_config(config, shape, where=where)
        return dict.fromkeys(names, rope)
    return {
        name: Rope.from_hf_config({**config, "rope_parameters": own} if own else config, shape, where=where)
        for name, own in by_kind.items()
    }


def _resolve_dtype(dtype: str | torch.dtype, config: Mapping[str, Any]) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise refusal("unknown-dtype", name=name, dtypes=", ".join(_DTYPES))
    return _DTYPES[name]


def find_device(device: str | torch.device) -> torch.device:
    """Return the device for a setting.

    Raises:
        InvalidSetup: the device is not available.
    """
    if str(device) == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except RuntimeError:
        resolved = None
    if resolved is None or resolved.type not in ("cpu", "cuda"):
        raise refusal("unknown-device", device=device)
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise refusal("no-cuda")
    if resolved.type == "cuda" and find_spec("triton") is None:
        raise refusal("no-triton")
    return resolved


def _read_weights(
    reader: WeightReader, shape: ModelShape, mixture: MixtureShape | None, kinds: Sequence[int]
) -> Weights:
    def layer(i: int) -> Layer:
        own = mixture if mixture and i in mixture.layers else None
        return reader.layer(f"model.layers.{i}.", mixture=own, kind=kinds[i])

    embedding_VH = reader.table("model.embed_tokens.weight", shape.vocab_size, shape.hidden_size)
    layers = tuple(layer(i) for i in range(shape.num_layers))
    norm = reader.norm("model.norm.weight", shape.hidden_size)
    if shape.tie_word_embeddings:
        head = reader.tied_head(embedding_VH)
    else:
        head = reader.linear("", ["lm_head"], [shape.vocab_size], shape.hidden_size)
    return Weights(embedding_VH=embedding_VH, layers=layers, norm=norm, head=head)


class WeightReader:
    """Reads a checkpoint's tensors as fused matrices, in one dtype on one device.

    The checkpoint records missing tensors; its `check_complete` reports them.
    """

    def __init__(
        self,
        checkpoint: CheckpointReader,
        shape: ModelShape,
        family: Family,
        dtype: torch.dtype,
        device: torch.device,
        *,
        quantization: str | None = None,
        packed: PackedFile | None = None,
        blocks: BlockSource | None = None,
    ) -> None:
        self._checkpoint, self._shape, self._packed, self._blocks = checkpoint, shape, packed, blocks
        self._quantization = quantization
        self.dtype, self.device = dtype, device
        follows_config = family.qkv_bias is None
        attention_bias = bool(checkpoint.config.get("attention_bias", False))
        self._qkv_bias = attention_bias if follows_config else bool(family.qkv_bias)
        self._o_bias = attention_bias and follows_config
        self._mlp_bias = bool(family.mlp_bias_key and checkpoint.config.get(family.mlp_bias_key, False))
        self._qk_norm, self._is_gemma = family.qk_norm, family.is_gemma

    def layer(
        self,
        prefix: str,
        *,
        num_in: int | None = None,
        input_norm: bool = True,
        mixture: MixtureShape | None = None,
        kind: int = 0,
    ) -> Layer:
        """Return the decoder layer whose tensors' names start with `prefix`.

        Args:
            prefix: such as `model.layers.0.`.
            num_in: width of the attention's input; None: the hidden size.
            input_norm: whether the layer has an input norm.
            mixture: shape of its experts. None: it has an MLP.
            kind: index of its kind of attention.
        """
        shape, attention, mlp, hidden = self._shape, prefix + "self_attn.", prefix + "mlp.", self._shape.hidden_size
        width = num_in or hidden
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        qkv, how = ["q_proj", "k_proj", "v_proj"], self._quantization
        after_attention = self.norm(prefix + "post_attention_layernorm.weight", hidden)
        output_norms: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
        post_norm = after_attention
        if self._is_gemma:
            post_norm = self.norm(prefix + "pre_feedforward_layernorm.weight", hidden)
            output_norms = after_attention, self.norm(prefix + "post_feedforward_layernorm.weight", hidden)
        return Layer(
            input_norm=self.norm(prefix + "input_layernorm.weight", hidden) if input_norm else None,
            qkv=self.linear(attention, qkv, [q_size, kv_size, kv_size], width, bias=self._qkv_bias, quantization=how),
            qk_norms=self._qk_norms(attention) if self._qk_norm else None,
            o=self.linear(attention, ["o_proj"], [hidden], q_size, bias=self._o_bias, quantization=how, for_sum=True),
            post_norm=post_norm,
            output_norms=output_norms,
            kind=kind,
            mlp=self._mlp(mlp, shape.intermediate_size) if mixture is None else self._experts(mlp, mixture),
        )

    def _mlp(self, prefix: str, inner: int) -> GatedMlp:
        names, hidden, bias, how = ["gate_proj", "up_proj"], self._shape.hidden_size, self._mlp_bias, self._quantization
        room = self._room(inner, _WHOLE_COLUMNS)  # zeros more, of which silu(gate) * up is zero too
        return GatedMlp(
            gate_up=self.linear(prefix, names, [inner, inner], hidden, bias=bias, quantization=how, room=room),
            down=self.linear(
                prefix, ["down_proj"], [hidden], inner, bias=bias, quantization=how, room_in=room, for_sum=True
            ),
            gelu=self._is_gemma,
        )

    def _experts(self, prefix: str, mixture: MixtureShape) -> ExpertsMlp:
        """Return a router, which is never quantized, and its experts."""
        hidden, inner, count = self._shape.hidden_size, mixture.inner_size, mixture.num_experts
        router = self.linear(prefix, ["gate"], [count], hidden, exact=True)  # first: its rows are as many
        names = [f"{prefix}experts.{expert}." for expert in range(count)]
        experts: Experts
        if self.device.type == "cuda":
            halves = [f"{name}{half}_proj.weight" for name in names for half in ("gate", "up")]
            gate_up = self.fused(halves, [inner] * len(halves), hidden)
            down = self.fused([name + "down_proj.weight" for name in names], [hidden] * count, inner)
            experts = CudaExperts(gate_up, down, count, self._quantization)
        else:
            experts = CpuExperts([self._mlp(name, inner) for name in names])
        return ExpertsMlp(router=router, experts=experts, num_chosen=mixture.num_chosen, normalize=mixture.normalize)

    def _qk_norms(self, attention: str) -> tuple[Tensor, Tensor]:
        size = self._shape.head_dim
        return self.norm(attention + "q_norm.weight", size), self.norm(attention + "k_norm.weight", size)

    def linear(
        self,
        prefix: str,
        names: list[str],
        sizes: list[int],
        num_in: int,
        *,
        bias: bool = False,
        quantization: str | None = None,
        room: int = 0,
        room_in: int = 0,
        exact: bool = False,
        for_sum: bool = False,
    ) -> Linear:
        """Return one product with the named matrices [size, num_in], stacked.

        Args:
            prefix: prefix of the names.
            names: names without `.weight` and `.bias`.
            sizes: number of outputs of each.
            num_in: number of inputs.
            bias: whether they have biases.
            quantization: see `make_linear`.
            room: minimum rows of each matrix, padded with zeros; the same for biases.
            room_in: minimum columns, padded with zeros.
            exact: never quantize them.
            for_sum: see `make_linear`.
        """
        weights = [f"{prefix}{name}.weight" for name in names]
        self._check_shapes(weights, sizes, num_in)  # also of what is packed already
        biases = self.fused([f"{prefix}{name}.bias" for name in names], sizes, room=room) if bias else None

        def read() -> Tensor:
            return self.fused(weights, sizes, num_in, room=room, room_in=room_in)

        if self._blocks is not None and not exact and num_in % BLOCK == 0:
            from draftwise.engine.kernels.cpu import QuantizedLinear  # numba is slow to import and useless elsewhere

            return QuantizedLinear(self._quantized(weights, sizes, num_in), biases)
        if self._packed is not None:
            return self._packed.linear(" ".join(weights), read, biases)
        return make_linear(read(), biases, quantization=quantization, for_sum=for_sum)

    def some_rows(self, name: str, size: int, num_in: int, index_R: Tensor) -> Linear:
        """Return the product with some rows of the matrix `name` [size, num_in]."""
        weight_RK = self.fused([name], [size], num_in)[index_R]
        if self._blocks is None or num_in % BLOCK:
            return make_linear(weight_RK)
        from draftwise.engine.kernels.cpu import QuantizedLinear  # as above

        memory = pack_blocks("q8", round_weights("q8", weight_RK))
        return QuantizedLinear([PackedMatrix("q8", memory, len(index_R), num_in // BLOCK)])

    def _quantized(self, names: list[str], sizes: list[int], num_in: int) -> list[PackedMatrix]:
        """Return matrices, those of a kind together, in as few parts as a product can have."""
        assert self._blocks is not None
        self._check_shapes(names, sizes, num_in)
        kinds = [self._blocks.kind_of(name) for name in names]
        if len(set(kinds)) == 1 or any(size % GROUP for size in sizes[:-1]):
            kind = kinds[0] if len(set(kinds)) == 1 else "q8"
            return [self._packed_matrix(kind, names, sizes, num_in)]
        return [
            self._packed_matrix(kind, [name], [size], num_in)
            for kind, name, size in zip(kinds, names, sizes, strict=True)
        ]

    def _packed_matrix(self, kind: str, names: list[str], sizes: list[int], num_in: int) -> PackedMatrix:
        rows = sum(sizes)

        def load() -> Tensor:
            assert self._blocks is not None
            parts = [
                self._blocks.read(kind, name, functools.partial(self.fused, [name], [size], num_in))
                for name, size in zip(names, sizes, strict=True)
            ]
            return pack_blocks(kind, join_blocks(parts))

        size = (num_bytes(kind, rows, num_in),)
        memory = (
            load() if self._packed is None else self._packed.table(" ".join((kind, *names)), size, torch.uint8, load)
        )
        return PackedMatrix(kind, memory, rows, num_in // BLOCK)

    def table(self, name: str, rows: int, width: int) -> Table:
        """Return the matrix `name` [rows, width]. Treat it as read-only."""
        if self._blocks is not None and width % BLOCK == 0:
            return QuantizedTable(self._quantized([name], [rows], width)[0])
        if self._packed is None:
            return self.fused([name], [rows], width)
        self._check_shapes([name], [rows], width)
        return self._packed.table(name, (rows, width), self.dtype, lambda: self.fused([name], [rows], width))

    def tied_head(self, embedding_VH: Table) -> Linear:
        """Return the product with the embedding. A large embedding is not copied."""
        if isinstance(embedding_VH, QuantizedTable):
            from draftwise.engine.kernels.cpu import QuantizedLinear  # as above

            return QuantizedLinear([embedding_VH.matrix])
        copy = embedding_VH.nbytes <= _MOST_DUPLICATED
        if self._packed is not None and copy:
            return self._packed.linear("tied head", lambda: embedding_VH, None)
        return make_linear(embedding_VH, copy=copy)

    def vector(self, name: str, size: int) -> Tensor:
        """Return the tensor `name` [size]."""
        return self.fused([name], [size])

    def norm(self, name: str, size: int) -> Tensor:
        """Return a norm's weights [size]. Weights centered at 0 are shifted to 1, in float32 at least."""
        if not self._is_gemma:
            return self.vector(name, size)
        dtype = torch.promote_types(self.dtype, torch.float32)
        weights = torch.empty(size, dtype=dtype, device=self.device)
        return self._checkpoint.read(name, (size,), out=weights).add_(1.0)

    def fused(self, names: list[str], sizes: list[int], *rest: int, room: int = 0, room_in: int = 0) -> Tensor:
        """Return the named tensors, [size, *rest] each, stacked. For `room`, see `linear`."""
        self._check_shapes(names, sizes, *rest)
        rooms = [max(size, room) for size in sizes]
        rows, widths = sum(rooms), (max(rest[0], room_in), *rest[1:]) if rest else ()
        make = torch.zeros if (rooms, widths) != (sizes, rest) else torch.empty
        memory = make(self._room(rows) if rest else rows, *widths, dtype=self.dtype, device=self.device)
        memory[rows:] = 0
        for name, size, part in zip(names, sizes, memory[:rows].split(rooms), strict=True):
            self._checkpoint.read(name, (size, *rest), out=part[:size, : rest[0]] if rest else part[:size])
        return memory[:rows]

    def _check_shapes(self, names: list[str], sizes: list[int], *rest: int) -> None:
        for name, size in zip(names, sizes, strict=True):
            self._checkpoint.check_shape(name, (size, *rest))

    def _room(self, size: int, multiple: int = ALIGNMENT) -> int:
        """Return the size with what is added on a GPU."""
        return align(size, multiple) if self.device.type == "cuda" else size
