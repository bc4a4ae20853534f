"""Quantization methods: which are deprecated, and which take their settings from a quantized checkpoint."""

from __future__ import annotations

import ast

from draftwise.extract.choices import listed
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Module, NotFound, Tree
from draftwise.extract.values import UNKNOWN, evaluate, method_of

__all__ = ["quantization_methods"]

_METHODS = "vllm/model_executor/layers/quantization/__init__.py"
_ONLINE = "vllm/config/quantization.py"
_BASE = "QuantizationConfig"
"""Class that all derive from; it overrides nothing."""


def quantization_methods(tree: Tree) -> Facts:
    """Every value of `quantization`.

    `deprecated` ones need a flag to be allowed. One with `needs_checkpoint` takes its settings from a quantized
    checkpoint; the others can quantize while they load. One that `overrides` may run weights that a checkpoint declares
    for another method.
    """
    module = tree.get(_METHODS)
    deprecated = evaluate(module, ast.Name("DEPRECATED_QUANTIZATION_METHODS"))
    gone = set() if deprecated is UNKNOWN else set(deprecated)
    classes = _get_classes(module)
    needy = {name for name, cls in classes.items() if _needs_checkpoint(*cls)} - _shorthands(tree)
    overriding = {name for name, cls in classes.items() if _overrides(*cls)}
    return {
        name: (
            {"deprecated": name in gone, "needs_checkpoint": name in needy, "overrides": name in overriding},
            source,
        )
        for name, (_, source) in listed(tree, "QuantizationMethods", _METHODS).items()
    }


def _get_classes(module: Module) -> dict[str, tuple[Module, ast.ClassDef]]:
    """Return the class of each method; online shorthands, which a loop adds, have none of their own."""
    scope = module.inside(module.get_function("get_quantization_config"))
    table = scope.names.get("method_to_config")
    if not isinstance(table, ast.Dict):
        raise NotFound(f"vLLM {module.tree.version}: no table of quantization classes in {module.path}")
    pairs = zip(table.keys, table.values, strict=True)
    return {evaluate(scope, key): _get_class(scope, cls) for key, cls in pairs}


def _shorthands(tree: Tree) -> set[str]:
    """Return the names that say how to quantize while loading; a class of the same name serves checkpoints only."""
    module = tree.find(_ONLINE)
    table = module and module.names.get("_ONLINE_SHORTHANDS")
    return {evaluate(module, key) for key in table.keys} if module and isinstance(table, ast.Dict) else set()


def _get_class(scope: Module, name: ast.expr) -> tuple[Module, ast.ClassDef]:
    match scope.tree.resolve(scope, ast.unparse(name)):
        case (module, ast.ClassDef() as cls):
            return module, cls
        case (module, ast.Name() as alias):
            return _get_class(module, alias)
    raise NotFound(f"vLLM {scope.tree.version}: no class {ast.unparse(name)} for a quantization method")


def _needs_checkpoint(module: Module, cls: ast.ClassDef) -> bool:
    named, made = method_of(module, cls, "get_config_filenames"), method_of(module, cls, "__init__")
    if named is None:
        raise NotFound(f"vLLM {module.tree.version}: no get_config_filenames of {cls.name}")
    owner, _, function = named
    returned = [evaluate(owner, node.value) for node in ast.walk(function) if isinstance(node, ast.Return)]
    if returned != [[]]:
        return True
    arguments = made[2].args if made else None
    return arguments is not None and len(arguments.args) - len(arguments.defaults) > len(["self"])


def _overrides(module: Module, cls: ast.ClassDef) -> bool:
    found = method_of(module, cls, "override_quantization_method")
    return found is not None and found[1].name != _BASE
