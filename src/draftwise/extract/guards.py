"""Walks functions of vLLM without running them, and collects conditions for raising and the configs they make.

A condition is an expression over the fields of one object, with local names and assignments resolved to those fields.
Anything else (a model, a device, the environment) becomes `_`, which cannot be decided from the data. Guards that need
it are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from draftwise.extract.expressions import UNKNOWN, evaluate
from draftwise.extract.tree import Module

_NOTHING: ast.expr = ast.Name("_")
"""Placeholder for a value not known from the fields alone."""
_BUILTINS = frozenset({"len", "min", "max", "any", "all", "isinstance", "int", "float", "str", "bool", "set", "sorted"})
_TYPES = frozenset({"int", "float", "str", "bool", "dict", "list", "tuple", "set"})
_METHODS = frozenset({"lower", "upper", "strip", "startswith", "endswith", "keys", "values"})
_COPIES = frozenset({"copy.deepcopy", "deepcopy", "copy.copy"})
_PLATFORM = "current_platform"
_ENVIRONMENT = "envs"
_HARMLESS = frozenset({"getattr", "hasattr", "isinstance", "len", "any", "all", "min", "max", "str", "repr", "type"})
_DEEPEST = 4
"""Maximum depth of nested functions."""
_LONGEST = 4000
"""Maximum characters of an expression; a longer one counts as unknown."""
Names = dict[str, ast.expr]


@dataclass(frozen=True, slots=True)
class RaiseGuard:
    """A `raise` or an `assert`, and the condition under which it is reached."""

    condition: ast.expr
    message: str
    """Message, with `{expression}` in place of values."""
    function: str

    @property
    def text(self) -> str:
        return write(self.condition)


@dataclass(frozen=True, slots=True)
class ConfigCall:
    """A config's construction: its class, its arguments (`**` for a mapping of them), and its condition."""

    name: str
    arguments: Mapping[str, ast.expr]
    condition: ast.expr


@dataclass(slots=True)
class CheckWalk:
    """A walk of one object through the functions that validate it."""

    module: Module
    """Module for names outside the functions."""
    node: ast.ClassDef | None
    """The object's class; None for a plain namespace."""
    fields: frozenset[str]
    configs: frozenset[str] = frozenset()
    """Classes whose construction is recorded."""
    subject: str = "self"
    guards: list[RaiseGuard] = field(default_factory=list)
    made: list[ConfigCall] = field(default_factory=list)
    names: Names = field(default_factory=dict)
    settled: Names = field(default_factory=dict)
    """Values assigned inside a config before it was passed on."""
    path: list[ast.expr] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)

    def run(self, function: ast.FunctionDef, bound: Mapping[str, ast.expr] | None = None) -> None:
        """Walk a function. `bound` has its arguments; parameters not in it are unknown."""
        if function.name in self.stack or len(self.stack) >= _DEEPEST:
            self._forget_all()
            return
        outer, path = self.names, self.path
        parameters = {each.arg: _NOTHING for each in (*function.args.args, *function.args.kwonlyargs)}
        attributes = {name: value for name, value in outer.items() if "." in name}
        self.names = {**parameters, **(bound or {}), **attributes}
        self.names.pop(self.subject, None)
        self.path = list(path)
        self.stack.append(function.name)
        self._block(function.body)
        self.stack.pop()
        self.names = {**outer, **{name: value for name, value in self.names.items() if "." in name}}
        self.path = path

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        """Walk statements. Return whether the end is reached."""
        return all(self._statement(statement) for statement in statements)

    def _statement(self, statement: ast.stmt) -> bool:  # noqa: PLR0912  (one branch a kind of statement)
        match statement:
            case ast.If():
                return self._branch(statement)
            case ast.Raise(exc=raised):
                self._note(ast.Constant(True), _message(raised))
                return False
            case ast.Return(value=value):
                if value is not None:
                    self._call_all(value)
                    self._follow(value)
                return False
            case ast.Assert(test=ast.Compare(ops=[ast.IsNot()])):
                pass  # for type checkers
            case ast.Assert(test=test, msg=message):
                self._note(_negate(self._follow(test)), _text(message) or f"{ast.unparse(test)} does not hold")
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self._call_all(value)
                self._assign(target, self._follow(value))
            case ast.AugAssign(target=target, op=op, value=value):
                self._assign(target, self._follow(ast.BinOp(_loaded(target), op, value)))
            case ast.Expr(value=value):
                self._call_all(value)
                self._follow(value)
            case ast.For():
                return self._loop(statement)
            case ast.With(body=body):
                return self._block(body)
            case ast.FunctionDef() | ast.Import() | ast.ImportFrom() | ast.Pass() | ast.ClassDef():
                pass
            case _:
                self._forget(statement)
                if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
                    self.path.append(_NOTHING)
        return True

    def _branch(self, statement: ast.If) -> bool:
        self._call_all(statement.test)
        test = self._follow(statement.test)
        before, path = dict(self.names), list(self.path)
        ends = []
        for condition, body in ((test, statement.body), (_negate(test), statement.orelse)):
            self.names, self.path = dict(before), [*path, condition]
            reached = not _is(condition, False) and self._block(body)
            ends.append((reached, self.names, self.path[len(path) + 1 :], _returns(body)))
        (first, first_names, first_path, returned), (second, second_names, second_path, _) = ends
        self.path = path
        if first and second:
            self.names = _merge(test, first_names, second_names)
            self.path += _implied(_negate(test), first_path) + _implied(test, second_path)
        elif second:
            self.names = second_names
            self.path += ([_negate(test)] if returned else []) + second_path
        elif first:
            self.names = first_names
            self.path += ([test] if _returns(statement.orelse) else []) + first_path
        return first or second

    def _loop(self, statement: ast.For) -> bool:
        """Walk the body once for any item, and forget what it changes."""
        items = self._follow(statement.iter)
        before, path, guards = dict(self.names), self.path, self.guards
        self.guards, self.path = [], []
        if isinstance(statement.target, ast.Name):
            self.names[statement.target.id] = ast.Name("item")
            self._block(statement.body)
        found, self.guards, self.path, self.names = self.guards, guards, path, before
        for guard in found:
            if not _is_unknown(items) and "item" in guard.text:
                generator = ast.comprehension(ast.Name("item"), items, [], 0)
                some = ast.Call(ast.Name("any"), [ast.GeneratorExp(guard.condition, [generator])], [])
                self._note(some, guard.message)
        self._forget(statement)
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            self.path.append(_NOTHING)
        return True

    def _note(self, condition: ast.expr, message: str) -> None:
        whole = _join(ast.And(), [*self.path, condition])
        parts = whole.values if isinstance(whole, ast.BoolOp) and isinstance(whole.op, ast.And) else [whole]
        if any(_is_unknown(part) or _is(part, False) for part in parts) or len(ast.unparse(whole)) > _LONGEST:
            return
        guard = RaiseGuard(whole, message, self.stack[-1] if self.stack else "")
        if all(guard.text != known.text for known in self.guards):
            self.guards.append(guard)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if len(ast.unparse(value)) > _LONGEST:
            value = _NOTHING
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Attribute(value=owner, attr=attr):
                self.names[f"{self._owner(owner)}.{attr}"] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._assign(part, _NOTHING)
            case ast.Subscript(value=ast.Attribute() | ast.Name() as owner):
                self._assign(owner, _NOTHING)

    def _owner(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name) and node.id == self.subject:
            return self.subject
        return ast.unparse(self._follow(node))

    def _forget(self, statement: ast.stmt) -> None:
        """Take everything that a statement assigns for unknown."""
        for node in ast.walk(statement):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)) else ():
                if isinstance(target, ast.expr):
                    self._assign(target, _NOTHING)
            if isinstance(node, ast.Call) and self._passes_subject(node):
                self._forget_all()

    def _forget_all(self) -> None:
        """Take every field for unknown: the object was given to code that is not walked."""
        self.names = dict.fromkeys([*self.names, f"{self.subject}.*"], _NOTHING)

    def _passes_subject(self, call: ast.Call) -> bool:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        return any(isinstance(each, ast.Name) and each.id == self.subject for each in given)

    def _call_all(self, node: ast.expr) -> None:
        """Walk into the calls of an expression that may change the object."""
        for call in [each for each in ast.walk(node) if isinstance(each, ast.Call)]:
            match call.func:
                case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == self.subject and self.node:
                    function = self.module.find_function(name, of=self.node.name)
                    if function is not None:
                        self.run(function, self._bind(function, call, skip=1))
                case ast.Name(id=name) if name in _HARMLESS:
                    pass
                case ast.Name(id=name) if self._passes_subject(call):
                    self._call_function(name, call)
                case _ if self._passes_subject(call):
                    self._forget_all()
                case ast.Name(id=name) if function := self.module.find_function(name):
                    self.run(function, self._bind(function, call, skip=0))
                case _:
                    self._give_away(call)

    def _give_away(self, call: ast.Call) -> None:
        """Take for unknown what is inside of a config that other code is given, or whose own method is called."""
        owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        if ast.unparse(call.func).rpartition(".")[2] in self.configs | _COPIES | _METHODS or _logs(call.func):
            return
        for each in (*owner, *call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(each, (ast.Name, ast.Attribute)):
                text = ast.unparse(self._follow(each))
                if text.endswith("_config") or text in self.configs:
                    inside = {name for name in self.names if name.startswith(f"{text}.")}
                    self.settled |= {name: self.names.pop(name) for name in sorted(inside)}
                    self.names[f"{text}.*"] = _NOTHING

    def _call_function(self, name: str, call: ast.Call) -> None:
        found = self.module.tree.resolve(self.module, name)
        function = found[0].find_function(name.rpartition(".")[2]) if found else None
        if found is None or function is None or call.keywords or not function.args.args:
            self._forget_all()
            return
        outer, self.module = self.module, found[0].inside(function)
        subject, self.subject = self.subject, function.args.args[0].arg
        renamed = {self._rename(key, subject, self.subject): value for key, value in self.names.items()}
        names, self.names = self.names, renamed
        self.run(function)
        self.module, self.subject = outer, subject
        self.names = names

    @staticmethod
    def _rename(key: str, old: str, new: str) -> str:
        return new + key.removeprefix(old) if key.startswith(f"{old}.") else key

    def _bind(self, function: ast.FunctionDef, call: ast.Call, *, skip: int) -> Names:
        parameters = [each.arg for each in function.args.args][skip:]
        given = {name: self._follow(value) for name, value in zip(parameters, call.args, strict=False)}
        return given | {keyword.arg: self._follow(keyword.value) for keyword in call.keywords if keyword.arg}

    def _follow(self, node: ast.expr) -> ast.expr:  # noqa: C901, PLR0912  (one branch a kind of expression)
        """Return an expression with everything in it traced back to the object's fields."""
        match node:
            case ast.Constant():
                return node
            case ast.Name(id=name):
                return self.names[name] if name in self.names else self._constant(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.BoolOp(op=op, values=values):
                return _join(op, [self._follow(value) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _negate(self._follow(operand))
            case ast.UnaryOp(op=op, operand=operand):
                return _known(ast.UnaryOp(op, self._follow(operand)))
            case ast.BinOp(left=left, op=op, right=right):
                return _known(ast.BinOp(self._follow(left), op, self._follow(right)))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return _compare(ast.Compare(self._follow(left), ops, [self._follow(other) for other in others]))
            case ast.NamedExpr(target=target, value=value):
                found = self._follow(value)
                self._assign(target, found)
                return found
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(test, body, orelse)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return _known(ast.List([self._follow(part) for part in parts], ast.Load()))
            case ast.Call():
                return self._call(node)
            case ast.Subscript(slice=ast.Call(func=ast.Attribute(value=name, attr="upper"))) if self._is_enum(
                node.value
            ):
                return self._follow(name)  # the member of that name in any case, as the field takes it
            case ast.Subscript(value=value, slice=ast.Constant() as index):
                return _known(ast.Subscript(self._follow(value), index, ast.Load()))
            case ast.GeneratorExp(elt=elt, generators=[ast.comprehension(target=ast.Name(id=name)) as each]):
                return self._each(elt, name, each)
            case ast.ListComp(
                elt=elt, generators=[ast.comprehension(iter=ast.List(elts=items) | ast.Tuple(elts=items)) as each]
            ):
                return self._listed(elt, each, items)
        return _NOTHING

    def _choice(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> ast.expr:
        condition = self._follow(test)
        chosen = []
        for held, part in ((condition, body), (_negate(condition), orelse)):
            self.path.append(held)
            chosen.append(self._follow(part))
            self.path.pop()
        if ast.dump(chosen[0]) == ast.dump(chosen[1]):
            return chosen[0]
        return _NOTHING if _is_unknown(condition) else ast.IfExp(condition, *chosen)

    def _each(self, elt: ast.expr, name: str, each: ast.comprehension) -> ast.expr:
        items = self._follow(each.iter)
        before = self.names
        self.names = {**before, name: ast.Name("item")}
        body = _join(ast.And(), [*(self._follow(test) for test in each.ifs), self._follow(elt)])
        self.names = before
        if _has_unknown(body) or _is_unknown(items):
            return _NOTHING
        return ast.GeneratorExp(body, [ast.comprehension(ast.Name("item"), items, [], 0)])

    def _listed(self, elt: ast.expr, each: ast.comprehension, items: Sequence[ast.expr]) -> ast.expr:
        """Return a list that is made from one whose items are written out: the sum of what each of them adds."""
        before, added = self.names, []
        for item in items:
            self.names = dict(before)
            self._bind_target(each.target, item)
            kept = _join(ast.And(), [self._follow(test) for test in each.ifs])
            some: ast.expr = _known(ast.List([self._follow(elt)], ast.Load()))
            added.append(_NOTHING if _has_unknown(kept) else _known(ast.IfExp(kept, some, ast.List([], ast.Load()))))
        self.names = before
        return reduce(lambda left, right: _known(ast.BinOp(left, ast.Add(), right)), added)

    def _bind_target(self, target: ast.expr, item: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(item, ast.Tuple):
            for name, part in zip(target.elts, item.elts, strict=True):
                self._bind_target(name, part)
        elif isinstance(target, ast.Name):
            self.names[target.id] = self._follow(item)

    def _is_enum(self, node: ast.expr) -> bool:
        found = self.module.tree.resolve(self.module, ast.unparse(node))
        return isinstance(found[1], ast.ClassDef) and "Enum" in ast.unparse(found[1].bases[0]) if found else False

    def _is_validator(self, func: ast.expr) -> bool:
        """Say whether a function is a config class's own validator, called by hand."""
        owner, _, name = ast.unparse(func).rpartition(".")
        return owner in self.configs and name.startswith("validate")

    def _constant(self, node: ast.expr) -> ast.expr:
        value = evaluate(self.module, node)
        if value is UNKNOWN or isinstance(value, dict):
            return _NOTHING
        return ast.parse(repr(value), mode="eval").body

    def _attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == self.subject:
            return self._field(node.attr)
        owner = self._follow(node.value)
        if _is_unknown(owner):
            is_variable = isinstance(node.value, ast.Name) and node.value.id == _ENVIRONMENT
            return node if is_variable else self._constant(node)
        found = ast.Attribute(owner, node.attr, ast.Load())
        if f"{ast.unparse(owner)}.*" in self.names:
            return self.names.get(ast.unparse(found), _NOTHING)
        return self.names.get(ast.unparse(found), _known(found))

    def _field(self, name: str) -> ast.expr:
        key = f"{self.subject}.{name}"
        if key in self.names:
            return self.names[key]
        if f"{self.subject}.*" in self.names:
            return _NOTHING
        if name in self.fields:
            return ast.Name(name)
        return self._property(name)

    def _property(self, name: str) -> ast.expr:
        """Return what a property computes, if it is one expression."""
        function = self.module.find_function(name, of=self.node.name) if self.node else None
        if (
            function is None
            or name in self.stack
            or [ast.unparse(each) for each in function.decorator_list] != ["property"]
        ):
            return _NOTHING
        body = [
            each for each in function.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        ]
        if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return _NOTHING
        self.stack.append(name)
        value = self._follow(body[0].value)
        self.stack.pop()
        return value

    def _call(self, node: ast.Call) -> ast.expr:
        text = ast.unparse(node.func)
        if text.rpartition(".")[2] == "ray_is_available":
            return ast.Constant(False)  # a server that a command starts is in no placement group
        if text.startswith(f"{_PLATFORM}.") and not node.args:
            return node
        if text in _COPIES or (self._is_validator(node.func) and len(node.args) == 1):
            return self._follow(node.args[0])
        if text in ("getattr", "hasattr") and self._passes_subject(node) and isinstance(node.args[1], ast.Constant):
            value = self._field(str(node.args[1].value))
            return value if text == "getattr" or _is_unknown(value) else ast.Constant(True)
        if text.rpartition(".")[2] in self.configs:
            return self._make(text, node)
        if text == "isinstance":
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            if ast.unparse(node.args[1]) == "type":
                return ast.Constant(False)  # no text stands for a class
            if not all(isinstance(kind, ast.Name) and kind.id in _TYPES for kind in kinds):
                return _NOTHING
            return _known(ast.Call(node.func, [self._follow(node.args[0]), node.args[1]], []))
        if text in _BUILTINS and not node.keywords:
            return _known(ast.Call(node.func, [self._follow(each) for each in node.args], []))
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            owner = self._follow(node.func.value)
            arguments = [self._follow(each) for each in node.args]
            return _known(ast.Call(ast.Attribute(owner, node.func.attr, ast.Load()), arguments, []))
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._follow(each)
        return self._constant(node)

    def _make(self, name: str, node: ast.Call) -> ast.expr:
        arguments = {each.arg or "**": self._follow(each.value) for each in node.keywords}
        if not node.args and ("**" not in arguments or len(arguments) == 1):
            self.made.append(ConfigCall(name, arguments, _join(ast.And(), list(self.path))))
        return ast.Name(name)


def _logs(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and ast.unparse(func.value) in ("logger", "warnings")


def write(node: ast.expr) -> str:
    """Return an expression as text. `ast.unparse` loses parentheses if a node occurs in two places."""
    return ast.unparse(_without_sharing(node))


def _without_sharing(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_sharing(each) for each in node]
    if not isinstance(node, ast.AST):
        return node
    return type(node)(**{name: _without_sharing(value) for name, value in ast.iter_fields(node)})


def _message(raised: ast.expr | None) -> str:
    match raised:
        case ast.Call(args=[first, *_]):
            return _text(first) or ast.unparse(raised.func)
        case ast.Call(func=func):
            return ast.unparse(func)
    return "" if raised is None else ast.unparse(raised)


def _text(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value).removeprefix("self.") + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.Tuple(elts=[first, *_]):
            return _text(first)
    return ""


def _loaded(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


def _is_unknown(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "_"


def _has_unknown(node: ast.expr) -> bool:
    return any(isinstance(part, ast.expr) and _is_unknown(part) for part in ast.walk(node))


def _is(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _known(node: ast.expr) -> ast.expr:
    """Return an expression that cannot be decided unless every part of it can."""
    return _NOTHING if any(_is_unknown(part) for part in _parts(node)) else node


def _compare(node: ast.Compare) -> ast.expr:
    """Return a comparison, or its answer where it compares constants."""
    left, right = node.left, node.comparators[0]
    if isinstance(left, ast.Constant) and len(node.ops) == 1 and not _has_names(right):
        value, other = left.value, ast.literal_eval(right)
        match node.ops[0]:
            case ast.Eq():
                return ast.Constant(value == other)
            case ast.NotEq():
                return ast.Constant(value != other)
            case ast.In():
                return ast.Constant(value in other)
            case ast.NotIn():
                return ast.Constant(value not in other)
    return _known(node)


def _has_names(node: ast.expr) -> bool:
    return any(not isinstance(part, (ast.Constant, ast.List, ast.Load)) for part in ast.walk(node))


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    return (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))


def _negate(node: ast.expr) -> ast.expr:
    match node:
        case ast.Constant(value=bool() as value):
            return ast.Constant(not value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Compare(left=left, ops=[op], comparators=others) if type(op) in _OPPOSITES:
            return ast.Compare(left, [_OPPOSITES[type(op)]()], others)
    return node if _is_unknown(node) else ast.UnaryOp(ast.Not(), node)


_OPPOSITES: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def _join(op: ast.boolop, parts: Sequence[ast.expr]) -> ast.expr:
    """Return `a and b` or `a or b`, without parts that change nothing and without repeats."""
    neutral = isinstance(op, ast.And)
    found: dict[str, ast.expr] = {}
    for part in parts:
        inner = part.values if isinstance(part, ast.BoolOp) and type(part.op) is type(op) else [part]
        for each in inner:
            if _is(each, not neutral):
                return ast.Constant(not neutral)
            if not _is(each, neutral):
                found.setdefault(ast.dump(each), each)
    kept = list(found.values())
    if len(kept) > 1:
        return ast.BoolOp(op, kept)
    return kept[0] if kept else ast.Constant(neutral)


def _implied(unless: ast.expr, path: Sequence[ast.expr]) -> list[ast.expr]:
    """Return what holds after a branch that may have returned: its own condition, or that it was not taken."""
    return [_join(ast.Or(), [unless, _join(ast.And(), path)])] if path else []


def _returns(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Return) for statement in body for node in ast.walk(statement))


def _merge(test: ast.expr, first: Names, second: Names) -> Names:
    merged: Names = {}
    for name in first.keys() | second.keys():
        a, b = first.get(name), second.get(name)
        if a is None or b is None:
            merged[name] = _after(name, test, a, b)
        else:
            merged[name] = a if ast.dump(a) == ast.dump(b) else _choose(test, a, b)
    return merged


def _after(name: str, test: ast.expr, a: ast.expr | None, b: ast.expr | None) -> ast.expr:
    """Return what a name stands for that only one branch has bound. A field keeps its own value in the other."""
    head, _, attr = name.partition(".")
    if name.endswith("*") or not attr or "." in attr:
        return _NOTHING
    own: ast.expr = ast.Name(attr) if head in ("self", "args") else ast.Attribute(ast.Name(head), attr, ast.Load())
    return _choose(test, a or own, b or own)


def _choose(test: ast.expr, a: ast.expr, b: ast.expr) -> ast.expr:
    chosen = _NOTHING if _is_unknown(test) else ast.IfExp(test, a, b)
    return chosen if len(ast.unparse(chosen)) <= _LONGEST else _NOTHING
