"""Extracts the GPUs that attention backends, with their KV-cache types, and schemes of quantized weights need."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from draftwise.extract.choices import backend_classes
from draftwise.extract.expressions import attribute_of, evaluate, method_of, returned
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import NotFound, Tree

_CAPABILITIES = (70, 75, 80, 86, 89, 90, 100, 103, 120, 121)
"""NVIDIA's compute capabilities of GPUs that serve models."""
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.In: lambda one, many: one in many,
}
_KINDS = "supported_kv_cache_dtypes"
_FP8_FROM = re.compile(
    r"kv_cache_dtype\.startswith\(\"fp8\"\) and not \(\s*current_platform\.has_device_capability\((\d+)\)"
)
_FAMILY = re.compile(r"is_device_capability_family\((\d+)\)")
_FAMILIES = re.compile(r"is_device_capability_family\(f\) for f in \(([\d, ]+)\)")
_SCHEMES = "vllm/model_executor/layers/quantization/compressed_tensors"


def cache_backends(tree: Tree) -> Facts:
    """Attention backend -> the KV-cache types that it lists, and compute capabilities that it takes (None: not read).

    A backend that `decides` computes whether it takes a type. It refuses FP8 below `fp8_from`, and takes NVFP4 on
    the families `nvfp4` of GPUs. Empty in releases that do not ask backends.
    """
    found: Facts = {}
    for name, owner, node in backend_classes(tree):
        kinds, asked = attribute_of(owner, node, _KINDS), method_of(owner, node, "supports_compute_capability")
        if kinds is None or asked is None:
            continue
        listed = kept if isinstance(kept := evaluate(*kinds), list) else []
        decided = method_of(owner, node, "supports_kv_cache_dtype")
        least = _FP8_FROM.search(owner.text)
        families = _FAMILY.findall("" if decided is None else ast.unparse(decided[2]))
        families += [each for group in _FAMILIES.findall(owner.text) for each in group.split(", ")]
        value = {
            "kinds": listed,
            "capabilities": _read_capabilities(asked[2]),
            "decides": decided is not None and decided[1].name != "AttentionBackend",
            "fp8_from": None if least is None else int(least[1]),
            "nvfp4": sorted({int(each) for each in families}) if "nvfp4" in listed else [],
        }
        found[name] = (value, owner.source(node.name))
    return found


def _read_capabilities(function: ast.FunctionDef) -> list[int] | None:
    answers = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(answers) != 1:
        return None
    try:
        return [each for each in _CAPABILITIES if _compute(answers[0], each)]
    except NotFound:
        return None


def _compute(node: ast.expr | None, capability: int) -> Any:
    """Return the value of an expression for one compute capability, a pair of major and minor."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Call(func=ast.Name(id="DeviceCapability"), args=parts):
            return tuple(_compute(part, capability) for part in parts)
        case ast.Name(id="capability"):
            return divmod(capability, 10)
        case ast.Attribute(value=ast.Name(id="capability"), attr="major"):
            return capability // 10
        case ast.BoolOp(op=op, values=values):
            answers = (_compute(value, capability) for value in values)
            return all(answers) if isinstance(op, ast.And) else any(answers)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _ORDER:
            return _ORDER[type(op)](_compute(left, capability), _compute(right, capability))
    raise NotFound("an answer about compute capabilities that is not understood")


def weight_schemes(tree: Tree) -> Facts:
    """Scheme of compressed-tensors -> least compute capability; `only` if vLLM takes it on that one alone."""
    found: Facts = {}
    for path in sorted((tree.root / _SCHEMES / "schemes").glob("*.py")):
        module = tree.get(f"{_SCHEMES}/schemes/{path.name}")
        for name, node in module.names.items():
            if not isinstance(node, ast.ClassDef):
                continue
            answer = method_of(module, node, "get_min_capability")
            least = returned(answer[0], answer[2]) if answer else []
            if len(least) == 1 and isinstance(least[0], int):
                value = {"capability": least[0], "only": name == _EXACT and _is_exact(tree)}
                found[name.removeprefix("CompressedTensors")] = (value, module.source(name))
    return found


_EXACT = "CompressedTensorsW4A8Fp8"


def _is_exact(tree: Tree) -> bool:
    """Say whether vLLM compares the GPU's compute capability with the scheme's for equality."""
    module = tree.get(f"{_SCHEMES}/compressed_tensors.py")
    function = module.find_function("_is_fp8_w4a8_sm90", of="CompressedTensorsConfig")
    return function is not None and "match_exact=True" in ast.unparse(function)
