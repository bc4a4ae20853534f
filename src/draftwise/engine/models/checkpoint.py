"""Reads a Hugging Face checkpoint directory, config.json and safetensors, one tensor at a time; writes safetensors."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftwise.checkpoints.config_json import read_config
from draftwise.checkpoints.headers import MTP, MTP_COUNTS, layer_of, read_headers, role_of
from draftwise.core import InvalidSetup, cause_of
from draftwise.knowledge.messages import fault, refusal
from draftwise.knowledge.model_types import with_positions

_EXPERT = re.compile(r"(?P<experts>.*\.experts\.)(?P<number>\d+)\.(?P<half>gate|up|down)_proj\.weight")
"""Name of an expert's matrix. Newer files have one tensor per layer, [experts, rows, columns], gate above up."""


_FLOATS, _INTEGERS = ("F64", "F32", "F16", "BF16"), ("I64", "I32", "I16")
"""Types of weights, and of maps of the vocabulary. Any other type holds numbers of a quantization."""
_MAPS = ("d2t", "token_map")
_FLAGS = ("BOOL", "U8", *_INTEGERS)
"""Types of t2d, which flags the tokens of the target that the drafter has."""

NEVER_READ = ("rotary_emb.inv_freq", "rotary_pos_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
"""Ends of names that old exporters wrote and every loader computes itself."""
_MASKS = (".attn.bias", ".masked_bias", ".position_ids")

_MOST_MISSING = 2**26
"""Maximum values to allocate for missing tensors, so that all of them can be reported."""


class CheckpointReader:
    """A checkpoint on disk. Tensors are read on request and not kept.

    Args:
        dummy: read no weights, and return random tensors (norms 1, biases 0). config.json is then enough to measure
            speed.

    Attributes:
        config: parsed config.json, with the longest context also where only the model's type has it.
        files: file of each tensor, by tensor name.
        read_exactly: reads a tensor from the checkpoint's source, without rounding to its type.
    """

    def __init__(self, path: str | Path, *, dummy: bool = False) -> None:
        self.path = Path(path)
        self.config = with_positions(read_config(self.path))
        check_config(self.config, where=str(self.path / "config.json"))
        self._dummy = dummy
        self._tensors = {} if dummy else read_headers(self.path, "transformers").tensors
        self.files: Mapping[str, Path] = {name: self.path / tensor.file for name, tensor in self._tensors.items()}
        self.read_exactly: Callable[[str], Tensor] | None = None
        self._missing: set[str] = set()
        self._num_missing = 0
        self._broken: list[str] = []
        self._read: set[str] = set()

    def read(self, name: str, shape: tuple[int, ...], *, out: Tensor | None = None) -> Tensor:
        """Return tensor `name`, or copy it to `out` and return that.

        A missing tensor is recorded for `check_complete` and returned as zeros.

        Raises:
            InvalidSetup: the file is damaged, or the tensor has another shape or type.
        """
        if self._dummy:
            return _make_up(name, torch.empty(shape) if out is None else out)
        self.check_shape(name, shape)
        source, part = self._find(name)
        if source not in self.files:
            return out if out is not None else torch.zeros(shape)
        file = self.files[source]
        if self.read_exactly is not None:
            tensor = self.read_exactly(source)
            return tensor if out is None else out.copy_(tensor)
        try:
            # Opened anew each time: pages of a mapped file count as memory until it is closed.
            with safe_open(file, framework="pt") as tensors:
                tensor = tensors.get_slice(source)[part.place] if part else tensors.get_tensor(source)
        except (SafetensorError, OSError) as error:
            raise refusal("damaged-weights", cause=cause_of(error), file=file) from None
        tensor = tensor.clone() if out is None else out.copy_(tensor)
        # Of what was read, as a smaller type can be too small for it. Both ends are NaN where any number is.
        if (
            tensor.is_floating_point()
            and tensor.itemsize > 1
            and tensor.numel()
            and not torch.stack(tensor.aminmax()).isfinite().all()
        ):
            self._broken.append(name)
        return tensor

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise InvalidSetup, before allocating memory, for a tensor stored in another shape or type.

        A missing tensor is recorded. If missing tensors get too large in total, they are reported here, too.
        """
        source, part = self._find(name)
        if self._dummy:
            return
        if source not in self.files:
            self._num_missing += math.prod(shape) * (name not in self._missing)
            self._missing.add(name)
            if self._num_missing > _MOST_MISSING:
                self.check_complete()
            return
        self._read.add(source)
        file, dtype = self.files[source], self._tensors[source].dtype
        stored = part.shape if part else self._tensors[source].shape
        if stored != shape:
            raise refusal("tensor-shapes", name=name, stored=stored, shape=shape, file=file)
        if dtype not in (_INTEGERS if name.endswith(_MAPS) else _FLAGS if name.endswith("t2d") else _FLOATS):
            raise refusal("quantized", case="tensor", name=name, dtype=dtype, file=file)

    def _find(self, name: str) -> tuple[str, _Part | None]:
        """Return the stored tensor that holds another, and which part of it; None: all."""
        if name in self.files or (match := _EXPERT.fullmatch(name)) is None:
            return name, None
        source, number = (
            match["experts"] + ("down_proj" if match["half"] == "down" else "gate_up_proj"),
            int(match["number"]),
        )
        shape = self.shape_of(source) or ()
        if len(shape) != 3 or number >= shape[0]:
            return name, None
        first, end = {"gate": (0, shape[1] // 2), "up": (shape[1] // 2, shape[1]), "down": (0, shape[1])}[match["half"]]
        return source, _Part(shape=(end - first, shape[2]), place=(number, slice(first, end)))

    def check_complete(self) -> None:
        """Raise InvalidSetup with every tensor that is missing, or that holds NaN or infinity."""
        if self._missing:
            least = "at least " if self._num_missing > _MOST_MISSING else ""
            raise refusal(
                "tensors-missing",
                least=least,
                num_missing=len(self._missing),
                missing=_name_some(sorted(self._missing)),
                path=self.path,
            )
        if self._broken:
            raise refusal(
                "weights-not-finite", num_broken=len(self._broken), broken=_name_some(self._broken), path=self.path
            )

    def check_explained(self, num_layers: int, *, is_tied: bool) -> None:
        """Raise InvalidSetup for unread tensors, unless they change no numbers.

        Those are modules for drafts, also as layers after `num_layers`; vision; a head that is tied; and biases of 0,
        as GPTQ writes them.
        """
        counts = [self.config.get(key) or 0 for key in MTP_COUNTS]
        most = num_layers + max(filter(_is_size, counts), default=0)
        drafting = {layer_of(name) for name in self.files if role_of(name) == MTP}
        unknown = [
            name
            for name in self.unread()
            if not name.endswith(NEVER_READ + _MASKS)
            and role_of(name) not in (MTP, "other modality")
            and not ((layer := layer_of(name) or 0) >= num_layers and (layer < most or layer in drafting))
            and not (is_tied and name == "lm_head.weight")
            and not (name.endswith(".bias") and not self.read(name, self.shape_of(name) or ()).any())
        ]
        if unknown:
            raise refusal(
                "tensors-unknown", case="target", num_unknown=len(unknown), shown=_name_some(unknown), path=self.path
            )

    def unread(self) -> list[str]:
        """Return the names of tensors that were not asked for. vLLM rejects most drafters with such tensors."""
        return sorted(self.files.keys() - self._read)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of tensor `name` without reading it; None if missing."""
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.shape


_POSITIONS = "max_position_embeddings"
_POSITIVE = (
    *("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    _POSITIONS,
)
_SIZES = (
    *("num_hidden_layers", "moe_intermediate_size", "draft_vocab_size", "num_experts"),
    *("num_local_experts", "num_experts_per_tok", "target_hidden_size"),
    *("sliding_window", "sliding_window_pattern", "max_window_layers", "decoder_sparse_step"),
    *("num_heads", "medusa_num_heads", "medusa_num_layers", "num_layers", "truncated_vocab_size"),
    *("emb_dim", "inner_dim", "n_predict", "num_nextn_predict_layers", "block_size"),
)
_SWITCHES = (
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "norm_topk_prob"),
    *("tie_weights", "scale_input", "original_lm_head", "medusa_fc_bias", "is_neox_style", "is_causal"),
    *("norm_output", "norm_before_residual", "norm_before_fc"),
)
_NUMBERS = (
    *("rms_norm_eps", "rope_theta", "rope_local_base_freq", "partial_rotary_factor", "query_pre_attn_scalar"),
    *("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "logit_scale"),
)
_ROPE_NUMBERS = (
    *("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"),
    *("mscale", "mscale_all_dim", "partial_rotary_factor", "original_max_position_embeddings"),
)
"""Scalar values of a rotation. Others may be lists, such as a factor per dimension."""
_LARGEST_SIZE = 2**31
_LARGEST_NUMBER = 1e30


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST_SIZE


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST_NUMBER


def _are(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, list) and all(map(kind, values))


_CHECKED: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (_POSITIVE, f"a whole number from 1 to {_LARGEST_SIZE - 1}", lambda value: _is_size(value) and value > 0),
    (_SIZES, f"a whole number below {_LARGEST_SIZE}", _is_size),
    (_NUMBERS, "a positive number", _is_positive),
    (("architectures", "layer_types"), "a list of names", _are(lambda each: isinstance(each, str))),
    (_SWITCHES, "true or false", lambda value: isinstance(value, bool)),
    (("model_type",), "a name", lambda value: isinstance(value, str)),
    (("mlp_only_layers",), "a list of whole numbers", _are(_is_size)),
    (("eagle_config", "dflash_config"), "an object", lambda value: isinstance(value, Mapping)),
)
"""Keys of a config.json, what they must be, and whether a value is that."""


def check_config(config: Mapping[str, Any], *, where: str) -> None:
    """Raise InvalidSetup with a finding for each invalid value of a config.json."""
    faults = [
        (name, kind, config[name])
        for names, kind, holds in _CHECKED
        for name in names
        if name in config and (config[name] is not None or name == _POSITIONS) and not holds(config[name])
    ]
    groups = {group: config.get(group) for group in ("rope_parameters", "rope_scaling")}
    own = groups["rope_parameters"]
    if isinstance(own, Mapping) and own and all(isinstance(each, Mapping | None) for each in own.values()):
        groups |= {f"rope_parameters.{name}": each for name, each in own.items()} | {"rope_parameters": None}
    for group, given in groups.items():
        if not isinstance(given, Mapping | None):
            faults.append((group, "an object", given))
            continue
        for name, value in (given or {}).items():
            if name in ("rope_type", "type"):
                kind, holds = "a name", isinstance(value, str | None)
            elif isinstance(value, list) and name not in _ROPE_NUMBERS:
                kind, holds = "a list of positive numbers", all(map(_is_positive, value))
            else:
                kind, holds = "a positive number", value is None or name == "truncate" or _is_positive(value)
            if not holds:
                faults.append((f"{group}.{name}", kind, value))
    if faults:
        raise InvalidSetup(
            [
                fault("bad-config-value", name=name, kind=kind, value=str(value)[:60], where=where)
                for name, kind, value in faults
            ]
        )


def _name_some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")


class _Part(NamedTuple):
    """Rows of one expert in a tensor of all."""

    shape: tuple[int, ...]
    place: tuple[int, slice]


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the usual permissions of a new file.

    The library makes it readable only to its owner, but the server may run as another user.
    """
    save_file(dict(tensors), file, metadata={"format": "pt"})
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def _make_up(name: str, out: Tensor) -> Tensor:
    """Fill a tensor as vLLM's dummy loader does: small numbers, the same in every tensor of a size.

    So the head is the embedding again, and greedy text repeats itself.
    """
    if out.dim() == 1:
        return out.fill_(0 if name.endswith(".bias") else 1)
    return out.uniform_(-1e-3, 1e-3, generator=torch.Generator(out.device).manual_seed(1234))
