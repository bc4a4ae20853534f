"""Attention backends, and those that a drafter of whole blocks can use because they attend in both directions."""

from __future__ import annotations

import ast

from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Module, NotFound, Tree
from draftwise.extract.values import UNKNOWN, attribute_of, evaluate, members, method_of

__all__ = ["attention_backends", "noncausal_backends"]

_REGISTRY = (
    "vllm/v1/attention/backends/registry.py",
    "vllm/attention/backends/registry.py",
    "vllm/platforms/interface.py",
)
_ENUMS = ("AttentionBackendEnum", "_Backend")
_NON_CAUSAL = "supports_non_causal"
_BASE = "vllm/v1/attention/backend.py"


def _get_enum(tree: Tree) -> tuple[Module, ast.ClassDef]:
    for path in _REGISTRY:
        module = tree.find(path)
        for name in _ENUMS if module else ():
            if module and isinstance(module.names.get(name), ast.ClassDef):
                return module, module.get_class(name)
    raise NotFound(f"vLLM {tree.version}: no list of attention backends")


def attention_backends(tree: Tree) -> Facts:
    """Every attention backend's name -> the dotted path of its class; empty where the list does not say."""
    module, node = _get_enum(tree)
    found: Facts = {}
    for name in members(node):
        assigned = attribute_of(module, node, name)
        path = evaluate(*assigned) if assigned else UNKNOWN
        found[name] = (path if isinstance(path, str) else "", module.source(f"{node.name}.{name}"))
    return found


def noncausal_backends(tree: Tree) -> Facts:
    """Backends that support non-causal attention: `always`, or `sometimes` where it depends on device or kernel.

    Empty in releases that do not ask backends at all.
    """
    base = tree.find(_BASE)
    if base is None or base.find_function(_NON_CAUSAL, of="AttentionBackend") is None:
        return {}
    found: Facts = {}
    for name, (path, _) in attention_backends(tree).items():
        dotted, _, cls = path.rpartition(".")
        module = tree.module(dotted) if dotted else None
        resolved = tree.resolve(module, cls) if module else None
        if resolved and isinstance(resolved[1], ast.ClassDef):
            answer, where = _answer(resolved[0], resolved[1])
            if answer:
                found[name] = (answer, where)
    if "FLASH_ATTN" not in found:
        raise NotFound(f"vLLM {tree.version}: FLASH_ATTN should support non-causal attention")
    return found


def _answer(module: Module, node: ast.ClassDef) -> tuple[str, str]:
    """Return what the nearest class that defines the question answers to it, and where."""
    found = method_of(module, node, _NON_CAUSAL)
    if found is None:
        return "", ""
    owner, cls, function = found
    returned = [evaluate(owner, part.value) for part in ast.walk(function) if isinstance(part, ast.Return)]
    source = owner.source(f"{cls.name}.{_NON_CAUSAL}")
    if returned == [False]:
        return "", source
    return "always" if returned == [True] else "sometimes", source
