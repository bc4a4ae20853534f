"""Quadlet files of Podman: the server of the container that a `.container` file describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from draftwise.setups.read.manifests.systemd import get_settings, read_environment, read_words
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.launch import Launch, run_image
from draftwise.setups.read.shell.words import Word

__all__ = ["find_containers"]

_UNIT = Environment(elsewhere="the environment of the unit that Podman makes of this file")


def find_containers(text: str, given: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the server of a `.container` file.

    Args:
        text: the file.
        given: values of variables that come from files which are not at hand.

    Raises:
        InvalidSetup: a quote is never closed, or a file of variables cannot be read.
    """
    settings = list(get_settings(text, "Container"))
    env = read_environment(settings, given)
    unit = _UNIT.given(given)
    values = {name: (line, value) for line, name, value in settings}
    line, _ = values.get("Exec") or values.get("Image") or (1, "")
    entrypoint, command = (_read(values.get(name), unit) for name in ("Entrypoint", "Exec"))
    image = next(iter(_read(values.get("Image"), unit)), Word(""))
    launch = run_image(image, entrypoint, command, env=env)
    if launch is not None:
        yield replace(launch, where=f"line {line} Exec")


def _read(setting: tuple[int, str] | None, unit: Environment) -> tuple[Word, ...]:
    return () if setting is None else read_words(setting[1], unit, setting[0])
