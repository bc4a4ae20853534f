"""Makes the smallest edit of a file that starts the wanted setup, and verifies it by reading the file again."""

from __future__ import annotations

import ast
import json
import re
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import accumulate, groupby, islice, pairwise, product
from typing import Any

import yaml

from draftwise.core import Effect, Finding, InvalidSetup, Ruling, Setup, Severity, SpecConfig
from draftwise.deploying.order import refuse_other_hosts, settle_method
from draftwise.deploying.read_back import compare_setups
from draftwise.deploying.repeated_starts import starts_several
from draftwise.deploying.secrets import without_secrets
from draftwise.deploying.targets import name_targets
from draftwise.deploying.verify.manifest_files import verify_text
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.models import names_directory
from draftwise.plan.check import check
from draftwise.setups.read import SetupReading, SourceText, read_setups
from draftwise.setups.read.manifests.yaml_text import read_yaml
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


_TYPOGRAPHIC = re.compile(r"(?:\A|[{}\[\]:,=]\s*)[\u2018-\u201f]|[\u2018-\u201f](?:\s*[{}\[\]:,=]|\Z)")
"""Typographic quotes where a quote would stand; inside a word they are apostrophes, or quote in a text."""
_Change = tuple[_Splice, ...]


def _apply_change(text: str, change: _Change) -> str:
    """Return a text with a change made."""
    for splice in sorted(change, key=lambda each: each.start, reverse=True):
        text = text[: splice.start] + splice.text + text[splice.end :]
    return text


def _start_lines(text: str) -> list[int]:
    """Return where each line begins, and behind them where the text ends."""
    starts = [0, *(match.end() for match in _BREAK.finditer(text))]
    return [*starts, len(text)]


def _find_flags(words: Sequence[str]) -> Iterator[int]:
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


def _list_spellings(spec: SpecConfig | None) -> Iterator[list[str]]:
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


def _find_command_changes(text: str, words: Sequence[str], own: Sequence[int] = ()) -> Iterator[_Change]:
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


def _append(line: re.Match[str], quoted: Sequence[str]) -> Iterator[_Change]:
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
        speculates = any(True for _ in _find_flags([item.text for item in self.items]))
        return not speculates, _KEYS.index(self.key) if self.key in _KEYS else len(_KEYS)


def _find_list_changes(text: str, words: Sequence[str]) -> Iterator[_Change]:
    """Yield changes that say these words in the place of what a list says of speculation, the likeliest first."""
    starts = _start_lines(text)
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


def _change_flow(each: _List, words: Sequence[str]) -> _Change:
    """Return the change of a list on one line, such as `[a, b]`."""
    items, gone = each.items, list(_find_flags([item.text for item in each.items]))
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


def _change_block(text: str, starts: Sequence[int], each: _List, words: Sequence[str]) -> _Change:
    """Return the change of a list with a line for each item."""
    items, gone = each.items, list(_find_flags([item.text for item in each.items]))
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


_MOST, _FEWEST, _MOST_CHARS = 300, 20, 2_000_000
"""Changes that are tried before the file is left to its owner: of a long file, as many as make up these characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """An edited file."""

    text: str
    difference: str
    """Unified diff; empty if nothing had to change."""
    findings: tuple[Finding, ...] = ()
    """How its release treats it."""


def edit_as(source: SourceText, setup: Setup, *, select: str = "") -> FileEdit:
    """Return a file edited so that its server speculates like a setup, judged as `verify` judges files.

    Args:
        source: a manifest, a unit or a script.
        setup: setup with the new config; without a config, the edit removes it. Its release counts if the file names
            none.
        select: container, object or service, in a file with several servers; empty for the only one.

    Raises:
        InvalidSetup: the release would refuse what is new, or the file cannot be edited. What it refuses of the file as
            it was is a warning.
    """
    chosen, readings = choose_server(source, select, engine_version=setup.engine_version)
    index, reading = chosen[0], readings[chosen[0]]
    before = reading.setup
    _refuse_ways(source, [each for number in chosen for each in (readings[number], *readings[number].others)], setup)
    refuse_other_hosts(before, fix=f"Write new files instead: --to {name_targets('spans_hosts')}.")
    # A file may leave its model open, in a variable; secrets that stand in it stay where they are.
    target, device = before.target or setup.target, setup.device or before.device
    spec, own = _settle(without_secrets(replace(before, target=target, spec=setup.spec, device=device)))
    for way in {repr(each.setup): each.setup for each in reading.others}.values():
        # A way that starts today must start with the config, although another one does.
        _settle(without_secrets(replace(way, target=way.target or target, spec=spec, device=way.device or device)))
    edited = edit(source, spec, engine_version=setup.engine_version, select=select)
    after = verify_text(replace(source, text=edited.text), replace(before, spec=spec), index=index).findings
    # What was wrong before is the file's own: a patch of kustomize lacks most of what an object needs.
    known = {_identify(each) for each in verify_text(source, before, index=index).findings}
    found = [each for each in after if _identify(each) not in known and each.code != "not-as-ordered"]
    if errors := [each for each in found if each.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    refused = (each for each in reading.findings if isinstance(each, Ruling) and each.effect is Effect.REJECTED)
    told = (replace(each, severity=Severity.WARNING) for each in (*refused, *own, *reading.unknown.values()))
    return replace(edited, findings=(*told, *(each for each in found if each.severity is Severity.WARNING)))


def _refuse_ways(source: SourceText, ways: Sequence[SetupReading], setup: Setup) -> None:
    """Raise InvalidSetup where a command serves other models too, or a word of it has typographic quotes."""
    served = {way.setup.target for way in ways}
    for way in ways:
        told, words = way.unknown.get("model"), () if way.launch is None else way.launch.words
        are_known = len(served) > 1 and setup.target in served
        if are_known or starts_several(source.text, way, is_python=source.name.endswith(".py")):
            line = next((word.line for word in words if word.line), 1)
            where = told.where if told is not None else f"{source.name}:{line}"
            raise refusal("several-models", where=where, target=setup.target)
        gone = set(_find_flags([word.text for word in words]))
        for number, word in enumerate(words):
            if number not in gone and _TYPOGRAPHIC.search(word.text):
                raise refusal("typographic-quotes", where=f"{source.name}:{word.line}", text=word.text[:60])
        if way.setup.target != setup.target and not any(map(_is_path, (way.setup.target, setup.target))):
            raise refusal("other-target", name=source.name, served=way.setup.target, target=setup.target)


def _settle(setup: Setup) -> tuple[SpecConfig | None, Sequence[Finding]]:
    """Return a setup's config with its method, and what the release refuses of the setup without it as well.

    Raises:
        InvalidSetup: the release refuses the config, or may do so.
    """
    try:
        return settle_method(setup).spec, ()
    except InvalidSetup as error:
        known = {_identify(each) for each in check(replace(setup, spec=None)).findings}
        if not all(_identify(each) in known for each in error.findings):
            raise
        if setup.spec is not None and setup.spec.model is not None:
            # The first refusal hides later ones, such as of a drafter: it is judged without the other arguments.
            return settle_method(replace(setup, args={}, extra_args=())).spec, error.findings
        return setup.spec, error.findings


def _identify(finding: Finding) -> tuple[str, str]:
    return finding.code, finding.message


def _is_path(target: str) -> bool:
    return not target or names_directory(target)


def choose_server(source: SourceText, select: str, *, engine_version: str) -> tuple[list[int], Sequence[SetupReading]]:
    """Return the indices of the servers that are meant, which one command starts, and the readings of the whole file.

    If the file tells no release, it is read with `engine_version`.

    Raises:
        InvalidSetup: the file cannot be read, or it starts several servers and the name is not that of one.
    """
    readings = read_setups(source)
    commands: dict[object, list[int]] = {}
    for index, each in enumerate(readings):
        commands.setdefault(_name_command(each, source.text) or index, []).append(index)
    groups = list(commands.values())
    # A server goes by what no other has: a name, what leads to it in a script, or its number.
    called = [set.union(*(_list_names(readings[index]) for index in group)) for group in groups]
    shared = Counter(name for each in called for name in each)
    own = [sorted(name for name in each if shared[name] == 1) for each in called]
    known = [each or [str(number)] for number, each in enumerate(own, start=1)]
    named = [group for number, group in enumerate(groups) if not select or select in (*known[number], str(number + 1))]
    if len(named) != 1:
        names = "; ".join(map(" or ".join, known))
        if select:
            raise refusal(
                "several-servers", case="select", name=source.name, readings=len(groups), names=names, select=select
            )
        raise refusal("several-servers", name=source.name, readings=len(groups), names=names)
    (chosen,) = named
    is_told = readings[chosen[0]].setup.engine_version
    return chosen, readings if is_told else read_setups(source, engine_version=engine_version)


_STARTS = (r"\bserve\b", "api_server", r"--model\b", r"\brun\b")
"""What a line has once for each server that it starts."""


def _name_command(reading: SetupReading, text: str) -> object:
    """Return what identifies a server's command: its lines, and its entry in a manifest; None if unknown."""
    launch = reading.launch
    lines = frozenset(word.line for word in launch.words if word.line) if launch is not None else frozenset[int]()
    first = text.split("\n")[min(lines) - 1] if len(lines) == 1 else ""
    if launch is None or not lines or any(len(re.findall(each, first)) > 1 for each in _STARTS):
        return None
    return lines, launch.place.path if launch.place is not None else ()


def _list_names(reading: SetupReading) -> set[str]:
    """Return what a server is called: its container, the objects and services around it, its entry in a chart.

    In a script, that is what it depends on, such as `MODE=fast`.
    """
    place = None if reading.launch is None else reading.launch.place
    names = {reading.path.partition(", line")[0]} - {""}
    value: Any = None if place is None else place.value
    for step in () if place is None else (*place.path, None):
        if isinstance(value, Mapping):
            found = (value.get("name"), value.get("metadata", {}).get("name") if "kind" in value else None)
            names |= {each for each in found if isinstance(each, str)}
        if isinstance(step, str) and isinstance(value, Mapping) and value is not None and step in value:
            names |= {step} if place is not None and "services" in place.path[:-1] and step != "services" else set()
        try:
            value = None if step is None else value[step]
        except (KeyError, IndexError, TypeError):
            value = None
    return names


def edit(source: SourceText, spec: SpecConfig | None, *, engine_version: str, select: str = "") -> FileEdit:
    """Return a file whose server speculates with a config, and is otherwise unchanged.

    Every edit is tested by reading the file again: it must start the same server with the wanted config, and nothing
    else. Only necessary lines change, and none outside the server's own entry.

    Args:
        source: a manifest, a unit or a script.
        spec: the new config; None for no speculation.
        engine_version: release of the server, if the file does not name it.
        select: name of the server in a file with several; empty for the only one.

    Raises:
        InvalidSetup: the file cannot be read, does not start exactly one server, or no edit was found.
    """
    chosen, judged = choose_server(source, select, engine_version=engine_version)
    readings, index = read_setups(source), chosen[0]
    wanted, place = [each.setup for each in readings], _place_of(readings[index])
    for number in chosen:
        wanted[number] = replace(judged[number].setup, spec=spec)
    known = _find_error_codes(readings)
    if _starts(source, readings, wanted, chosen, place, known):
        return FileEdit(text=source.text, difference="")
    idle = set[int]()
    most = min(_MOST, max(_FEWEST, _MOST_CHARS // (len(source.text) + 1)))
    for change in islice(_propose(source, spec, readings[index]), most):
        text, inserted = _apply_change(source.text, change), {each.start for each in change if each.start == each.end}
        if text == source.text or inserted & idle or not _keeps_conditions(source.text, change, readings[index]):
            continue
        edited = replace(source, text=text)
        try:
            found = read_setups(edited)
        except InvalidSetup:
            continue
        if not _is_yaml(source) and _list_all(found) == _list_all(readings):
            idle |= inserted  # no server reads what stands there, however it is quoted
        elif _starts(edited, found, wanted, chosen, place, known) and _leaves_the_rest(source, text, place):
            return FileEdit(text=text, difference=_compare(source, text))
    words = " ".join(next(_list_spellings(spec))) or "no --speculative-config"
    raise refusal("no-place-to-edit", name=source.name, words=words)


_BEGIN, _END = re.compile(r"\{%-?\s*(?:if|for|with|block)\b"), re.compile(r"\{%-?\s*end")


def _keeps_conditions(text: str, change: _Change, reading: SetupReading) -> bool:
    """Say whether a change is under the same conditions of a template as the beginning of the server's command."""
    lines = [] if reading.launch is None else [word.line for word in reading.launch.words if word.line]
    if "{%" not in text or not lines:
        return "{%" not in text
    places = (_start_lines(text)[min(lines) - 1], *(each.start for each in change))
    return len({len(_BEGIN.findall(text[:place])) - len(_END.findall(text[:place])) for place in places}) == 1


def _list_all(readings: Iterable[SetupReading]) -> list[list[Setup]]:
    return [[each.setup, *(other.setup for other in each.others)] for each in readings]


def _place_of(reading: SetupReading) -> Place | None:
    return None if reading.launch is None else reading.launch.place


def _find_error_codes(readings: Iterable[SetupReading]) -> frozenset[str]:
    found = (finding for each in readings for finding in each.findings)
    return frozenset(each.code for each in found if each.severity is Severity.ERROR)


def _starts(
    source: SourceText,
    readings: Sequence[SetupReading],
    wanted: Sequence[Setup],
    chosen: Sequence[int],
    place: Place | None,
    known: frozenset[str],
) -> bool:
    """Say whether a file starts these servers, with no other errors than are known of it."""
    found, version = [each.setup for each in readings], wanted[chosen[0]].engine_version
    if len(found) != len(wanted) or _find_error_codes(readings) - known:
        return False
    if not found[chosen[0]].engine_version:
        # Nothing in the file says which release it is, e.g. an image with a tag of one's own.
        try:
            judged = read_setups(source, engine_version=version)
        except InvalidSetup:
            return False
        found = [judged[number].setup if number in chosen else each for number, each in enumerate(found)]
    accepted = list(wanted)
    for index in chosen:
        # No way through a script keeps another config.
        if any(way.setup.spec not in (None, wanted[index].spec) for way in readings[index].others):
            return False
        if place is not None and place.form == "values" and not _differs(found[index], wanted[index], ("args",)):
            # The chart turns prefixes' cache off where its values have a config that does not say otherwise.
            cached = replace(wanted[index], args={"enable_prefix_caching": True, **wanted[index].args})
            accepted[index] = cached if not _differs(found[index], cached) else wanted[index]
    return not any(_differs(*pair) for pair in zip(accepted, found, strict=True))


def _differs(ordered: Setup, found: Setup, lost: tuple[str, ...] = ()) -> bool:
    return any(True for _ in compare_setups(ordered, found, name="", lost=lost))


def _leaves_the_rest(source: SourceText, text: str, place: Place | None) -> bool:
    """Say whether a change of YAML, with its aliases put in, is one of the server's own entry alone."""
    if place is None or place.form == "unit" or not _is_yaml(source):
        return True
    before, after = ([each.value for each in read_yaml(text)] for text in (source.text, text))
    if len(before) != len(after):
        return False
    mine, known = place.path, (place.value, *place.others)
    for old, new in zip(before, after, strict=True):
        changed = list(_find_changed(old, new, ()))
        is_own = old == place.value and all(_is_inside(path, mine, old, new) for path in changed)
        # The arguments of a service may stand in its runtime.
        is_runtime = isinstance(old, Mapping) and str(old.get("kind", "")).endswith("ServingRuntime")
        if changed and old in known and not (is_own or is_runtime):
            return False
    return True


def _is_inside(path: tuple[str | int, ...], mine: Sequence[str | int], old: Any, new: Any) -> bool:
    """Say whether a path is in a server's entry, or is an entry that the server needs only for its arguments."""
    is_whole = path == mine[: len(path)] and None in (_follow(old, path), _follow(new, path))
    return is_whole or path[: len(mine)] == mine


def _find_changed(old: Any, new: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths at which two values differ, as deep as both have the same keys."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            if key not in old or key not in new:
                yield (*path, key)
            else:
                yield from _find_changed(old[key], new[key], (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _find_changed(*pair, (*path, index))
    elif old != new:
        yield path


def _is_yaml(source: SourceText) -> bool:
    return source.name.endswith((".yaml", ".yml", ".json"))


def _propose(source: SourceText, spec: SpecConfig | None, reading: SetupReading) -> Iterator[_Change]:
    lines = [] if reading.launch is None else [word.line for word in reading.launch.words if word.line]
    # Where not every way through a script was followed, only the command itself is on all of them.
    is_partial = reading.launch is not None and reading.launch.is_partial
    starts = _start_lines(source.text)
    last = min(max(lines, default=0), len(starts) - 1)
    while lines and last < len(starts) - 1 and source.text[: starts[last]].rstrip("\r\n").endswith("\\"):
        last += 1  # in a systemd unit, all words of a command have its first line's number

    def is_apart(change: _Change) -> bool:
        """Say whether a change adds words far from those of the server."""
        places = [each.start for each in change if is_partial or each.start == each.end] if lines else []
        return not all(starts[min(lines) - 1] <= place <= starts[last] for place in places)

    for words in _list_spellings(spec):
        if source.name.endswith(".py"):
            yield from _find_python_changes(source.text, spec, words)
        if _is_yaml(source):
            try:
                if spec is None:
                    yield from _find_first_entries(source.text)
                yield from _find_list_changes(source.text, words)
                yield from _find_list_changes(source.text, [f"'{word}'" for word in words])  # a shell reads it again
                yield from _find_alias_changes(source.text, words)
                yield from _find_scalar_changes(source.text, words)
                yield from _find_first_lists(source.text, words, _place_of(reading))
                yield from _find_key_changes(source.text, spec)
            except yaml.YAMLError:
                pass  # what reads the file is less strict: it is changed as text
        else:
            yield from _find_array_changes(source.text, words)
        found = sorted(_find_command_changes(source.text, words, lines if is_partial else ()), key=is_apart)
        yield from (each for each in found if not is_partial or (lines and not is_apart(each)))


_ARRAY = re.compile(r'\[(?:"(?:[^"\\]|\\.)*"|[\s,\\])*\]')


def _find_array_changes(text: str, words: Sequence[str]) -> Iterator[_Change]:
    """Yield changes of a Dockerfile's words in brackets, the last ones first."""
    for match in reversed(list(_ARRAY.finditer(text))):
        array = match[0].replace("\\\n", "  ")
        node = yaml.compose(array, Loader=_Loader)
        for each in _find_lists(node, "", _start_lines(array)):
            for item in each.items:
                is_line = " " in item.text and _LIKELY.search(item.text)
                for change in _find_command_changes(item.text, words) if is_line else ():
                    shown = json.dumps(_apply_change(item.text, change), ensure_ascii=False)
                    yield (_Splice(match.start() + item.start, match.start() + item.end, shown),)
            yield tuple(
                replace(splice, start=match.start() + splice.start, end=match.start() + splice.end)
                for splice in _change_flow(each, words)
            )


def _find_python_changes(text: str, spec: SpecConfig | None, said: Sequence[str]) -> Iterator[_Change]:
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
            gone = enumerate(_find_flags([str(getattr(each, "value", "")) for each in node.elts]))
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


def _find_first_entries(text: str) -> Iterator[_Change]:
    """Yield removals of a key that the first switch-on added: one that holds the config alone."""
    starts = _start_lines(text)
    for node in _walk(yaml.compose_all(text, Loader=_Loader)):
        for (key, value), (after, _) in pairwise(node.value) if isinstance(node, yaml.MappingNode) else ():
            lines = after.start_mark.line - key.start_mark.line
            if lines == (not node.flow_style) and getattr(value, "flow_style", False) and _holds_config_alone(value):
                yield (_Splice(_at(starts, key.start_mark), _at(starts, after.start_mark)),)


def _holds_config_alone(node: yaml.Node) -> bool:
    if isinstance(node, yaml.MappingNode):
        return all(key.value in ("name", _CONFIG_KEY) or _holds_config_alone(value) for key, value in node.value)
    if isinstance(node, yaml.SequenceNode):
        flags = list(_find_flags([str(item.value) for item in node.value]))
        return bool(node.value) and (len(flags) == len(node.value) or all(map(_holds_config_alone, node.value)))
    return False


def _find_key_changes(text: str, spec: SpecConfig | None) -> Iterator[_Change]:
    """Yield changes of the key that holds the config, in engine arguments that are keys: of Ray, of vLLM's --config."""
    starts, config = _start_lines(text), None if spec is None else json.dumps(spec.to_dict())
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
) -> Iterator[_Change]:
    """Yield changes of YAML that stands in a block of text, as Ray's config in a RayService."""
    begin, end = starts[node.start_mark.line + 1], _at(starts, node.end_mark)
    lines = text[begin:end].splitlines(keepends=True)
    lead = min((line[: len(line) - len(line.lstrip())] for line in lines if line.strip()), key=len, default="")
    inner = "".join(line.removeprefix(lead) for line in lines)
    for change in (*(_find_first_entries(inner) if spec is None else ()), *_find_key_changes(inner, spec)):
        changed = _apply_change(inner, change).splitlines(keepends=True)
        yield (_Splice(begin, end, "".join(lead + line if line.strip() else line for line in changed)),)


def _find_alias_changes(text: str, words: Sequence[str]) -> Iterator[_Change]:
    """Yield changes that put a list in the place of an alias for it, so that whoever shares it keeps the old one."""
    anchors: dict[str, list[str]] = {}
    open_list: str | None = None
    starts = _start_lines(text)
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
            gone = set(_find_flags(items))
            kept = [item for number, item in enumerate(items) if number not in gone]
            shown = ", ".join(json.dumps(item, ensure_ascii=False) for item in (*kept, *words))
            yield (_Splice(_at(starts, event.start_mark), _at(starts, event.end_mark), f"[{shown}]"),)


def _find_scalar_changes(text: str, words: Sequence[str]) -> Iterator[_Change]:
    """Yield changes of commands that stand in one quoted or plain text, such as the last word of `sh -c`."""
    starts = _start_lines(text)
    for node in _walk(yaml.compose_all(text, Loader=_Loader)):
        is_line = isinstance(node, yaml.ScalarNode) and node.style in (None, "'", '"') and " " in node.value
        if is_line and _LIKELY.search(node.value):
            for change in islice(_find_command_changes(node.value, words), 6):
                changed = _apply_change(node.value, change)
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


def _find_first_lists(text: str, words: Sequence[str], place: Place | None) -> Iterator[_Change]:
    """Yield changes that give a server its first arguments: it had none to add to."""
    if place is None or not words or _follow(place.value, ("spec", "baseRefs")):
        return  # arguments here would take the place of those of a config that it is based on
    starts = _start_lines(text)
    for document in yaml.compose_all(text, Loader=_Loader):
        for above, (inside, key) in product(_AROUND_VALUES, _FIRST_KEYS.get(place.form, ())):
            node = _follow_nodes(document, (*above, *place.path, *inside))
            if node is None and inside == ("vllmConfig",) and "kind" in place.value:
                node = _follow_nodes(document, ("spec", *inside))
            if isinstance(node, yaml.MappingNode) and node.value and key not in {each.value for each, _ in node.value}:
                merged = _follow(place.value, (*place.path, *inside, key))
                both = f"{merged} {shlex.join(words)}" if isinstance(merged, str) else [*(merged or ()), *words]
                listed = json.dumps(both, ensure_ascii=False)
                shown = f"{{enablePrefixCaching: true, extraArgs: {listed}}}" if key == "vllmConfig" else listed
                yield _insert_key(text, starts, node, f"{key}: {shown}")
        if place.form == "object":
            yield from _add_container(text, starts, document, place.path, words)


def _add_container(
    text: str, starts: Sequence[int], document: yaml.Node | None, path: Sequence[str | int], words: Sequence[str]
) -> Iterator[_Change]:
    """Yield the change that adds a container with these arguments, whose place KServe fills in where it is missing."""
    value: Any = {"name": "main", "args": list(words)}
    for depth in range(len(path) - 1, 0, -1):
        above, step = _follow_nodes(document, path[:depth]), path[depth]
        if isinstance(above, yaml.MappingNode) and above.value and step not in {key.value for key, _ in above.value}:
            yield _insert_key(text, starts, above, f"{step}: {json.dumps(value, ensure_ascii=False)}")
        value = [value] if isinstance(step, int) else {step: value}


def _insert_key(text: str, starts: Sequence[int], node: yaml.MappingNode, line: str) -> _Change:
    """Return the change that adds a key to a mapping, as a line of its own or behind its opening brace."""
    keys = [key for key, _ in node.value]
    # In a block, a line of its own stays one: what names the entry remains its first line.
    first = keys[1] if len(keys) > 1 and not node.flow_style else keys[0]
    place = _at(starts, first.start_mark)
    if node.flow_style:
        return (_Splice(place, place, f"{line}, "),)
    ending = "\r\n" if "\r\n" in text else "\n"
    return (_Splice(place, place, f"{line}{ending}{' ' * first.start_mark.column}"),)


def _follow(value: Any, path: Sequence[str | int]) -> Any:
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


def _compare(source: SourceText, text: str) -> str:
    before, after = (each.splitlines(keepends=True) for each in (source.text, text))
    lines = (
        line if line.endswith("\n") else f"{line}\n" for line in unified_diff(before, after, source.name, source.name)
    )
    return "".join(lines)
