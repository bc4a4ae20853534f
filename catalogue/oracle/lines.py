"""Whole command lines for the oracle, from a seed: any flags of a release, with values that are right, odd or wrong.

Unlike the cases of `cases.py`, which are about speculation and the same for all releases, a line is drawn from one
release's own table: every flag may come, half of them with a value that an operator may well write, the others with
one at an edge, of another spelling or of another type. What is right and what is wrong is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from catalogue.oracle.cases import add_faults
from catalogue.oracle.models import MODELS, PUBLISHED
from catalogue.oracle.shapes import SHAPES, Case
from draftwise.knowledge.models import read_models
from draftwise.knowledge.vllm import Release

__all__ = ["NOT_DRAWN", "generate_lines", "name_models"]

NOT_DRAWN = frozenset(
    {
        "--help", "--model", "--config", "--speculative-config", "--spec-method", "--spec-model", "--spec-tokens",
        "--api-key", "--hf-token", "--tokenizer", "--hf-config-path", "--log-config-file", "--logging-config",
        "--chat-template", "--headless", "--grpc", "--model-loader-extra-config", "--mm-encoder-fp8-scale-path",
        "--generation-config", "--skip-tokenizer-init", "--no-skip-tokenizer-init",
    }
)  # fmt: skip
"""Flags whose outcome hangs on files, on the network or on another flag's shape, and those of the shapes."""
USUAL = (
    "--gpu-memory-utilization", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--dtype", "--port",
    "--tensor-parallel-size", "--kv-cache-dtype", "--quantization", "--enable-prefix-caching", "--seed", "--host",
    "--enable-chunked-prefill", "--enforce-eager", "--attention-backend", "--compilation-config", "--enable-lora",
    "--served-model-name", "--load-format", "--trust-remote-code", "--async-scheduling", "--optimization-level",
    "--limit-mm-per-prompt", "--kv-transfer-config", "--structured-outputs-config", "--hf-overrides",
    "--distributed-executor-backend", "--data-parallel-size", "--enable-expert-parallel", "--enable-eplb",
    "--eplb-config", "--max-logprobs", "--reasoning-parser", "--tool-call-parser", "--enable-auto-tool-choice",
)  # fmt: skip
"""Flags that operators set every day: half of those drawn."""
TARGETS = ("llama", "llama", "llama", "qwen3", "qwen2", "mistral", "deepseek", "gemma3")
WORDS = ("foo", "auto", "none", "None", "", "3", "true", "{}", "main")
NUMBERS = ("0", "1", "2", "4", "8", "16", "128", "1000", "32768", "-1", "-2", "1.5", "0.5", "1e3", "2k", "1K", "x", "")
FRACTIONS = ("0", "0.1", "0.5", "0.9", "0.95", "1", "1.0", "1.5", "95", "-0.5", "x", "")
BY_FIELD: Mapping[str, Sequence[str]] = {
    "distributed_executor_backend": ("mp", "ray", "uni", "external_launcher", "MP", "foo"),
    "data_parallel_backend": ("mp", "ray", "MP", "foo"),
    "hf_overrides": ('{"rope_theta": 5000.0}', "{}", "foo", "[1]", '{"a": {"b": 1}}'),
    "limit_mm_per_prompt": ('{"image": 2}', '{"image": 0, "video": 1}', "image=2", '{"image": -1}', '{"foo": 1}', "{}"),
    "kv_transfer_config": (
        '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}', '{"kv_connector": "LMCacheConnectorV1"}',
        '{"kv_connector": "NixlConnector", "kv_role": "both"}', '{"kv_role": "kv_producer"}',
        '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_port": "x"}',
    ),
    "structured_outputs_config": (
        '{"backend": "xgrammar"}', '{"backend": "foo"}', '{"backend": "guidance", "disable_any_whitespace": true}',
        '{"disable_any_whitespace": true}', '{"reasoning_parser": "qwen3"}', '{"whitespace": true}',
    ),
    "compilation_config": (
        "3", "{}", '{"level": 3}', '{"mode": 3}', '{"mode": "VLLM_COMPILE"}', '{"mode": "none"}', '{"mode": 7}',
        '{"cudagraph_mode": "nope"}', '{"cudagraph_mode": "full_and_piecewise"}', '{"cudagraph_mode": "NONE"}',
        '{"cudagraph_mode": 1}', '{"cudagraph_capture_sizes": [1, 2, 4]}', '{"custom_ops": ["+rms_norm"]}',
        '{"custom_ops": ["rms_norm"]}', '{"use_cudagraph": false}', '{"pass_config": {"fuse_norm_quant": true}}',
        '{"pass_config": {"foo": true}}',
    ),
    "optimization_level": ("0", "1", "2", "3", "O2", "O3", "4", "-1", "o2"),
    "attention_backend": ("FLASH_ATTN", "flash_attn", "FLASHINFER", "flashinfer", "auto", "TRITON_ATTN", "flash-attn",
                          "foo"),
    "quantization": ("fp8", "FP8", "awq", "foo", "compressed-tensors"),
    "load_format": ("auto", "safetensors", "dummy", "foo", "AUTO"),
    "kv_cache_dtype": ("auto", "fp8", "fp8_e4m3", "fp16", "FP8", "foo", "bfloat16"),
    "data_parallel_size": ("1", "2", "2", "4", "0", "-1"),
    "tensor_parallel_size": ("1", "2", "2", "4", "8", "16", "0", "-1", "3"),
    "pipeline_parallel_size": ("1", "2", "0"),
    "max_model_len": ("512", "1024", "2048", "1k", "auto", "-1", "0", "1000000", "2.5k"),
    "max_num_seqs": ("1", "16", "128", "256", "0", "-1", "1k"),
    "max_num_batched_tokens": ("2048", "8192", "8k", "0", "64", "-1"),
    "reasoning_parser": ("qwen3", "deepseek_r1", "", "foo"),
    "tool_call_parser": ("hermes", "llama3_json", "foo"),
    "otlp_traces_endpoint": ("http://127.0.0.1:4317",),
    "additional_config": ("{}", '{"a": 1}', "foo"),
    "served_model_name": ("llama", "a b"),
    "block_size": ("16", "32", "64", "0", "7", "-1"),
    "seed": ("0", "1", "-1", "x"),
    "lora_modules": ("sql=/models/sql", '{"name": "sql", "path": "/models/sql"}', "sql=/models/sql", "sql"),
    "device_ids": ("0", "0,1", "1,1"),
    "show_hidden_metrics_for_version": ("0.9", "0.12.0", "newest"),
    "logits_processors": ("my.package:Processor",),
    "cpu_offload_params": ("experts", "self_attn"),
    "media_io_kwargs": ('{"video": {"num_frames": 40}}', "{}", "foo"),
    "override_generation_config": ('{"temperature": 0.5}', "{}", "3"),
}  # fmt: skip
"""Values that mean something, right and wrong ones, of flags whose type alone says too little."""


def generate_lines(seed: int, count: int, release: Release, *, objects: bool = False) -> Iterator[Case]:
    """Yield `count` lines for a release; the same seed gives the same lines while its tables stay as they are.

    With `objects`, only flags that take JSON are drawn, so that nearly every key of every config comes.
    """
    rng = Random(f"{seed} {release}")
    table = {name: row for name, row in release.table("flags").items() if name not in NOT_DRAWN}
    if objects:
        table = {name: row for name, row in table.items() if row["kind"] == "json"}
    usual = [name for name in USUAL if name in table]
    for index in range(count):
        case = _draw_shape(rng)
        line: list[str] = []
        for name in dict.fromkeys(_draw_name(rng, table, usual) for _ in range(rng.choice([1, 1, 2, 2, 3, 4, 6]))):
            line += _draw_flag(rng, name, table[name], release)
        case["line"] = _with_speculation(rng, case, line)
        yield {"id": f"{seed}-{release}-{index}", **case}


def name_models(seed: int, cases: Iterable[Case]) -> Iterator[Case]:
    """Yield the lines with published names in place of the shapes: any known one, or one of the shape's type."""
    rng = Random(f"names {seed}")
    known = read_models()
    published = {shape: [name for name, each in PUBLISHED.items() if each == shape] for shape in PUBLISHED.values()}

    def rename(shape: str, *, is_free: bool = False) -> str:
        kind = (MODELS.get(shape) or {}).get("model_type")
        names = [model.id for model in known if is_free or model.config["model_type"] == kind]
        return rng.choice(published.get(shape) or names or [shape])

    for case in cases:
        target, *rest = case["line"]
        spec = case["spec"]
        name = rename(target, is_free=spec is None)
        if spec is not None and isinstance(spec.get("model"), str):
            given = json.dumps(spec)
            spec["model"] = rename(spec["model"])
            rest = [json.dumps(spec) if word == given else word for word in rest]
        yield {**case, "target": name, "line": [name, *rest]}


def _draw_name(rng: Random, table: Mapping[str, Any], usual: Sequence[str]) -> str:
    return rng.choice(usual) if rng.random() < 0.5 else rng.choice(list(table))


def _draw_shape(rng: Random) -> Case:
    case: Case = {"target": rng.choice(TARGETS), "spec": None, "env": {}}
    if rng.random() < 0.4:
        case |= {"spec": {}, "flags": {}}
        shape = rng.choices(list(SHAPES), weights=[weight for _, weight in SHAPES.values()])[0]
        SHAPES[shape][0](rng, case)
        add_faults(rng, case, rng.choices([0, 1], weights=[80, 20])[0])
    return case


def _with_speculation(rng: Random, case: Case, line: list[str]) -> list[str]:
    """Return the words after `vllm serve`; flags of the shape stand where flags of the line do not."""
    given = {word.partition("=")[0].partition(".")[0] for word in line}
    for field, value in case.pop("flags", {}).items():
        flag = "--" + field.replace("_", "-")
        if flag not in given:
            line += _write(flag, value)
    if case["spec"] is not None:
        line += [rng.choice(["--speculative-config", "--speculative-config", "--speculative_config"])]
        line += [json.dumps(case["spec"])]
    return [case["target"], "--skip-tokenizer-init", *line]


def _write(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag] if value else [f"--no-{flag[2:]}"]
    if value is None:
        return []
    return [flag, json.dumps(value) if isinstance(value, list | dict) else str(value)]


def _draw_flag(rng: Random, name: str, row: Mapping[str, Any], release: Release) -> list[str]:
    """Return the words of one flag, in one of the spellings that operators use."""
    flag = rng.choice([name, name, name, name, *row["aliases"], name.replace("-", "_").replace("__", "--", 1)])
    if rng.random() < 0.02:
        flag = _misspell(rng, name)
    if row["kind"] == "switch":
        negated = rng.random() < 0.25
        words = [row["negation"] if negated and "negation" in row else flag]
        return words + ["true"] * (rng.random() < 0.02)
    config = str(row["type"]).removesuffix(" | None")
    if row["kind"] == "json" and rng.random() < 0.7 and (keys := _keys_of(release, config)):
        return _draw_dotted(rng, name, keys, release) if rng.random() < 0.4 else [name, _draw_json(rng, keys, release)]
    values = _draw_values(rng, row)
    if flag == "-O":
        return [flag + values[0]]
    if len(values) == 1 and rng.random() < 0.3:
        return [f"{flag}={values[0]}"]
    return [flag, *values]


def _misspell(rng: Random, name: str) -> str:
    at = rng.randrange(3, len(name))
    return rng.choice([name[:at] + name[at + 1 :], name[:at], name[:at] + name[at] + name[at:], name.upper()])


def _draw_values(rng: Random, row: Mapping[str, Any]) -> list[str]:
    count = rng.choice([1, 1, 2]) if row["kind"] == "list" else 1
    return [_draw_value(rng, row) for _ in range(count)]


def _draw_value(rng: Random, row: Mapping[str, Any]) -> str:
    listed = [str(each) for each in row.get("choices") or row.get("suggestions") or ()]
    by_field = BY_FIELD.get(row["field"])
    if by_field and (not listed or rng.random() < 0.7):
        return rng.choice(by_field)
    if listed and rng.random() < 0.85:
        value = rng.choice(listed)
        return rng.choice([value] * 6 + [value.upper(), value.lower(), value.replace("_", "-")])
    default = row.get("default")
    if isinstance(default, (int, float, str)) and not isinstance(default, bool) and rng.random() < 0.3:
        return str(default)
    kind = str(row["type"])
    if row["kind"] == "json":
        return rng.choice(["{}", '{"a": 1}', '{"a": {"b": [1]}}', "[]", "3", "foo", "{a: 1}", "null"])
    if "float" in kind:
        return rng.choice(FRACTIONS)
    return rng.choice(NUMBERS) if "int" in kind.lower() else rng.choice(WORDS)


def _keys_of(release: Release, config: str) -> dict[str, Any]:
    """Return the fields of a config class; empty for another type."""
    start = config + "."
    fields = release.table("config_fields").items()
    return {key.removeprefix(start): row for key, row in fields if key.startswith(start)}


def _draw_dotted(rng: Random, name: str, keys: Mapping[str, Any], release: Release) -> list[str]:
    key = rng.choice(list(keys))
    value = _draw_typed(rng, keys[key], release)
    text = value if isinstance(value, str) else json.dumps(value)
    return rng.choice([[f"{name}.{key}", text], [f"{name}.{key}={text}"], [f"{name}.{key.replace('_', '-')}", text]])


def _draw_json(rng: Random, keys: Mapping[str, Any], release: Release) -> str:
    return json.dumps(_draw_object(rng, keys, release))


def _draw_object(rng: Random, keys: Mapping[str, Any], release: Release) -> dict[str, Any]:
    needed = [key for key, row in keys.items() if row.get("required") and rng.random() < 0.9]
    chosen = list(dict.fromkeys([*needed, *rng.sample(list(keys), k=min(len(keys), rng.choice([1, 1, 2, 3])))]))
    value = {key: _draw_typed(rng, keys[key], release) for key in chosen}
    if rng.random() < 0.08:
        value[chosen[0] + "s"] = 1
    return value


def _draw_typed(rng: Random, row: Mapping[str, Any], release: Release) -> Any:
    """Return a JSON value for a field: of its type three times of four."""
    if "config" in row and (keys := _keys_of(release, row["config"])) and rng.random() < 0.8:
        return _draw_object(rng, keys, release)
    if "enum" in row and rng.random() < 0.8:
        name = rng.choice(list(row["enum"]))
        return rng.choice([name, name.lower(), row["enum"][name]])
    if row.get("choices") and rng.random() < 0.8:
        return rng.choice(row["choices"])
    kind = str(row["type"])
    odd: list[Any] = [None, "foo", 3, -1, 0, True, 0.5, [], {}]
    if rng.random() < 0.2:
        return rng.choice(odd)
    for part, values in _TYPED.items():
        if kind.startswith(part):
            return rng.choice(values)
    return rng.choice(odd)


_TYPED: Mapping[str, Sequence[Any]] = {
    "bool": (True, False, True, False, "true", 1),
    "int": (0, 1, 2, 8, 64, 1000, "4", 2.0, -1),
    "float": (0, 0.1, 0.5, 1, 1.5, -1.0),
    "str": ("foo", "auto", "cuda", ""),
    "list[int]": ([1, 2, 4], [], [8], ["x"]),
    "list[str]": (["a"], [], [1], "a", "a, b", ["a", None]),
    "dict": ({}, {"a": 1}, {"a": "b"}),
}
