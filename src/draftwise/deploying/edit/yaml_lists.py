"""Changes of the lists of arguments in YAML, found by their places in the text, so that all else stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from draftwise.deploying.edit.changes import Change, Splice, find_flags, start_lines

__all__ = ["find_list_changes"]

_KEYS = ("args", "extraArgs", "command")
"""Where flags stand most often; lists under other keys are tried last."""


@dataclass(frozen=True, slots=True)
class _Item:
    text: str
    start: int
    end: int
    quote: str


@dataclass(frozen=True, slots=True)
class _List:
    key: str
    is_flow: bool
    items: tuple[_Item, ...]

    @property
    def rank(self) -> tuple[bool, int]:
        """Lists that speculate come first, then those under the usual keys."""
        speculates = any(True for _ in find_flags([item.text for item in self.items]))
        return not speculates, _KEYS.index(self.key) if self.key in _KEYS else len(_KEYS)


def find_list_changes(text: str, words: Sequence[str]) -> Iterator[Change]:
    """Yield changes that say these words in the place of what a list says of speculation, the likeliest first.

    Args:
        text: YAML, which has been read before.
        words: none to take speculation out.
    """
    starts = start_lines(text)
    lists = [found for node in yaml.compose_all(text, Loader=yaml.SafeLoader) for found in _find(node, "", starts)]
    for each in sorted(lists, key=lambda found: found.rank):
        yield _change_flow(each, words) if each.is_flow else _change_block(text, starts, each, words)


def _find(node: yaml.Node | None, key: str, starts: Sequence[int]) -> Iterator[_List]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _find(value, str(name.value), starts)
    elif isinstance(node, yaml.SequenceNode):
        if node.value and all(isinstance(item, yaml.ScalarNode) for item in node.value):
            items = tuple(_make_item(item, starts) for item in node.value)
            yield _List(key, bool(node.flow_style), items)
        for item in node.value:
            yield from _find(item, "", starts)


def _make_item(node: yaml.Node, starts: Sequence[int]) -> _Item:
    begin, end = node.start_mark, node.end_mark
    return _Item(str(node.value), starts[begin.line] + begin.column, starts[end.line] + end.column, node.style or "")


def _quote(word: str, quote: str) -> str:
    """Return a word as the items beside it are written."""
    return json.dumps(word, ensure_ascii=False) if quote == '"' else "'" + word.replace("'", "''") + "'"


def _change_flow(each: _List, words: Sequence[str]) -> Change:
    """Return the change of a list on one line, such as `[a, b]`."""
    items, gone = each.items, list(find_flags([item.text for item in each.items]))
    quoted = [_quote(word, items[-1].quote) for word in words]
    kept = [items[index] for index in range(len(items)) if index not in gone]
    if not kept:
        return (Splice(items[0].start, items[-1].end, ", ".join(quoted)),)
    cuts = [
        Splice(items[index - 1].end, items[index].end) if index else Splice(items[0].start, items[1].start)
        for index in gone
    ]
    added = "".join(f", {word}" for word in quoted)
    place = items[gone[0] - 1].end if gone and gone[0] else kept[-1].end
    at_cut = next((cut for cut in cuts if cut.start == place), None)
    if at_cut is None:
        return (*cuts, Splice(place, place, added)) if added else tuple(cuts)
    return (*(cut for cut in cuts if cut is not at_cut), Splice(at_cut.start, at_cut.end, added))


def _change_block(text: str, starts: Sequence[int], each: _List, words: Sequence[str]) -> Change:
    """Return the change of a list with a line for each item."""
    items, gone = each.items, list(find_flags([item.text for item in each.items]))
    model = items[gone[0]] if gone else items[-1]
    line = _find_line(starts, model.start)
    dash = text.rfind("-", starts[line], model.start)
    lead = text[starts[line] : dash + 1] + " "
    ending = "\r\n" if "\r\n" in text else "\n"
    added = "".join(f"{lead}{_quote(word, model.quote)}{ending}" for word in words)
    if not gone:
        place = starts[_find_line(starts, model.end - 1) + 1]
        if place == len(text) and not text.endswith(("\n", "\r")):
            added = ending + added.removesuffix(ending)
        return (Splice(place, place, added),)
    spans = [(starts[_find_line(starts, item.start)], starts[_find_line(starts, item.end - 1) + 1])
             for item in (items[index] for index in gone)]  # fmt: skip
    return tuple(Splice(start, end, added if number == 0 else "") for number, (start, end) in enumerate(spans))


def _find_line(starts: Sequence[int], place: int) -> int:
    return max(number for number, start in enumerate(starts[:-1]) if start <= place)
