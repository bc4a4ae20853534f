"""Where a command starts a vLLM server: through wrappers, shells and containers down to the server's own arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from draftwise.core import Finding, InvalidSetup
from draftwise.facts.rules import get_rule
from draftwise.setups.read.shell.images import has_own_entry, image_version, is_vllm_image
from draftwise.setups.read.shell.words import Command, Script, Word

__all__ = ["MAX_LAUNCHES", "Entry", "Launch", "find_launch", "find_launches", "run_image"]

MAX_LAUNCHES = 200
"""Most servers that are read out of one source."""

Entry = Literal["serve", "api_server", "image", "huggingfaceserver"]
"""What takes the arguments: `vllm serve`, the older module, an image's own entry point, or KServe's server."""

_API_SERVER = re.compile(r"vllm\.entrypoints\.openai\.api_server|(?:.*/)?vllm/entrypoints/openai/api_server\.py")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PINNED = re.compile(r"vllm(?:\[[\w,-]*\])?(?:==|@)v?(\d[\w.+]*)")
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
_CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl"})
_SWITCHES_OF_RUN = frozenset(
    [
        "--rm",
        "--detach",
        "--interactive",
        "--tty",
        "--privileged",
        "--init",
        "--publish-all",
        "--read-only",
        "--no-healthcheck",
        "--quiet",
        "--oom-kill-disable",
        "--sig-proxy",
        "-d",
        "-i",
        "-t",
        "-P",
        "-q",
        "-it",
        "-ti",
        "-dit",
        "-itd",
        "-id",
        "-di",
        "-td",
        "-dt",
    ]
)
_SHORT_WITH_VALUE = re.compile(r"-[epvwulmhac].+")
_DEVICES = re.compile(r"device=([\w,.:/=-]+)")
_MAX_DEPTH = 4
_MAX_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One vLLM server as a text starts it."""

    words: tuple[Word, ...]
    """The server's own arguments."""
    entry: Entry
    env: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    """From an image tag or a pinned package; empty where the text does not tell."""
    image: str = ""
    num_gpus: int | None = None
    gpu: str = ""
    """Product name, where a node selector gives it."""
    where: str = ""
    """File, document and container; empty for a bare command line."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Directories in the container that a URI fills: path -> URI."""
    findings: tuple[Finding, ...] = ()


def find_launches(text: str, *, line: int = 1) -> Iterator[Launch]:
    """Yield every vLLM server that a shell script or a command line starts.

    Raises:
        InvalidSetup: the text cannot be read as shell words, or starts more than `MAX_LAUNCHES` servers.
    """
    script = Script(text, line=line)
    version, count = "", 0
    for command in script.commands():
        texts = [word.text for word in command.words]
        if "install" in texts:
            version = next((found[1] for each in texts if (found := _PINNED.fullmatch(each))), version)
        launch = find_launch(command.words)
        if launch is None:
            continue
        count += 1
        if count > MAX_LAUNCHES:
            raise InvalidSetup.because("too-many-servers", f"The text starts more than {MAX_LAUNCHES} servers.")
        set_before = {name: "".join(value) for name, value in script.variables.items() if name.startswith("VLLM_")}
        yield replace(
            launch,
            env=set_before | dict(launch.env),
            version=launch.version or version,
            findings=(*launch.findings, *_slips(command)),
        )


def _slips(command: Command) -> Iterator[Finding]:
    for line in command.lost_continuations:
        yield get_rule("lost-continuation").ruling(
            "The line ends in a backslash and a space: for the shell the command ends here.",
            where=f"line {line}",
            fix="Take away the space after the backslash.",
        )
    used = [name for name in command.unresolved[:_MAX_NAMED] if any(name in word.text for word in command.words)]
    if used:
        yield get_rule("unresolved-variable").ruling(
            f"{', '.join(used)} is not set in this text and is read as it stands.",
            where=f"line {command.words[0].line}",
            fix="Set it in the text, or put its value in.",
        )


def find_launch(words: Sequence[Word], *, depth: int = 0) -> Launch | None:
    """Return the server that one command starts, or None where it starts none.

    Raises:
        InvalidSetup: a nested `sh -c` text cannot be read as shell words.
    """
    texts = [word.text for word in words]
    for index, text in enumerate(texts):
        name, following = text.rpartition("/")[2], texts[index + 1] if index + 1 < len(texts) else ""
        launch: Launch | None = None
        if following == "serve" and (name == "vllm" or _PINNED.fullmatch(name)):
            launch = Launch(words=tuple(words[index + 2 :]), entry="serve")
        elif text == "-m" and following == "vllm.entrypoints.cli.main" and texts[index + 2 : index + 3] == ["serve"]:
            launch = Launch(words=tuple(words[index + 3 :]), entry="serve")
        elif text == "-m" and following == "huggingfaceserver":
            launch = Launch(words=tuple(words[index + 2 :]), entry="huggingfaceserver")
        elif _API_SERVER.fullmatch(text):
            launch = Launch(words=tuple(words[index + 1 :]), entry="api_server")
        elif name in _CONTAINER_TOOLS and "run" in texts[index + 1 : index + 6]:
            launch = _run_container(words[texts.index("run", index) + 1 :], depth + 1) if depth < _MAX_DEPTH else None
            return None if launch is None else _with_wrappers(launch, texts[:index])
        elif name in _SHELLS and depth < _MAX_DEPTH:
            launch = _in_shell(words[index + 1 : index + 6], depth + 1)
        if launch is not None:
            return _with_wrappers(launch, texts[: index + 1])
    return None


def _with_wrappers(launch: Launch, before: Sequence[str]) -> Launch:
    """Add what stands before the program: variables, and a version pinned by the tool that runs it."""
    env = {found[1]: found[2] for text in before if (found := _ASSIGNMENT.fullmatch(text))}
    version = next((found[1] for text in before if (found := _PINNED.fullmatch(text))), "")
    devices = env.get("CUDA_VISIBLE_DEVICES", "")
    num_gpus = len(devices.split(",")) if devices else launch.num_gpus
    return replace(launch, env=env | dict(launch.env), version=launch.version or version, num_gpus=num_gpus)


def _in_shell(words: Sequence[Word], depth: int) -> Launch | None:
    """Return the server that `bash -c TEXT` starts."""
    option = next(
        (index for index, word in enumerate(words[:4]) if word.text.startswith("-") and "c" in word.text), None
    )
    if option is None or option + 1 >= len(words):
        return None
    inner = words[option + 1]
    script = Script(inner.text, line=inner.line or 1)
    for command in script.commands():
        placed = [replace(word, place=inner.place) for word in command.words]
        launch = find_launch(placed, depth=depth)
        if launch is not None:
            env = {name: "".join(value) for name, value in script.variables.items() if name.startswith("VLLM_")}
            return replace(launch, env=env | dict(launch.env), findings=(*launch.findings, *_slips(command)))
    return None


def _run_container(words: Sequence[Word], depth: int) -> Launch | None:
    """Return the server of `docker run OPTIONS IMAGE ARGUMENTS`."""
    env: dict[str, str] = {}
    entrypoint: list[Word] = []
    num_gpus: int | None = None
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
        if option in ("-e", "--env") and (found := _ASSIGNMENT.fullmatch(word.text)):
            env[found[1]] = found[2]
        elif option == "--entrypoint":
            entrypoint = [word]
        elif option == "--gpus":
            num_gpus = _count_gpus(word.text)
    if index >= len(words):
        return None
    launch = run_image(words[index].text, entrypoint, words[index + 1 :], depth=depth)
    if launch is None:
        return None
    return replace(launch, env=env | dict(launch.env), num_gpus=launch.num_gpus or num_gpus)


def _count_gpus(value: str) -> int | None:
    if value.isdecimal() and len(value) < 5:
        return int(value)
    devices = _DEVICES.search(value)
    return len(devices[1].split(",")) if devices else None


def run_image(image: str, entrypoint: Sequence[Word], args: Sequence[Word], *, depth: int = 0) -> Launch | None:
    """Return the server that a container starts, or None where it starts none.

    Args:
        image: as written.
        entrypoint: what replaces the image's own; empty for none.
        args: what is given to the one or the other.
        depth: how many shells and containers stand around it.
    """
    launch = find_launch([*entrypoint, *args], depth=depth)
    if launch is None and not entrypoint and is_vllm_image(image):
        launch = Launch(words=tuple(args), entry="huggingfaceserver" if "huggingfaceserver" in image else "image")
        if args and args[0].text == "serve":
            launch = replace(launch, words=tuple(args[1:]), entry="serve", findings=(_repeated(image, args[0]),))
    elif launch is not None and not entrypoint and has_own_entry(image):
        launch = replace(launch, findings=(*launch.findings, _repeated(image, args[0])))
    if launch is None:
        return None
    return replace(launch, image=image, version=launch.version or image_version(image))


def _repeated(image: str, word: Word) -> Finding:
    return get_rule("entrypoint-repeated").ruling(
        f"{image.partition(':')[0]} starts the server by itself: {word.text!r} is one word too many.",
        where=word.place or (f"line {word.line}" if word.line else ""),
        fix="Begin with the model, or set the entry point to the first word.",
    )
