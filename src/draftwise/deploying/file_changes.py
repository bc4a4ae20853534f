"""Changes of a file that may give its server a speculative config or remove it, the likeliest first."""

from __future__ import annotations

import ast
import json
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, islice, pairwise, product
from typing import Any

import yaml

from draftwise.core import SpecConfig
from draftwise.setups.read import SetupReading, SourceText
from draftwise.setups.read.place import Place

_SPEC_FLAG = re.compile(r"'?--?(?:speculative[-_.]|spec[-_]|sc(?:\.|=|$)|num[-_]speculative[-_]tokens)")
"""How flags begin that make a server speculate, those of earlier releases among them."""
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader that reads files everywhere; the one in Python refuses tabs that it takes."""
_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class _Splice:
    """What is put in the place of a stretch."""

    start: int
    end: int
    text: str = ""


Change = tuple[_Splice, ...]
"""Stretches of a text that are replaced together; they do not overlap."""


def apply_change(text: str, change: Change) -> str:
    """Return a text with a change made."""
    for splice in sorted(change, key=lambda each: each.start, reverse=True):
        text = text[: splice.start] + splice.text + text[splice.end :]
    return text


def start_lines(text: str) -> list[int]:
    """Return where each line begins, and behind them where the text ends."""
    starts = [0, *(match.end() for match in _BREAK.finditer(text))]
    return [*starts, len(text)]


def find_flags(words: Sequence[str]) -> Iterator[int]:
    """Yield the positions of flags that make a server speculate, with those of the values that follow them."""
    takes_value = False
    for index, word in enumerate(words):
        if _SPEC_FLAG.match(word):
            yield index
            takes_value = "=" not in word
        elif takes_value and not word.startswith("--"):
            yield index
            takes_value = False
        else:
            takes_value = False


def list_spellings(spec: SpecConfig | None) -> Iterator[list[str]]:
    """Yield the words that say a config, the best first: as JSON, then key by key, for what a shell reads again."""
    if spec is None:
        yield []
        return
    config = spec.to_dict()
    yield [f"--speculative-config={json.dumps(config, separators=(',', ':'))}"]
    if all(isinstance(value, str | int | float) for value in config.values()):
        texts = {key: json.dumps(value) if isinstance(value, bool) else str(value) for key, value in config.items()}
        yield [f"--speculative-config.{key}={text}" for key, text in texts.items()]


_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|\\["'](?:[^\\]|\\(?!["'](?:\s|$)).)*?\\["']|\$\([^\s()]*\)|[^\s"'\\)])+"""
_GAP = r"(?:[ \t]*\\\r?\n[ \t]*|[ \t]+)"
_FLAG = re.compile(
    rf"""(?P<gap>{_GAP}|^|(?<=\())["']?(?:--speculative[-_.][\w.-]+|-sc(?=[=\s])|--num[-_]speculative[-_]tokens)"""
    rf"""(?:=|["']?{_GAP}(?!-)){_VALUE}""",
    re.MULTILINE,
)
_QUOTED_FLAG = re.compile(
    rf"""(?P<gap>{_GAP}|(?<=\())(?:"--speculative[\w.-]*=(?:[^"\\]|\\.)*"|'--speculative[\w.-]*=[^']*')"""
)
_CONFIG_KEY = "speculative_config"
_LIKELY = re.compile(r"(?i:vllm)|--\w|ExecStart")
_CONTINUED = re.compile(r"[ \t]*\\\r?$")
_NEW_COMMAND = re.compile(r"(?<!\\)(?<!\\\r)\n")
_BEHIND_COMMAND = re.compile(r"[ \t]*(?:;|&|\||\d?>|#|\)|`)")
"""What may follow a command on its line."""
_SERVER = re.compile(r"\bserve\b|api_server|--model")


def _find_command_changes(text: str, words: Sequence[str], own: Sequence[int] = ()) -> Iterator[Change]:
    """Yield changes that say these words in the place of what a command says of speculation, the likeliest first.

    `own` are lines that count as likely, whatever they say.
    """
    found = [*_find_matches(_QUOTED_FLAG, text)] or [*_find_matches(_FLAG, text)]
    # Each command's flags alone are tried as well: a script may start several servers.
    for group in dict.fromkeys((tuple(found), *_group_by_command(text, found))):
        for quoted in _list_quoted(words):
            added = [group[0]["gap"] + word for word in quoted] if group else []
            yield tuple(
                _Splice(match.start(), match.end(), "".join(added) if number == 0 else "")
                for number, match in enumerate(group)
            )
    if not words:
        return
    numbered = enumerate(re.finditer(r"^[^\n]*", text, re.MULTILINE), start=1)
    lines = [each for number, each in numbered if number in own or _LIKELY.search(each[0])]
    # Behind a line that goes on, the words take a line of their own and every other one stays as it is.
    for line in sorted(lines, key=lambda each: (_CONTINUED.search(each[0]) is None, -each.start())):
        for quoted in _list_quoted(words):
            yield from _append(line, quoted)


def _group_by_command(text: str, found: Sequence[re.Match[str]]) -> Iterator[tuple[re.Match[str], ...]]:
    """Yield the flags that stand on lines which continue each other."""
    for _, group in groupby(found, lambda match: len(_NEW_COMMAND.findall(text, 0, match.end("gap")))):
        yield tuple(group)


def _find_matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the flags of a text, without those of its comments."""
    for match in pattern.finditer(text):
        place = match.end("gap")
        if not text[text.rfind("\n", 0, place) + 1 : place].lstrip().startswith("#"):
            yield match


def _list_quoted(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words as shells and systemd read them, and as they stand inside quotes of YAML or a shell."""
    yield [f"'{word}'" for word in words]
    yield ["'" + word.replace("\\", "\\\\").replace('"', '\\"') + "'" for word in words]


def _append(line: re.Match[str], quoted: Sequence[str]) -> Iterator[Change]:
    """Yield the words as lines of their own behind a line that goes on, else at its end, perhaps before a quote."""
    text = line[0]
    continued = _CONTINUED.search(text)
    if continued is not None:
        indent = text[: len(text) - len(text.lstrip())] or "  "
        added = "".join(f"{indent}{word}{continued[0]}\n" for word in quoted)
        yield (_Splice(line.end() + 1, line.end() + 1, added),)
        return
    end = line.start() + len(text.rstrip())
    behind = sorted({line.start() + match.start() for match in _BEHIND_COMMAND.finditer(text)}, reverse=True)
    server = _SERVER.search(text)
    first = [place for place in behind if server is not None and place >= line.start() + server.end()][-1:]
    for place in (*first, end, end - 1, *behind[:8]):
        yield (_Splice(place, place, "".join(f" {word}" for word in quoted)),)


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


def _find_list_changes(text: str, words: Sequence[str]) -> Iterator[Change]:
    """Yield changes that say these words in the place of what a list says of speculation, the likeliest first."""
    starts = start_lines(text)
    lists = [found for node in yaml.compose_all(text, Loader=_Loader) for found in _find_lists(node, "", starts)]
    for each in sorted(lists, key=lambda found: found.rank):
        yield _change_flow(each, words) if each.is_flow else _change_block(text, starts, each, words)


def _find_lists(node: yaml.Node | None, key: str, starts: Sequence[int]) -> Iterator[_List]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _find_lists(value, str(name.value), starts)
    elif isinstance(node, yaml.SequenceNode):
        if node.value and all(isinstance(item, yaml.ScalarNode) for item in node.value):
            items = tuple(_make_item(item, starts) for item in node.value)
            yield _List(key, bool(node.flow_style), items)
        for item in node.value:
            yield from _find_lists(item, "", starts)


def _make_item(node: yaml.Node, starts: Sequence[int]) -> _Item:
    begin, end = node.start_mark, node.end_mark
    return _Item(str(node.value), starts[begin.line] + begin.column, starts[end.line] + end.column, node.style or "")


def _quote(word: str, quote: str) -> str:
    """Return a word as its neighbors are written."""
    return json.dumps(word, ensure_ascii=False) if quote == '"' else "'" + word.replace("'", "''") + "'"


def _change_flow(each: _List, words: Sequence[str]) -> Change:
    """Return the change of a list on one line, such as `[a, b]`."""
    items, gone = each.items, list(find_flags([item.text for item in each.items]))
    quoted = [_quote(word, items[-1].quote) for word in words]
    kept = [items[index] for index in range(len(items)) if index not in gone]
    if not kept:
        return (_Splice(items[0].start, items[-1].end, ", ".join(quoted)),)
    cuts = [
        _Splice(items[index - 1].end, items[index].end) if index else _Splice(items[0].start, items[1].start)
        for index in gone
    ]
    added = "".join(f", {word}" for word in quoted)
    place = items[gone[0] - 1].end if gone and gone[0] else kept[-1].end
    at_cut = next((cut for cut in cuts if cut.start == place), None)
    if at_cut is None:
        return (*cuts, _Splice(place, place, added)) if added else tuple(cuts)
    return (*(cut for cut in cuts if cut is not at_cut), _Splice(at_cut.start, at_cut.end, added))


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
        return (_Splice(place, place, added),)
    spans = [(starts[_find_line(starts, item.start)], starts[_find_line(starts, item.end - 1) + 1])
             for item in (items[index] for index in gone)]  # fmt: skip
    return tuple(_Splice(start, end, added if number == 0 else "") for number, (start, end) in enumerate(spans))


def _find_line(starts: Sequence[int], place: int) -> int:
    return bisect_right(starts, place, hi=len(starts) - 1) - 1


def place_of(reading: SetupReading) -> Place | None:
    """Return where a server's command stands in a document; None for any other text."""
    return None if reading.launch is None else reading.launch.place


def is_yaml(source: SourceText) -> bool:
    """Return whether a file is read as YAML, by its name."""
    return source.name.endswith((".yaml", ".yml", ".json"))


def propose(source: SourceText, spec: SpecConfig | None, reading: SetupReading) -> Iterator[Change]:
    """Yield changes that may give a server a config, the likeliest first; which one does is for the caller to find out.

    Args:
        source: the file.
        spec: the config; None to remove it.
        reading: the server.
    """
    lines = [] if reading.launch is None else [word.line for word in reading.launch.words if word.line]
    # Where not every way through a script was followed, only the command itself is on all of them.
    is_partial = reading.launch is not None and reading.launch.is_partial
    starts = start_lines(source.text)
    last = min(max(lines, default=0), len(starts) - 1)
    while lines and last < len(starts) - 1 and source.text[: starts[last]].rstrip("\r\n").endswith("\\"):
        last += 1  # in a systemd unit, all words of a command have its first line's number

    def is_apart(change: Change) -> bool:
        """Say whether a change adds words far from those of the server."""
        places = [each.start for each in change if is_partial or each.start == each.end] if lines else []
        return not all(starts[min(lines) - 1] <= place <= starts[last] for place in places)

    for words in list_spellings(spec):
        if source.name.endswith(".py"):
            yield from _find_python_changes(source.text, spec, words)
        if is_yaml(source):
            try:
                if spec is None:
                    yield from _find_first_entries(source.text)
                yield from _find_list_changes(source.text, words)
                yield from _find_list_changes(source.text, [f"'{word}'" for word in words])  # a shell reads it again
                yield from _find_alias_changes(source.text, words)
                yield from _find_scalar_changes(source.text, words)
                yield from _find_first_lists(source.text, words, place_of(reading))
                yield from _find_key_changes(source.text, spec)
            except yaml.YAMLError:
                pass  # what reads the file is less strict: it is changed as text
        else:
            yield from _find_array_changes(source.text, words)
        found = sorted(_find_command_changes(source.text, words, lines if is_partial else ()), key=is_apart)
        yield from (each for each in found if not is_partial or (lines and not is_apart(each)))


_ARRAY = re.compile(r'\[(?:"(?:[^"\\]|\\.)*"|[\s,\\])*\]')


def _find_array_changes(text: str, words: Sequence[str]) -> Iterator[Change]:
    """Yield changes of a Dockerfile's words in brackets, the last ones first."""
    for match in reversed(list(_ARRAY.finditer(text))):
        array = match[0].replace("\\\n", "  ")
        node = yaml.compose(array, Loader=_Loader)
        for each in _find_lists(node, "", start_lines(array)):
            for item in each.items:
                is_line = " " in item.text and _LIKELY.search(item.text)
                for change in _find_command_changes(item.text, words) if is_line else ():
                    shown = json.dumps(apply_change(item.text, change), ensure_ascii=False)
                    yield (_Splice(match.start() + item.start, match.start() + item.end, shown),)
            yield tuple(
                replace(splice, start=match.start() + splice.start, end=match.start() + splice.end)
                for splice in _change_flow(each, words)
            )


def _find_python_changes(text: str, spec: SpecConfig | None, said: Sequence[str]) -> Iterator[Change]:
    """Yield changes of the config among a call's keywords, a dictionary's keys, or the words of a list in Python."""
    words = ", ".join(map(json.dumps, said))
    lines = text.encode().splitlines(keepends=True)
    starts = [0, *accumulate(len(line.decode()) for line in lines)]

    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1][:column].decode())

    def begin(node: ast.expr) -> int:
        return at(node.lineno, node.col_offset)

    def end(node: ast.expr) -> int:
        return at(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def cut(first: int, last: int, shown: str = "") -> _Splice:
        """Return what takes entries away with their comma, or puts others in their place."""
        start = len(text[:first].rstrip())
        comma = re.compile(r"\s*,[ \t]*" if start == first else r"\s*,").match(text, last)
        start -= comma is None and text[start - 1] == ","
        stop = comma.end() if comma else last
        return _Splice(start, stop, shown and text[start:first] + shown + text[last:stop])

    def is_engine(node: ast.Call) -> bool:
        return ast.unparse(node.func).endswith(("LLM", "EngineArgs"))

    def is_apart(node: ast.AST) -> bool:
        """Say whether an expression is neither a call of an engine nor a list with words of a server."""
        if isinstance(node, ast.List):
            return not any(_LIKELY.search(str(getattr(each, "value", ""))) for each in node.elts)
        return not (isinstance(node, ast.Call) and is_engine(node))

    for node in sorted(ast.walk(ast.parse(text)), key=is_apart):
        named: list[tuple[str, int, ast.expr]] = []
        if isinstance(node, ast.List) and node.elts:
            gone = enumerate(find_flags([str(getattr(each, "value", "")) for each in node.elts]))
            runs = [[node.elts[index] for _, index in run] for _, run in groupby(gone, lambda row: row[1] - row[0])]
            cuts = [cut(begin(run[0]), end(run[-1]), "" if number else words) for number, run in enumerate(runs)]
            last = end(node.elts[-1])
            yield tuple(cuts) or (_Splice(last, last, f", {words}"),)
        if isinstance(node, ast.Call):
            named = [("", begin(each), each) for each in (node.args if is_engine(node) else ())]
            named += [(each.arg or "", at(each.lineno, each.col_offset), each.value) for each in node.keywords]
        elif isinstance(node, ast.Dict):
            keys = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
            named = [(str(getattr(key, "value", "")), begin(key), each) for key, each in keys]
        known = [each for each in named if each[0] == "speculative_config"]
        for _, start, value in known:
            own = None if spec is None else _Splice(begin(value), end(value), repr(spec.to_dict()))
            yield (own or cut(start, end(value)),)
        if named and not known and spec is not None:
            start, value = named[-1][1:]
            key = "speculative_config=" if isinstance(node, ast.Call) else '"speculative_config": '
            gap = text[text.rfind("\n", 0, start) : start]
            yield (_Splice(end(value), end(value), f",{gap if gap.isspace() else ' '}{key}{spec.to_dict()!r}"),)


def _find_first_entries(text: str) -> Iterator[Change]:
    """Yield removals of a key that the first switch-on added: one that holds the config alone."""
    starts = start_lines(text)
    for node in _walk(yaml.compose_all(text, Loader=_Loader)):
        for (key, value), (after, _) in pairwise(node.value) if isinstance(node, yaml.MappingNode) else ():
            lines = after.start_mark.line - key.start_mark.line
            if lines == (not node.flow_style) and getattr(value, "flow_style", False) and _holds_config_alone(value):
                yield (_Splice(_at(starts, key.start_mark), _at(starts, after.start_mark)),)


def _holds_config_alone(node: yaml.Node) -> bool:
    if isinstance(node, yaml.MappingNode):
        return all(key.value in ("name", _CONFIG_KEY) or _holds_config_alone(value) for key, value in node.value)
    if isinstance(node, yaml.SequenceNode):
        flags = list(find_flags([str(item.value) for item in node.value]))
        return bool(node.value) and (len(flags) == len(node.value) or all(map(_holds_config_alone, node.value)))
    return False


def _find_key_changes(text: str, spec: SpecConfig | None) -> Iterator[Change]:
    """Yield changes of the key that holds the config, in engine arguments that are keys: of Ray, of vLLM's --config."""
    starts, config = start_lines(text), None if spec is None else json.dumps(spec.to_dict())
    found_nodes = list(_walk(yaml.compose_all(text, Loader=_Loader)))
    nodes = [each for each in found_nodes if isinstance(each, yaml.MappingNode)]
    for node in (each for each in nodes if each.value):
        found = [(key, value) for key, value in node.value if str(key.value).replace("-", "_") == _CONFIG_KEY]
        for key, value in found:
            begin, end = _at(starts, value.start_mark), _at(starts, value.end_mark)
            if config is not None:
                yield from ((_Splice(begin, end, shown),) for shown in (config, f"'{config}'"))
            elif node.flow_style:
                place = node.value.index((key, value))
                following = [each.start_mark for each, _ in node.value[place + 1 : place + 2]]
                first = node.value[place - 1][1].end_mark if place else key.start_mark
                last_mark = value.end_mark if place or not following else following[0]
                yield (_Splice(_at(starts, first), _at(starts, last_mark), ""),)
            else:
                line, last = _find_line(starts, _at(starts, key.start_mark)), _find_line(starts, end - 1)
                yield (_Splice(starts[line], starts[last + 1], ""),)
        if config is not None and not found:
            # Older releases take only text in a file of --config, and Ray takes only a mapping.
            is_ray = any(key.value == "model_loading_config" for key, _ in node.value)
            of_ray = [f"engine_kwargs: {{speculative_config: {config}}}"] * is_ray
            for added in (*of_ray, f"speculative-config: '{config}'", f"speculative_config: {config}"):
                yield _insert_key(text, starts, node, added)
    for node in found_nodes:
        if isinstance(node, yaml.ScalarNode) and node.style == "|" and "llm_configs" in node.value:
            yield from _find_inner_changes(text, starts, node, spec)


def _find_inner_changes(
    text: str, starts: Sequence[int], node: yaml.ScalarNode, spec: SpecConfig | None
) -> Iterator[Change]:
    """Yield changes of YAML that stands in a block of text, as Ray's config in a RayService."""
    begin, end = starts[node.start_mark.line + 1], _at(starts, node.end_mark)
    lines = text[begin:end].splitlines(keepends=True)
    lead = min((line[: len(line) - len(line.lstrip())] for line in lines if line.strip()), key=len, default="")
    inner = "".join(line.removeprefix(lead) for line in lines)
    for change in (*(_find_first_entries(inner) if spec is None else ()), *_find_key_changes(inner, spec)):
        changed = apply_change(inner, change).splitlines(keepends=True)
        yield (_Splice(begin, end, "".join(lead + line if line.strip() else line for line in changed)),)


def _find_alias_changes(text: str, words: Sequence[str]) -> Iterator[Change]:
    """Yield changes that put a list in the place of an alias for it, so that whoever shares it keeps the old one."""
    anchors: dict[str, list[str]] = {}
    open_list: str | None = None
    starts = start_lines(text)
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.SequenceStartEvent):
            open_list = event.anchor
            if open_list:
                anchors[open_list] = []
        elif isinstance(event, yaml.ScalarEvent) and open_list:
            anchors[open_list].append(event.value)
        elif isinstance(event, yaml.SequenceEndEvent):
            open_list = None
        elif isinstance(event, yaml.AliasEvent) and event.anchor in anchors:
            items = anchors[event.anchor]
            gone = set(find_flags(items))
            kept = [item for number, item in enumerate(items) if number not in gone]
            shown = ", ".join(json.dumps(item, ensure_ascii=False) for item in (*kept, *words))
            yield (_Splice(_at(starts, event.start_mark), _at(starts, event.end_mark), f"[{shown}]"),)


def _find_scalar_changes(text: str, words: Sequence[str]) -> Iterator[Change]:
    """Yield changes of commands that stand in one quoted or plain text, such as the last word of `sh -c`."""
    starts = start_lines(text)
    for node in _walk(yaml.compose_all(text, Loader=_Loader)):
        is_line = isinstance(node, yaml.ScalarNode) and node.style in (None, "'", '"') and " " in node.value
        if is_line and _LIKELY.search(node.value):
            for change in islice(_find_command_changes(node.value, words), 6):
                changed = apply_change(node.value, change)
                for shown in (_quote(changed, node.style) if node.style else changed, _quote(changed, '"')):
                    yield (_Splice(_at(starts, node.start_mark), _at(starts, node.end_mark), shown),)


_FIRST_KEYS: Mapping[str, Sequence[tuple[tuple[str, ...], str]]] = {
    "object": (((), "args"),),
    "values": ((("vllmConfig",), "extraArgs"), ((), "vllmConfig")),
    "services": (((), "command"),),
}
"""Places of a server's first arguments, by the form of the text: path of a mapping and key in it."""
_AROUND_VALUES = ((), ("spec", "values"), ("spec", "source", "helm", "valuesObject"))
"""Paths of a chart's values: in a file of their own, in Flux's HelmRelease, in Argo CD's Application."""


def _find_first_lists(text: str, words: Sequence[str], place: Place | None) -> Iterator[Change]:
    """Yield changes that give a server its first arguments: it had none to add to."""
    if place is None or not words or follow(place.value, ("spec", "baseRefs")):
        return  # arguments here would take the place of those of a config that it is based on
    starts = start_lines(text)
    for document in yaml.compose_all(text, Loader=_Loader):
        for above, (inside, key) in product(_AROUND_VALUES, _FIRST_KEYS.get(place.form, ())):
            node = _follow_nodes(document, (*above, *place.path, *inside))
            if node is None and inside == ("vllmConfig",) and "kind" in place.value:
                node = _follow_nodes(document, ("spec", *inside))
            if isinstance(node, yaml.MappingNode) and node.value and key not in {each.value for each, _ in node.value}:
                merged = follow(place.value, (*place.path, *inside, key))
                both = f"{merged} {shlex.join(words)}" if isinstance(merged, str) else [*(merged or ()), *words]
                listed = json.dumps(both, ensure_ascii=False)
                shown = f"{{enablePrefixCaching: true, extraArgs: {listed}}}" if key == "vllmConfig" else listed
                yield _insert_key(text, starts, node, f"{key}: {shown}")
        if place.form == "object":
            yield from _add_container(text, starts, document, place.path, words)


def _add_container(
    text: str, starts: Sequence[int], document: yaml.Node | None, path: Sequence[str | int], words: Sequence[str]
) -> Iterator[Change]:
    """Yield the change that adds a container with these arguments, whose place KServe fills in where it is missing."""
    value: Any = {"name": "main", "args": list(words)}
    for depth in range(len(path) - 1, 0, -1):
        above, step = _follow_nodes(document, path[:depth]), path[depth]
        if isinstance(above, yaml.MappingNode) and above.value and step not in {key.value for key, _ in above.value}:
            yield _insert_key(text, starts, above, f"{step}: {json.dumps(value, ensure_ascii=False)}")
        value = [value] if isinstance(step, int) else {step: value}


def _insert_key(text: str, starts: Sequence[int], node: yaml.MappingNode, line: str) -> Change:
    """Return the change that adds a key to a mapping, as a line of its own or behind its opening brace."""
    keys = [key for key, _ in node.value]
    # In a block, a line of its own stays one: what names the entry remains its first line.
    first = keys[1] if len(keys) > 1 and not node.flow_style else keys[0]
    place = _at(starts, first.start_mark)
    if node.flow_style:
        return (_Splice(place, place, f"{line}, "),)
    ending = "\r\n" if "\r\n" in text else "\n"
    return (_Splice(place, place, f"{line}{ending}{' ' * first.start_mark.column}"),)


def follow(value: Any, path: Sequence[str | int]) -> Any:
    """Return what is at a path of keys and indices; None if nothing is."""
    for step in path:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return None
    return value


def _follow_nodes(node: yaml.Node | None, path: Sequence[str | int]) -> yaml.Node | None:
    for step in path:
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == step), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
        else:
            return None
    return node


def _walk(nodes: Iterable[yaml.Node | None]) -> Iterator[yaml.Node]:
    left, seen = [each for each in nodes if each is not None], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.MappingNode):
            left += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


def _at(starts: Sequence[int], mark: yaml.Mark) -> int:
    place: int = starts[mark.line] + mark.column
    return place
