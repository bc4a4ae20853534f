"""Extracts the model registry: each architecture's class, its interfaces, and whether its feed-forward is gated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from draftwise.extract.expressions import UNKNOWN, evaluate
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Import, Module, NotFound, Tree

_REGISTRY = "vllm/model_executor/models/registry.py"
_INTERFACES = "vllm/model_executor/models/interfaces.py"
_PACKAGE = "vllm.model_executor.models"
_PROTOCOLS = "vllm/model_executor/models/interfaces"
_PIPELINE = "SupportsPP"
_ASIDE = frozenset(
    {
        "SupportsCrossEncoding",
        "SupportsEagleBase",
        "SupportsEncoderCudaGraph",
        "SupportsLateInteraction",
        "SupportsMultiModalEmbeddings",
        "SupportsMultiModalPruning",
        "SupportsQuant",
        "SupportsRealtime",
        "SupportsScoreTemplate",
        "SupportsTranscription",
    }
)
"""Interfaces irrelevant to text generation, and bases that add nothing to their subclasses."""
_ALL = "_VLLM_MODELS"
_Class = tuple[Module, ast.ClassDef]


def architectures(tree: Tree) -> Facts:
    """Every architecture of the registry: its class, the list that contains it, the interfaces of the class."""
    return {
        architecture: ({"module": module, "class": cls, "group": _group(name)} | _inspect(tree, module, cls), source)
        for architecture, (module, cls, name, source) in read_registry(tree).items()
    }


def read_registry(tree: Tree) -> dict[str, tuple[str, str, str, str]]:
    """Return the module and class of every architecture, the list that contains it, and the list's source."""
    registry = tree.get(_REGISTRY)
    whole = registry.names.get(_ALL)
    if not isinstance(whole, ast.Dict):
        raise NotFound(f"vLLM {tree.version}: {_ALL} is no dictionary in {registry.path}")
    found: dict[str, tuple[str, str, str, str]] = {}
    for group in whole.values:
        name = ast.unparse(group)
        for architecture, entry in _entries(registry, group).items():
            found.setdefault(architecture, (*entry, name, registry.source(name)))
    return found


def find_module(tree: Tree, dotted: str) -> Module | None:
    """Return a module of model classes by its name in the registry."""
    return tree.module(dotted if dotted.startswith("vllm.") else f"{_PACKAGE}.{dotted}")


def _entries(registry: Module, group: ast.expr) -> dict[str, tuple[str, str]]:
    """Return a list of the registry: architecture -> (module, class)."""
    match group:
        case ast.Name(id=name) if isinstance(listed := registry.names.get(name), ast.expr):
            return _entries(registry, listed)
        case ast.Dict(keys=keys, values=values):
            found: dict[str, tuple[str, str]] = {}
            for key, value in zip(keys, values, strict=True):
                entry = evaluate(registry, value)
                if key is None:
                    found |= _entries(registry, value)
                elif isinstance(name := evaluate(registry, key), str) and entry is not UNKNOWN:
                    found[name] = (entry[0], entry[1])
            if len(found) >= sum(key is not None for key in keys):
                return found
        case ast.DictComp(generators=[ast.comprehension(iter=ast.Call(func=ast.Attribute(value=listed)), ifs=[test])]):
            # Of the form: those of a listed mapping whose architecture is "X".
            if ast.unparse(test).startswith("arch == "):
                wanted = ast.literal_eval(test.comparators[0]) if isinstance(test, ast.Compare) else None
                return {name: entry for name, entry in _entries(registry, listed).items() if entry[1] == wanted}
    raise NotFound(f"vLLM {registry.tree.version}: {ast.unparse(group)[:80]} of {registry.path} is not understood")


def _group(name: str) -> str:
    return name.strip("_").removesuffix("_MODELS").lower()


def _inspect(tree: Tree, dotted: str, cls: str) -> dict[str, Any]:
    """Return the interfaces of a model class."""
    ancestors = find_classes(tree, dotted, cls)
    names = {node.name for where, node in ancestors if where.path == _INTERFACES and _is_interface(node.name)}
    names |= {interface for where, node in ancestors for interface in _flagged(where, node)}
    if not _takes_stage_input(ancestors):
        names.discard(_PIPELINE)
    return {"interfaces": sorted(names - _ASIDE)}


def find_classes(tree: Tree, dotted: str, cls: str) -> list[_Class]:
    """Return a model class and all above it. An architecture whose class cannot be found is a gap, and says so."""
    module = find_module(tree, dotted)
    if module is None:
        raise NotFound(f"vLLM {tree.version}: no module {dotted} for {cls}")
    ancestors = list(dict.fromkeys(_ancestors(module, ast.Name(cls))))
    if not ancestors:
        raise NotFound(f"vLLM {tree.version}: no class {cls} in {module.path}")
    return ancestors


def _takes_stage_input(ancestors: list[_Class]) -> bool:
    """Say whether `forward` takes what an earlier pipeline stage hands over, as vLLM asks besides the interface."""
    # Protocols come last in Python's order of resolution, where a mixin brings one before the class that does the work.
    working = (cls for where, cls in ancestors if not where.path.startswith(_PROTOCOLS))
    methods = (s for cls in working for s in cls.body if isinstance(s, ast.FunctionDef) and s.name == "forward")
    forward = next(methods, None)
    if forward is None:
        return False
    names = {argument.arg for argument in (*forward.args.args, *forward.args.kwonlyargs)}
    return "intermediate_tensors" in names or forward.args.kwarg is not None


def _is_interface(name: str) -> bool:
    return name.startswith(("Supports", "Is", "Has")) or name == "MixtureOfExperts"


def _ancestors(module: Module, expression: ast.expr) -> Iterator[_Class]:
    """Yield the class that an expression names and every class above it, those given to class factories included."""
    match expression:
        case ast.Call(func=func, args=args):
            for part in (func, *args):
                yield from _ancestors(module, part)
        case ast.Subscript(value=inner):
            yield from _ancestors(module, inner)
        case ast.Name() | ast.Attribute():
            found = module.tree.resolve(module, ast.unparse(expression))
            match found:
                case (where, ast.ClassDef() as node):
                    yield where, node
                    for base in node.bases:
                        yield from _ancestors(where, base)
                case (where, ast.expr() as alias):
                    yield from _ancestors(where, alias)


def _flagged(module: Module, node: ast.ClassDef) -> Iterator[str]:
    """Yield the interfaces that a class has by setting the interface's own flag, without naming it as a base."""
    interfaces = module.tree.get(_INTERFACES)
    if module.path == _INTERFACES:
        return
    for statement in node.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=flag)], value=ast.Constant(value=True))
                | ast.AnnAssign(target=ast.Name(id=flag), value=ast.Constant(value=True))
            ):
                if interface := _flags(interfaces).get(flag):
                    yield interface


def _flags(interfaces: Module) -> dict[str, str]:
    """Return which interface each flag belongs to: the one that declares it to be true."""
    return {
        statement.target.id: node.name
        for node in interfaces.outline
        if isinstance(node, ast.ClassDef) and _is_interface(node.name)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is True
    }


def speculators_types(tree: Tree) -> Facts:
    """Every `speculators_model_type` of a speculators-format checkpoint that vLLM converts."""
    module = tree.find("vllm/transformers_utils/configs/speculators/algos.py")
    if module is None:
        return {}
    found: Facts = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                match mark:
                    case ast.Call(func=ast.Name(id="register_speculator"), args=[ast.Constant(value=str() as name)]):
                        found[name] = (True, module.source(node.name))
    if not found:
        raise NotFound(f"vLLM {tree.version}: no speculator is registered in {module.path}")
    return found


def config_model_types(tree: Tree) -> Facts:
    """Every model_type with a config class in vLLM, which transformers need not know."""
    module = tree.get("vllm/transformers_utils/config.py")
    listed = module.names.get("_CONFIG_REGISTRY")
    names = _config_classes(module, listed) if isinstance(listed, ast.expr) else {}
    if not names:
        raise NotFound(f"vLLM {tree.version}: _CONFIG_REGISTRY is not read in {module.path}")
    return {model_type: (cls, module.source("_CONFIG_REGISTRY")) for model_type, cls in names.items()}


def _config_classes(module: Module, node: ast.expr) -> dict[str, str]:
    """Return model_type -> class of `{"x": X, **MORE}` or `LazyConfigDict(x="X", **{"x-y": "XY"})`. Else nothing."""
    given: list[tuple[Any, ast.expr]]
    match node:
        case ast.Name(id=name) if isinstance(listed := module.names.get(name), ast.expr):
            return _config_classes(module, listed)
        case ast.Dict(keys=keys, values=values):
            given = [(key and evaluate(module, key), value) for key, value in zip(keys, values, strict=True)]
        case ast.Call(args=[], keywords=keywords):
            given = [(keyword.arg, keyword.value) for keyword in keywords]
        case _:
            return {}
    parts = [_config_classes(module, v) if name is None else {name: ast.unparse(v).strip("'")} for name, v in given]
    return {name: cls for part in parts for name, cls in part.items()} if all(parts) else {}


_MODEL_PACKAGES = ("vllm.model_executor.models.", "vllm.models.")
_GATED = re.compile(r"\w*AndMul|get_act_and_mul_fn")
_PLAIN = re.compile(r"get_act_fn|ReLUSquaredActivation|(Fast|New|Quick)GELU")
_OUTPUT = frozenset({"RowParallelLinear", "ReplicatedLinear"})
_OTHER_PARTS = re.compile(
    r"vision|visual|vit(?![a-z])|audio|encoder|project|resampl|image|siglip|clip|tower|patch|video|speech|whisper|mixer|"
    r"mamba|pool|merger|mtp|eagle|classif|score",
    re.IGNORECASE,
)
"""Names of files and classes for other modalities, state layers, heads or drafters."""
_NamedClass = tuple[Module, str]


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
    waiting: list[_NamedClass] = [(module, name)]
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
            if isinstance(binding, Import) and binding.module.startswith(_MODEL_PACKAGES):
                target, binding = module.tree.resolve(where, each) or (where, None)
            else:
                target = where
            if isinstance(binding, ast.ClassDef) and not _OTHER_PARTS.search(
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
