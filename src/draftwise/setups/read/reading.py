"""From a server as a text starts it to a setup that can be judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftwise.core import Device, Finding, InvalidSetup, Setup, SpecConfig
from draftwise.facts.rules import get_rule
from draftwise.facts.vllm import Release, get_release, releases
from draftwise.setups.read.arguments.command_line import Arguments, read_arguments
from draftwise.setups.read.shell.launch import Launch, find_launch
from draftwise.setups.read.shell.words import Word, check_length

__all__ = ["NoServer", "Reading", "choose_release", "no_server", "read_launch", "read_words"]

_HIDDEN = frozenset({"VLLM_API_KEY"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One setup that was read, and what the reading found."""

    setup: Setup
    where: str
    """File with line, document and container; empty for a command line."""
    findings: tuple[Finding, ...] = ()


def read_words(words: Sequence[str], *, engine_version: str | None = None) -> Reading:
    """Return the vLLM server that a command starts, given as the words that the program receives.

    Args:
        words: the whole command, such as `["vllm", "serve", "MODEL", "--seed", "1"]`.
        engine_version: judges it for this release, whatever the words say.

    Raises:
        InvalidSetup: the words start no vLLM server, or are too long to be read.
    """
    check_length(words)
    launch = find_launch([Word(word) for word in words])
    if launch is None:
        raise no_server("")
    return read_launch(launch, engine_version=engine_version, folder=Path())


def read_launch(launch: Launch, *, engine_version: str | None = None, folder: Path | None = None) -> Reading:
    """Return the setup of a server.

    Args:
        launch: the server.
        engine_version: judges it for this release, whatever the text says.
        folder: where a `--config` file is looked for; None for a server in a container.
    """
    version = engine_version or launch.version
    release = choose_release(version)
    findings = [*launch.findings, *_about_version(launch, engine_version)]
    found = read_arguments(launch.words, release, launch.entry, folder=None if launch.image else folder)
    setup = Setup(
        target=_get_target(found.model, launch.mounts),
        engine="vllm",
        engine_version=version or "",
        device=_get_device(launch),
        spec=None if found.spec is None else SpecConfig.keep(found.spec),
        args=found.args,
        env={name: value for name, value in launch.env.items() if name.startswith("VLLM_") and name not in _HIDDEN},
        extra_args=tuple(found.unread),
    )
    findings += [*found.findings, *_about_gpus(launch, found), *_about_templates(launch)]
    return Reading(setup=setup, where=launch.where, findings=tuple(findings))


class NoServer(InvalidSetup):
    """The text was read, and starts no vLLM server."""


def no_server(name: str) -> InvalidSetup:
    """Return the error of a text in which no vLLM server is found; `name` is that of its file."""
    return NoServer.because(
        "no-server",
        "The text starts no vLLM server.",
        where=name,
        fix="Give the command line that begins with vllm serve, or a file that holds one.",
    )


def choose_release(version: str | None) -> Release:
    """Return the release whose flags apply, the nearest where it is not known: whoever judges the setup says so."""
    try:
        return get_release(version or "newest", nearest=True)
    except InvalidSetup:
        return releases()[-1]


def _about_version(launch: Launch, engine_version: str | None) -> Iterator[Finding]:
    if engine_version and launch.version and engine_version != launch.version:
        yield get_rule("other-version-asked").ruling(
            f"The source says vLLM {launch.version}; it is judged for {engine_version} as asked.", where=launch.where
        )
    elif launch.image and not launch.version and not engine_version:
        yield get_rule("version-unknown").ruling(
            f"{launch.image} does not say which vLLM is in it; it is judged for {releases()[-1]}.",
            where=launch.where,
            fix="Pin the image to a release, or say which release it is.",
        )


def _about_gpus(launch: Launch, found: Arguments) -> Iterator[Finding]:
    sizes = [found.args.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    if launch.num_gpus is None or not all(isinstance(size, int) for size in sizes) or "nnodes" in found.args:
        return
    ranks = sizes[0] * sizes[1]
    if ranks > launch.num_gpus > 0 and found.args.get("distributed_executor_backend") != "ray":
        yield get_rule("fewer-gpus-than-ranks").ruling(
            f"Tensor and pipeline parallelism want {ranks} GPUs; {launch.num_gpus} are given.",
            where=launch.where,
            fix="Ask for as many GPUs, or lower the parallel sizes.",
        )


def _about_templates(launch: Launch) -> Iterator[Finding]:
    left = next((word for word in launch.words if "{{" in word.text and "}}" in word.text), None)
    if left is not None:
        yield get_rule("template-left").ruling(
            f"{left.text[:60]!r} is a template that is filled in later; it is read as it stands.",
            where=" ".join(part for part in (f"line {left.line}" if left.line else "", left.place) if part),
        )


def _get_target(model: str, mounts: Mapping[str, str]) -> str:
    """Return a model's name: the Hugging Face id where a mount says that the directory holds it."""
    uri = mounts.get(model.rstrip("/"), "")
    return uri.removeprefix("hf://").partition(":")[0] if uri.startswith("hf://") else model


def _get_device(launch: Launch) -> Device | None:
    if "cpu" in launch.image.partition("@")[0]:
        return Device(name="CPU", kind="cpu")
    if launch.num_gpus is None and not launch.gpu:
        return None
    return Device(name=launch.gpu or "GPU", kind="cuda", count=launch.num_gpus or 1)
