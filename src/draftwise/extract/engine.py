"""Extracts the engine's own choices: batch sizes by device, CUDA-graph sizes, async scheduling, the model runner."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from draftwise.extract.expressions import UNKNOWN, attribute_of, default_of, evaluate, strings
from draftwise.extract.speculative import ARGUMENTS, Facts, get_config, methods
from draftwise.extract.tree import Module, NotFound, Tree

_VLLM_CONFIG = ("vllm/config/vllm.py", "vllm/config/__init__.py", "vllm/config.py")
_SCHEDULER = ("vllm/config/scheduler.py", "vllm/config.py")
_SPECULATORS = ("vllm/v1/worker/gpu/spec_decode/__init__.py",)
_CONTEXTS = {"LLM_CLASS": "offline", "OPENAI_API_SERVER": "server"}
_BATCH = re.compile(r"default_(max_num_batched_tokens|max_num_seqs)$")
_MEMORY = re.compile(r"device_memory >= (\d+) \* GiB")
_NAMES = re.compile(r"'(\w+)' not in device_name")


def batch_defaults(tree: Tree) -> Facts:
    """Defaults of `max_num_batched_tokens` and `max_num_seqs` by device.

    A key is `cpu`, `gpu` or `gpu>=N` (GiB of memory; the largest match applies). `offline` is the LLM class, `server`
    is `vllm serve`. `not_named` excludes devices by part of their name. With `per_gpu`, values are times TP x PP.
    """
    module = tree.get(ARGUMENTS)
    names = ("get_batch_defaults", "_set_default_args", "_set_default_args_v1")
    function = next((f for name in names if (f := module.find_function(name, of="EngineArgs"))), None)
    found: dict[str, dict[str, Any]] = {}
    for key, extra, statement in _tiers(function.body if function else [], "gpu", {}):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys, values=values)) if _BATCH.match(
                name
            ):
                pairs = zip(keys, values, strict=True)
                sizes = {_CONTEXTS[ast.unparse(context).rpartition(".")[2]]: size for context, size in pairs if context}
                scaled = any("world_size" in ast.unparse(value) for value in sizes.values())
                row = found.setdefault(key, dict(extra) | ({"per_gpu": True} if scaled else {}))
                row[name.removeprefix("default_")] = {context: _constant(value) for context, value in sizes.items()}
    if not {"gpu", "cpu"} <= found.keys():
        raise NotFound(f"vLLM {tree.version}: no table of default batch sizes in {module.path}")
    source = module.source(f"EngineArgs.{function.name if function else ''}")
    return {key: (row, source) for key, row in found.items()}


def _tiers(body: list[ast.stmt], key: str, extra: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], ast.stmt]]:
    """Yield the statements with the device that the `if`s around them stand for."""
    for statement in body:
        match statement:
            case ast.If(test=test, body=inner, orelse=orelse):
                text = ast.unparse(test)
                memory, platform = _MEMORY.search(text), re.search(r"is_(tpu|cpu)\(\)", text)
                name = f"gpu>={memory[1]}" if memory else platform[1] if platform else key
                if name != "tpu":
                    named = [*_NAMES.findall(text), *(["gb10"] if "not is_gb10" in text else [])] if memory else []
                    yield from _tiers(inner, name, {"not_named": named} if named else extra)
                yield from _tiers(orelse, key, extra)
            case _:
                yield key, extra, statement


def _constant(node: ast.expr) -> int:
    """Return the number in `N` or `N * world_size`."""
    match node:
        case ast.BinOp(left=ast.Constant(value=int() as number)) | ast.Constant(value=int() as number):
            return number
    raise NotFound(f"the default batch size {ast.unparse(node)} is no constant")


def cudagraph_sizes(tree: Tree) -> Facts:
    """How the largest CUDA-graph size is chosen: min(max_num_seqs x factor, cap) tokens; without a factor, the cap.

    `counts_draft_tokens`: draft tokens count, so the size is max_num_seqs x (1 + K) x factor. `multiples_of_query`:
    adds sizes that are multiples of 1 + K, beyond the cap.
    """
    module = tree.get(*_VLLM_CONFIG)
    function = module.get_function("_set_cudagraph_sizes", of="VllmConfig")
    text = ast.unparse(function)
    if "* 2" not in text:
        module, scheduler = tree.find_class("SchedulerConfig", *_SCHEDULER)
        fixed = attribute_of(module, scheduler, "cuda_graph_sizes")
        sizes = default_of(*fixed) if fixed else []
        if len(sizes) == 1:
            return _sizes(module.source("SchedulerConfig.cuda_graph_sizes"), cap=sizes[0])
        function = module.get_function("__post_init__", of="SchedulerConfig")
        text = ast.unparse(function)
    source = module.source(function.name)
    caps = re.search(r"(\d+) if current_platform.is_device_capability_family\(100\) else (\d+)", text)
    plain = re.search(r"min\([^()]*max_num_seqs[^()]* \* (\d+), (\d+)\)", text)
    factor = re.search(r"max_num_seqs(?: \* decode_query_len)? \* (\d+)", text)
    if factor is None or not (caps or plain):
        raise NotFound(f"vLLM {tree.version}: the rule for CUDA-graph sizes in {module.path} is not read")
    row = _sizes(
        source,
        cap=int(caps[2]) if caps else int(plain[2]) if plain else 0,
        factor=int(factor[1]),
        counts_draft_tokens="decode_query_len" in text,
        multiples_of_query="request_counts" in text,
    )
    return row | ({"cap_blackwell": (int(caps[1]), source)} if caps else {})


def _sizes(
    source: str,
    *,
    cap: int,
    factor: int | None = None,
    counts_draft_tokens: bool = False,
    multiples_of_query: bool = False,
) -> Facts:
    row = {
        "cap": cap,
        "factor": factor,
        "counts_draft_tokens": counts_draft_tokens,
        "multiples_of_query": multiples_of_query,
    }
    return {key: (value, source) for key, value in row.items()}


def async_scheduling(tree: Tree) -> Facts:
    """Methods compatible with async scheduling: if requested (`explicit`), and by default (`default`).

    `runner` is `V1` if the limits apply to that runner only, else `any`. Nothing here applies without speculation.
    """
    module = tree.get(*_VLLM_CONFIG)
    function = module.get_function("__post_init__", of="VllmConfig")
    source = module.source("VllmConfig.__post_init__")
    branches = sorted((node for node in ast.walk(function) if isinstance(node, ast.If)), key=lambda node: node.lineno)
    allowed = [_allowed(module, node.test) for node in branches]
    lists = [sorted(set(names) & _canonical(tree)) for names in allowed if names]
    text = ast.unparse(function)
    if not lists and "async scheduling" in text.lower():
        raise NotFound(f"vLLM {tree.version}: async scheduling's methods in {module.path} are not read")
    by_default = [] if "scheduling is not yet supported with speculative decoding" in text else (lists or [[]])[-1]
    return {
        "explicit": ((lists or [[]])[0], source),
        "default": (by_default, source),
        "runner": ("V1" if "v1_async_sched_incompat" in text else "any", source),
    }


def _allowed(module: Module, test: ast.expr) -> list[str]:
    """Return the methods that a test lets pass: `method not in get_args(X) and method != "y" and ...`."""
    found: list[str] = []
    if "speculative_config" not in ast.unparse(test) and "spec_config" not in ast.unparse(test):
        return found
    for node in ast.walk(test):
        match node:
            case ast.Compare(left=ast.Attribute(attr="method"), ops=[ast.NotIn() | ast.NotEq()], comparators=[right]):
                found += strings(evaluate(module, right))
    return found if "get_args" in ast.unparse(test) else []


def _canonical(tree: Tree) -> set[str]:
    """Return the methods that are left once the names of MTP families have become `mtp`."""
    return {name for name in methods(tree) if not name.endswith("_mtp")}


def runner_v2(tree: Tree) -> Facts:
    """Model runner V2: when it is used, its speculative methods, and what it does not support yet.

    `default` is `on request` (VLLM_USE_V2_MODEL_RUNNER=1), `by architecture` (`default_models` says how, over the list
    `default_architectures`) or `always` (unless something in `unsupported` is used). `v1_unsupported` lists what only
    V2 supports. Empty for releases before V2.
    """
    speculators = tree.find(*_SPECULATORS)
    if speculators is None:
        return {}
    module = tree.get(*_VLLM_CONFIG)
    found: Facts = {"default": (_default_runner(module), module.source("VllmConfig.use_v2_model_runner"))}
    if chosen := module.find_function(_CHOOSER, of="VllmConfig"):
        found["default_models"] = (_default_models(ast.unparse(chosen)), module.source(f"VllmConfig.{_CHOOSER}"))
    listed = evaluate(module, ast.Name("DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES"))
    if listed is not UNKNOWN:
        source = module.source("DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES")
        found["default_architectures"] = (sorted(listed), source)
    found["methods"] = (_drafted(tree, speculators, module), speculators.source("init_speculator"))
    for key, names in _FEATURES.items():
        function = next((f for name in names if (f := module.find_function(name, of="VllmConfig"))), None)
        if function:
            found[key] = (sorted(_appended(function)), module.source(f"VllmConfig.{function.name}"))
    return found


_CHOOSER = "_is_default_v2_model_runner_model"
_FEATURES = {
    "unsupported": ("_get_v2_model_runner_unsupported_features", "_validate_v2_model_runner"),
    "v1_unsupported": ("_get_v1_model_runner_unsupported_features",),
}


def _default_runner(module: Module) -> str:
    function = module.find_function("use_v2_model_runner", of="VllmConfig")
    if function is None:
        if module.find_function(_FEATURES["unsupported"][0], of="VllmConfig"):
            raise NotFound(f"vLLM {module.tree.version}: no function use_v2_model_runner in {module.path}")
        return "on request"
    return "by architecture" if _CHOOSER in ast.unparse(function) else "always"


def _default_models(chooser: str) -> dict[str, Any]:
    """Return which models run on V2 by default, while that went by architecture."""
    every_dense = "or not model_config.is_moe" in chooser
    traits = {"hybrid": "is_hybrid", "attention_free": "is_attention_free", "quantized": "is_quantized"}
    return {
        "dense": "all" if every_dense else "listed",
        "moe": "listed" if every_dense or "is_moe" not in chooser else "none",
        "not": [trait for trait, mark in traits.items() if mark in chooser],
        "listed_hybrid": "not is_default_v2_architecture" in chooser,
    }


def _drafted(tree: Tree, speculators: Module, module: Module) -> list[str]:
    """Return the methods that V2 has a speculator for and that the config does not send back to V1."""
    config, _ = get_config(tree)
    known = _canonical(tree)
    drafted: set[str] = set()
    for node in ast.walk(speculators.get_function("init_speculator")):
        match node:
            case ast.Compare(left=ast.Attribute(attr="method"), ops=[ast.Eq()], comparators=[ast.Constant(value=name)]):
                drafted.add(str(name))
            case ast.Call(func=ast.Attribute(attr=name), args=[]) if name.startswith(("use_", "uses_")):
                drafted |= set(_methods_of(config, config.get_function(name, of="SpeculativeConfig")))
    for name in _FEATURES["unsupported"]:
        if function := module.find_function(name, of="VllmConfig"):
            drafted -= _refused(module, function, known)
    return sorted(drafted & known)


def _methods_of(config: Module, function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Compare(left=ast.Attribute(attr="method"), comparators=[right]):
                yield from strings(evaluate(config, right))


def _refused(module: Module, function: ast.FunctionDef, known: set[str]) -> set[str]:
    """Return the methods for which a function reports `speculative method '...'` or a named speculative decoding."""
    refused: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.If) or "speculative" not in ast.unparse(node.body[0]):
            continue
        tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        if any("parallel_drafting" in ast.unparse(test) for test in tests):
            continue
        for test in tests:
            match test:
                case ast.Compare(left=ast.Attribute(attr="method"), ops=[ast.In()], comparators=[right]):
                    refused |= set(evaluate(module, right))
                case ast.Compare(left=ast.Attribute(attr="method"), ops=[ast.NotIn()], comparators=[right]):
                    refused |= known - set(evaluate(module, right))
    return refused


def _appended(function: ast.FunctionDef) -> Iterator[str]:
    """Yield what a function appends to its list, in vLLM's words. A value put in at run time is left as its name."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(attr="append"), args=[ast.Constant(value=str() as text)]):
                yield text
            case ast.Call(func=ast.Attribute(attr="append"), args=[ast.JoinedStr(values=parts)]):
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else "{...}" for p in parts)
