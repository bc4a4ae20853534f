"""The arguments of one vLLM server as a release's parser reads them: model, engine flags, speculative JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from draftwise.core import Finding, Ruling
from draftwise.knowledge.flag_types import SPEC_FLAGS, OldFlag, read_human_int, read_old_flags
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import find_placeholder
from draftwise.knowledge.rules import Rulebook, get_rule
from draftwise.knowledge.stored import read_data
from draftwise.knowledge.vllm import Release
from draftwise.setups.read.arguments.config_file import put_in_config_file
from draftwise.setups.read.arguments.flag_values import RefusedValue, get_value
from draftwise.setups.read.arguments.flags import FlagUse, match_flags, spell_flags
from draftwise.setups.read.shell.environment import describe_unknown
from draftwise.setups.read.shell.launch import Entry
from draftwise.setups.read.shell.words import Word

_DASHES = "\u2013\u2014\u2010\u2011\u2212"
_MAX_DOTS = 16


@dataclass(frozen=True, slots=True)
class ArgparseWords:
    """Words ready for argparse."""

    words: tuple[Word, ...]
    dotted: Mapping[str, Word]
    """Flags given key by key, with the first word of each."""
    spec: dict[str, Any] | None
    """Flags of old guides as speculative JSON; None without such flags."""
    findings: tuple[Ruling, ...]


def spell(words: Sequence[Word], release: Release) -> ArgparseWords:
    """Rewrite the words of a command line as the release's parser does, without flags of old guides."""
    speller = _Speller(release)
    plain = speller.merge_dotted(list(speller.respell(words)))
    rest, spec, about_old = _replace_old_flags(plain, release)
    return ArgparseWords(rest, speller.first, spec, (*speller.findings, *about_old))


@dataclass(slots=True)
class _Speller:
    release: Release
    first: dict[str, Word] = field(default_factory=dict)
    findings: list[Ruling] = field(default_factory=list)

    def respell(self, words: Sequence[Word]) -> Iterator[Word]:
        for index, word in enumerate(words):
            text = self._straighten(word)
            if text.startswith("--"):
                flag, separator, value = text.partition("=")
                head, dot, rest = flag.partition(".")
                yield replace(word, text=head.replace("_", "-") + dot + rest + separator + value)
            elif text.startswith("-O") and not text.startswith("-O.") and text != "-O":
                yield from self._optimization_level(word, text.removeprefix("-O").removeprefix("="))
            elif text == "-O" and index + 1 < len(words) and words[index + 1].text in ("0", "1", "2", "3"):
                yield replace(word, text="--optimization-level" if self._has_level() else "-O.level")
            else:
                yield replace(word, text=text)

    def _straighten(self, word: Word) -> str:
        """Give a flag that begins with a typographic dash the dashes it was meant to have."""
        text = word.text
        if text[:1] not in _DASHES or not text[1:2]:
            return text
        rest = text[1:].lstrip(_DASHES + "-")
        flag = rest.partition("=")[0].partition(".")[0]
        is_short = any(f"-{flag}" in row["aliases"] for row in self.release.table("flags").values())
        straight = f"-{rest}" if is_short else f"--{rest}"
        self.findings.append(
            get_rule("typographic-dash").ruling(
                text=text.partition("=")[0], straight=straight.partition("=")[0], where=word.where()
            )
        )
        return straight

    def _has_level(self) -> bool:
        return "--optimization-level" in self.release.table("flags")

    def _optimization_level(self, word: Word, level: str) -> Iterator[Word]:
        if self._has_level():
            yield replace(word, text="--optimization-level")
            yield replace(word, text=level)
        else:
            yield replace(word, text=f"-O.level={level}")

    def merge_dotted(self, words: list[Word]) -> list[Word]:
        """Put keys given one by one (`--speculative-config.method ngram`) at the end, as the JSON that they make up."""
        rest: list[Word] = []
        values: dict[str, dict[str, Any]] = {}
        waiting = iter(words)
        for word in waiting:
            flag, separator, value = word.text.partition("=")
            if not (word.text.startswith("-") and "." in flag) or flag.count(".") > _MAX_DOTS:
                rest.append(word)
                continue
            if not separator:
                following = next(waiting, None)
                if following is None:
                    self._report(word, "flag-needs-value", f"{flag} has no value after it.")
                    break
                value = following.text
                word = replace(word, unknown=(*word.unknown, *following.unknown))
            name, *keys = flag.removesuffix("+").split(".")
            first = self.first.setdefault(name, word)
            self.first[name] = replace(first, unknown=tuple(dict.fromkeys((*first.unknown, *word.unknown))))
            made = json.loads(json.dumps(value.split(","))) if flag.endswith("+") else self._value(value)
            for twice in _merge(values.setdefault(name, {}), _nest(keys, made)):
                self._report(word, "flag-given-twice", f"{name}.{twice} appears twice; only the last one counts.")
        for name, value_by_key in values.items():
            word = self.first[name]
            rest += [replace(word, text=name), replace(word, text=json.dumps(value_by_key))]
        return rest

    def _value(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
        try:
            if Rulebook(self.release.version).holds("dotted-number-suffix"):
                return read_human_int(text)
        except ValueError:
            pass
        return text

    def _report(self, word: Word, code: str, message: str) -> None:
        self.findings.append(get_rule(code).ruling(message=message, where=word.where()))


def _nest(keys: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def _merge(into: dict[str, Any], update: Mapping[str, Any]) -> Iterator[str]:
    """Merge nested mappings in place, append lists, and yield every key that is overwritten."""
    for key, value in update.items():
        before = into.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            for inner in _merge(before, value):
                yield f"{key}.{inner}"
        elif isinstance(value, list) and isinstance(before, list):
            before += value
        else:
            if key in into:
                yield key
            into[key] = value


def _replace_old_flags(
    words: Sequence[Word], release: Release
) -> tuple[tuple[Word, ...], dict[str, Any] | None, tuple[Ruling, ...]]:
    """Take flags from before `--speculative-config` out of a command line. Return the rest and the JSON they become."""
    rest: list[Word] = []
    taken: list[tuple[OldFlag, Word, str]] = []
    known, table = read_old_flags(), release.table("flags")
    waiting = iter(range(len(words)))
    for index in waiting:
        flag, separator, value = words[index].text.partition("=")
        old = known.get(flag)
        if old is None or flag in table:
            rest.append(words[index])
            continue
        following = words[index + 1].text if index + 1 < len(words) else ""
        if not separator and _takes(old, following):
            value = following
            next(waiting, None)
        taken.append((old, words[index], value))
    if not taken:
        return tuple(rest), None, ()
    spec = _put_together(taken, release)
    return tuple(rest), spec, tuple(_explain_old(taken, spec))


def _takes(old: OldFlag, following: str) -> bool:
    """Say whether the word after a flag is its value."""
    if old.kind == "switch":
        return following.lower() in ("true", "false")
    return bool(following) and not following.startswith("--")


def _put_together(taken: Sequence[tuple[OldFlag, Word, str]], release: Release) -> dict[str, Any]:
    fields = release.table("spec_fields")
    spec: dict[str, Any] = {}
    for old, _, text in taken:
        if old.key == "model" and (method := find_placeholder(text)) is not None:
            spec["method"] = method.name
        elif old.key in fields:
            spec[old.key] = _typed(old, text)
    return spec


def _typed(old: OldFlag, text: str) -> Any:
    try:
        match old.kind:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "switch":
                return text.lower() != "false"
    except (ValueError, OverflowError):
        return text
    return text


def _explain_old(taken: Sequence[tuple[OldFlag, Word, str]], spec: dict[str, Any]) -> Iterator[Ruling]:
    """Yield one ruling for all old flags, since one JSON replaces them all."""
    names = ", ".join(dict.fromkeys(old.flag for old, _, _ in taken))
    left_out = {old.flag: old.note for old, _, _ in taken if old.key not in spec and old.key != "model"}
    notes = "".join(f" {flag} has no successor: {note}." for flag, note in left_out.items() if note)
    yield get_rule("flag-from-before-0.9").ruling(
        names=names,
        flags_words="this flag" if len(taken) == 1 else "these flags",
        spec=json.dumps(spec),
        notes=notes,
        where=taken[0][1].where(),
    )


_FLAGS = read_data("kserve_flags")
"""The flags that KServe's server has itself."""
_RENAMED: Mapping[str, str] = _FLAGS["renamed"]
_WITH_VALUE = frozenset(_FLAGS["with_value"])
_SWITCHES = frozenset(_FLAGS["switches"])


def to_vllm(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words left for vLLM; if a model id is given, the directory is not used."""
    has_id = any(_flag(word) == "--model-id" for word in words)
    kept: list[Word] = []
    waiting = iter(words)
    for word in waiting:
        flag, (_, separator, value) = _flag(word), word.text.partition("=")
        if flag in _SWITCHES:
            continue
        if flag not in _WITH_VALUE and flag not in _RENAMED:
            kept.append(word)
            continue
        given = replace(word, text=value) if separator else next(waiting, None)
        if flag in _RENAMED and given is not None and not (has_id and flag == "--model-dir"):
            kept += [replace(word, text=_RENAMED[flag]), given]
    return tuple(kept)


def _flag(word: Word) -> str:
    flag = word.text.partition("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag


_MAX_WORDS = 4_000
_MAX_NAMED = 10
_ONLY_NAMES = frozenset({"served_model_name", "download_dir", "hf_token"})
"""Engine arguments that take any text, and that nothing else depends on."""
_JUDGED = frozenset({"api_server_count", "headless", "tool_call_parser"})
"""Arguments of the server in front of the engine that rules read."""
_PAIR = re.compile(r"(--?[A-Za-z][\w.-]*)[ \t]+(\S.*)", re.DOTALL)
_NOT_ENGINE = frozenset({"model", "model_tag", "help", "config", "speculative_config", *SPEC_FLAGS})


@dataclass(slots=True)
class Arguments:
    """The parsed arguments of a command line."""

    model: str = ""
    """Model; empty if none is named."""
    args: dict[str, Any] = field(default_factory=dict)
    """Flags by their long name with underscores."""
    spec: dict[str, Any] | None = None
    flag_keys: set[str] = field(default_factory=set)
    """Keys of `spec` that only a `--spec-*` flag gives."""
    unread: list[str] = field(default_factory=list)
    """Words that belong to no flag, or that a flag rejects."""
    unknown: dict[str, Finding] = field(default_factory=dict)
    """Engine arguments with unknown values -> the finding that says so."""
    findings: list[Finding] = field(default_factory=list)

    def report(self, code: str, message: str, word: Word | None = None, *, fix: str = "", becomes: str = "") -> None:
        """Add a ruling about a word."""
        where = "" if word is None else word.where()
        self.findings.append(get_rule(code).ruling(message=message, where=where, fix=fix, becomes=becomes))

    def report_unknown(self, what: str, word: Word, unknown: Sequence[str] = (), *, name: str) -> None:
        """Add the ruling that something cannot be judged, as the server depends on the argument `name`."""
        finding = self.unknown[name] = explain_unknown(what, unknown or word.unknown, where=word.where())
        self.findings.append(finding)


def explain_unknown(what: str, unknown: Sequence[str], *, where: str) -> Ruling:
    """Return the ruling that something depends on unknown values.

    Args:
        what: subject of the sentence.
        unknown: values that it depends on, each with its source.
        where: its place.
    """
    return get_rule("unresolved-variable").ruling(what=what, unknown=unknown[:_MAX_NAMED], where=where)


def read_arguments(
    words: Sequence[Word],
    release: Release,
    entry: Entry,
    *,
    folder: Path | None = None,
    files: Mapping[str, Word] = MappingProxyType({}),
) -> Arguments:
    """Read the words after `vllm serve`, the module, or the image's name; `files` are what the script writes.

    Raises:
        InvalidSetup: there are more words than draftwise reads.
    """
    if len(words) > _MAX_WORDS:
        raise refusal("too-long", case="command", max_words=_MAX_WORDS, where=words[0].where())
    found = Arguments()
    if entry == "huggingfaceserver":
        words = to_vllm(words)
    words = _split_pairs(words, found)
    if entry == "dynamo":
        words = _leave_out_own(words, release, found)
    serves = entry == "serve" or (entry == "image" and not Rulebook(release.version).holds("image-runs-api-server"))
    if serves:
        words = _move_model(words, release, found, strict=entry == "serve")
    given = words = _leave_out_config(words, found)
    if any(word.text.partition("=")[0] == "--config" for word in words):
        before = len(found.findings)
        words = put_in_config_file(words, release, found.findings, folder=folder, serves=serves, files=files)
        if any(each.code == "config-file-unread" for each in found.findings[before:]):
            found.unread += _find_config_file(given)
    spelled = spell(words, release)
    matched = match_flags(spelled.words, release)
    found.findings += [*spelled.findings, *matched.findings]
    found.unread += (word.text for word in (*matched.refused, *matched.unknown))
    _collect(matched.flags, release, found)
    _check_repeats(matched.flags, spelled.dotted, found)
    found.findings += matched.about_unknown
    for word in matched.open:
        found.report_unknown("What stands here", word, name="")
    _join_spec(matched.flags, spelled.spec, found)
    _choose_model(matched.model, release, found, serves=serves)
    return found


def _leave_out_own(words: Sequence[Word], release: Release, found: Arguments) -> Sequence[Word]:
    """Return the words without flags that the release lacks: Dynamo's worker adds flags, which change by release."""
    kept, known, is_own = list[Word](), spell_flags(release), False
    for word in words:
        flag = word.text.partition("=")[0].partition(".")[0].replace("_", "-")
        if word.text.startswith("-"):
            is_own = not word.unknown and flag not in known
        if is_own:
            found.unread.append(word.text)
        else:
            kept.append(word)
    own = [each for each in found.unread if each.startswith("-")]
    if own:
        finding = get_rule("unresolved-variable").ruling(
            message=f"draftwise does not judge Dynamo's own flags, which vLLM lacks: {', '.join(own[:_MAX_NAMED])}.",
            where=words[0].where(),
            fix="Check these flags against Dynamo's documentation.",
        )
        found.findings.append(finding)
        found.unknown[""] = finding
    return kept


def _leave_out_config(words: Sequence[Word], found: Arguments) -> Sequence[Word]:
    """Return the words without a `--config FILE` whose file the text does not tell."""
    index = next((i for i, word in enumerate(words[:-1]) if word.text == "--config" and words[i + 1].unknown), None)
    if index is None:
        return words
    found.report_unknown("The file behind --config", words[index + 1], name="config")
    return [*words[:index], *words[index + 2 :]]


def _find_config_file(words: Sequence[Word]) -> list[str]:
    """Return `--config FILE`, whose flags stay in a file that is out of reach."""
    index = next((i for i, word in enumerate(words) if word.text == "--config"), len(words))
    return [word.text for word in words[index : index + 2]]


def _split_pairs(words: Sequence[Word], found: Arguments) -> list[Word]:
    """Take apart what holds a flag and its value in one word, as lists in manifests often do."""
    split: list[Word] = []
    for word in words:
        pair = _PAIR.fullmatch(word.text)
        if pair is None:
            split.append(word)
            continue
        found.report(
            "flag-and-value-in-one",
            f"{pair[1]} and its value are a single argument, with a space inside.",
            word,
            fix="Split them into two arguments, or put = between them.",
        )
        split += [replace(word, text=pair[1]), replace(word, text=pair[2].strip())]
    return split


def _move_model(words: Sequence[Word], release: Release, found: Arguments, *, strict: bool) -> Sequence[Word]:
    """Put the model of `vllm serve --model MODEL` in front, as the parser does."""
    index = next((i for i, word in enumerate(words) if word.text.partition("=")[0] == "--model"), None)
    if index is None:
        _check_served_name(words, release, found)
        return words
    word = words[index]
    _, joined, value = word.text.partition("=")
    if Rulebook(release.version).holds("serve-refuses-model-flag"):
        if joined:
            return words
        code, message = "serve-refuses-model-flag", "does not work: the model must come first."
    else:
        code, message = "serve-model-flag-deprecated", "works, but vLLM warns."
    if strict:
        found.report(code, message, word, fix="Write vllm serve MODEL.")
    if code == "serve-model-flag-deprecated":
        _report_lost_models(words, index, found)
    if not joined and index + 1 >= len(words):
        return words
    model = replace(word, text=value) if joined else words[index + 1]
    return [model, *words[:index], *words[index + (1 if joined else 2) :]]


def _report_lost_models(words: Sequence[Word], first: int, found: Arguments) -> None:
    """Report every --model after the first one, which alone counts."""
    values = [
        (word, word.text.partition("=")[2] or (words[index + 1].text if index + 1 < len(words) else ""))
        for index, word in enumerate(words)
        if index >= first and word.text.partition("=")[0] == "--model"
    ]
    (given, served), *lost = values
    by = f" ({given.place})" if given.place else ""
    for word, model in lost:
        found.report(
            "second-model-not-served",
            f"vLLM does not serve --model {model}: the first --model counts{by}, {served}.",
            word,
            fix="Pass one --model. To replace a runtime's model, set your own command and args.",
            becomes=served,
        )


def _check_served_name(words: Sequence[Word], release: Release, found: Arguments) -> None:
    flags = [word.text.partition("=")[0].replace("_", "-") for word in words]
    nameless = "--served-model-name" in flags and "--config" not in flags and flags[0].startswith("-")
    if nameless and Rulebook(release.version).holds("served-name-without-model"):
        found.report("served-name-without-model", "there is no model before the flags.", words[0])


def _collect(flags: Iterable[FlagUse], release: Release, found: Arguments) -> None:
    for given in map(_open_place, flags):
        if given.unknown and not _takes_any_text(given, release):
            if given.field in release.table("engine_defaults") or given.field in _JUDGED or given.field in SPEC_FLAGS:
                found.report_unknown(f"The value of {given.name}", given.word, given.unknown, name=given.field)
            else:
                unknown, where = given.unknown[:_MAX_NAMED], given.word.where()
                found.findings.append(get_rule("value-open").ruling(name=given.name, unknown=unknown, where=where))
            continue
        try:
            value = get_value(given, release, found.findings)
        except RefusedValue as refused:
            found.findings.append(refused.ruling)
            if refused.meant is None:
                found.unread += given.words
                continue
            value = refused.meant
        if given.field == "help":
            found.report("unknown-flag", "--help prints the flags and starts nothing.", given.word)
        found.args[given.field] = [*found.args.get(given.field, ()), *value] if given.appends else value


def _open_place(given: FlagUse) -> FlagUse:
    """Return a flag whose value is only the place of one, `{}` where a number or a name belongs, as open."""
    is_text = given.row["kind"] != "value" or ("str" in str(given.row["type"]) and not given.row.get("choices"))
    if given.unknown or is_text or given.values != ("{}",):
        return given
    return replace(given, unknown=(describe_unknown("{}", "a value that is filled in later"),))


def _takes_any_text(given: FlagUse, release: Release) -> bool:
    """Say whether the server starts in the same way whatever the text is that a flag is given."""
    is_text = (
        given.row["kind"] in ("value", "list") and "str" in str(given.row["type"]) and not given.row.get("choices")
    )
    is_read = given.field in release.table("engine_defaults") or given.field in _JUDGED
    return is_text and (given.field in _ONLY_NAMES or not is_read)


def _check_repeats(flags: Iterable[FlagUse], dotted: Mapping[str, Word], found: Arguments) -> None:
    seen: dict[str, FlagUse] = {}
    for given in flags:
        before = seen.setdefault(given.field, given)
        if before is given:
            continue
        if before.option in dotted or given.option in dotted:
            found.report(
                "json-and-dotted-keys",
                f"{given.name} appears both as JSON and with dotted keys, so vLLM drops the whole JSON.",
                before.word,
                fix="Write all keys in one of the two ways.",
            )
        elif not given.appends:
            found.report("flag-given-twice", f"{given.name} appears twice; only the last one counts.", before.word)


def _join_spec(flags: Iterable[FlagUse], from_old_flags: dict[str, Any] | None, found: Arguments) -> None:
    """Make one speculative JSON of --speculative-config, its companions, and old flags."""
    words = {given.field: given.word for given in flags}
    json_value = found.args.pop("speculative_config", None)
    if json_value is not None and not isinstance(json_value, dict):
        found.report(
            "spec-not-an-object",
            f"must be a JSON object, got {type(json_value).__name__}.",
            words.get("speculative_config"),
            fix="""Example: '{"method": "ngram", "num_speculative_tokens": 5}'.""",
        )
        json_value = None
    spec = None if json_value is None and from_old_flags is None else {**(from_old_flags or {}), **(json_value or {})}
    for name, key in SPEC_FLAGS.items():
        value = found.args.pop(name, None)
        if value is None:
            continue
        if json_value is not None and key in json_value:
            option, word = f"--{name.replace('_', '-')}", words.get(name)
            where = option if word is None else word.where()
            found.findings.append(get_rule("spec-flag-repeats-key").ruling(option=option, key=key, where=where))
        else:
            found.flag_keys.add(key)
        spec = {**(spec or {}), key: value}
    found.spec = spec


def _choose_model(positional: Word | None, release: Release, found: Arguments, *, serves: bool) -> None:
    """Take the model from where the entry point takes it, or the default that the server falls back to."""
    by_flag = found.args.pop("model", None)
    found.args = {name: value for name, value in found.args.items() if name not in _NOT_ENGINE}
    if positional is not None and positional.unknown:
        found.report_unknown("The model", positional, name="model")
    if "model" in found.unknown:
        return
    if positional is None and by_flag is None:
        unread = (each for each in found.findings if each.code == "config-file-unread")
        if file := found.unknown.get("config") or next(unread, None):
            found.unknown["model"] = explain_unknown("The model", ["the file behind --config"], where=file.where)
            found.findings.append(found.unknown["model"])
            return
    default = str(release.table("engine_defaults").get("model") or "")
    if serves or positional is None:
        chosen = positional.text if positional is not None else by_flag
    else:
        chosen = by_flag or positional.text
        code = (
            "positional-model-ignored"
            if Rulebook(release.version).holds("positional-model-ignored")
            else "stray-argument"
        )
        found.report(
            code,
            f"{positional.text!r} has no place here, but vLLM reads it as the model.",
            positional,
            fix=f"Write --model {positional.text}.",
            becomes=str(by_flag or default),
        )
    if chosen == "":
        found.report("model-empty", "The name of the model is empty.", positional, fix="Name the model.")
    elif chosen is None:
        found.report("no-model-given", f"the server would serve {default}.", fix="Name the model.", becomes=default)
    found.model = str(chosen or default)
