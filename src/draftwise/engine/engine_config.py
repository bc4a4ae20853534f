"""Settings of the engine, resolved once from arguments, then frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from draftwise.core import Finding, InvalidSetup, Setup, SpecConfig
from draftwise.knowledge.messages import fault

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3")
LOAD_FORMATS = ("auto", "dummy")
QUANTIZATIONS = ("fp8", "int8", "int4")
_CHOICES: dict[str, tuple[str, ...]] = {
    "device": DEVICES,
    "dtype": DTYPES,
    "kv_cache_dtype": KV_CACHE_DTYPES,
    "load_format": LOAD_FORMATS,
    "quantization": QUANTIZATIONS,
}
_COUNTS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "block_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine settings, with vLLM's names.

    Attributes:
        dtype: `auto` (the checkpoint's; a GGUF's own blocks on a CPU), `bfloat16`, `float16`, `float32`, `float64`.
        device: `auto`, `cpu` or `cuda`.
        max_model_len: maximum tokens of prompt plus output. None: the model's own limit.
        max_num_seqs: maximum sequences decoded together. None: from the device's `Limits`.
        max_num_batched_tokens: maximum tokens per step (longer prefills are chunked). None: from the device's `Limits`.
        gpu_memory_utilization: share of the GPU's memory, 0..1, for weights, work space, CUDA graphs and pages
            together. No effect on a CPU.
        kv_cache_memory_bytes: size of the page pool, instead of that share. None on a CPU: enough for max_num_seqs
            sequences of max_model_len, at most a fixed share of free memory.
        num_gpu_blocks_override: number of pages, regardless of memory (vLLM's name, on any device).
        block_size: tokens per page.
        kv_cache_dtype: `auto` (the model's), or `fp8` or `fp8_e4m3` (the same: one byte per element).
        quantization: None (weights as stored), `fp8` (quantized while loading, one scale per output channel), or on a
            CPU `int8` and `int4` (in blocks of 32 inputs).
        load_format: `auto` (the checkpoint's weights) or `dummy` (random weights, for measuring speed).
        skip_tokenizer_init: load no tokenizer. Prompts are then token ids, and outputs have no text.
        enforce_eager: capture no CUDA graphs.
        cudagraph_capture_sizes: numbers of sequences for which to capture decoding steps. None:
            `capture.capture_sizes(max_num_seqs)`. vLLM counts tokens here: sequences x (k + 1).
        seed: seed for requests without one.
        hidden_states_folder: output folder of the method extract_hidden_states (in vLLM: shared_storage_path in
            --kv-transfer-config).
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    load_format: str = "auto"
    skip_tokenizer_init: bool = False
    enforce_eager: bool = False
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    enable_prefix_caching: bool = True
    seed: int = 0
    hidden_states_folder: str = "hidden_states"

    @property
    def num_slots(self) -> int:
        """`max_num_seqs` of a resolved config."""
        assert self.max_num_seqs is not None, "the engine fills it in"
        return self.max_num_seqs

    @property
    def num_step_tokens(self) -> int:
        """`max_num_batched_tokens` of a resolved config."""
        assert self.max_num_batched_tokens is not None, "the engine fills it in"
        return self.max_num_batched_tokens

    @classmethod
    def from_settings(cls, **settings: Any) -> EngineConfig:
        """Return the config for keyword settings.

        Raises:
            InvalidSetup: a name or choice is unknown (the message suggests the nearest), a number is not positive, or
                gpu_memory_utilization is not within 0..1. Reports all errors at once.
        """
        findings = [*_unknown(settings, [each.name for each in fields(cls)]), *_check_values(settings)]
        if findings:
            raise InvalidSetup(findings)
        sizes = settings.get("cudagraph_capture_sizes")
        if sizes is not None:
            settings["cudagraph_capture_sizes"] = tuple(sorted(set(sizes)))
        return cls(**settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Default limits of a step by device."""

    max_num_seqs: int
    max_num_batched_tokens: int

    @classmethod
    def of_device(cls, memory_bytes: int | None) -> Limits:
        """Return the limits of a GPU with this memory in bytes; None: a CPU.

        Tokens are vLLM's defaults (`EngineArgs.get_batch_defaults` of 0.33). vLLM allows more sequences, 1024 and 256.
        Here, each captured size up to the limit costs start-up time.
        """
        if memory_bytes is None:
            return cls(max_num_seqs=16, max_num_batched_tokens=2048)
        if memory_bytes >= _LARGE_GPU:
            return cls(max_num_seqs=256, max_num_batched_tokens=8192)
        return cls(max_num_seqs=128, max_num_batched_tokens=2048)


_LARGE_GPU = 70 << 30
"""Bytes of memory from which vLLM gives a GPU its larger defaults."""


def _unknown(settings: Mapping[str, Any], known: list[str]) -> Iterator[Finding]:
    for name in settings:
        if name not in known:
            yield _error("unknown-setting", name, "is not an engine setting.", _nearest(name, known))


def _check_values(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the values that cannot be; None, where a setting allows it, stands for its default."""
    wanted = {each.name: str(each.type) for each in fields(EngineConfig)}
    for name, value in settings.items():
        kind = wanted.get(name, "").removesuffix(" | None")
        if value is None and (kind != wanted.get(name) or name not in wanted):
            continue
        if kind in _TYPES and name not in _RULES | _CHOICES and type(value) not in _TYPES[kind]:
            yield _error("wrong-type", name, f"must be {_NAMES[kind]}, got {value!r}.", "Leave it out for its default.")
        elif name in _COUNTS and value < 1:
            yield _error("not-positive", name, f"must be positive, got {value}.", "Leave it out for its default.")
        elif name in _CHOICES and value not in _CHOICES[name]:
            predicate = f"is {value!r}, which is not one of its values."
            yield _error("unknown-choice", name, predicate, _nearest(value, _CHOICES[name]))
        elif name in _RULES:
            allows, what = _RULES[name]
            if not allows(value):
                yield _error("bad-value", name, f"must be {what}, got {value!r}.")
    if settings.get("enforce_eager") is True and settings.get("cudagraph_capture_sizes") is not None:
        predicate = "sets the batches to capture as graphs, but enforce_eager forbids graphs."
        yield _error("conflicting-settings", "cudagraph_capture_sizes", predicate, "Leave one of them out.")


_TYPES = {"int": (int,), "bool": (bool,), "str": (str,)}
_NAMES = {"int": "a whole number", "bool": "true or false", "str": "a text"}
"""Types that a field's annotation admits, and their names in messages."""


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= 1


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(type(each) is int and each > 0 for each in value)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "gpu_memory_utilization": (_is_share, "more than 0 and at most 1"),
    "cudagraph_capture_sizes": (_are_sizes, "a list of positive integers, such as [1, 2, 4, 8]"),
}
"""Test that a value must pass, and its wording in messages."""


def _nearest(name: Any, known: list[str] | tuple[str, ...]) -> str:
    near = get_close_matches(str(name), known, 1)
    return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."


def _error(code: str, name: str, predicate: str, fix: str = "") -> Finding:
    """Return the finding that a setting, the sentence's subject, has a fault."""
    return Finding.error(code, f"{name} {predicate}", where=name, fix=fix)


PARALLEL_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_OURS = frozenset({"device", "cudagraph_capture_sizes", "hidden_states_folder"})
"""Settings that vLLM does not have, has in another place or counts otherwise."""


def one_gpu_settings(model: str, spec: SpecConfig | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without parallel sizes, which must be 1 here.

    Raises:
        InvalidSetup: a parallel size is larger. The fix is the equivalent `vllm serve` command.
    """
    several = {name: settings[name] for name in PARALLEL_SIZES if (settings.get(name) or 1) != 1}
    if several:
        from draftwise.setups.write import write_shell  # read only for this answer

        command = write_shell(vllm_setup(model, spec, settings))
        raise InvalidSetup(
            fault("more-than-one-gpu", name=name, size=size, command=command) for name, size in several.items()
        )
    return {name: value for name, value in settings.items() if name not in PARALLEL_SIZES}


def vllm_setup(model: str, spec: SpecConfig | None, settings: Mapping[str, Any]) -> Setup:
    """Return the equivalent setup on the newest vLLM."""
    args = {
        name: value
        for name, value in settings.items()
        if value is not None and name not in _OURS and (name not in PARALLEL_SIZES or value != 1)
        if (name, value) not in (("quantization", "int8"), ("quantization", "int4"))
    }
    return Setup(target=model, engine="vllm", spec=spec, args=args)
