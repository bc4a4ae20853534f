"""One change of one file: the smallest that starts what is wanted, proven by reading it again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import islice

import yaml

from draftwise.core import Finding, InvalidSetup, Setup, Severity, SpecConfig
from draftwise.deploying.messages import refusal
from draftwise.deploying.order import make_order, refuse_other_hosts
from draftwise.deploying.read_back import read_back
from draftwise.deploying.secrets import without_secrets
from draftwise.deploying.targets import name_targets
from draftwise.deploying.verify.manifest_files import verify_text
from draftwise.knowledge.models import names_directory
from draftwise.setups.read import SourceText, read_setups

__all__ = ["edit", "edit_as"]

_SPEC_FLAG = re.compile(r"--?(?:speculative[-_.]|spec[-_]|sc(?:\.|=|$)|num[-_]speculative[-_]tokens)")
"""How flags begin that make a server speculate, those of earlier releases among them."""
_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class _Splice:
    """What is put in the place of a stretch."""

    start: int
    end: int
    text: str = ""


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


_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|\\["'](?:[^\\]|\\(?!["'](?:\s|$)).)*?\\["']|[^\s"'\\]+)+"""
_GAP = r"(?:[ \t]*\\\r?\n[ \t]*|[ \t]+)"
_FLAG = re.compile(
    rf"""(?P<gap>{_GAP}|^)["']?(?:--speculative[-_.][\w.-]+|-sc(?=[=\s])|--num[-_]speculative[-_]tokens)"""
    rf"(?:=|{_GAP}(?!-)){_VALUE}",
    re.MULTILINE,
)
_QUOTED_FLAG = re.compile(rf"""(?P<gap>{_GAP})(?:"--speculative(?:[^"\\]|\\.)*"|'--speculative[^']*')""")
_LIKELY = re.compile(r"vllm|--\w|ExecStart")
_CONTINUED = re.compile(r"[ \t]*\\\r?$")


def _find_command_changes(text: str, words: Sequence[str]) -> Iterator[_Change]:
    """Yield changes that say these words in the place of what a command says of speculation, the likeliest first."""
    found = [*_find_matches(_QUOTED_FLAG, text)] or [*_find_matches(_FLAG, text)]
    if found or not words:
        for quoted in _list_quoted(words):
            added = [found[0]["gap"] + word for word in quoted] if found else []
            yield tuple(
                _Splice(match.start(), match.end(), "".join(added) if number == 0 else "")
                for number, match in enumerate(found)
            )
        return
    lines = [each for each in re.finditer(r"[^\n]+", text) if _LIKELY.search(each[0])]
    # Behind a line that goes on, the words take a line of their own and every other one stays as it is.
    for line in sorted(lines, key=lambda each: (_CONTINUED.search(each[0]) is None, -each.start())):
        for quoted in _list_quoted(words):
            yield from _append(line, quoted)


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
    for place in (end, end - 1):
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
    """Yield changes that say these words in the place of what a list says of speculation, the likeliest first.

    Args:
        text: YAML, which has been read before.
        words: none to take speculation out.
    """
    starts = _start_lines(text)
    lists = [
        found for node in yaml.compose_all(text, Loader=yaml.SafeLoader) for found in _find_lists(node, "", starts)
    ]
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
    return max(number for number, start in enumerate(starts[:-1]) if start <= place)


_MOST = 300
"""Changes that are tried before the file is left to its owner; reading one takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """A file that starts something else now."""

    text: str
    difference: str
    """Unified diff against the file as it was; empty if nothing had to change."""
    findings: tuple[Finding, ...] = ()
    """What its release makes of it."""


def edit_as(source: SourceText, setup: Setup) -> FileEdit:
    """Return a file whose server speculates as a setup does, judged as `verify` judges files.

    Args:
        source: a manifest, a unit or a script with one server.
        setup: whose config it takes over; one without takes it out. Its release counts where the file names none.

    Raises:
        InvalidSetup: its release does not start what would result, or the file cannot be edited.
    """
    before = _read_server(source, engine_version=setup.engine_version)
    if before.target != setup.target and not any(map(_is_path, (before.target, setup.target))):
        raise refusal("other-target", name=source.name, served=before.target, target=setup.target)
    refuse_other_hosts(before, fix=f"Write the files anew: --to {name_targets('spans_hosts')}.")
    # Secrets that stand in the file stay where they are.
    bare = without_secrets(replace(before, spec=setup.spec, device=setup.device or before.device))
    spec = make_order(bare).setup.spec
    edited = edit(source, spec, engine_version=setup.engine_version)
    after = verify_text(replace(source, text=edited.text), replace(before, spec=spec)).findings
    # What was wrong before is the file's own: a patch of kustomize lacks most of what an object needs.
    known = {_identify(each) for each in verify_text(source, before).findings}
    found = [each for each in after if _identify(each) not in known]
    if errors := [each for each in found if each.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    return replace(edited, findings=tuple(each for each in found if each.severity is Severity.WARNING))


def _identify(finding: Finding) -> tuple[str, str]:
    return finding.code, finding.message


def _is_path(target: str) -> bool:
    return not target or names_directory(target)


def _read_server(source: SourceText, *, engine_version: str) -> Setup:
    """Return the one server that a file starts.

    Raises:
        InvalidSetup: it cannot be read, or starts several.
    """
    readings = read_setups(source)
    if len(readings) != 1:
        raise refusal("several-servers", name=source.name, readings=len(readings))
    setup = readings[0].setup
    return setup if setup.engine_version else read_setups(source, engine_version=engine_version)[0].setup


def edit(source: SourceText, spec: SpecConfig | None, *, engine_version: str) -> FileEdit:
    """Return a file whose server speculates so, and is otherwise the one that it was.

    Every change is tried by reading the file again as anybody's: it must start what it started, with the config that
    is wanted, and nothing else. No line changes that does not have to.

    Args:
        source: a manifest, a unit or a script with one server.
        spec: what it is to speculate with; None for not at all.
        engine_version: of the server, where the file does not say it.

    Raises:
        InvalidSetup: the file cannot be read, starts several servers, or no change of it was found that does it.
    """
    before = _read_server(source, engine_version=engine_version)
    wanted = replace(before, spec=spec)
    lost = () if read_setups(source)[0].setup.engine_version else ("engine_version",)
    if not read_back(source.text, wanted, name=source.name, lost=lost):
        return FileEdit(text=source.text, difference="")
    for change in islice(_propose(source, spec), _MOST):
        text = _apply_change(source.text, change)
        if text != source.text and not read_back(text, wanted, name=source.name, lost=lost):
            return FileEdit(text=text, difference=_compare(source, text))
    words = " ".join(next(_list_spellings(spec))) or "no --speculative-config"
    raise refusal("no-place-to-edit", name=source.name, words=words)


def _propose(source: SourceText, spec: SpecConfig | None) -> Iterator[_Change]:
    is_yaml = source.name.endswith((".yaml", ".yml", ".json"))
    for words in _list_spellings(spec):
        if is_yaml:
            yield from _find_list_changes(source.text, words)
        yield from _find_command_changes(source.text, words)


def _compare(source: SourceText, text: str) -> str:
    before, after = (each.splitlines(keepends=True) for each in (source.text, text))
    lines = (
        line if line.endswith("\n") else f"{line}\n" for line in unified_diff(before, after, source.name, source.name)
    )
    return "".join(lines)
