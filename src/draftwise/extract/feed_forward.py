"""Determines whether a decoder's feed-forward layers are gated (three matrices) or plain (two), from activations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from draftwise.extract.model_registry import find_module, read_registry
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Import, Module, Tree

_PACKAGES = ("vllm.model_executor.models.", "vllm.models.")
_GATED = re.compile(r"\w*AndMul|get_act_and_mul_fn")
_PLAIN = re.compile(r"get_act_fn|ReLUSquaredActivation|(Fast|New|Quick)GELU")
_OUTPUT = frozenset({"RowParallelLinear", "ReplicatedLinear"})
_ASIDE = re.compile(
    r"vision|visual|vit(?![a-z])|audio|encoder|project|resampl|image|siglip|clip|tower|patch|video|speech|whisper|mixer|"
    r"mamba|pool|merger|mtp|eagle|classif|score",
    re.IGNORECASE,
)
"""Names of files and classes for other modalities, state layers, heads or drafters."""
_Class = tuple[Module, str]


def feed_forward(tree: Tree) -> Facts:
    """Architecture -> `gated` or `plain`. Leaves out classes with both or neither."""
    found: Facts = {}
    for architecture, (dotted, name, *_) in read_registry(tree).items():
        module = find_module(tree, dotted)
        kinds = {kind: where for where, kind in _find_kinds(module, name)} if module else {}
        if len(kinds) == 1:
            (kind, where), *_ = kinds.items()
            found[architecture] = (kind, where)
    return found


def _find_kinds(module: Module, name: str) -> Iterator[tuple[str, str]]:
    """Yield the source and kind of each network in the classes that a class names, and those that they name."""
    waiting: list[_Class] = [(module, name)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        where, cls = waiting.pop()
        if (where.path, cls) in seen:
            continue
        seen.add((where.path, cls))
        kind, called = _read_classes(where.text).get(cls, ("", frozenset()))
        if kind:
            yield where.source(cls), kind
        for each in called:
            binding = where.names.get(each)
            if isinstance(binding, Import) and binding.module.startswith(_PACKAGES):
                target, binding = module.tree.resolve(where, each) or (where, None)
            else:
                target = where
            if isinstance(binding, ast.ClassDef) and not _ASIDE.search(
                f"{target.path.rpartition('/')[2]} {binding.name}"
            ):
                waiting.append((target, binding.name))


@cache
def _read_classes(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the kind of the network that each class of a file has of its own, and the names that it uses."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            called = frozenset(each.id for each in ast.walk(node) if isinstance(each, ast.Name))
            kind = "plain" if any(map(_PLAIN.fullmatch, called)) and called & _OUTPUT else ""
            found[node.name] = ("gated" if any(map(_GATED.fullmatch, called)) else kind, called)
    return found
