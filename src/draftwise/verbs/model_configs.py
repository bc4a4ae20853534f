"""config.json files that a request names for a model, or asks the hub for; nothing is fetched unasked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from draftwise.checkpoints.config_json import find_model_config, read_config, standing_for
from draftwise.checkpoints.headers import INDEX
from draftwise.core import InvalidSetup, Setup, UnreadableSource
from draftwise.knowledge.messages import unreadable
from draftwise.knowledge.models import is_hub_name
from draftwise.verbs.verb import refuse

if TYPE_CHECKING:
    import httpx

_OPTION = "--config-from"
_CONFIG = "config.json"
_HUB = "https://huggingface.co"
_MOST_BYTES = 64 << 20
"""Largest file: the index of the largest models has about 20 MB."""


@contextmanager
def open_configs(setups: Iterable[Setup], config_from: str | PathLike[str] | None, *, hub: bool) -> Iterator[None]:
    """Use the config.json files that a request names or fetches for the models of its setups, within this context.

    Args:
        setups: the setups to judge.
        config_from: directory, file or URL of the config.json of the one target of the setups.
        hub: whether to ask the hub for unknown targets and drafters, with `HF_ENDPOINT`, `HF_TOKEN` and the usual
            variables of proxies.

    Raises:
        InvalidRequest: the setups have several targets, and one config.json is given.
        UnreadableSource: a file does not exist, or cannot be fetched.
    """
    setups = list(setups)
    with ExitStack() as stack:
        configs: dict[str, Path] = {}
        if config_from is not None:
            targets = {setup.target for setup in setups}
            if len(targets) != 1:
                refuse(f"The setups serve {len(targets)} models, but you gave one config.json.", where=_OPTION)
            configs[targets.pop()] = _check(_open(str(config_from), stack), _OPTION)
        for name in dict.fromkeys(each for setup in setups for each in _name_models(setup)) if hub else ():
            if name not in configs and _is_unknown(name):
                configs[name] = _check(_fetch(f"{_find_endpoint()}/{name}/resolve/main", stack, where=name), name)
        stack.enter_context(standing_for(configs))
        yield


def _open(given: str, stack: ExitStack) -> Path:
    if given.startswith(("http://", "https://")):
        return _fetch(given.rstrip("/").removesuffix(f"/{_CONFIG}"), stack, where=given)
    path = Path(given)
    if path.is_dir():
        return path
    if not path.is_file():
        raise unreadable("no-such-file", case="config", given=given, option=_OPTION)
    if path.name == _CONFIG:
        return path.parent
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="draftwise-")))
    (folder / _CONFIG).write_bytes(path.read_bytes())
    return folder


def _check(folder: Path, where: str) -> Path:
    try:
        read_config(folder)
    except InvalidSetup as error:
        raise UnreadableSource(replace(finding, where=where) for finding in error.findings) from None
    return folder


def _name_models(setup: Setup) -> Iterator[str]:
    yield setup.target
    if setup.spec is not None and isinstance(setup.spec.model, str):
        yield setup.spec.model


def _is_unknown(name: str) -> bool:
    """Say whether a name can be one of the hub, and its config.json is not here."""
    if name.count("/") != 1 or not is_hub_name(name) or Path(name).exists():
        return False
    try:
        return find_model_config(name) is None
    except InvalidSetup:
        return False


def _find_endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or _HUB


def _fetch(base: str, stack: ExitStack, *, where: str) -> Path:
    """Return a directory with the config.json below a URL, and the index where there is one."""
    import httpx  # nothing else of these verbs reaches a network

    from draftwise.machine.network import open_client

    folder = Path(stack.enter_context(TemporaryDirectory(prefix="draftwise-")))
    token = os.environ.get("HF_TOKEN", "").strip()
    # The token is the hub's: another server never gets it, nor one that the hub sends on to.
    is_hub = base.startswith(f"{_find_endpoint()}/")
    headers = {"authorization": f"Bearer {token}"} if token and is_hub else {}
    try:
        with open_client(timeout=30, headers=headers) as client:
            (folder / _CONFIG).write_bytes(_get(client, f"{base}/{_CONFIG}", where=where))
            index = _get(client, f"{base}/{INDEX}", where=where, optional=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error).rpartition("] ")[2] or type(error).__name__  # without [Errno 111]
        raise _unreachable(where, f"{base} cannot be reached ({why})") from None
    if index:
        (folder / INDEX).write_bytes(index)
    return folder


def _get(client: httpx.Client, url: str, *, where: str, optional: bool = False) -> bytes:
    with client.stream("GET", url) as answer:
        if answer.status_code in (401, 403):
            what = f"{url} requires access (HTTP {answer.status_code})"
            raise _unreachable(where, what, "Set HF_TOKEN to a token that may read it")
        if answer.status_code == 404 and optional:
            return b""
        if not answer.is_success:
            raise _unreachable(where, f"{url} failed (HTTP {answer.status_code})")
        read = bytearray()
        for piece in answer.iter_bytes():
            read += piece
            if len(read) > _MOST_BYTES:
                raise _unreachable(where, f"{url} is larger than any config.json or index")
    return bytes(read)


def _unreachable(where: str, what: str, fix: str = "Check the name, HF_ENDPOINT and the network") -> InvalidSetup:
    return unreadable("config-not-fetched", what=what, where=where, fix=fix)
