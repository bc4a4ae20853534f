"""YAML documents as plain values with their lines, read with limits on size, depth and aliases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from draftwise.core import Finding, InvalidSetup, cause_of
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.rules import get_rule

Path = tuple[str | int, ...]
"""Keys and indices from the root of a document, e.g. `("services", "vllm", "command", 3)`."""

_MAX_CHARS = 1_000_000
_MAX_DEPTH = 64
_MAX_NODES = 100_000
_EXPLAINED = 20_000
"""Characters of a text that the slow parser reads again."""
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEMPLATE = re.compile(r"\{\{(?:(?!\{\{).)*?\}\}", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """One document of a YAML file."""

    value: Any
    lines: Mapping[Path, int]
    texts: Mapping[Path, str]
    """Scalars that are not strings, as written: `yes` is true in YAML 1.1, and stays `yes` here."""
    findings: tuple[Finding, ...] = ()

    def line(self, path: Path) -> int:
        """Return the line of a value, counted from 1, or of the nearest value around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def get_text(path: Path) -> str:
    """Return a path in the usual notation: `services.vllm.command[3]`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def cut_out(document: YamlDocument, path: Path) -> YamlDocument:
    """Return the value at a path as a separate document; its paths start there, its lines stay."""
    value = document.value
    for key in path:
        value = value[key]
    size = len(path)
    lines = {each[size:]: line for each, line in document.lines.items() if each[:size] == path}
    texts = {each[size:]: text for each, text in document.texts.items() if each[:size] == path}
    return YamlDocument(value=value, lines=lines, texts=texts)


def read_yaml(text: str, *, name: str = "", line: int = 1) -> tuple[YamlDocument, ...]:
    """Return the documents of a YAML text.

    Raises:
        InvalidSetup: the text is not YAML, is an unrendered template, or exceeds a limit.
    """
    if len(text) > _MAX_CHARS:
        raise InvalidSetup.because("too-long", f"The text is longer than {_MAX_CHARS:,} characters.", where=name)
    try:
        _check_depth(text, name)
        return tuple(_move(document, line - 1) for document in _read(text, name))
    except InvalidSetup:
        raise
    except yaml.YAMLError as error:
        raise _explain(error, text, name) from None
    except (ValueError, RecursionError) as error:
        raise InvalidSetup.because(
            "not-yaml", f"The text cannot be read as YAML ({cause_of(error)}).", where=name
        ) from None


def _move(document: YamlDocument, lines: int) -> YamlDocument:
    """Return a document that begins this many lines further down."""
    if not lines:
        return document
    return replace(document, lines={path: line + lines for path, line in document.lines.items()})


def _check_depth(text: str, name: str) -> None:
    """Refuse what nests deeper than any manifest: PyYAML builds values by recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            line = event.start_mark.line + 1
            raise refusal("too-deep", max_depth=_MAX_DEPTH, at=_at(name, line))


def _read(text: str, name: str) -> Iterator[YamlDocument]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            builder = _Builder(loader, name)
            value = builder.build(loader.get_node(), ())
            yield YamlDocument(value=value, lines=builder.lines, texts=builder.texts, findings=tuple(builder.findings))
    finally:
        loader.dispose()


def _explain(error: yaml.YAMLError, text: str, name: str) -> InvalidSetup:
    if len(text) < _EXPLAINED:  # in the words of the parser that is there on every platform
        try:
            list(yaml.parse(text, Loader=yaml.SafeLoader))
        except yaml.YAMLError as same:
            error = same
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else 0
    if _TEMPLATE.search(text):
        return refusal("template", where=_at(name, line))
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return InvalidSetup.because("not-yaml", f"The text is not YAML ({problem}).", where=_at(name, line))


def _find_left(node: yaml.Node) -> str | None:
    """Return a value that is filled in later: {{ NAME }}, which YAML takes for a mapping in another one."""
    for _ in "{{":
        if not (isinstance(node, yaml.MappingNode) and node.flow_style and len(node.value) == 1):
            return None
        node, value = node.value[0]
        if value.value != "":
            return None
    is_name = isinstance(node, yaml.ScalarNode) and _NAME.fullmatch(node.value)
    return f"{{{{ {node.value} }}}}" if is_name else None


def _at(name: str, line: int) -> str:
    return f"{name}:{line}" if name else f"line {line}"


@dataclass(slots=True)
class _Builder:
    """Makes plain values of one document's nodes."""

    loader: Any
    name: str
    lines: dict[Path, int] = field(default_factory=dict)
    texts: dict[Path, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    nodes: int = 0
    open: set[int] = field(default_factory=set)
    """Nodes that are being built: an alias to one of them would never end."""

    def build(self, node: yaml.Node, path: Path) -> Any:
        self.nodes += 1
        line = node.start_mark.line + 1
        if self.nodes > _MAX_NODES or id(node) in self.open:
            raise refusal("too-many-aliases", max_nodes=_MAX_NODES, at=_at(self.name, line))
        self.lines[path] = line
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if (left := _find_left(node)) is not None:
            return left
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self.open.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        try:
            value = self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, TypeError, IndexError, KeyError, OverflowError):
            return str(node.value)
        if value is None or isinstance(value, (bool, int, float)):
            self.texts[path] = str(node.value)
            return value
        return str(node.value)

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        line = node.start_mark.line + 1
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = self._merge(value_node, path) | merged
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise refusal("template", where=_at(self.name, key_node.start_mark.line + 1))
            key = str(key_node.value)
            if key in own:
                self._report_duplicate(key, key_node.start_mark.line + 1, path)
            own[key] = self.build(value_node, (*path, key))
            self.lines[(*path, key)] = key_node.start_mark.line + 1
        self.lines[path] = line
        return merged | own

    def _merge(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        """Return what `<<` brings in. Of several mappings the first wins."""
        given = self.build(node, path)
        mappings = given if isinstance(given, list) else [given]
        merged: dict[str, Any] = {}
        for mapping in mappings:
            if isinstance(mapping, dict):
                merged = mapping | merged
        return merged

    def _report_duplicate(self, key: str, line: int, path: Path) -> None:
        self.findings.append(
            get_rule("duplicate-key").ruling(
                where=f"{_at(self.name, line)} {get_text((*path, key))}",
                message=f"{get_text((*path, key))} appears twice; only the last one counts.",
            )
        )
