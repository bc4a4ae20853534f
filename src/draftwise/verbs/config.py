"""`config`: shows the defaults of this project and user, and where each comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from draftwise.core import cause_of
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.verbs.verb import Result, verb

FILE = "draftwise.toml"
DEFAULTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "release": (
        "vLLM release, if the source names none.",
        {
            "check": "usual_vllm", "deploy": "usual_vllm", "upgrade": "before", "size": "usual_vllm", "pick": "vllm",
            "inspect": "vllm", "schema": "vllm",
        },
    ),
    "gpu": (
        "GPU that serves, if the source names none.",
        {
            "check": "usual_gpu", "upgrade": "usual_gpu", "deploy": "usual_gpu", "size": "usual_gpu", "pick": "gpu",
            "verify": "gpu",
        },
    ),
    "baseline": ("baseline.json of `deploy`.", {"watch": "baseline", "guard": "baseline"}),
    "fail-on": ("What makes the exit code 1.", {"check": "fail_on", "upgrade": "fail_on", "verify": "fail_on"}),
    "workload": ("Prompts to measure with.", {"decide": "workloads", "calibrate": "workloads"}),
}  # fmt: skip
"""Keys of the file: description, and the parameter that each sets, by verb."""
_LARGEST = 100_000


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """The folder whose defaults are shown."""

    folder: str | os.PathLike[str] = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultRow:
    """One default."""

    key: str
    about: str
    value: str | None
    """Null if it is not set."""
    source: str
    """File or environment variable that sets it; empty if it is not set."""
    variable: str
    """Environment variable that overrides the file."""
    verbs: tuple[str, ...]
    """Verbs that use it unless you give their option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResult(Result):
    """The defaults in force."""

    VERB: ClassVar[str] = "config"
    file: str | None
    """The draftwise.toml that was found, in the folder or above it."""
    defaults: tuple[DefaultRow, ...]


@verb(ConfigRequest)
def config(request: ConfigRequest, _progress: Progress) -> ConfigResult:
    """Show the defaults of the command line, from draftwise.toml in the folder or above it and from the environment.

    An option overrides the environment, which overrides the file. Python functions use none of these defaults.
    """
    file = _find_file(Path(request.folder))
    rows = tuple(find_defaults(Path(request.folder)))
    return ConfigResult(file=None if file is None else str(file), defaults=rows)


def find_defaults(folder: Path) -> Iterator[DefaultRow]:
    """Yield every default with its value and source.

    Raises:
        InvalidSetup: the file is not TOML, or has an unknown key or an invalid value.
    """
    file = _find_file(folder)
    values = {} if file is None else read_values(file)
    for key, (about, verbs) in DEFAULTS.items():
        variable = f"DRAFTWISE_{key.replace('-', '_').upper()}"
        value, source = values.get(key), str(file) if key in values else ""
        if given := os.environ.get(variable):
            value, source = given, f"${variable}"
        yield DefaultRow(key=key, about=about, value=value, source=source, variable=variable, verbs=tuple(verbs))


def read_values(file: Path) -> dict[str, str]:
    """Return the values of a draftwise.toml; its paths are relative to its folder.

    Raises:
        InvalidSetup: it is not TOML, or has an unknown key or an invalid value.
    """
    import tomllib  # read only where there is such a file

    try:
        with file.open("rb") as opened:
            rows: dict[str, Any] = tomllib.loads(opened.read(_LARGEST).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise refusal("config-unreadable", case="toml", file=file, cause=cause_of(error)) from None
    for key, value in rows.items():
        if key not in DEFAULTS or not isinstance(value, str) or not value:
            text = f"has no key {key!r}" if key not in DEFAULTS else f"needs text as {key}, not {value!r}"
            raise refusal("config-unreadable", file=file, text=text[:200], names=", ".join(DEFAULTS))
    if "baseline" in rows:
        rows["baseline"] = str(file.parent / rows["baseline"])
    if "workload" in rows and (path := file.parent / rows["workload"].partition("#")[0]).exists():
        rows["workload"] = str(path) + rows["workload"][len(rows["workload"].partition("#")[0]) :]
    return rows


def _find_file(folder: Path) -> Path | None:
    at = folder.absolute()
    return next((each / FILE for each in (at, *at.parents) if (each / FILE).is_file()), None)
