"""Builds the configs from engine flags, and checks which values their fields accept or reject together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any

from draftwise.core import Ruling
from draftwise.knowledge.rules import Rulebook, all_rules
from draftwise.knowledge.vllm import Release
from draftwise.plan.check.cli.coercion import Mismatch, coerce_field
from draftwise.plan.check.cli.condition_values import UNKNOWN, decide, names_in
from draftwise.plan.check.stages import Context

Values = dict[str, Any]
_PLACE = re.compile(r"\{([^{}]*)\}")
_ANY_MEDIA = "BaseDummyOptions"
"""Config of limits that are not of images, audio or video; it ignores other keys than `count`."""
_ON_CUDA = ("is_cuda", "is_cuda_alike", "is_sleep_mode_available")
_PLATFORMS = ("is_cuda", "is_cuda_alike", "is_cpu", "is_rocm", "is_xpu", "is_tpu", "is_sleep_mode_available")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What flags, platform and environment show about a server."""

    given: Mapping[str, Any]
    """Given engine arguments, as the parser passes them on."""
    platform: str = "cuda"
    env: Mapping[str, str] = field(default_factory=dict)


def find_refused(rules: Rulebook, release: Release, server: ServerSettings) -> Iterator[Ruling]:
    """Yield what the configs of a release reject in a server's flags; unknown values reject nothing."""
    if server.given and rules.holds("config-value"):
        yield from _Judge(rules, release, server).judge()


def find_load_faults(context: Context) -> Iterator[Ruling]:
    """Yield what the drafter's load config rejects in its object of the speculative JSON."""
    key, config = "draft_load_config", "LoadConfig"
    value = context.keys.get(key)
    if not isinstance(value, Mapping) or key not in context.release.table("spec_fields"):
        return
    judge = _Judge(context.rules, context.release, ServerSettings(given={}))
    judge._read_config(config, value, "", "")
    faults = [re.sub(r" of --(?=\W)", "", each.message).rstrip(".") for each in judge.found]
    if faults:
        mismatch = f"a {config} ({'; '.join(faults)})"
        yield from context.rules.ruling("wrong-type", key=key, mismatch=mismatch, written=json.dumps(value))


def find_media_faults(context: Context) -> Iterator[Ruling]:
    """Yield what the config of images, audio and video rejects, which only a multimodal target's server makes."""
    config, release = "MultiModalConfig", context.release
    judge = _Judge(context.rules, release, ServerSettings(given={}))
    values, given = {**_defaults(release, config)}, dict[str, list[str]]()
    for key, row in _fields_of(release, config).items():
        if (value := context.given.get(key)) is None:
            continue
        is_checked = "choices" in row or "enum" in row  # by the config that the flag belongs to
        values[key] = value if is_checked else judge._take(config, key, value, key, assigned=False)
        given[key] = [key]
    judge._check_config(config, values, given, code="config-refused")
    limits = "limit_mm_per_prompt"
    for kind, asked in context.objects.get(limits, {}).items():
        options = {"count": asked} if isinstance(asked, int) else asked
        name = next((each for each in (f"{kind.title()}DummyOptions", _ANY_MEDIA) if _fields_of(release, each)), "")
        if isinstance(options, Mapping) and name:
            known = {key: value for key, value in options.items() if name != _ANY_MEDIA or key == "count"}
            judge._read_config(name, known, limits, kind)
    for each in judge.found:
        of_parser = each.code == "flag-json-value"  # but no parser reads the JSON of these limits
        yield from (
            context.rules.ruling("config-value", message=each.message, where=each.where) if of_parser else (each,)
        )


@dataclass(slots=True)
class _Judge:
    """Makes the configs as the server does: of the flags' JSON first, then of single flags."""

    rules: Rulebook
    release: Release
    server: ServerSettings
    names: Values = field(default_factory=dict)
    """What conditions on engine arguments may ask for: arguments, configs, platform, environment."""
    surroundings: Values = field(default_factory=dict)
    """Inputs of a config's own checks besides its fields: the platform and the environment."""
    found: list[Ruling] = field(default_factory=list)
    judged: set[str] = field(default_factory=set)
    """Configs that were made, or left out."""
    behind: dict[str, list[str]] = field(default_factory=dict)
    """Flags that set fields of a config, by config."""

    def judge(self) -> Sequence[Ruling]:
        """Return every refusal."""
        self.surroundings = describe_surroundings(self.release, self.server)
        self.names = {**_list_defaults(self.release), **self.surroundings}
        for name in self.server.given:
            self._read_flag(name)
        for condition, row in self.release.table("engine_checks").items():
            if self._mentions(condition):
                self._check("engine_checks", condition, condition, row, self.names, self._given_in(condition))
        for config in _arguments_by_config(self.release):
            self._make(config)
        return self.found

    def _mentions(self, expression: str) -> bool:
        return not self.server.given.keys().isdisjoint(names_in(expression))

    def _given_in(self, expression: str) -> list[str]:
        return [name for name in self.server.given if name in names_in(expression)]

    def _read_flag(self, name: str) -> None:
        """Take the value of a flag. The JSON of a config is read as that config."""
        value = self.server.given[name]
        config = _config_of(self.release, name)
        if config is None:
            is_raw = isinstance(value, str) and _is_parsed_apart(self.release, name)
            is_null = value == "null" and _flags_by_field(self.release).get(name, {}).get("kind") == "json"
            self.names[name] = UNKNOWN if is_raw else None if is_null else value
            return
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                self._refuse("flag-json-value", name, f"{spell(name)} must be an object, got {_show(value)}.")
                value = UNKNOWN
        self.names[name] = UNKNOWN
        if value is not UNKNOWN:
            self.names[name] = self._read_config(config, value, name, "")

    def _read_config(self, config: str, value: Any, flag: str, inside: str) -> Any:
        """Return a config's values by field, before its own checks change them. UNKNOWN for a refused one."""
        if not isinstance(value, Mapping):
            self._refuse("flag-json-value", flag, f"{inside or spell(flag)} must be an object, got {_show(value)}.")
            return UNKNOWN
        fields = _fields_of(self.release, config)
        before = len(self.found)
        values = {**_defaults(self.release, config)}
        for key, each in value.items():
            place = f"{inside}.{key}" if inside else key
            if key not in fields:
                if self.rules.holds("unknown-key"):
                    self._refuse("flag-json-value", flag, f"{place} is not a key of {spell(flag)}.")
                continue
            values[key] = self._read_field(fields[key], each, flag, place)
        for key, row in fields.items():
            if row.get("required") and key not in value:
                self._refuse("flag-json-value", flag, f"{spell(flag)} needs the key {key}.")
        if len(self.found) > before:
            return UNKNOWN
        self._check_config(config, values, {key: [flag] for key in value}, code="flag-json-refused")
        return values

    def _read_field(self, row: Mapping[str, Any], value: Any, flag: str, place: str) -> Any:
        if "config" in row and value is not None and not row.get("opaque"):
            takes_only = {part.strip() for part in str(row["type"]).split("|")} <= {row["config"], "None"}
            return self._read_config(row["config"], value, flag, place) if takes_only else UNKNOWN
        try:
            return _read(row, value)
        except Mismatch as refused:
            code = "flag-json-value" if place else "config-value"
            *keys, value = refused.inside or (value,)
            inner = ".".join(map(str, (place, *keys) if place else keys))
            subject = f"{inner} of {spell(flag)}" if inner else spell(flag)
            self._refuse(code, flag, f"{subject} must be {refused}, got {_show(value)}.")
            return UNKNOWN

    def _make(self, config: str) -> None:
        """Make a config of single flags, after those that stand in it."""
        arguments = _arguments_by_config(self.release).get(config)
        if arguments is None or config in self.judged:
            return
        self.judged.add(config)
        for row in arguments.values():
            for name in names_in(row["value"]) & _arguments_by_config(self.release).keys():
                self._make(name)
        if any(decide(row["when"], self.names) is not True for row in arguments.values()):
            return
        if "**" in arguments:
            self._make_whole(config, arguments["**"])
            return
        values, given, late = {**_defaults(self.release, config)}, dict[str, list[str]](), dict[str, list[str]]()
        for key, row in arguments.items():
            values[key] = decide(row["value"], self.names)
            of_flags = self._given_in(row["value"])
            inner = [flag for name in names_in(row["value"]) for flag in self.behind.get(name, ())]
            if (of_flags or inner) and values[key] is not UNKNOWN:
                is_late = "assigned" in row  # the config was made, and checked, before
                if of_flags:
                    values[key] = self._take(config, key, values[key], of_flags[-1], assigned=is_late)
                (late if is_late else given)[key] = [*of_flags, *inner]
        self.behind[config] = list(dict.fromkeys(chain.from_iterable((*given.values(), *late.values()))))
        self._check_config(config, values, given, code="config-refused")
        for function in {row["validated"] for row in arguments.values() if "validated" in row}:
            self._check_config(config, values, late, code="config-refused", function=function)
        self.names[config] = {**values, **self._changed(config, values)}

    def _make_whole(self, config: str, row: Mapping[str, Any]) -> None:
        value, flags = decide(row["value"], self.names), self._given_in(row["value"])
        if value is not UNKNOWN and flags:
            self.names[config] = self._read_config(config, value, flags[-1], "")

    def _take(self, config: str, key: str, value: Any, flag: str, *, assigned: bool) -> Any:
        """Return what a field makes of a flag's value. A config that was made before is taken as it is."""
        row = None if f"{config}.{key}" in _told_by_rules() else _fields_of(self.release, config).get(key)
        if row is None or (assigned and "by_name" not in row) or (isinstance(value, Mapping) and "config" in row):
            return value
        return self._read_field(row, value, flag, "")

    def _changed(self, config: str, values: Values) -> Values:
        start = f"{config}."
        changes = _by_config(self.release, "config_changes").get(config, {})
        names = {**self.surroundings, **values}
        return {key.removeprefix(start): decide(text, names) for key, text in changes.items()}

    def _check_config(
        self, config: str, values: Values, given: Mapping[str, list[str]], *, code: str, function: str = ""
    ) -> None:
        """Refuse what a config's own checks, or those of one function, refuse of given fields.

        `given` names the flags behind each.
        """
        if not given:
            return
        names = {**self.surroundings, **values}
        for key, row in _by_config(self.release, "config_checks").get(config, {}).items():
            condition = key.removeprefix(f"{config}: ")
            if key in _told_by_rules() or ("field" in row and row["field"] not in given):
                continue
            if function and not self.release.source("config_checks", key).endswith(f".{function}"):
                continue
            flags = [flag for field, flags in given.items() if field in names_in(condition) for flag in flags]
            if flags:
                self._check("config_checks", key, condition, row, names, flags, code=code)

    def _check(
        self,
        topic: str,
        key: str,
        condition: str,
        row: Mapping[str, Any],
        names: Values,
        flags: Sequence[str],
        *,
        code: str = "flags-refused",
    ) -> None:
        """Refuse where a condition holds: unknown is not enough."""
        holds = decide(condition, names)
        if holds is not UNKNOWN and holds:
            about = dict.fromkeys(spell(flag) for flag in flags)
            says = _fill(row["says"], names) or condition
            self._refuse(code, flags[0], f"{', '.join(about)}: {says}", source=self.release.source(topic, key))

    def _refuse(self, code: str, flag: str, message: str, *, source: str = "") -> None:
        rulings = self.rules.ruling(code, message=message, where=spell(flag))
        self.found += [replace(ruling, source=source or ruling.source) for ruling in rulings]


@cache
def list_front(release: Release) -> Values:
    """Return the flags' defaults as their table has them."""
    return {row["field"]: row["default"] for row in release.table("flags").values()}


@cache
def _list_defaults(release: Release) -> Values:
    defaults = {**list_front(release), **release.table("engine_defaults")}
    return {name: _default(release, value) for name, value in defaults.items()}


def describe_surroundings(release: Release, server: ServerSettings) -> Values:
    """Return what conditions may ask of the platform and of vLLM's own variables."""
    cuda, rows = server.platform == "cuda", release.table("env")
    return {
        **{f"current_platform.{name}()": cuda and name in _ON_CUDA for name in _PLATFORMS},
        "current_platform.is_cpu()": server.platform == "cpu",
        "envs": {
            **_list_variables(release),
            **{name: _read_variable(rows[name], text) for name, text in server.env.items() if name in rows},
        },
    }


@cache
def _list_variables(release: Release) -> Values:
    """Return the environment variables' defaults."""
    defaults = ((name, row.get("default")) for name, row in release.table("env").items())
    return {name: UNKNOWN if isinstance(each, Mapping) else each for name, each in defaults}


def _read_variable(row: Mapping[str, Any], text: str) -> Any:
    """Return the value of an environment variable that is set: known only where its text can be read as its type."""
    default, text = row.get("default"), text.strip().lower()
    if isinstance(default, bool) and text in ("0", "1", "true", "false"):
        return text in ("1", "true")
    return int(text) if isinstance(default, int) and not isinstance(default, bool) and text.isdigit() else UNKNOWN


def _default(release: Release, value: Any) -> Any:
    """Return a default from a table. An expression that makes a config gives that config's own defaults."""
    if not isinstance(value, Mapping) or "expression" not in value:
        return value
    name = str(value["expression"]).removesuffix("()")
    return _defaults(release, name) if name in _by_config(release, "config_fields") else UNKNOWN


@cache
def _defaults(release: Release, config: str) -> Mapping[str, Any]:
    fields = _fields_of(release, config)
    return {key: _default(release, row.get("default")) for key, row in fields.items()}


def _config_of(release: Release, flag: str) -> str | None:
    """Return the config that the JSON of a flag is read as. None where another type of a union takes it as it is."""
    row = _flags_by_field(release).get(flag)
    kinds = [] if row is None or row["kind"] != "json" else str(row["type"]).split(" | ")
    if not {"dict", "Any"}.isdisjoint(kinds):
        return None
    return next((kind for kind in kinds if kind in _by_config(release, "config_fields")), None)


def _is_parsed_apart(release: Release, flag: str) -> bool:
    """Say whether a function of the flag's own makes something else of its text."""
    row = _flags_by_field(release).get(flag)
    return row is not None and "lambda" in str(row["type"]) and "choices" not in row


@cache
def _flags_by_field(release: Release) -> Mapping[str, Mapping[str, Any]]:
    return {row["field"]: row for row in release.table("flags").values()}


@cache
def _by_config(release: Release, topic: str) -> Mapping[str, Mapping[str, Any]]:
    """Return a topic's rows by the config class that their keys begin with."""
    found: dict[str, dict[str, Any]] = {}
    for key, row in release.table(topic).items():
        name = re.match(r"\w+", key)
        if name:
            found.setdefault(name[0], {})[key] = row
    return found


@cache
def _fields_of(release: Release, config: str) -> Mapping[str, Any]:
    rows = _by_config(release, "config_fields").get(config, {})
    return {key.partition(".")[2]: row for key, row in rows.items()}


@cache
def _arguments_by_config(release: Release) -> Mapping[str, Mapping[str, Any]]:
    rows = _by_config(release, "config_arguments")
    return {name: {key.partition(".")[2]: row for key, row in each.items()} for name, each in rows.items()}


@cache
def _told_by_rules() -> frozenset[str]:
    """Return the checks and fields that a rule stands for which says more."""
    return frozenset(key for rule in all_rules().values() for key in rule.stands_for)


def _read(row: Mapping[str, Any], value: Any) -> Any:
    """Return a value as a field holds it, UNKNOWN where a validator decides that is not known here."""
    if row.get("opaque") or (value is None and row.get("unset")):
        return UNKNOWN if row.get("opaque") else None
    if isinstance(value, str):
        if "unset_as" in row and value.lower() == row["unset_as"]:
            return None
        value = value.lower().replace("-", "_") if row.get("lowered") else value
        value = value.replace(" ", "").split(",") if row.get("split") else value
    if "enum" in row:
        return _read_member(row, value)
    return coerce_field(row, value)


def _read_member(row: Mapping[str, Any], value: Any) -> Any:
    members: Mapping[str, Any] = row["enum"]
    kinds = {part.strip() for part in str(row["type"]).split("|")}
    if (value is None and "None" in kinds) or (isinstance(value, str) and "str" in kinds):
        return value
    if row.get("by_name") and isinstance(value, str):
        if value.upper() in members:
            return value.upper()
        raise Mismatch("one of " + ", ".join(members))
    for name, held in members.items():
        if held is not None and (value == held or (isinstance(held, int) and _is_number(value, held))):
            return name
    if None in members.values() and not isinstance(value, str):
        return UNKNOWN
    raise Mismatch("one of " + ", ".join(str(held) for held in members.values() if held is not None))


def _is_number(value: Any, held: int) -> bool:
    """Say whether a text or number is a whole number, as `1` and `1.0` are."""
    try:
        return not isinstance(value, bool) and float(value) == held
    except (TypeError, ValueError, OverflowError):
        return False


def _fill(says: str, names: Mapping[str, Any]) -> str:
    """Return what vLLM says, with the values that are known in their places."""

    def show(place: re.Match[str]) -> str:
        value = decide(place[1], names) if re.fullmatch(r"(?!\d)[\w.]+", place[1]) else UNKNOWN
        return "..." if value is UNKNOWN else str(value)

    return _PLACE.sub(show, says)


def _show(value: Any) -> str:
    return json.dumps(value, default=str)[:80]


def spell(flag: str) -> str:
    """Return a flag as it is typed."""
    return "--" + flag.replace("_", "-")
