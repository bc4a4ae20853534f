"""Commands that start a vLLM server: through wrappers, shells and images down to the server's own arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

from draftwise.core import Finding, InvalidSetup
from draftwise.knowledge.images import find_release, split_image
from draftwise.knowledge.rules import get_rule
from draftwise.knowledge.stored import read_data
from draftwise.setups.read.place import Place
from draftwise.setups.read.shell.environment import NOTHING_SET, Environment
from draftwise.setups.read.shell.installations import OPEN, PINNED, settle_release
from draftwise.setups.read.shell.script import ScriptCommand, Way, run_script
from draftwise.setups.read.shell.words import Word

_VLLM = re.compile(
    r"(?i)(?:^|/)[${(]*[\w.-]*vllm[\w.-]*[)}]*(?:/[\w.-]+)?$|(?:^|/)(?:huggingfaceserver|llm-d/llm-d(?:-\w+)?)$"
)
_AS_PUBLISHED = re.compile(r"(?:docker\.io/)?(?:vllm/vllm-openai[\w.-]*|kserve/huggingfaceserver)$")
_OWN_ENTRY = re.compile(r"(?:^|/)vllm-(?:openai[\w.-]*|cpu-release-repo)$")


def holds_no_models(image: str) -> bool:
    """Return whether vLLM or KServe publish an image; other images may contain models."""
    return _AS_PUBLISHED.match(split_image(image)[0]) is not None


def is_vllm_image(image: str) -> bool:
    """Return whether an image contains vLLM, by its name."""
    return _VLLM.search(split_image(image)[0]) is not None


def has_own_entry(image: str) -> bool:
    """Return whether the entry point of an image is the server itself (`vllm/vllm-openai`)."""
    return _OWN_ENTRY.search(split_image(image)[0]) is not None


_FETCHING = frozenset({"uvx", "pipx", "--with", "--from"})
"""What makes a tool fetch a package for one command."""
_BY_VARIABLES = re.compile(r"(?:^|/)worker-[\w-]*vllm(?::|$)")
"""Images whose entry point takes its arguments from variables of its own."""
MAX_LAUNCHES = 200
"""Maximum number of servers read from one source."""

Entry = Literal["serve", "api_server", "image", "huggingfaceserver", "dynamo"]
"""Program that receives the arguments: `vllm serve`, the older module, an image's entry point, or the server of KServe
or of NVIDIA Dynamo, which pass them on."""

_PASSING: Mapping[str, Entry] = {"huggingfaceserver": "huggingfaceserver", "dynamo.vllm": "dynamo"}
_API_SERVER = re.compile(r"vllm\.entrypoints\.openai\.api_server|(?:.*/)?vllm/entrypoints/openai/api_server\.py")
_LOST = "The command above ends before this line: the shell runs {} as a command."
_UNBROKEN = "Put comments above the whole command, and end each line before its last one with a backslash."
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
_NAMING = frozenset({"pgrep", "pkill", "grep", "egrep", "pidof", "killall", "echo", "printf"})
"""Programs that only look for a server by its name, or print its command."""
_NAMES = re.compile(r"-J|--[\w-]*name")
"""Flags before a name that may be any word."""
_ASKS = re.compile(r"-h$|--(?:help|version)(?:=|$)")
"""Flags with which a server prints something and ends."""
_CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl"})
_APART = _CONTAINER_TOOLS | {"ssh", "kubectl", "oc", "uvx", "pipx"}
"""Programs that start a server where the packages of the script's own Python are not."""
_APPTAINER_IMAGE = re.compile(r"(?:docker://)?((?<=docker://).*|\S+\.sif)")
_SWITCHES_OF_RUN = frozenset(read_data("docker_run")["switches"])
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_ONLY_OF_VLLM = frozenset(
    {
        *("--speculative-config", "-sc", "--gpu-memory-utilization", "--tensor-parallel-size", "-tp"),
        *("--pipeline-parallel-size", "-pp", "--kv-transfer-config", "--max-model-len"),
    }
)
_AS_VLLM = re.compile(r"aphrodite|sim(?:ulator)?$|emulator|mock")
"""Images of other programs that take vLLM's flags."""
_TAGGED = re.compile(r"(?:^|[_-])vllm(?:[_-]|$)")
_SHORT_WITH_VALUE = re.compile(r"-[epvwulmhac].+")
_DEVICES = re.compile(r"device=([\w,.:/=-]+)")
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One vLLM server as a text starts it."""

    words: tuple[Word, ...]
    """The server's own arguments."""
    entry: Entry
    env: Environment = NOTHING_SET
    preset: frozenset[str] = frozenset()
    """Variables that an operator sets, whether or not the release reads them."""
    version: str = ""
    """Version from an image tag or a pinned package; empty if the text names none, `-U vllm` if it leaves it open."""
    packages: Mapping[str, bool] = field(default_factory=dict)
    """Optional packages -> whether the text installs them for the server, or takes them away."""
    image: str = ""
    image_unknown: tuple[str, ...] = ()
    """Unknown values that the image's name depends on."""
    num_gpus: int | None = None
    gpu: str = ""
    """Product name, if a node selector has it."""
    num_hosts: int | None = None
    """Number of pods in its group; None without a group."""
    where: str = ""
    """File, document and container; empty for a bare command line."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Directories in the container that a URI fills: path -> URI."""
    files: Mapping[str, Word] = field(default_factory=dict)
    """Texts of the files that the script has written before, by their paths."""
    volumes: tuple[str, ...] | None = None
    """Directories in the container from outside its image; None if unknown."""
    findings: tuple[Finding, ...] = ()
    place: Place | None = None
    """Its surroundings; None for a bare command line."""
    path: str = ""
    """Decisions of the text that lead to it, e.g. `MODE=spec, line 12`; empty without any."""
    deviations: int = 0
    """Number of these decisions that need a caller who sets something."""
    assumed: tuple[str, ...] = ()
    """Variables assumed to be unset, each with the source of a value."""
    others: tuple[Launch, ...] = ()
    """The same server as other ways through the text start it."""
    is_partial: bool = False
    """Whether the text starts it in further ways that were not followed."""

    @property
    def only_asks(self) -> bool:
        """Whether vllm prints its help or version and ends."""
        return any(_ASKS.match(word.text) for word in self.words)

    def each(self, change: Callable[[Launch], Launch]) -> Launch:
        """Return the server with a change applied to each way in which the text starts it."""
        return replace(change(self), others=tuple(change(other) for other in self.others))


def find_launches(text: str, *, line: int = 1, env: Environment = NOTHING_SET) -> Iterator[Launch]:
    """Yield every vLLM server that a shell script or a command line starts; `line` is the number of its first line.

    Raises:
        InvalidSetup: the text cannot be read as shell words, or starts more than `MAX_LAUNCHES` servers.
    """
    yield from _find_in_commands(run_script(text, line=line, env=env).commands, env)


def _find_in_commands(
    commands: Iterable[ScriptCommand], env: Environment, depth: int = 0, place: str = ""
) -> list[Launch]:
    found: list[Launch] = []
    entered = ""
    for command in commands:
        first = command.words[0] if command.words else Word("")
        if found and first.text.startswith("--"):
            lost = get_rule("lost-continuation").ruling(
                line=first.line, message=_LOST.format(first.text), fix=_UNBROKEN
            )
            found[-1] = found[-1].each(lambda one, lost=lost: replace(one, findings=(*one.findings, lost)))  # type: ignore[misc]
        elif (launch := _find_in_command(command, env, depth, place)) is not None:
            found.append(launch if launch.image or launch.version else _with_image(launch, entered))
        elif _opens_shell([each.text for each in command.words]):
            entered = next((each.text for each in command.words[-1:-3:-1] if is_vllm_image(each.text)), entered)
        if len(found) > MAX_LAUNCHES:
            raise too_many_servers()
    return found


def too_many_servers() -> InvalidSetup:
    """Return the error for a text that starts more than `MAX_LAUNCHES` servers."""
    return InvalidSetup.because("too-many-servers", f"The text starts more than {MAX_LAUNCHES} servers.")


def _find_in_command(command: ScriptCommand, env: Environment, depth: int = 0, place: str = "") -> Launch | None:
    """Return the server that a command starts, with the ways in which it does."""
    found: list[Launch] = []
    for way in command.ways:
        words = [replace(word, place=place) for word in way.words] if place else way.words
        launch = find_launch(words, env=env | get_exported(way), depth=depth)
        if launch is not None:
            is_apart = bool(launch.image) or not _APART.isdisjoint(word.text.rpartition("/")[2] for word in words)
            found += (
                replace(
                    each,
                    env=_set_before(way) | each.env,
                    version=each.version or way.version,
                    packages={**({} if is_apart else way.packages), **each.packages},
                    findings=(*each.findings, *_slips(command)),
                    path="; ".join(part for part in (way.where, each.path) if part),
                    deviations=way.deviations + each.deviations,
                    assumed=tuple(dict.fromkeys((*each.assumed, *way.assumed))),
                    files={**way.files, **each.files},
                    others=(),
                )
                for each in (launch, *launch.others)
            )
    if not found:
        return None
    first, *others = found
    return replace(first, others=tuple(others), is_partial=command.is_partial or first.is_partial)


def get_exported(way: Way) -> Environment:
    """Return the variables that a script exports to the programs that it starts."""
    return _get_assigned(
        replace(way.variables[name], text=f"{name}={way.variables[name].text}") for name in way.exported
    )


def _set_before(way: Way) -> Environment:
    """Return what a script has set up to here, for vLLM or for all programs."""
    names = [name for name in way.variables if name.startswith(("VLLM_", "ARCTIC_")) or name in way.exported]
    return _get_assigned(replace(way.variables[name], text=f"{name}={way.variables[name].text}") for name in names)


def _get_assigned(words: Iterable[Word]) -> Environment:
    values: dict[str, str] = {}
    unknown: dict[str, str] = {}
    assumed: dict[str, str] = {}
    for word in words:
        found = _ASSIGNMENT.fullmatch(word.text)
        if found is not None and word.unknown:
            unknown[found[1]] = ", ".join(word.unknown)
        elif found is not None:
            values[found[1]] = found[2]
            if word.assumed:
                assumed[found[1]] = ", ".join(word.assumed)
    return Environment(values=values, unknown=unknown, assumed=assumed)


def _slips(command: ScriptCommand) -> Iterator[Finding]:
    for line in command.lost_continuations:
        yield get_rule("lost-continuation").ruling(line=line)


def find_launch(words: Sequence[Word], *, env: Environment = NOTHING_SET, depth: int = 0) -> Launch | None:
    """Return the server that one command starts; None if it starts none.

    Raises:
        InvalidSetup: a nested `sh -c` text cannot be read as shell words.
    """
    texts = [word.text for word in words]
    for index, text in enumerate(texts):
        name, following = text.rpartition("/")[2], texts[index + 1] if index + 1 < len(texts) else ""
        launch: Launch | None = None
        if name in _NAMING and not (index and _NAMES.fullmatch(texts[index - 1])):
            return None
        if following == "serve" and (name == "vllm" or PINNED.fullmatch(name)):
            launch = Launch(words=tuple(words[index + 2 :]), entry="serve")
        elif text == "-m" and following == "vllm.entrypoints.cli.main" and texts[index + 2 : index + 3] == ["serve"]:
            launch = Launch(words=tuple(words[index + 3 :]), entry="serve")
        elif text == "-m" and following in _PASSING:
            launch = Launch(words=tuple(words[index + 2 :]), entry=_PASSING[following])
        elif _API_SERVER.fullmatch(text):
            launch = Launch(words=tuple(words[index + 1 :]), entry="api_server")
        elif name in _CONTAINER_TOOLS and "run" in texts[index + 1 : index + 6]:
            launch = _run_container(words[texts.index("run", index) + 1 :], depth + 1) if depth < _MAX_DEPTH else None
            return None if launch is None else _with_wrappers(launch, words[:index])
        elif name in _SHELLS and depth < _MAX_DEPTH:
            launch = _in_shell(words[index + 1 :], env | _get_assigned(words[:index]), depth + 1)
            if launch is None and _find_script(words[index + 1 :]) is not None:
                return None  # the words after the script are its arguments
        elif name in ("kubectl", "oc") and "run" in texts[index + 1 : index + 6] and "--" in texts[index:]:
            return _run_pod(words[texts.index("run", index) + 1 :], depth + 1) if depth < _MAX_DEPTH else None
        elif name in ("tmux", "ssh") and depth < _MAX_DEPTH:
            typed = [word for word in words[index + 1 :] if "vllm" in word.text and " " in word.text]
            local = env | _get_assigned(words[:index]) if name == "tmux" else NOTHING_SET
            launch = _in_shell([Word("-c"), *typed[:1]], local, depth + 1)
        if launch is not None:
            return _with_wrappers(launch, words[: index + 1])
    return None


def _with_wrappers(launch: Launch, before: Sequence[Word]) -> Launch:
    """Add what stands before the program: variables, and a version pinned by the tool that runs it."""
    adding, place = _find_added(before)

    def fills(word: Word) -> bool:
        return place is not None and place.search(word.text) is not None

    def fill(word: Word) -> Word:
        return replace(word, unknown=(*word.unknown, f"the words that {adding} adds")) if fills(word) else word

    env = _get_assigned(map(fill, before))
    texts = [word.text for word in before]
    pinned = (found[1] for text in texts if (found := PINNED.fullmatch(text)))
    fetched = (text for text in texts if OPEN.fullmatch(text) and not _FETCHING.isdisjoint(texts))
    version = next(pinned, next(fetched, ""))
    image = next((found[1] for text in texts if (found := _APPTAINER_IMAGE.fullmatch(text))), "")
    added: tuple[Word, ...] = ()
    if adding and (place is None or (adding == "parallel" and not any(map(fills, (*before, *launch.words))))):
        added = (replace(before[0], text="", unknown=(f"the words that {adding} adds",)),)
    devices = env.values.get("CUDA_VISIBLE_DEVICES", "")
    count = len(devices.split(",")) if devices and "CUDA_VISIBLE_DEVICES" not in env.unknown else None
    changed = launch.each(
        lambda one: replace(
            one,
            words=(*map(fill, _cut(one.words, adding)), *added),
            env=env | one.env,
            version=one.version or version,
            num_gpus=one.num_gpus if count is None else count,
        )
    )
    return changed if launch.image else _with_image(changed, image)


_OF_PARALLEL = re.compile(r"\{(?:[./#%]|/[./]|\d+(?:[./]|/[./])?)?\}")
"""What GNU parallel replaces: `{}`, `{.}`, `{1}`, `{2/.}` ..."""
_OF_FIND = re.compile(r"\{\}")
_ENDS_OF_FIND = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_OF_XARGS = re.compile(r"-[0oprtx]*[IJ](.*)|(?:-[0oprtx]*i|--replace=?)(.*)", re.DOTALL)


_ENDS: Mapping[str, re.Pattern[str]] = {"parallel": re.compile(r"::::?\+?"), "find": re.compile(r";|\+")}
"""Words that end the command of a program that adds to it."""


def _cut(words: Sequence[Word], adding: str) -> Sequence[Word]:
    """Return the words of a command without what the program that adds words to it reads itself."""
    ends = _ENDS.get(adding)
    return [*takewhile(lambda word: ends.fullmatch(word.text) is None, words)] if ends is not None else words


def _find_added(before: Sequence[Word]) -> tuple[str, re.Pattern[str] | None]:
    """Return the program that adds words to a command, and what it replaces by them; None where it appends them."""
    texts = [word.text for word in before]
    for index, text in enumerate(texts):
        name = text.rpartition("/")[2]
        if name == "parallel":
            own = next((place for place, option in enumerate(texts[index:], index) if option.startswith("-I")), None)
            replaced = "" if own is None else texts[own][2:] or "".join(texts[own + 1 : own + 2])
            return name, re.compile(re.escape(replaced)) if replaced else _OF_PARALLEL
        if name == "find" and not _ENDS_OF_FIND.isdisjoint(texts[index:]):
            return name, _OF_FIND
        if name == "xargs":
            for place, option in enumerate(texts[index + 1 :], index + 2):
                if (found := _OF_XARGS.fullmatch(option)) is not None:
                    default = "".join(texts[place : place + 1]) if found[1] is not None else "{}"
                    return name, re.compile(re.escape(found[1] or found[2] or default))
            return name, None
    return "", None


def _with_image(launch: Launch, image: str) -> Launch:
    return launch.each(lambda one: replace(one, image=image, version=one.version or find_release(image)))


def _find_script(words: Sequence[Word]) -> int | None:
    """Return the index of the text that a shell takes after `-c`."""
    for index, word in enumerate(words[:4], start=1):
        if word.text.startswith("-") and "c" in word.text and index < len(words):
            is_end = words[index].text == "--"
            return index + 1 if is_end and index + 1 < len(words) else index
    return None


def _in_shell(words: Sequence[Word], env: Environment, depth: int) -> Launch | None:
    script = _find_script(words)
    if script is None:
        return None
    inner = words[script]
    arguments = [word.source or word.text for word in words[script + 1 :]]
    run = run_script(inner.source or inner.text, line=inner.line or 1, env=env, arguments=arguments)
    found = _find_in_commands(run.commands, env, depth, inner.place)
    return found[0] if found else None


def _run_container(words: Sequence[Word], depth: int) -> Launch | None:
    passed: list[Environment] = []
    entrypoint: list[Word] = []
    num_gpus: int | None = None
    options: list[tuple[str, str]] = []
    index = 0
    while index < len(words) and words[index].text.startswith("-") and words[index].text != "-":
        option, separator, value = words[index].text.partition("=")
        word = replace(words[index], text=value)
        if option.startswith("-") and not option.startswith("--") and _SHORT_WITH_VALUE.fullmatch(words[index].text):
            option, word = option[:2], replace(word, text=words[index].text[2:])
        elif not separator and option not in _SWITCHES_OF_RUN:
            index += 1
            word = words[index] if index < len(words) else word
        index += 1
        options.append((option, word.text))
        if option in ("-e", "--env"):
            passed.append(_get_passed(word))
        elif option == "--env-file":
            passed.append(Environment(elsewhere=f"{word.text}, which is not read"))
        elif option == "--entrypoint":
            entrypoint = [word]
        elif option == "--gpus":
            num_gpus = _count_gpus(word.text)
    if index >= len(words):
        return None
    args = words[index + 1 :]
    is_open = not args or args[-1].text.rpartition("/")[2] in _SHELLS
    if is_open and not entrypoint and not has_own_entry(words[index].text):
        return None
    launch = run_image(words[index], entrypoint, args, env=Environment.join(passed), depth=depth)
    if launch is None:
        return None
    place = Place(form="command", value=tuple(options))
    return launch.each(lambda one: replace(one, num_gpus=one.num_gpus or num_gpus, place=place))


def _run_pod(words: Sequence[Word], depth: int) -> Launch | None:
    """Return the server that `kubectl run` starts with the words after `--`: arguments, or with --command all of it."""
    split = next(index for index, word in enumerate(words) if word.text == "--")
    options, args = words[:split], words[split + 1 :]
    image, passed, is_command = Word(""), list[Environment](), False
    for word, following in zip(options, [*options[1:], Word("")], strict=True):
        option, separator, value = word.text.partition("=")
        given = replace(word, text=value) if separator else following
        if option == "--image":
            image = given
        elif option == "--env":
            passed.append(_get_assigned([given]))
        elif option == "--command":
            is_command = not separator or value == "true"
    env = Environment.join(passed)
    return run_image(image, args[:1] if is_command else (), args[is_command:], env=env, depth=depth)


def _get_passed(word: Word) -> Environment:
    """Return what `docker run --env NAME=value` sets, or passes on where there is no value."""
    if "=" in word.text:
        return _get_assigned([word])
    return Environment(unknown={word.text: "inherited from the command that runs the container"})


def _opens_shell(texts: Sequence[str]) -> bool:
    """Say whether words that start no server run a container for commands to come."""
    runs = "run" in texts and not _CONTAINER_TOOLS.isdisjoint(texts)
    named = {text.rpartition("/")[2].rpartition("=")[2] for text in texts}
    return runs and (not _SHELLS.isdisjoint(named) or not any(text.startswith("--entrypoint") for text in texts))


def _count_gpus(value: str) -> int | None:
    if value.isdecimal() and len(value) < 5:
        return int(value)
    devices = _DEVICES.search(value)
    return len(devices[1].split(",")) if devices else None


def run_image(
    image: Word, entrypoint: Sequence[Word], args: Sequence[Word], *, env: Environment = NOTHING_SET, depth: int = 0
) -> Launch | None:
    """Return the server that a container starts; None if it starts none."""
    launch = find_launch([*entrypoint, *args], env=env, depth=depth)
    name = image.text
    if launch is None and _BY_VARIABLES.search(name):
        return None
    if launch is None and not entrypoint and (is_vllm_image(name) or _is_for_vllm(args, image)):
        launch = Launch(words=tuple(args), entry="huggingfaceserver" if "huggingfaceserver" in name else "image")
        if args and args[0].text == "serve":
            launch = replace(launch, words=tuple(args[1:]), entry="serve", findings=(_repeated(name, args[0]),))
        elif args and args[0].text in _SHELLS:
            launch = replace(launch, findings=(_repeated(name, args[0]),))
    elif launch is not None and not entrypoint and has_own_entry(name):
        repeated = _repeated(name, args[0])
        launch = launch.each(lambda one: replace(one, findings=(*one.findings, repeated)))
    if launch is None:
        return None
    version = "" if image.unknown else find_release(name)
    return launch.each(
        lambda one: replace(
            one,
            image=name,
            image_unknown=image.unknown,
            version=settle_release(version, one.version),
            env=env | one.env,
            assumed=(*one.assumed, *image.assumed),
        )
    )


def _is_for_vllm(args: Sequence[Word], image: Word) -> bool:
    """Say whether arguments can only be meant for vLLM, although the image does not go by its name."""
    flags, (name, tag) = {word.text.partition("=")[0] for word in args}, split_image(image.text)
    is_open = image.unknown or not name or "$" in name
    if is_open and args and all("vllm" in " ".join(word.unknown).lower() for word in args):
        return True  # variables that name it, and nothing else
    first = args[0] if args else Word("")
    is_model = first.unknown or _HUB_NAME.fullmatch(first.text) or first.text.startswith(("/", "$"))
    has_model = "--model" in flags or bool(is_model)
    least = 1 if is_open or _TAGGED.search(tag) else 2
    return has_model and len(flags & _ONLY_OF_VLLM) >= least and not _AS_VLLM.search(name)


def _repeated(image: str, word: Word) -> Finding:
    return get_rule("entrypoint-repeated").ruling(
        image=image.partition(":")[0], text=word.text, where=word.place or (f"line {word.line}" if word.line else "")
    )
