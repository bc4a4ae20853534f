"""Recognizes a file or a text by its layout, and reads every vLLM server in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from draftwise.core import Finding, InvalidSetup, Setup, UnreadableSource
from draftwise.core.finding import join_names
from draftwise.knowledge.images import find_release
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.rules import get_rule
from draftwise.knowledge.vllm import history
from draftwise.setups.read.arguments.config_file import get_flags
from draftwise.setups.read.input_texts import SourceText, find_texts
from draftwise.setups.read.json_setup import read_json_setup, read_ray_config
from draftwise.setups.read.place import Place
from draftwise.setups.read.setup_reading import (
    NoServer,
    SetupReading,
    choose_release,
    find_unread_form,
    get_gaps,
    holds_always,
    no_server,
    read_launch,
)
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.installations import REQUIREMENTS, is_project
from draftwise.setups.read.shell.launch import MAX_LAUNCHES, Launch, find_launches, is_vllm_image, too_many_servers
from draftwise.setups.read.shell.script import evaluate_words, run_script
from draftwise.setups.read.shell.words import MAX_CHARS

if TYPE_CHECKING:
    from draftwise.setups.read.manifests.yaml_text import YamlDocument

LAYOUTS: Mapping[str, re.Pattern[str]] = {
    "yaml": re.compile(
        r"\A(?:[ \t\r]*(?:#[^\n]*)?\n)*(?:---|(?:-[ ]+)*(?:[\w./-]+|\"[^\"\n]*\"|'[^'\n]*')[ ]*:(?:\s|$))"
    ),
    "python": re.compile(r"^[ \t]*(?:from (?:vllm|ray)[\w.]* import|import (?:vllm|ray)\b)", re.MULTILINE),
    "quadlet": re.compile(r"^\[Container\][ \t\r]*$", re.MULTILINE),
    "unit": re.compile(r"^\[Service\][ \t\r]*$", re.MULTILINE),
    "dockerfile": re.compile(
        r"(?i)\A(?:[ \t]*(?:#[^\n]*|ARG[ \t][^\n]*)?\r?\n)*[ \t]*FROM[ \t]+[^\s=]+[ \t]*(?:AS[ \t]|\r?\n)"
    ),
}
"""Kind of a text -> its beginning after comments, or a line that it has."""
_OTHER_INSTRUCTION = re.compile(r"(?im)^[ \t]*(?:copy|add|run|user|workdir|expose|volume|healthcheck|label)\b")
"""Instruction of a Dockerfile that is not read."""
_HCL = re.compile(r"^(?:job|resource|module)[ \t]+\"[^\n]*\{[ \t]*$", re.MULTILINE)
"""Blocks of Nomad and Terraform."""
_PROMPT = re.compile(r"(?:\([\w.-]+\) ?)?(?:[\w.-]+@[\w.-]+:[^\s$#]*)?\$ (?=\S)")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?::\w+)?(?<!\.sh)(?<!\.py)(?<!\.bat)(?<!\.ps1)", re.ASCII)
_PROGRAM = re.compile(r"^\[program:", re.MULTILINE)
_PROGRAM_COMMAND = re.compile(r"^command[ \t]*=[ \t]*(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
_EXPANSION = re.compile(r"%\((?:ENV_)?(\w+)\)s")
"""What supervisord fills in: a variable of its own or of the environment."""
_HOLDING = frozenset({"Application", "ApplicationSet", "HelmRelease", "RayService"})
_OTHER_ENGINE = re.compile(
    r"sglang|speculative_algorithm|--speculative-eagle|--mem-frac|trtllm|tensorrt_llm|decoding_type|mlx"
    r"|llama(?:[-._]c|-s|\s+serve)"
)
"""What every text of another engine holds."""
_OPEN = "installed-release-open"
_UNREAD = re.compile(r"kaito\.sh/|MODEL_NAME|runpod/worker")
_OF_RAY = ("engine_kwargs", "model_loading_config")
"""What an `LLMConfig` of Ray holds."""
_LINE = re.compile(r"line (\d+)(?: |$)")
_DOS_SCRIPT = re.compile(r"#![^\n]*\r\n")
_MAX_SCRIPTS = 2
_MAX_LINES = 10_000
_TEMPLATE = "{{"
_MANIFEST_IN_JSON = re.compile(r'"(?:apiVersion|services|containerDefinitions)"\s*:')


def read_setups(
    source: str | Path | SourceText,
    *,
    engine_version: str | None = None,
    given: Mapping[str, str] = MappingProxyType({}),
) -> tuple[SetupReading, ...]:
    """Return every vLLM server that a source starts, as a setup with the findings of its reading.

    Args:
        source: a file, a folder, a pattern of file names, or the text itself: a command line or a shell script, a
            compose file, Kubernetes or KServe manifests, a systemd unit, the YAML of `vllm serve --config`, JSON, or a
            file of JSON lines (.jsonl).
        engine_version: release to judge every server by, overriding the source.
        given: values of variables that the source uses.

    Raises:
        UnreadableSource: a file does not exist, or cannot be opened.
        InvalidSetup: the text cannot be read, or starts no vLLM server.
    """
    texts = [source] if isinstance(source, SourceText) else list(find_texts(source))
    if len(texts) == 1:
        return _read_text(texts[0], _SourceHints(engine_version, given))
    readings: list[SetupReading] = []
    for text in texts:
        try:
            readings += _read_text(text, _SourceHints(engine_version, given))
        except NoServer:
            continue
    if not readings:
        raise no_server(str(source))
    return tuple(readings)


@dataclass(frozen=True, slots=True)
class _SourceHints:
    """The operator's options besides the sources."""

    engine_version: str | None
    given: Mapping[str, str]
    left: Mapping[str, str] = field(default_factory=dict)
    """References in the text whose values are not known -> how findings name them."""
    depth: int = 0
    """How many scripts stand around the text."""
    is_config: bool = True
    """Whether a mapping of flags is a server: False where it is the `--config` file of another."""


def _read_text(source: SourceText, asked: _SourceHints) -> tuple[SetupReading, ...]:
    text, name = source.text, source.name
    if source.faults:
        raise UnreadableSource(source.faults)
    if len(text) > MAX_CHARS:
        raise InvalidSetup.because("too-long", f"The text is longer than {MAX_CHARS:,} characters.", where=name)
    one_line = "\n" not in text.strip()
    if _OTHER_ENGINE.search(text):
        from draftwise.setups.read.other_engines import find_other_engine

        other = find_other_engine(text)
        if other is not None:
            raise NoServer.because("other-engine", other.describe(), where=name, fix=other.to_vllm())
    try:
        readings = _pin(_read(source, asked), source, asked)
    except InvalidSetup as error:
        raise type(error)(_place(finding, name, one_line=one_line) for finding in error.findings) from None
    except RecursionError:
        raise InvalidSetup.because("too-deep", "The text is nested too deeply.", where=name) from None
    if not readings:
        raise no_server(name, text)
    if _UNREAD.search(text) and (form := find_unread_form(text, alone=True)) is not None:
        left = get_rule("form-unread").ruling(form=form["name"], where=name, fix=form["gives"])
        readings[0] = replace(readings[0], findings=(*readings[0].findings, left))
    return tuple(_place_reading(reading, name, one_line=one_line) for reading in readings)


def _pin(readings: list[SetupReading], source: SourceText, asked: _SourceHints) -> list[SetupReading]:
    """Return readings with the release that their text installs, if neither they nor the operator name one."""
    if asked.engine_version or "vllm" not in source.text or all(map(_has_release, readings)):
        return readings
    from draftwise.setups.read.pinned_release import find_pinned

    pinned = find_pinned(source.text, source.folder)
    if not pinned:
        return readings
    if len(pinned) > 1 or not pinned[0][0].isdecimal():
        gap = get_rule(_OPEN).ruling(names=join_names(pinned))
        open_gap = {"engine_version": gap}
        return [
            each
            if _has_release(each)
            else replace(
                each, unknown={**each.unknown, **open_gap}, findings=(gap, *filter(holds_always, each.findings))
            )
            for each in readings
        ]
    again = _read(source, replace(asked, engine_version=pinned[0]))
    return [old if _has_release(old) else new for old, new in zip(readings, again, strict=True)]


def _has_release(reading: SetupReading) -> bool:
    """Say whether the source names a release, or an image that has one of its own."""
    image = "" if reading.launch is None else reading.launch.image
    if reading.launch is not None and is_project(reading.launch.version):
        return False
    return (
        bool(reading.setup.engine_version)
        or is_vllm_image(image)
        or ("engine_version" in reading.unknown and not image)
        or any(each.code == _OPEN for each in reading.unknown.values())
    )


def _place_reading(reading: SetupReading, name: str, *, one_line: bool) -> SetupReading:
    return replace(
        reading,
        where=_in_file(reading.where, name, one_line=one_line),
        findings=tuple(_place(finding, name, one_line=one_line) for finding in reading.findings),
        unknown={part: _place(finding, name, one_line=one_line) for part, finding in reading.unknown.items()},
        others=tuple(_place_reading(other, name, one_line=one_line) for other in reading.others),
        if_set=reading.if_set and _place_reading(reading.if_set, name, one_line=one_line),
    )


def _place(finding: Finding, name: str, *, one_line: bool) -> Finding:
    return replace(finding, where=_in_file(finding.where, name, one_line=one_line))


def _in_file(where: str, name: str, *, one_line: bool) -> str:
    """Return a place whose `line 12` has become `NAME:12`. In a text of one line the number goes."""
    found = _LINE.match(where)
    if found is None:
        return where or name
    head = f"{name}:{found[1]} " if name else "" if one_line else found[0]
    return (head + where[found.end() :]).strip()


def _read(source: SourceText, asked: _SourceHints) -> list[SetupReading]:
    text, name, engine_version = source.text, source.name, asked.engine_version
    suffix = Path(name).suffix.lower()
    bare = text.lstrip("\ufeff \t\r\n")
    if suffix == ".nix":
        raise no_server(name, text)
    if suffix == ".jsonl":
        return [each for each in _read_lines(text, engine_version) if source.is_chosen or _is_evident(each.setup)]
    is_json = suffix == ".json" or (bare.startswith("{") and not bare.startswith(_TEMPLATE))
    if is_json and not bare.startswith("[") and not _MANIFEST_IN_JSON.search(text):
        with suppress(NoServer):  # the object of another tool, which may run a command
            reading = read_json_setup(text, name=name, engine_version=engine_version)
            return [reading] if source.is_chosen or _is_evident(reading.setup) else []
    if suffix == ".py" or (not suffix and LAYOUTS["python"].search(text)):
        from draftwise.setups.read.python_code import find_commands, is_python, read_engines

        if suffix or is_python(text):
            found = read_engines(text, name=name, given=asked.given, engine_version=engine_version)
            engines = list(islice(found, MAX_LAUNCHES + 1))
            if len(engines) > MAX_LAUNCHES:
                raise too_many_servers()
            return engines or _read_launches(find_commands(text, given=asked.given), asked, source.folder)
    if LAYOUTS["quadlet"].search(text):
        from draftwise.setups.read.manifests.systemd import find_containers

        return _read_launches(find_containers(text, asked.given), asked, source.folder)
    if LAYOUTS["unit"].search(text):
        from draftwise.setups.read.manifests.systemd import find_units
        from draftwise.setups.read.manifests.tasks import join_names

        return _read_launches(find_units(join_names(text), asked.given), asked, source.folder)
    if suffix in (".yaml", ".yml", ".json") or bare.startswith("{") or LAYOUTS["yaml"].search(text):
        from draftwise.setups.read.manifests.yaml_text import read_yaml

        return _read_documents(read_yaml(text, name=name), asked, source)
    return _read_commands(source, asked)


def _add_rest(launches: Iterable[Launch], read: str) -> Iterator[Launch]:
    """Yield servers of a text of which only a part is read, with an option that stands for the rest."""
    for each in launches:
        env = [("-e", f"{name}={text}") for name, text in each.env.values.items()]
        options = [*env, *(("-e", name) for name in each.env.unknown)] if each.place is None else each.place.value
        yield replace(each, place=Place(form="command", value=(*options, (f"everything but {read}", ""))))


def _read_commands(source: SourceText, asked: _SourceHints) -> list[SetupReading]:
    """Read a Dockerfile, flags without a program, a command line or a script."""
    text = source.text
    if _PROMPT.match(text.lstrip()):  # copied from a terminal
        text = re.sub(rf"(?m)^(?:{_PROMPT.pattern}|> )", "", text)
    bare = text.lstrip("\ufeff \t\r\n")
    if LAYOUTS["dockerfile"].search(text):
        from draftwise.setups.read.dockerfile import find_image

        images = find_image(text, asked.given, source.folder)
        if _OTHER_INSTRUCTION.search(text):
            images = _add_rest(images, "FROM, ENV, ENTRYPOINT and CMD")
        return _read_launches(images, asked, source.folder)
    env = Environment(values=asked.given)
    if _PROGRAM.search(text):
        commands = (re.sub(r"\n\s+", " ", each) for each in _PROGRAM_COMMAND.findall(text))
        script = _EXPANSION.sub(r"${\1}", "\n".join(commands))
        return _read_launches(_add_rest(find_launches(script, env=env), "command"), asked, source.folder)
    if _HCL.search(text):
        from draftwise.setups.read.manifests.tasks import find_blocks

        return _read_launches(_add_rest(find_blocks(text), "image, command and args"), asked, source.folder)
    if bare.startswith("-") and not asked.depth:
        return _read_launches(_bare_flags(bare, env), asked, source.folder)
    logged = "non-default args:" in text
    try:
        readings = _read_launches(find_launches(text, env=env), asked, source.folder, script=text)
    except InvalidSetup:
        if not logged:  # quotes of a log are no shell's
            raise
        readings = []
    if not readings and logged:
        from draftwise.setups.read.start_log import read_start_log

        return [*read_start_log(text, asked.engine_version)]
    if not readings and source.is_chosen and _begins_with_model(bare):
        return _read_launches(_bare_flags(bare, env), asked, source.folder)
    with_config = any(_find_config(each.launch) for each in readings if each.launch)
    readings += _read_here_documents(source, replace(asked, is_config=not with_config), env)
    return [replace(reading, findings=(*_about_line_ends(text), *reading.findings)) for reading in readings]


def _read_here_documents(source: SourceText, asked: _SourceHints, env: Environment) -> Iterator[SetupReading]:
    """Yield the servers of texts that a script hands to its commands: manifests, units, other scripts."""
    if "<<" not in source.text or asked.depth == _MAX_SCRIPTS:
        return
    for document in run_script(source.text, env=env).documents[:MAX_LAUNCHES]:
        text = "\n" * (document.line - 1) + document.text  # its lines are those of the script
        inner = SourceText(text=text, folder=source.folder, is_chosen=False)
        try:
            found = _read(inner, replace(asked, left={**asked.left, **document.unknown}, depth=asked.depth + 1))
            yield from (each for each in found if each.launch is not None or each.setup.target)
        except InvalidSetup:
            continue  # most are no servers, but anything


def _about_line_ends(script: str) -> Iterator[Finding]:
    if _DOS_SCRIPT.match(script):
        yield get_rule("script-with-carriage-returns").ruling()


def _read_lines(text: str, engine_version: str | None) -> Iterator[SetupReading]:
    """Yield the setup of each line of a JSON lines file, for judging many at once."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if len(lines) > _MAX_LINES:
        raise refusal("too-many-servers", number=len(lines), max_lines=_MAX_LINES)
    for number, line in lines:
        yield read_json_setup(line, name=f"line {number}", engine_version=engine_version)


def _begins_with_model(text: str) -> bool:
    """Say whether a text is a model with flags, as after `vllm serve`: a name of the hub, or a folder."""
    first, *others = text.split(maxsplit=2) or [""]
    if not others or not others[0].startswith("-") or "--model" in text:
        return False
    return _HUB_NAME.fullmatch(first) is not None or Path(first).is_dir()


def _bare_flags(text: str, env: Environment) -> Iterator[Launch]:
    """Yield the server whose arguments are given without a program."""
    words = evaluate_words(text, env=env)
    by_flag = any(word.text.partition("=")[0] == "--model" for word in words)
    yield Launch(words=words, entry="api_server" if by_flag else "serve")


def _read_launches(
    launches: Iterator[Launch], asked: _SourceHints, folder: Path, *, script: str = ""
) -> list[SetupReading]:
    readings: list[SetupReading] = []
    found = list(launches)
    for launch in [each for each in found if not each.only_asks] or found:
        if len(readings) == MAX_LAUNCHES:
            raise too_many_servers()
        if launch.version.startswith(REQUIREMENTS) and not launch.image:
            from draftwise.setups.read.pinned_release import read_requirements

            launch = replace(launch, version=read_requirements(launch.version, folder))
        within = None if _makes_config(script, launch, folder) else folder
        readings.append(read_launch(launch, engine_version=asked.engine_version, folder=within, left=asked.left))
    return readings


def _makes_config(script: str, launch: Launch, folder: Path) -> bool:
    """Say whether a script may write the file behind `--config` before it starts the server."""
    file = _find_config(launch)
    return file != "" and not (folder / file).exists() and ("<<" in script or script.count(file) > 1)


def _find_config(launch: Launch) -> str:
    """Return the file behind `--config`; empty for none."""
    words = [word.text for word in launch.words]
    return next((value for flag, value in pairwise(words) if flag == "--config"), "")


def _is_evident(setup: Setup) -> bool:
    """Say whether JSON that may be anything is a setup: it names a target among other keys, or is about drafting."""
    spec = setup.spec
    if spec is not None and (spec.num_speculative_tokens is not None or bool(history("methods", spec.method or ""))):
        return True
    return bool(setup.target) and (spec is not None or bool(setup.args))


def _read_documents(documents: Sequence[YamlDocument], asked: _SourceHints, source: SourceText) -> list[SetupReading]:
    manifests = [
        each for each in documents if isinstance(each.value, Mapping) and {"apiVersion", "kind"} <= {*each.value}
    ]
    inner, are_read = _find_embedded(manifests), {*map(id, manifests)}
    may_run = "vllm" in source.text  # a text that does not name vLLM holds no task that runs it
    readings = _read_launches(_find_objects(manifests, asked), asked, source.folder)
    for document in (*documents, *inner):
        if id(document) in are_read:
            continue
        if len(readings) > MAX_LAUNCHES:
            raise too_many_servers()
        if not isinstance(document.value, Mapping):
            readings += _read_tasks(document, asked, source) if may_run else []
            continue
        launches = _find_in_values(document, manifests, asked, source.folder)
        if launches is not None:
            readings += _read_launches(launches, asked, source.folder)
        else:
            version = asked.engine_version
            found = [_set_in_image(each, manifests, version) for each in _read_ray(document, version)]
            found = found or (_read_config_file(document, version, source) if asked.is_config else [])
            readings += found or (_read_tasks(document, asked, source) if may_run else [])
    if readings:
        about_text = tuple(finding for document in documents for finding in document.findings)
        readings[0] = replace(readings[0], findings=about_text + readings[0].findings)
    return readings


def _read_tasks(document: YamlDocument, asked: _SourceHints, source: SourceText) -> list[SetupReading]:
    """Read what other tools run."""
    from draftwise.setups.read.manifests.tasks import find_tasks

    return _read_launches(find_tasks(document, asked.given), asked, source.folder)


def _find_objects(manifests: Sequence[YamlDocument], asked: _SourceHints) -> Iterator[Launch]:
    if manifests:
        from draftwise.setups.read.manifests.kubernetes import find_objects

        yield from find_objects(manifests, asked.given)


def _find_in_values(
    document: YamlDocument, manifests: Sequence[YamlDocument], asked: _SourceHints, folder: Path
) -> Iterator[Launch] | None:
    """Return the servers of a compose file or of a chart's values. None for another document."""
    services, engine = document.value.get("services"), document.value.get("servingEngineSpec")
    if isinstance(services, Mapping) and services and "apiVersion" not in document.value:
        from draftwise.setups.read.manifests.compose import find_services

        return find_services(document, folder, asked.given)
    if isinstance(engine, Mapping) and isinstance(engine.get("modelSpec"), list):
        from draftwise.setups.read.manifests.containers import read_stores
        from draftwise.setups.read.manifests.helm_values import find_model_specs

        return find_model_specs(document, read_stores((), asked.given))
    if isinstance(document.value.get("modelArtifacts"), Mapping) and {"decode", "prefill"} & {*document.value}:
        from draftwise.setups.read.manifests.containers import read_stores
        from draftwise.setups.read.manifests.helm_values import find_pods

        return find_pods(document, read_stores(manifests, asked.given))
    return None


def _find_embedded(manifests: Sequence[YamlDocument]) -> Sequence[YamlDocument]:
    if not any(str(each.value.get("kind")) in _HOLDING for each in manifests):
        return ()
    from draftwise.setups.read.manifests.kubernetes import find_embedded

    return tuple(find_embedded(manifests))


def _read_ray(document: YamlDocument, engine_version: str | None) -> list[SetupReading]:
    """Read every `LLMConfig` of Ray Serve."""
    from draftwise.setups.read.manifests.parts import walk
    from draftwise.setups.read.manifests.yaml_text import get_text

    readings = []
    for path, mapping in walk(document.value):
        held = next((key for key in _OF_RAY if isinstance(mapping.get(key), Mapping)), None)
        if held is not None:
            where = f"line {document.line((*path, held))} {get_text((*path, held))}"
            readings.append(read_ray_config(mapping, where=where, engine_version=engine_version))
    return readings


def _set_in_image(reading: SetupReading, manifests: Sequence[YamlDocument], asked: str | None) -> SetupReading:
    """Return a server of Ray with the release in the image of a RayService's pods; as unknown if that tells none."""
    pods = [each.value["spec"] for each in manifests if each.value["kind"] == "RayService" and each.value.get("spec")]
    if not pods or asked:
        return reading
    from draftwise.setups.read.manifests.parts import walk

    named = (str(each["image"]) for pod in pods for _, each in walk(pod) if each.get("image"))
    launch = Launch(words=(), entry="serve", image=next(named, ""), where=reading.where, place=Place(form="object"))
    version = find_release(launch.image)
    unknown = dict(get_gaps(launch, version))
    setup = replace(reading.setup, engine_version=version)
    return replace(reading, setup=setup, findings=(*unknown.values(), *reading.findings), unknown=unknown)


_CALLED_CONFIG = re.compile(r"(?:^|[._-])(?:vllm|config|args)(?:[._-]|$)", re.IGNORECASE)
"""Names of files that are meant for `vllm serve --config`."""
_EVIDENT = 3
"""How many flags make a mapping a config although one other key is not a flag."""


def _read_config_file(document: YamlDocument, engine_version: str | None, source: SourceText) -> list[SetupReading]:
    """Read a file that `vllm serve --config` would take.

    A mapping may be anything, such as a recipe: all of its keys must be flags, but for a slip among several, unless it
    is called a config. One that nobody chose must name the model as well.
    """
    findings: list[Finding] = []
    release = choose_release(engine_version)
    flags = release.table("flags")
    known = [key for key in document.value if f"--{str(key).replace('_', '-')}" in flags]
    are_most = 2 * len(known) > len(document.value) and bool(_CALLED_CONFIG.search(Path(source.name).name))
    may_be_typo = len(known) >= _EVIDENT and len(known) == len(document.value) - 1
    is_config = len(known) == len(document.value) or may_be_typo or are_most
    if not known or not is_config or not (source.is_chosen or "model" in known):
        return []
    words = tuple(get_flags(document, release, findings))
    reading = read_launch(Launch(words=words, entry="api_server"), engine_version=engine_version)
    return [replace(reading, findings=(*findings, *reading.findings))]
