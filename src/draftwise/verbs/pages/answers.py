"""Answers to forms: fields become the request of a verb, and its result or findings become JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.core.documents import to_json
from draftwise.verbs import load_verb
from draftwise.verbs.offered_names import list_gpus, list_releases, list_traffic_kinds

ANSWERED = ("check", "upgrade", "size", "pick", "explain")
"""Verbs that forms ask for: they start nothing and write nothing."""


def answer(verb: str, fields: Mapping[str, Any]) -> str:
    """Return the document of a verb as its `--json` prints it, or `{"error": [findings]}`.

    Args:
        verb: one of `ANSWERED`.
        fields: fields of its Request; empty ones are left out. `config` is the text of a config.json, for a model
            that draftwise does not know by name.
    """
    asked = {name: value for name, value in fields.items() if value not in ("", None, [])}
    try:
        with ExitStack() as stack:
            if config := asked.pop("config", ""):
                folder = stack.enter_context(TemporaryDirectory(prefix="draftwise-"))
                Path(folder, "config.json").write_text(config, encoding="utf-8")
                asked["config_from" if verb in ("check", "upgrade") else "target"] = folder
            document: Any = _run(verb, asked)
    except InvalidSetup as error:
        document = {"error": to_json(error.findings)}
    return json.dumps(document, indent=1)


def _run(verb: str, asked: Mapping[str, Any]) -> Any:
    if verb not in ANSWERED:
        raise InvalidSetup.because("invalid-request", f"{verb[:40]!r} is not one of {', '.join(ANSWERED)}.")
    if any(value == "-" or (isinstance(value, list) and "-" in value) for value in asked.values()):
        raise InvalidSetup.because("nothing-to-read", "A form has no standard input that - could name.")
    try:
        return load_verb(verb)(**asked).to_dict()
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise InvalidSetup.because("invalid-request", f"{verb} {str(error).partition('() ')[2]}.") from None


def list_choices() -> dict[str, Any]:
    """Return what forms offer: releases (the newest first), GPUs, kinds of traffic."""
    return {"releases": list_releases(), "gpus": list_gpus(), "traffic": list_traffic_kinds()}
