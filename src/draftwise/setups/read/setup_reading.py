"""Turns a server in a text into a setup that can be judged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from draftwise.core import Device, Finding, InvalidSetup, Ruling, Setup, Severity, SpecConfig
from draftwise.knowledge.images import carries_own_tags, find_packages, has_half_a_release
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.rules import get_rule
from draftwise.knowledge.stored import read_data
from draftwise.knowledge.validators import RAY_RUNS
from draftwise.knowledge.vllm import Release, get_release, releases
from draftwise.setups.read.arguments.command_line import Arguments, explain_unknown, read_arguments
from draftwise.setups.read.shell.environment import describe_unknown
from draftwise.setups.read.shell.launch import Launch, find_launch, holds_no_models
from draftwise.setups.read.shell.words import Word, check_length

_TEMPLATE = re.compile(
    r"\{\{.{0,999}?\}\}|(?:\A|(?<==))\{[A-Za-z_]\w*\}\Z|\$\{[A-Za-z_]\w*(?::?-[^}]{0,999})?\}", re.DOTALL
)
"""Helm's `{{ value }}`, `{value}` as the whole of a word, which recipes fill in, and `${VALUE}`, as envsubst does."""
_SCRIPT = re.compile(r"(?<![\w./-])[\w./-]{1,255}\.sh\b")
_HIDDEN = frozenset({"VLLM_API_KEY"})
_DECIDING = frozenset(
    {"VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_ATTENTION_BACKEND", "VLLM_USE_V1", "VLLM_USE_V2_MODEL_RUNNER"}
)
"""Variables that a release's judgement depends on."""
_OF_PLUGINS = (
    "VLLM_ASCEND_",
    "ASCEND_",
    "HCCL_",
    "PYTORCH_NPU_",
    "PT_HPU_",
    "HABANA_",
    "NEURON_",
    "VLLM_SPYRE_",
    "VLLM_RBLN_",
)
"""Beginnings of the variables of hardware plugins and of the runtimes below them."""
_MENTIONS = re.compile(r"\bvllm\b")
_IN_A_FILE = ", which draftwise does not read)"
"""End of the name of a variable that a sourced file may set."""
_MAX_NAMED = 10
_IN_IMAGES = ("object", "services", "values")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "target": ("model", "model_loading_config"),
    "spec": ("speculative_config", "spec_method", "spec_model", "spec_tokens"),
}
"""Field of a setup -> the arguments of servers and engines that it is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupReading:
    """One setup as read, with the findings of the reading."""

    setup: Setup
    where: str
    """File with line, document and container; empty for a command line."""
    findings: tuple[Finding, ...] = ()
    unknown: Mapping[str, Finding] = field(default_factory=dict)
    """Unknown parts of the setup, e.g. `tensor_parallel_size`, each with its entry of `findings`; the setup's behavior
    is then unknown."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Directories of the server with a model of the Hugging Face hub: path -> the model's name."""
    packages: frozenset[str] = frozenset()
    """Optional packages that the text, or its image, shows the server to have."""
    flag_keys: frozenset[str] = frozenset()
    """Keys of the speculative JSON that only a `--spec-*` flag gives: vLLM adds them to the JSON of a checkpoint."""
    path: str = ""
    """Decisions of the text that lead to this setup, e.g. `MODE=spec, line 12`; empty without any."""
    others: tuple[SetupReading, ...] = ()
    """The same server on other ways through the text."""
    if_set: SetupReading | None = None
    """The same server with every variable open whose default is empty; None without any among its arguments."""
    may_be_empty: bool = False
    """Whether Ray may leave it no replica; of other platforms, the text around the server says so."""
    launch: Launch | None = field(default=None, compare=False, repr=False)
    """The server as the text starts it; None for a setup without a text."""

    def with_fields(self, *about: Finding, **changes: Any) -> SetupReading:
        """Return the reading with fields of its setup replaced, which settles what the text leaves open.

        Args:
            about: findings about the new values.
            changes: new values by field.
        """
        told = {part for name in changes for part in _PARTS.get(name, (name,))}
        unknown = {part: finding for part, finding in self.unknown.items() if part not in told}
        settled = [finding for part, finding in self.unknown.items() if part in told]
        findings = (finding for finding in self.findings if finding not in settled)
        others = tuple(other.with_fields(*about, **changes) for other in self.others)
        if_set = self.if_set and self.if_set.with_fields(*about, **changes)
        setup = replace(self.setup, **changes)
        flag_keys = frozenset[str]() if "spec" in changes else self.flag_keys
        return replace(
            self,
            setup=setup,
            findings=(*about, *findings),
            unknown=unknown,
            flag_keys=flag_keys,
            others=others,
            if_set=if_set,
        )

    def require(self) -> Setup:
        """Return the setup, if nothing about it is unknown or wrong.

        Raises:
            InvalidSetup: a value is unknown, a word is not a flag, the text starts the server in several ways, or
                something else is wrong.
        """
        if self.others:
            raise refusal("several-ways", ways=len(self.others) + 1, where=self.where)
        if errors := [finding for finding in self.findings if finding.severity is Severity.ERROR]:
            raise InvalidSetup(errors)
        return self.setup


def read_words(words: Sequence[str], *, engine_version: str | None = None) -> SetupReading:
    """Return the vLLM server that a command starts, from the words that the program receives.

    Args:
        words: the whole command, such as `["vllm", "serve", "MODEL", "--seed", "1"]`.
        engine_version: release to judge by, overriding the words.

    Raises:
        InvalidSetup: the words start no vLLM server, or are too long.
    """
    check_length(sum(map(len, words)))
    launch = find_launch([Word(word) for word in words])
    if launch is None:
        raise no_server("")
    return read_launch(launch, engine_version=engine_version, folder=Path())


def read_launch(
    launch: Launch,
    *,
    engine_version: str | None = None,
    folder: Path | None = None,
    left: Mapping[str, str] = MappingProxyType({}),
) -> SetupReading:
    """Return the setup of a server.

    Args:
        launch: the server.
        engine_version: release to judge by, overriding the text.
        folder: folder of a `--config` file; None for a server in a container.
        left: references in the text with unknown values -> their names in findings.
    """
    alone = replace(launch, others=())
    readings = [
        _read_way(each, engine_version, folder, left)
        for each in (alone, *(_place_way(other, launch) for other in launch.others))
    ]
    first = readings[0]
    others = {repr((each.setup, each.findings)): each for each in readings[1:]}
    others.pop(repr((first.setup, first.findings)), None)
    about = tuple(_about_ways(launch))
    return replace(first, others=tuple(others.values()), findings=(*first.findings, *about))


def _place_way(other: Launch, launch: Launch) -> Launch:
    """Return another way to start a server, with the facts about the server as such."""
    return replace(
        other,
        where=launch.where,
        mounts=launch.mounts,
        volumes=launch.volumes,
        gpu=launch.gpu,
        num_gpus=other.num_gpus or launch.num_gpus,
        num_hosts=launch.num_hosts,
        version=other.version or launch.version,
    )


def _about_ways(launch: Launch) -> Iterator[Finding]:
    """Yield what is taken for granted: variables that nobody sets, and ways through the text that were not followed."""
    names = dict.fromkeys((*launch.assumed, *(name for word in launch.words for name in word.assumed)))
    sourced = [name for name in names if name.endswith(_IN_A_FILE)]
    for code, some in (
        ("taken-as-not-set", [each for each in names if each not in sourced]),
        ("file-may-set", sourced),
    ):
        if some:
            yield get_rule(code).ruling(names=some[:_MAX_NAMED], where=launch.where)
    if launch.is_partial:
        yield get_rule("ways-left-out").ruling(where=launch.where)


def _read_way(launch: Launch, engine_version: str | None, folder: Path | None, left: Mapping[str, str]) -> SetupReading:
    reading = _read_one(launch, engine_version, folder, left)
    if not any(word.blank for word in launch.words):
        return reading
    words = tuple(replace(word, unknown=(*word.unknown, *word.blank), blank=()) for word in launch.words)
    return replace(reading, if_set=_read_one(replace(launch, words=words), engine_version, folder, left))


def _read_one(launch: Launch, engine_version: str | None, folder: Path | None, left: Mapping[str, str]) -> SetupReading:
    version = engine_version or (launch.version if launch.version[:1].isdecimal() else "")
    release = choose_release(version)
    findings = [*launch.findings, *_about_version(launch, engine_version)]
    words = [_mark_open(word, left) for word in launch.words]
    reach = (None, {}) if launch.image else (folder, launch.files)
    found = read_arguments(words, release, launch.entry, folder=reach[0], files=reach[1])
    unknown = dict(get_gaps(launch, version))
    if "engine_version" not in unknown and (sign := _find_plugin(launch, found)):
        gap = get_rule("plugin-own-code" if version else "plugin-release-open").ruling(sign=sign, where=launch.where)
        unknown, findings = (unknown, [*findings, gap]) if version else (unknown | {"engine_version": gap}, findings)
    if "engine_version" in unknown:
        found.findings = [each for each in found.findings if holds_always(each)]
    elif not release.is_same and release.version == releases()[0].version:
        found.findings = []  # the flags of an older release are unknown
    findings += [*unknown.values(), *found.findings, *_about_gpus(launch, found), *_about_hosts(launch, found)]
    findings += [*_about_templates(words, found), *_about_directories(launch, found)]
    findings += [*_about_open_variables(launch, release)]
    setup = Setup(
        target=dict(_find_origins(launch.mounts)).get(found.model.rstrip("/"), found.model),
        engine="vllm",
        engine_version=version or "",
        device=_get_device(launch),
        spec=None if found.spec is None else SpecConfig.keep(found.spec),
        args=found.args,
        env={
            name: value
            for name, value in launch.env.values.items()
            if is_shown(name) and (name not in launch.preset or name in release.table("env"))
        },
        extra_args=tuple(found.unread),
    )
    return SetupReading(
        setup=setup,
        where=launch.where,
        findings=tuple(findings),
        unknown=unknown | found.unknown,
        origins=dict(_find_origins(launch.mounts)),
        packages=_find_packages(launch),
        flag_keys=frozenset(found.flag_keys),
        path=launch.path,
        launch=launch,
    )


def _find_packages(launch: Launch) -> frozenset[str]:
    held = dict.fromkeys(find_packages(launch.image), True) | {**launch.packages}
    if held.pop(RAY_RUNS, False) and not carries_own_tags(launch.image):  # vLLM's own images no longer install Ray
        held.setdefault("ray", True)
    return frozenset(name for name, is_held in held.items() if is_held)


class NoServer(InvalidSetup):
    """The text is readable, but starts no vLLM server."""


def no_server(name: str, text: str = "") -> InvalidSetup:
    """Return the error for a text without a vLLM server; `name` is its file's."""
    message = "The text does not start a vLLM server."
    fix = "Pass the command line that begins with vllm serve, or a file that contains one."
    form = find_unread_form(text)
    if _MENTIONS.search(text):
        message = "The text mentions vLLM, but draftwise finds no command in it that starts a server."
        lines = (line.partition("#")[0] for line in text.splitlines())
        scripts = {found[0].rpartition("/")[2] for found in map(_SCRIPT.search, lines) if found}
        first = f"It seems to run {scripts.pop()}: pass that file, or" if len(scripts) == 1 else "Pass"
        fix = f"{first} the command that it runs, beginning with vllm serve. Change the file itself by hand."
    if form is not None:
        message = f"The text mentions vLLM, but it is {form['name']}, and draftwise finds no complete command in it."
        if "gives" in form:
            message, fix = f"The text is {form['name']}, which draftwise does not read.", form["gives"]
    elif text.lstrip().startswith("{"):
        message = "The JSON is neither a setup nor a speculative config, and no command in it starts a vLLM server."
    return NoServer.because("no-server", message, where=name, fix=fix)


def find_unread_form(text: str, *, alone: bool = False) -> Mapping[str, Any] | None:
    """Return the kind of a text that draftwise does not read; `alone`: only one that has servers of its own."""
    forms = (each for each in read_data("engines")["unread_forms"] if "alone" in each or _MENTIONS.search(text))
    signs = (each for each in forms if re.search(each["sign"], text, re.MULTILINE))
    return next((each for each in signs if "alone" in each or not alone), None)


def choose_release(version: str | None) -> Release:
    """Return the release whose flags apply, or the nearest one if it is unknown, which the judgement reports."""
    try:
        return get_release(version or "newest", nearest=True)
    except InvalidSetup:
        return releases()[-1]


def _about_version(launch: Launch, engine_version: str | None) -> Iterator[Finding]:
    if engine_version and launch.version[:1].isdecimal() and engine_version != launch.version:
        yield get_rule("other-version-asked").ruling(
            version=launch.version, engine_version=engine_version, where=launch.where
        )


def is_shown(variable: str) -> bool:
    """Return whether a variable is vLLM's or a plugin's, and not a secret."""
    return variable.startswith(("VLLM_", "ARCTIC_")) and variable not in _HIDDEN


def holds_always(finding: Finding) -> bool:
    """Say whether a finding about the command holds whatever the release is."""
    if finding.code in _OF_RELEASES or not isinstance(finding, Ruling):
        return finding.code not in _OF_RELEASES
    spans = get_rule(finding.code).spans
    return len(spans) == 1 and spans[0][0] == str(releases()[0]) and spans[0][1] is None


_OF_RELEASES = frozenset(
    {"flag-of-other-release", "not-a-choice", "bad-flag-value", "abbreviated-flag", "no-model-given"}
)
"""Rules of every release whose findings differ from one to the next."""


def _find_plugin(launch: Launch, found: Arguments) -> str:
    """Return a variable or a flag that only a hardware plugin reads; empty without one."""
    signs = [name for name in launch.env.values if name.startswith(_OF_PLUGINS)]
    signs += ["--quantization ascend"] if found.args.get("quantization") == "ascend" else []
    return next(iter(signs), "")


def get_gaps(launch: Launch, version: str) -> Iterator[tuple[str, Finding]]:
    """Yield the unknowns besides the arguments: the release, and variables that decide what the server does."""
    if launch.image_unknown and not version:
        what = f"The vLLM release in {launch.image}"
        yield "engine_version", explain_unknown(what, launch.image_unknown, where=launch.where)
    elif not version and launch.version:
        yield "engine_version", get_rule("installed-release-open").ruling(names=launch.version, where=launch.where)
    elif not version and (launch.image or (launch.place is not None and launch.place.form in _IN_IMAGES)):
        code = "image-tag-no-release" if has_half_a_release(launch.image) else "image-release-unknown"
        image = launch.image or "An image that is not named here"
        yield "engine_version", get_rule(code).ruling(image=image, where=launch.where)
    if launch.env.elsewhere:
        yield "env", get_rule("variables-elsewhere").ruling(names=launch.env.elsewhere, where=launch.where)
    for name in _DECIDING & launch.env.unknown.keys():
        if _reads(choose_release(version), name):
            described = (describe_unknown(name, launch.env.unknown[name]),)
            yield name, explain_unknown("The server", described, where=launch.where)


def _reads(release: Release, variable: str) -> bool:
    """Say whether a release reads a variable; one that is not known may."""
    return not release.is_same or variable in release.table("env")


def _about_open_variables(launch: Launch, release: Release) -> Iterator[Finding]:
    """Yield the open variables that decide what other releases do."""
    for name in sorted(_DECIDING & launch.env.unknown.keys()):
        if not _reads(release, name):
            yield get_rule("value-open").ruling(name=name, unknown=launch.env.unknown[name], where=launch.where)


def _about_gpus(launch: Launch, found: Arguments) -> Iterator[Finding]:
    sizes = [found.args.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    if launch.num_gpus is None or not all(isinstance(size, int) for size in sizes) or "nnodes" in found.args:
        return
    if {"tensor_parallel_size", "pipeline_parallel_size"} & set(found.unknown):
        return
    ranks, num_gpus = sizes[0] * sizes[1], launch.num_gpus * (launch.num_hosts or 1)
    if ranks > num_gpus > 0 and found.args.get("distributed_executor_backend") != "ray":
        yield get_rule("fewer-gpus-than-ranks").ruling(ranks=ranks, num_gpus=num_gpus, where=launch.where)


def _about_hosts(launch: Launch, found: Arguments) -> Iterator[Finding]:
    hosts = found.args.get("nnodes")
    if launch.num_hosts is not None and isinstance(hosts, int) and hosts != launch.num_hosts:
        yield get_rule("group-of-other-size").ruling(hosts=hosts, num_hosts=launch.num_hosts, where=launch.where)


def _mark_open(word: Word, left: Mapping[str, str]) -> Word:
    """Return a word that names what is filled in later: templates of helm and KServe, references that are left."""
    names = [
        *(
            describe_unknown(template[:60], "a template value that is filled in later")
            for template in _TEMPLATE.findall(word.text)
            if not (word.unknown and template.startswith("$"))  # a variable that is named already
        ),
        *(name for reference, name in left.items() if reference in word.text),
    ]
    return replace(word, unknown=(*word.unknown, *names)) if names else word


def _about_templates(words: Iterable[Word], found: Arguments) -> Iterator[Finding]:
    """Yield the first template in an argument that may be any text."""
    judged = {finding.where for finding in found.findings}
    for word in words:
        template = _TEMPLATE.search(word.text)
        if template is not None and (place := word.where()) not in judged:
            yield get_rule("template-left").ruling(template=template[0][:60], where=place)
            return


def _about_directories(launch: Launch, found: Arguments) -> Iterator[Finding]:
    """Yield the directories that are asked for and that neither a volume nor the image can hold."""
    if launch.volumes is None or not holds_no_models(launch.image):
        return
    mounted = [path.rstrip("/") for path in (*launch.mounts, *launch.volumes)]
    for role, path in (("target", found.model), ("drafter", (found.spec or {}).get("model"))):
        inside = isinstance(path, str) and any(f"{path}/".startswith(f"{each}/") for each in mounted)
        if isinstance(path, str) and path.startswith("/") and not inside:
            there = f"mounted are {', '.join(mounted[:10])}" if mounted else "nothing is mounted"
            yield get_rule("directory-not-mounted").ruling(role=role, path=path[:200], there=there, where=launch.where)


def _find_origins(mounts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for path, uri in mounts.items():
        if uri.startswith("hf://"):
            yield path, uri.removeprefix("hf://").partition(":")[0]


def _get_device(launch: Launch) -> Device | None:
    if "cpu" in launch.image.partition("@")[0]:
        return Device(name="CPU", kind="cpu")
    if launch.num_gpus is None and not launch.gpu:
        return None
    return Device(name=launch.gpu or "GPU", kind="cuda", count=launch.num_gpus or 1)
