"""The closed lists that flags and keys choose from: KV-cache types, MoE backends, reasoning parsers."""

from __future__ import annotations

import ast

from draftwise.extract.speculative import Facts
from draftwise.extract.tree import NotFound, Tree
from draftwise.extract.values import evaluate, literal

__all__ = ["kv_cache_dtypes", "listed", "moe_backends", "reasoning_parsers"]


def kv_cache_dtypes(tree: Tree) -> Facts:
    """Every value of `kv_cache_dtype`."""
    return listed(tree, "CacheDType", "vllm/config/cache.py", "vllm/config.py")


def moe_backends(tree: Tree) -> Facts:
    """Every value of `moe_backend`; empty in releases that chose by environment variables."""
    if tree.find("vllm/config/kernel.py") is None:
        return {}
    try:
        return listed(tree, "MoEBackend", "vllm/config/kernel.py")
    except NotFound:
        if "moe_backend" in tree.get("vllm/config/kernel.py").text:
            raise
        return {}


def reasoning_parsers(tree: Tree) -> Facts:
    """Every name of a reasoning parser that vLLM registers; empty in releases that have no table of them."""
    module = tree.get("vllm/reasoning/__init__.py")
    table = module.names.get("_REASONING_PARSERS_TO_REGISTER")
    if not isinstance(table, ast.Dict):
        return {}
    names = [evaluate(module, key) for key in table.keys if key is not None]
    return {str(name): (True, module.source("_REASONING_PARSERS_TO_REGISTER")) for name in names}


def listed(tree: Tree, alias: str, *paths: str) -> Facts:
    """Return the options of a Literal that one of these files names."""
    module = tree.get(*paths)
    options = literal(module, ast.Name(alias))
    if not options:
        raise NotFound(f"vLLM {tree.version}: no Literal {alias} in {module.path}")
    return {str(option): (True, module.source(alias)) for option in options}
