"""Extracts the closed lists of flags and keys: backends, KV-cache types, quantization methods, reasoning parsers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from draftwise.extract.expressions import UNKNOWN, attribute_of, evaluate, literal, members, method_of, returned
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Module, NotFound, Tree


def kv_cache_dtypes(tree: Tree) -> Facts:
    """Every value of `kv_cache_dtype`."""
    return listed(tree, "CacheDType", "vllm/config/cache.py", "vllm/config.py")


def moe_backends(tree: Tree) -> Facts:
    """Every value of `moe_backend` with the kinds of experts' weights that it can be asked for.

    It is True where a release does not list them, and empty in releases that used environment variables.
    """
    if tree.find("vllm/config/kernel.py") is None:
        return {}
    try:
        names = listed(tree, "MoEBackend", "vllm/config/kernel.py")
    except NotFound:
        if "moe_backend" in tree.get("vllm/config/kernel.py").text:
            raise
        return {}
    taken = {kind: taken for kind in _EXPERTS if (taken := _list_taken(tree, kind))}
    return {
        name: ([kind for kind, each in taken.items() if name in each] if taken else True, source)
        for name, (_, source) in names.items()
    }


_EXPERTS = ("unquantized", "fp8", "nvfp4", "mxfp4")


def _list_taken(tree: Tree, kind: str) -> set[str]:
    """Return the backends that experts of a kind take when asked for, and those that they leave out of account."""
    module = tree.find(f"vllm/model_executor/layers/fused_moe/oracle/{kind}.py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.text)) if module is not None else ():
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="mapping")], value=ast.Dict(keys=keys))
                | ast.AnnAssign(target=ast.Name(id="mapping"), value=ast.Dict(keys=keys))
            ):
                found |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
            case ast.Compare(left=ast.Name(id="runner_backend"), ops=[ast.NotIn()], comparators=[ast.List(elts=parts)]):
                found |= {str(part.value) for part in parts if isinstance(part, ast.Constant)}
    return found


def reasoning_parsers(tree: Tree) -> Facts:
    """Every reasoning parser that vLLM registers; empty in releases without such a table."""
    return _list_parsers(tree, "_REASONING_PARSERS_TO_REGISTER", "vllm/reasoning/__init__.py")


def tool_parsers(tree: Tree) -> Facts:
    """Every parser of tool calls, likewise."""
    places = ("vllm/tool_parsers/__init__.py", "vllm/entrypoints/openai/tool_parsers/__init__.py")
    return _list_parsers(tree, "_TOOL_PARSERS_TO_REGISTER", *places)


def _list_parsers(tree: Tree, table: str, *places: str) -> Facts:
    module = tree.get(*places)
    rows = module.names.get(table)
    if not isinstance(rows, ast.Dict):
        return {}
    names = [evaluate(module, key) for key in rows.keys if key is not None]
    return {str(name): (True, module.source(table)) for name in names}


def kv_connectors(tree: Tree) -> Facts:
    """Every KV connector that vLLM registers."""
    module = tree.get("vllm/distributed/kv_transfer/kv_connector/factory.py")
    calls = (node for node in ast.walk(ast.parse(module.text)) if isinstance(node, ast.Call))
    first = (call.args[0] for call in calls if ast.unparse(call.func).endswith(".register_connector") and call.args)
    names = [each.value for each in first if isinstance(each, ast.Constant)]
    if not names:
        raise NotFound(f"vLLM {tree.version}: no connector is registered in {module.path}")
    return {str(name): (True, module.source("KVConnectorFactory")) for name in names}


def ir_providers(tree: Tree) -> Facts:
    """Operation of vLLM's IR -> names of its implementations; empty in releases without an IR."""
    found: dict[str, list[str]] = {}
    for path in sorted((tree.root / "vllm/kernels").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr=name), attr="register_impl"),
                    args=[ast.Constant(value=str() as provider), *_],
                ):
                    found.setdefault(name, ["native"]).append(provider)
    return {name: (sorted(set(known)), f"vllm/kernels: {name}") for name, known in sorted(found.items())}


def listed(tree: Tree, alias: str, *paths: str) -> Facts:
    """Return the options of a Literal named in one of these files."""
    module = tree.get(*paths)
    options = literal(module, ast.Name(alias))
    if not options:
        raise NotFound(f"vLLM {tree.version}: no Literal {alias} in {module.path}")
    return {str(option): (True, module.source(alias)) for option in options}


_REGISTRY = (
    "vllm/v1/attention/backends/registry.py",
    "vllm/attention/backends/registry.py",
    "vllm/platforms/interface.py",
)
_ENUMS = ("AttentionBackendEnum", "_Backend")
_NON_CAUSAL = "supports_non_causal"
_BACKEND = "vllm/v1/attention/backend.py"


def _get_enum(tree: Tree) -> tuple[Module, ast.ClassDef]:
    for path in _REGISTRY:
        module = tree.find(path)
        for name in _ENUMS if module else ():
            if module and isinstance(module.names.get(name), ast.ClassDef):
                return module, module.get_class(name)
    raise NotFound(f"vLLM {tree.version}: no list of attention backends")


def attention_backends(tree: Tree) -> Facts:
    """Attention backend -> dotted path of its class; empty if the list does not give it."""
    module, node = _get_enum(tree)
    found: Facts = {}
    for name in members(node):
        assigned = attribute_of(module, node, name)
        path = evaluate(*assigned) if assigned else UNKNOWN
        found[name] = (path if isinstance(path, str) else "", module.source(f"{node.name}.{name}"))
    return found


def backend_classes(tree: Tree) -> Iterator[tuple[str, Module, ast.ClassDef]]:
    """Yield name, module and class of each attention backend whose class is in the wheel."""
    for name, (path, _) in attention_backends(tree).items():
        dotted, _, cls = path.rpartition(".")
        module = tree.module(dotted) if dotted else None
        resolved = tree.resolve(module, cls) if module else None
        if resolved and isinstance(resolved[1], ast.ClassDef):
            yield name, resolved[0], resolved[1]


def noncausal_backends(tree: Tree) -> Facts:
    """Backends that support non-causal attention: `always`, or `sometimes` where it depends on device or kernel.

    Empty in releases that do not ask backends.
    """
    base = tree.find(_BACKEND)
    if base is None or base.find_function(_NON_CAUSAL, of="AttentionBackend") is None:
        return {}
    answers = {name: _answer(module, node) for name, module, node in backend_classes(tree)}
    found: Facts = {name: answer for name, answer in answers.items() if answer[0]}
    if "FLASH_ATTN" not in found:
        raise NotFound(f"vLLM {tree.version}: FLASH_ATTN should support non-causal attention")
    return found


def _answer(module: Module, node: ast.ClassDef) -> tuple[str, str]:
    """Return what the nearest class that defines the question answers to it, and where."""
    found = method_of(module, node, _NON_CAUSAL)
    if found is None:
        return "", ""
    owner, cls, function = found
    answers = returned(owner, function)
    source = owner.source(f"{cls.name}.{_NON_CAUSAL}")
    if answers == [False]:
        return "", source
    return "always" if answers == [True] else "sometimes", source


_METHODS = "vllm/model_executor/layers/quantization/__init__.py"
_ONLINE = "vllm/config/quantization.py"
_BASE_CLASS = "QuantizationConfig"
"""Class that all derive from; it overrides nothing."""


def quantization_methods(tree: Tree) -> Facts:
    """Every value of `quantization`.

    `deprecated` methods need a flag. A method with `needs_checkpoint` takes its settings from a quantized checkpoint;
    others can quantize while loading. A method that `overrides` may run weights that a checkpoint declares for another
    method. `capability` is the least compute capability of a GPU that vLLM loads it on; None if no number is read.
    """
    module = tree.get(_METHODS)
    deprecated = evaluate(module, ast.Name("DEPRECATED_QUANTIZATION_METHODS"))
    gone = set() if deprecated is UNKNOWN else set(deprecated)
    classes = _get_classes(module)
    needy = {name for name, cls in classes.items() if _needs_checkpoint(*cls)} - _shorthands(tree)
    overriding = {name for name, cls in classes.items() if _overrides(*cls)}
    least = {name: _get_capability(*cls) for name, cls in classes.items()}
    least = {**dict.fromkeys(_shorthands(tree), least.get("online")), **least}
    return {
        name: (
            {"capability": least.get(name), "deprecated": name in gone, "needs_checkpoint": name in needy,
             "overrides": name in overriding},
            source,
        )
        for name, (_, source) in listed(tree, "QuantizationMethods", _METHODS).items()
    }  # fmt: skip


def _get_classes(module: Module) -> dict[str, tuple[Module, ast.ClassDef]]:
    """Return the class of each method. Online shorthands, which a loop adds, have none of their own."""
    scope = module.inside(module.get_function("get_quantization_config"))
    table = scope.names.get("method_to_config")
    if not isinstance(table, ast.Dict):
        raise NotFound(f"vLLM {module.tree.version}: no table of quantization classes in {module.path}")
    pairs = zip(table.keys, table.values, strict=True)
    return {evaluate(scope, key): _get_class(scope, cls) for key, cls in pairs}


def _shorthands(tree: Tree) -> set[str]:
    """Return the names that say how to quantize while loading. A class of the same name serves checkpoints only."""
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
    if returned(named[0], named[2]) != [[]]:
        return True
    arguments = made[2].args if made else None
    return arguments is not None and len(arguments.args) - len(arguments.defaults) > len(["self"])


def _get_capability(module: Module, cls: ast.ClassDef) -> int | None:
    found = method_of(module, cls, "get_min_capability")
    answers = returned(found[0], found[2]) if found else []
    return answers[0] if len(answers) == 1 and type(answers[0]) is int else None


def _overrides(module: Module, cls: ast.ClassDef) -> bool:
    found = method_of(module, cls, "override_quantization_method")
    return found is not None and found[1].name != _BASE_CLASS
