"""Follows engine flags to the configs that use them: when these raise, and every function with which they reject."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from draftwise.extract.config_fields import Config, config_classes, read_validators
from draftwise.extract.dataclass_fields import fields_of
from draftwise.extract.guards import CheckWalk, RaiseGuard, write
from draftwise.extract.message_texts import spell
from draftwise.extract.speculative import ARGUMENTS, Facts
from draftwise.extract.tree import Module, Tree
from draftwise.extract.vllm_flags import FRONTEND, flags

_ENGINE = "EngineArgs"
_CREATE = "create_engine_config"
_VALIDATE = "validate_parsed_serve_args"


def config_checks(tree: Tree) -> Facts:
    """Every condition on its own fields under which a config class raises, as `Class: condition`.

    The value holds the message (`says`), with `{expression}` for values, and for a check that runs only if a field is
    set, that `field`.
    """
    found: Facts = {}
    for name, config in config_classes(tree).items():
        for field, walk in _walk_fields(config):
            _add(found, name, walk.guards, config[0], field=field)
        _add(found, name, _walk_whole(config).guards, config[0])
    return dict(sorted(found.items()))


def config_changes(tree: Tree) -> Facts:
    """Changes that a config class makes to its own fields, as `Class.field` -> expression over its fields."""
    found: Facts = {}
    for name, config in config_classes(tree).items():
        walk = _walk_whole(config)
        for key, value in walk.names.items():
            owner, _, field = key.partition(".")
            if owner == walk.subject and "." not in field:
                found[f"{name}.{field}"] = (write(value), config[0].source(f"{name}.__post_init__"))
    return dict(sorted(found.items()))


def engine_checks(tree: Tree) -> Facts:
    """Every condition on engine arguments under which the server stops while making its configs.

    A name is an argument's, or a config class's for its instance.
    """
    found: Facts = {}
    front = tree.get(*FRONTEND)
    if function := front.find_function(_VALIDATE):
        subject = function.args.args[0].arg
        walk = CheckWalk(front.inside(function), None, frozenset(_arguments(tree)), subject=subject)
        walk.names[f"{subject}.subparser"] = ast.Constant("serve")
        walk.run(function)
        _add(found, "", walk.guards, front)
    _add(found, "", _walk_engine(tree).guards, tree.get(ARGUMENTS))
    return dict(sorted(found.items()))


def config_arguments(tree: Tree) -> Facts:
    """Arguments of each config class, as `Class.field` -> expression over engine arguments, and `when` it is made.

    `Class.**` is a mapping of all its fields. `assigned` marks a value set on an existing config. Its type is not
    validated, except for enumeration names, which vLLM converts by hand. `validated` is the config's own function that
    is called after that.
    """
    module = tree.get(ARGUMENTS)
    source = module.source(f"{_ENGINE}.{_CREATE}")
    found: Facts = {}
    walk = _walk_engine(tree)
    for made in walk.made:
        for field, value in made.arguments.items():
            row = {"value": write(value), "when": write(made.condition)}
            found.setdefault(f"{made.name}.{field}", (row, source))
    called = dict(_list_verified(module.get_function(_CREATE, of=_ENGINE)))
    for owner, cls in _whole_configs(module).items():
        again = {"validated": called[owner]} if owner in called else {}
        for key, value in {**walk.settled, **walk.names}.items():
            if key.startswith(f"{owner}.") and not key.endswith("*"):
                assigned = {"value": write(value), "when": "True", "assigned": True, **again}
                found.setdefault(f"{cls}.{key.removeprefix(f'{owner}.')}", (assigned, source))
    return dict(sorted(found.items()))


def _list_verified(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the variables that verify themselves, with the name of their function."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if name.startswith(_NAMES):
                yield owner, name


def _whole_configs(module: Module) -> dict[str, str]:
    """Return the engine arguments that are a config as a whole, with its class."""
    fields = fields_of(module, module.get_class(_ENGINE)).values()
    return {field.name: field.type.removesuffix(" | None") for field in fields if "dataclass" in field.kinds}


def _arguments(tree: Tree) -> list[str]:
    return [str(row["field"]) for row, _ in flags(tree).values()]


def _walk_engine(tree: Tree) -> CheckWalk:
    module = tree.get(ARGUMENTS)
    node = module.get_class(_ENGINE)
    function = module.get_function(_CREATE, of=_ENGINE)
    fields = frozenset(fields_of(module, node))
    walk = CheckWalk(module.inside(function), node, fields, configs=frozenset(config_classes(tree)))
    walk.run(function, {"headless": ast.Constant(False)})
    return walk


def _names(config: Config) -> frozenset[str]:
    return frozenset(name for name, field in fields_of(*config).items() if field.init)


def _walk_whole(config: Config) -> CheckWalk:
    """Walk what checks a whole config: `__post_init__`, then the validators that come after it."""
    module, node = config
    walk = CheckWalk(module, node, _names(config))
    if start := module.find_function("__post_init__", of=node.name):
        walk.module = module.inside(start)
        walk.run(start)
    for mode, fields, function in read_validators(module, node):
        if mode == "after" and not fields:
            walk.module = module.inside(function)
            walk.run(function)
    return walk


def _walk_fields(config: Config) -> Iterable[tuple[str, CheckWalk]]:
    module, node = config
    for mode, fields, function in read_validators(module, node):
        for field in fields if mode == "after" else ():
            walk = CheckWalk(module.inside(function), node, frozenset({field}), subject="")
            parameter = function.args.args[1].arg
            walk.run(function, {parameter: ast.Name(field)})
            yield field, walk


def _add(found: Facts, owner: str, guards: Iterable[RaiseGuard], module: Module, *, field: str = "") -> None:
    for guard in guards:
        key = f"{owner}: {guard.text}" if owner else guard.text
        row = {"says": guard.message} | ({"field": field} if field else {})
        found.setdefault(key, (row, module.source(f"{owner or _ENGINE}.{guard.function}")))


_NAMES = ("verify", "valid", "check")
_ENGINE_CLASSES = ("EngineArgs", "SpeculativeConfig")
"""Classes to list in addition to flags' config classes."""


def validators(tree: Tree) -> Facts:
    """Every validator of a config (`Class.function`) and each of its messages (`Class.function: text`) -> kind.

    Kinds: pydantic's validators (`field`, `model`), `__post_init__` (`start`), functions named verify, validate or
    check, including those of the engine's arguments (`named`), and `other` functions that raise, with those of their
    module that they call. Texts have `{}` for values.
    """
    functions = [
        (f"{name}.{each.name}", _find_kind(each), module, module.get_function(each.name, of=name))
        for name, (module, node) in sorted(_find_classes(tree))
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    ]
    for _, _, module, caller in [*functions]:
        calls = [each.func for each in ast.walk(caller) if isinstance(each, ast.Call)]
        names = sorted({func.id for func in calls if isinstance(func, ast.Name)})
        functions += [(name, "other", module, own) for name in names if (own := module.find_function(name))]
    front = tree.get(*FRONTEND)
    if function := front.find_function(_VALIDATE):
        functions.append((function.name, "named", front, function))
    found: Facts = {}
    for symbol, kind, module, function in functions:
        refusals = [f"{symbol}: {text}" for text in _list_refusals(function)]
        for key in (symbol, *refusals) if refusals or kind != "other" else ():
            found[key] = (kind, module.source(symbol))
    return found


def _find_classes(tree: Tree) -> Iterator[tuple[str, Config]]:
    yield from config_classes(tree).items()
    arguments = tree.get(ARGUMENTS)
    for name in _ENGINE_CLASSES:
        match tree.resolve(arguments, name):
            case (Module() as module, ast.ClassDef() as node):
                yield name, (module, node)


def _find_kind(function: ast.FunctionDef) -> str:
    marks = [ast.unparse(mark) for mark in function.decorator_list]
    for kind in ("field", "model"):
        if any(f"{kind}_validator" in mark for mark in marks):
            return kind
    if function.name == "__post_init__":
        return "start"
    is_named = function.name.lstrip("_").startswith(_NAMES) or function.name == _CREATE
    return "named" if is_named else "other"


def _list_refusals(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Raise(exc=ast.Call(args=[said, *_])):
                yield spell(said) or ast.unparse(said)
            case ast.Raise(exc=raised):
                yield ast.unparse(raised) if raised else "raise"
            case ast.Assert(test=ast.Compare(ops=[ast.IsNot()])):
                pass  # for type checkers
            case ast.Assert(test=test, msg=said):
                yield (said and spell(said)) or f"{ast.unparse(test)} does not hold"
