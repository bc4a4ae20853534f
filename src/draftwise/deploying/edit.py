"""Makes the smallest edit of a file that starts the wanted setup, and verifies it by reading the file again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import islice
from typing import Any

from draftwise.core import Effect, Finding, InvalidSetup, Ruling, Setup, Severity, SpecConfig
from draftwise.deploying.file_changes import (
    Change,
    apply_change,
    find_flags,
    follow,
    is_yaml,
    list_spellings,
    place_of,
    propose,
    start_lines,
)
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

_TYPOGRAPHIC = re.compile(r"(?:\A|[{}\[\]:,=]\s*)[\u2018-\u201f]|[\u2018-\u201f](?:\s*[{}\[\]:,=]|\Z)")
"""Typographic quotes where a quote would stand; inside a word they are apostrophes, or quote in a text."""
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
        gone = set(find_flags([word.text for word in words]))
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
    wanted, place = [each.setup for each in readings], place_of(readings[index])
    for number in chosen:
        wanted[number] = replace(judged[number].setup, spec=spec)
    known = _find_error_codes(readings)
    if _starts(source, readings, wanted, chosen, place, known):
        return FileEdit(text=source.text, difference="")
    idle = set[int]()
    most = min(_MOST, max(_FEWEST, _MOST_CHARS // (len(source.text) + 1)))
    for change in islice(propose(source, spec, readings[index]), most):
        text, inserted = apply_change(source.text, change), {each.start for each in change if each.start == each.end}
        if text == source.text or inserted & idle or not _keeps_conditions(source.text, change, readings[index]):
            continue
        edited = replace(source, text=text)
        try:
            found = read_setups(edited)
        except InvalidSetup:
            continue
        if not is_yaml(source) and _list_all(found) == _list_all(readings):
            idle |= inserted  # no server reads what stands there, however it is quoted
        elif _starts(edited, found, wanted, chosen, place, known) and _leaves_the_rest(source, text, place):
            return FileEdit(text=text, difference=_compare(source, text))
    words = " ".join(next(list_spellings(spec))) or "no --speculative-config"
    raise refusal("no-place-to-edit", name=source.name, words=words)


_BEGIN, _END = re.compile(r"\{%-?\s*(?:if|for|with|block)\b"), re.compile(r"\{%-?\s*end")


def _keeps_conditions(text: str, change: Change, reading: SetupReading) -> bool:
    """Say whether a change is under the same conditions of a template as the beginning of the server's command."""
    lines = [] if reading.launch is None else [word.line for word in reading.launch.words if word.line]
    if "{%" not in text or not lines:
        return "{%" not in text
    places = (start_lines(text)[min(lines) - 1], *(each.start for each in change))
    return len({len(_BEGIN.findall(text[:place])) - len(_END.findall(text[:place])) for place in places}) == 1


def _list_all(readings: Iterable[SetupReading]) -> list[list[Setup]]:
    return [[each.setup, *(other.setup for other in each.others)] for each in readings]


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
    if place is None or place.form == "unit" or not is_yaml(source):
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
    is_whole = path == mine[: len(path)] and None in (follow(old, path), follow(new, path))
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


def _compare(source: SourceText, text: str) -> str:
    before, after = (each.splitlines(keepends=True) for each in (source.text, text))
    lines = (
        line if line.endswith("\n") else f"{line}\n" for line in unified_diff(before, after, source.name, source.name)
    )
    return "".join(lines)
