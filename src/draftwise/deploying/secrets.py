"""Finds secrets in a setup that readers of its files must not see."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from draftwise.core import Finding, InvalidSetup, Setup
from draftwise.knowledge.messages import fault

_NAME = re.compile(r"(?:^|_)(?:api_?key|access_?key|token|secret|password|passwd)$", re.IGNORECASE)
"""Names of arguments and variables that hold a secret: `api_key`, `HF_TOKEN`."""
_IN_URL = re.compile(r"://[^/@\s:]+:[^/@\s]+@")
_VARIABLE = re.compile(
    r"(?:^|_)(?:tokens?|secrets?|secret_?key|pass|passphrase|pwd|credentials?|auth|private_?key|signing_?key|keys?)$",
    re.IGNORECASE,
)
"""Further endings of the names of variables that hold one."""
_LOOKS = re.compile(
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|glpat-[\w-]{16,}|nvapi-[\w-]{20,}"
    r"|AKIA[0-9A-Z]{16}|xox[abpr]-[\w-]{10,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""How keys and tokens of well-known services look."""
_TAKEN_FROM: Mapping[str, str] = {"api_key": "VLLM_API_KEY", "hf_token": "HF_TOKEN"}
"""Variables that vLLM and the hub's library read instead of an argument."""


def refuse_secrets(setup: Setup) -> None:
    """Raise InvalidSetup if a setup holds a secret, because files are committed, mounted and shared."""
    if found := list(_find(setup)):
        raise InvalidSetup(found)


def without_secrets(setup: Setup) -> Setup:
    """Return a setup without arguments and variables that hold secrets, for judging but not for writing."""
    hidden = {finding.where for finding in _find(setup)}
    args = {name: value for name, value in setup.args.items() if _name_flag(name) not in hidden}
    return replace(setup, args=args, env={name: value for name, value in setup.env.items() if name not in hidden})


def is_secret(name: str, text: str) -> bool:
    """Return whether a variable's value, or a text without a name, is a secret itself and not a reference."""
    if text.lower() in ("", "true", "false", "yes", "no", "0", "1") or re.fullmatch(r"\$[({]?\w+[)}]?", text):
        return False
    named = bool(name) and bool(_NAME.search(name) or _VARIABLE.search(name))
    return named or bool(_IN_URL.search(text) or _LOOKS.search(text))


def _name_flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _find(setup: Setup) -> Iterator[Finding]:
    for name, value in setup.args.items():
        if value and (_NAME.search(name) or is_secret("", str(value))):
            yield _finding(_name_flag(name), _TAKEN_FROM.get(name, ""))
    for name, value in setup.env.items():
        if is_secret(name, value):
            yield _finding(name, name)
    if setup.spec is not None and is_secret("", setup.spec.to_json()):
        yield _finding("--speculative-config", "")


def _finding(where: str, variable: str) -> Finding:
    how = f"the variable {variable}" if variable else "a variable or a mounted file"
    return fault("secret-in-setup", where=where, how=how)
