"""Converts scripts of Windows and of make, and templates of Unraid, to POSIX shell scripts."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from draftwise.setups.read.shell.open_texts import check_length

_Rewrite = str | Callable[[re.Match[str]], str]
_QUOTES = '"$(quotes, which depend on the version of PowerShell)"'
_BRANCHES = re.compile(r"\b(?:if|else|goto|switch|for|foreach|while|function)\b", re.IGNORECASE)
"""Not every line runs. No value is known."""


_VALUE = r"(?:\\\n|[^\n])*"
"""The rest of a line of make, with those that a backslash continues it in."""


def _name(form: str) -> Callable[[re.Match[str]], str]:
    """Return a rewriting. {0} is the variable, in capitals, and {1} its value."""
    return lambda found: form.format(found[1].upper(), found[2] if found.re.groups > 1 else "")


_USE = re.compile(r"(?<!\$)\$[({](\w+)[)}]")
_SET = re.compile(rf"^(?:export[ \t]+)?(\w+)[ \t]*([?:+]*)=({_VALUE})", re.MULTILINE)


def _expand(text: str) -> str:
    """Return a makefile with the values of its variables, or with what a shell does not know, in single quotes too.

    The value of a variable that is set twice is not known.

    Raises:
        InvalidSetup: the expanded text is too long.
    """
    rows: dict[str, list[tuple[str, str]]] = {}
    for name, sign, value in _SET.findall(text):
        rows.setdefault(name, []).append((sign, value))
    values = {
        name: " ".join(value.replace("\\\n", " ").strip() for _, value in each)
        for name, each in rows.items()
        if all(sign == "+" for sign, _ in each[1:])
    }
    parts: list[str] = []
    place = chars = quotes = 0
    for found in _USE.finditer(text):
        between = text[place : found.start()]
        _, begins_line, line = between.rpartition("\n")
        quotes = line.count("'") + (0 if begins_line else quotes)
        unknown = f"$({found[1]} of make)"
        value = values.get(found[1], f"'\"{unknown}\"'" if quotes % 2 else unknown)
        parts += [between, value]
        chars += len(between) + len(value)
        check_length(chars)
        place = found.end()
    return "".join([*parts, text[place:]])


_MAKE = (
    (rf"^[^\t\n#=:]+(?:=|:(?!=)|::?=){_VALUE}", lambda found: "\n" * found[0].count("\n")),
    (r"(?<!\\\n)^\t[@+-]*", ""),
    (r"\$\$", "$"),
)
_BATCH = (
    (r"\^\r?\n", r"\\\n"),
    (r"^[ \t]*@?(?:rem\b|::).*$", "#"),
    (r"^[ \t]*@", ""),
    (r'("(?:\\.|[^"\\\r\n])*"?)|\'', lambda found: found[1] or r"\'"),  # a single quote is a letter
    (r"%(?:~\w*(?=\d))?(\w+)%?", _name("${{{0}}}")),
    (r"^set[ \t]+\"?(\w+)=([^\"\r\n]*)\"?", _name('export {0}="{1}"')),
    (r"^[ \t]*set[ \t]+(?:/\w\s+)?\"?(\w+).*$", _name("{0}=$(set)")),
)
_POWERSHELL = (
    (r"@(['\"])[ \t]*\r?\n[\s\S]*?(?:\n\1@|\Z)", _QUOTES),  # a here-string
    (r"`\r?\n", r"\\\n"),
    (r"'[^'\"\r\n]*\"[^'\r\n]*'", _QUOTES),
    (r"^\$(?:env:)?(\w+)\s*=\s*(\"[^\"`\r\n]*\"|'[^'\r\n]*'|[\w.]+)[ \t]*\r?$", _name("export {0}={1}")),
    (r"^[ \t]*\$(?:env:)?(\w+)[ \t]*[-+*/]?=.*$", _name("{0}=$(computed)")),
    (r"(?<=\s)\$(?:env:)?(\w+)(?=\s)", _name('"${{{0}}}"')),  # stays one argument
    (r"\$(?:env:)?(\w+)", _name("${{{0}}}")),
)
_SCRIPTS: Mapping[str, Sequence[tuple[str, _Rewrite]]] = {
    ".bat": _BATCH, ".cmd": _BATCH, ".ps1": _POWERSHELL, ".mk": _MAKE, ".makefile": _MAKE,
}  # fmt: skip
SUFFIXES = _SCRIPTS.keys()
_RULE = re.compile(r"^[\w.%/-][\w.%/ -]*:(?!=)[^\n]*\n\t", re.MULTILINE)
_USE_OF_MAKE = re.compile(r"^\t.*\$\([A-Za-z_]\w*\)", re.MULTILINE)


def to_shell(text: str, suffix: str) -> str:
    """Return a script as a shell script. Values that only its interpreter knows stay unknown."""
    if "<Repository>" in text and "<Container" in text:
        return _read_template(text)
    is_make = suffix.lower() not in _SCRIPTS and suffix != ".py" and _RULE.search(text) and _USE_OF_MAKE.search(text)
    has_branches = _BRANCHES.search(text) is not None
    rewritings = _MAKE if is_make else _SCRIPTS.get(suffix.lower(), ())
    if rewritings is _MAKE:
        text = _expand(_expand(text))  # values have values
    for pattern, rewrite in rewritings:
        if not (has_branches and pattern.startswith((r"^set", r"^\$"))):
            text = re.sub(pattern, rewrite, text, flags=re.MULTILINE | re.IGNORECASE)
    return text


def _read_template(text: str) -> str:
    """Return the command that Unraid runs for a template: its options, variables, image and arguments."""
    options, image, args = (
        html.unescape(found[1]).strip() if (found := re.search(rf"<{tag}>([^<]*)</{tag}>", text)) else ""
        for tag in ("ExtraParams", "Repository", "PostArgs")
    )
    variables = re.findall(r'<Config\b(?=[^>]*Type="Variable")[^>]*?Target="(\w+)"[^>]*?(?:/>|>([^<]*)<)', text)
    env = " ".join(f"-e {name}={shlex.quote(html.unescape(value))}" for name, value in variables)
    return f"docker run {options} {env} {image} {args}"
