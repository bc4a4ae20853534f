"""The arguments of one vLLM server as a release's parser takes them: model, engine flags, speculative JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from draftwise.core import Finding, InvalidSetup, Ruling
from draftwise.knowledge.flag_types import SPEC_FLAGS
from draftwise.knowledge.rules import Rulebook, get_rule
from draftwise.knowledge.stored import read_data
from draftwise.knowledge.vllm import Release
from draftwise.setups.read.arguments.config_file import put_in_config_file
from draftwise.setups.read.arguments.flag_values import RefusedValue, get_value
from draftwise.setups.read.arguments.flags import FlagUse, match_flags
from draftwise.setups.read.arguments.spelling import spell
from draftwise.setups.read.shell.launch import Entry
from draftwise.setups.read.shell.words import Word

_FLAGS = read_data("kserve_flags")
"""The flags that KServe's server has itself."""
_RENAMED: Mapping[str, str] = _FLAGS["renamed"]
_WITH_VALUE = frozenset(_FLAGS["with_value"])
_SWITCHES = frozenset(_FLAGS["switches"])


def to_vllm(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words that are left for vLLM; where a model id is given, the directory is not used."""
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
_PAIR = re.compile(r"(--?[A-Za-z][\w.-]*)[ \t]+(\S.*)", re.DOTALL)
_NOT_ENGINE = frozenset({"model", "model_tag", "help", "config", "speculative_config", *SPEC_FLAGS})


@dataclass(slots=True)
class Arguments:
    """What a command line says."""

    model: str = ""
    """Empty where none is named."""
    args: dict[str, Any] = field(default_factory=dict)
    """Flags by their long name with underscores."""
    spec: dict[str, Any] | None = None
    unread: list[str] = field(default_factory=list)
    """Words that no flag takes, or that one refuses."""
    unknown: dict[str, Finding] = field(default_factory=dict)
    """Engine arguments whose values the text does not tell -> the finding that says so."""
    findings: list[Finding] = field(default_factory=list)

    def report(self, code: str, message: str, word: Word | None = None, *, fix: str = "", becomes: str = "") -> None:
        """Add a ruling about a word."""
        where = "" if word is None else word.where()
        self.findings.append(get_rule(code).ruling(message=message, where=where, fix=fix, becomes=becomes))

    def report_unknown(self, what: str, word: Word, unknown: Sequence[str] = (), *, name: str | None) -> None:
        """Add the ruling that something cannot be judged; `name` is that of the argument, if the server hangs on it."""
        finding = explain_unknown(what, unknown or word.unknown, where=word.where())
        self.findings.append(finding)
        if name is not None:
            self.unknown[name] = finding


def explain_unknown(what: str, unknown: Sequence[str], *, where: str) -> Ruling:
    """Return the ruling that something depends on what the text does not tell.

    Args:
        what: subject of the sentence.
        unknown: what it depends on, each with where it would come from.
        where: its place.
    """
    return get_rule("unresolved-variable").ruling(what=what, unknown=unknown[:_MAX_NAMED], where=where)


def read_arguments(words: Sequence[Word], release: Release, entry: Entry, *, folder: Path | None = None) -> Arguments:
    """Read the words after `vllm serve`, the module, or the image's name.

    Raises:
        InvalidSetup: there are more words than any server is started with.
    """
    if len(words) > _MAX_WORDS:
        raise InvalidSetup.because(
            "too-long", f"The command has more than {_MAX_WORDS:,} arguments.", where=words[0].where()
        )
    found = Arguments()
    if entry == "huggingfaceserver":
        words = to_vllm(words)
    words = _split_pairs(words, found)
    serves = entry == "serve" or (entry == "image" and not Rulebook(release.version).holds("image-runs-api-server"))
    if serves:
        words = _move_model(words, release, found, strict=entry == "serve")
    words = _leave_out_config(words, found)
    if any(word.text.partition("=")[0] == "--config" for word in words):
        if folder is None:
            found.unread += _find_config_file(words)
        words = put_in_config_file(words, release, found.findings, folder=folder, serves=serves)
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
    for given in flags:
        if given.unknown and not _takes_any_text(given, release):
            is_engine = given.field in release.table("engine_defaults") or given.field in SPEC_FLAGS
            name = given.field if is_engine else None
            found.report_unknown(f"The value of {given.name}", given.word, given.unknown, name=name)
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


def _takes_any_text(given: FlagUse, release: Release) -> bool:
    """Say whether the server starts in the same way whatever the text is that a flag is given."""
    is_text = (
        given.row["kind"] in ("value", "list") and "str" in str(given.row["type"]) and not given.row.get("choices")
    )
    return is_text and (given.field in _ONLY_NAMES or given.field not in release.table("engine_defaults"))


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
