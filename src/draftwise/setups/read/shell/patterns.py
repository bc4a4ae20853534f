"""Patterns, parts of texts and arithmetic as shells compute them, for known texts."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_SPECIAL = re.compile(r"([*?\[\]\\])")
_MOST_WORK = 5_000
_CLASS = re.compile(r"\[([!^]?)(\]?[^\]]*)\]")


def escape(text: str) -> str:
    """Return a pattern that matches only the text itself."""
    return _SPECIAL.sub(r"\\\1", text)


def _to_regex(pattern: str) -> str:
    parts: list[str] = []
    pos = 0
    while pos < len(pattern):
        char = pattern[pos]
        if char == "\\" and pos + 1 < len(pattern):
            parts.append(re.escape(pattern[pos + 1]))
            pos += 2
            continue
        found = _CLASS.match(pattern, pos) if char == "[" else None
        if char == "*":
            parts.append(".*")
        elif char == "?":
            parts.append(".")
        elif found:
            inner = found[2].replace("\\", "\\\\").replace("[:digit:]", "0-9").replace("[:space:]", r"\s")
            parts.append(f"[{'^' if found[1] else ''}{inner}]")
            pos = found.end()
            continue
        else:
            parts.append(re.escape(char))
        pos += 1
    return "".join(parts)


def is_long(text: str, pattern: str) -> bool:
    """Return whether matching a pattern in a text may take too long."""
    return len(text) * len(pattern) > _MOST_WORK


def matches(text: str, pattern: str) -> bool:
    """Return whether a shell's pattern matches a whole text."""
    try:
        return re.fullmatch(_to_regex(pattern), text, re.DOTALL) is not None
    except re.error:
        return text == pattern


def matches_regex(text: str, pattern: str) -> bool | None:
    """Return whether an extended regular expression matches somewhere; None if Python's syntax may differ."""
    if is_long(text, pattern) or "[[:" in pattern or re.search(r"\\[A-Za-z0-9]|\(\?", pattern):
        return None
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return None


def apply(name: str, text: str, operand: str) -> str | None:
    """Return a text after an operator such as `${NAME%PATTERN}`; None for an unknown operator."""
    if is_long(text, operand):
        return None
    match name:
        case "#" | "##":
            ends = range(len(text) + 1) if name == "#" else range(len(text), -1, -1)
            regex = _to_regex(operand)
            end = next((at for at in ends if re.fullmatch(regex, text[:at], re.DOTALL)), None)
            return text if end is None else text[end:]
        case "%" | "%%":
            starts = range(len(text), -1, -1) if name == "%" else range(len(text) + 1)
            regex = _to_regex(operand)
            begin = next((at for at in starts if re.fullmatch(regex, text[at:], re.DOTALL)), None)
            return text if begin is None else text[:begin]
        case "/" | "//" | "/#" | "/%":
            return _substitute(name, text, operand)
        case "^" | "^^" | "," | ",," if not operand:
            change = str.upper if name[0] == "^" else str.lower
            return change(text) if len(name) == 2 else change(text[:1]) + text[1:]
        case ":":
            return _cut(text, operand)
        case "@Q":
            return None
    return None


def _substitute(name: str, text: str, operand: str) -> str | None:
    found = re.fullmatch(r"((?:[^\\/]|\\.)*)(?:/(.*))?", operand, re.DOTALL)
    if found is None or not found[1] or "&" in (found[2] or ""):
        return None
    regex = _to_regex(found[1])
    regex = f"^(?:{regex})" if name == "/#" else f"(?:{regex})$" if name == "/%" else regex
    new = (found[2] or "").replace("\\/", "/")
    if "\\" in new:
        return None
    return re.sub(regex, lambda _: new, text, count=0 if name == "//" else 1, flags=re.DOTALL)


def _cut(text: str, operand: str) -> str | None:
    numbers = [part.strip() for part in operand.split(":")]
    if len(numbers) > 2 or not all(re.fullmatch(r"-?\d{1,6}|", part) for part in numbers):
        return None
    begin = int(numbers[0] or 0)
    begin = max(len(text) + begin, 0) if begin < 0 else begin
    if len(numbers) == 1:
        return text[begin:]
    length = int(numbers[1] or 0)
    return text[begin : begin + length] if length >= 0 else text[begin : len(text) + length]


_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right) if abs(left) < 2**52 else (left // right),
    ast.Mod: lambda left, right: left - right * int(left / right),
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MOST_DIGITS = 15


def compute(text: str) -> int | None:
    """Return the value of an arithmetic expression of numbers; None for other texts, or with an assignment."""
    words = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).strip()
    if not words:
        return 0
    if len(words) > 500 or re.search(r"\b0\d|[A-Za-z_\"'?]", re.sub(r"\b(?:and|or|not)\b", "", words)):
        return None
    try:
        return _evaluate(ast.parse(words, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr) -> int | None:
    """Return the value of an expression."""
    value: int | None = None
    match node:
        case ast.Constant(int() as value):
            pass
        case ast.UnaryOp(kind, inner):
            held = _get(inner)
            value = -held if isinstance(kind, ast.USub) else int(not held) if isinstance(kind, ast.Not) else held
        case ast.BinOp(left, operation, right) if type(operation) in _BINARY:
            value = _BINARY[type(operation)](_get(left), _get(right))
        case ast.BoolOp(joint, values):
            value = int((all if isinstance(joint, ast.And) else any)([_get(each) for each in values]))
        case ast.Compare(left, [compared], [right]) if type(compared) in _COMPARED:
            value = int(_COMPARED[type(compared)](_get(left), _get(right)))
    return value if value is not None and len(str(value)) <= _MOST_DIGITS else None


def _get(node: ast.expr) -> int:
    value = _evaluate(node)
    if value is None:
        raise ValueError
    return value
