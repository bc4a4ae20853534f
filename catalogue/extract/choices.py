"""The closed lists that flags and keys choose from: quantization methods, KV-cache types, MoE backends."""

from __future__ import annotations

import ast

from catalogue.extract.speculative import Facts
from catalogue.extract.tree import NotFound, Tree
from catalogue.extract.values import UNKNOWN, evaluate, literal

__all__ = ["kv_cache_dtypes", "moe_backends", "quantization_methods"]


def quantization_methods(tree: Tree) -> Facts:
    """Every value of `quantization`; `deprecated` ones need a flag to be allowed."""
    path = "vllm/model_executor/layers/quantization/__init__.py"
    deprecated = evaluate(tree.get(path), ast.Name("DEPRECATED_QUANTIZATION_METHODS"))
    gone = set() if deprecated is UNKNOWN else set(deprecated)
    listed = _listed(tree, "QuantizationMethods", path)
    return {name: ({"deprecated": name in gone}, source) for name, (_, source) in listed.items()}


def kv_cache_dtypes(tree: Tree) -> Facts:
    """Every value of `kv_cache_dtype`."""
    return _listed(tree, "CacheDType", "vllm/config/cache.py", "vllm/config.py")


def moe_backends(tree: Tree) -> Facts:
    """Every value of `moe_backend`; empty in releases that chose by environment variables."""
    if tree.find("vllm/config/kernel.py") is None:
        return {}
    try:
        return _listed(tree, "MoEBackend", "vllm/config/kernel.py")
    except NotFound:
        if "moe_backend" in tree.get("vllm/config/kernel.py").text:
            raise
        return {}


def _listed(tree: Tree, alias: str, *paths: str) -> Facts:
    module = tree.get(*paths)
    options = literal(module, ast.Name(alias))
    if not options:
        raise NotFound(f"vLLM {tree.version}: no Literal {alias} in {module.path}")
    return {str(option): (True, module.source(alias)) for option in options}
