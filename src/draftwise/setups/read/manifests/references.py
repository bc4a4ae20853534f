"""References to variables, as compose, Kubernetes and systemd write them, and files of variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from draftwise.setups.read.shell.environment import Environment, describe_unknown
from draftwise.setups.read.shell.words import Word, check_length, split_words

__all__ = ["COMPOSE", "KUBERNETES", "SYSTEMD", "References", "read_env_file"]

_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(.*)", re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s+)#.*")
_QUOTED = re.compile(r"""(['"])(.*)\1\s*(?:#.*)?""", re.DOTALL)
_MARK = re.compile("\0([0-9]+)\0")
"""Stands for a reference whose value is not at hand while its text is split into words; no YAML holds a NUL."""


@dataclass(frozen=True, slots=True)
class References:
    """How one format refers to variables."""

    pattern: re.Pattern[str]
    """With the groups `name`, `braced`, `operator` and `operand`; a match without a name is an escape."""
    unset_is_empty: bool = False
    """Whether a variable that is known not to be set becomes nothing; else the reference stays as it stands."""

    def fill_in(self, word: Word, env: Environment) -> Word:
        """Return a word with its references replaced; it names those whose values are not at hand.

        Raises:
            InvalidSetup: the values blow the word up.
        """
        marked, left = self._mark(word.text, env)
        return _restore(replace(word, text=marked), left)

    def split(self, word: Word, env: Environment) -> tuple[Word, ...]:
        """Return the words of a text in which references are replaced before it is split.

        Raises:
            InvalidSetup: the values blow the text up, or a quote is never closed.
        """
        marked, left = self._mark(word.text, env)
        return tuple(_restore(each, left) for each in split_words(marked, line=word.line, place=word.place))

    def _mark(self, text: str, env: Environment) -> tuple[str, list[tuple[str, str]]]:
        """Return the text with a mark for each reference without a value, and these: as written and as described."""
        left: list[tuple[str, str]] = []

        def value(match: re.Match[str]) -> str:
            name = _name(match)
            found = self._find(name, match, env) if name else match[0][1:]
            if found is not None:
                return found
            left.append((match[0], describe_unknown(name, env.origin(name))))
            return f"\0{len(left) - 1}\0"

        check_length(env.values.get(_name(match), "") for match in self.pattern.finditer(text))
        return self.pattern.sub(value, text), left

    def _find(self, name: str, match: re.Match[str], env: Environment) -> str | None:
        """Return what a reference becomes; None where that is not known."""
        operator, operand = match["operator"] or "", match["operand"] or ""
        value = env.values.get(name)
        is_set = value is not None and not (operator.startswith(":") and not value)
        if operator.endswith("-") and not is_set and name not in env.unknown:
            return operand
        if value is None and env.origin(name):
            return None
        if operator.endswith("+"):
            return operand if is_set else ""
        return value if value is not None else "" if self.unset_is_empty else match[0]


def _name(match: re.Match[str]) -> str:
    return match["name"] or match["braced"] or ""


def _restore(word: Word, left: list[tuple[str, str]]) -> Word:
    """Return a word with the references behind its marks as they were written."""
    unknown = [left[int(number)][1] for number in _MARK.findall(word.text)]
    text = _MARK.sub(lambda match: left[int(match[1])][0], word.text)
    return replace(word, text=text, unknown=(*word.unknown, *unknown))


_NO_MORE = "(?P<braced>)(?P<operator>)(?P<operand>)"
COMPOSE = References(
    re.compile(r"\$(?:\$|(?P<name>\w+)|\{(?P<braced>\w+)(?:(?P<operator>:?[-?+])(?P<operand>[^{}]*))?\})"),
    unset_is_empty=True,
)
"""compose-spec, Interpolation."""
KUBERNETES = References(re.compile(rf"\$\$|\$\((?P<name>[A-Za-z_][\w.-]*)\){_NO_MORE}"))
"""Kubernetes core/v1 Container.args: what is not set stays as it is."""
SYSTEMD = References(re.compile(rf"\$\$|\$\{{(?P<name>\w+)\}}{_NO_MORE}"), unset_is_empty=True)
"""systemd.service(5), Command lines."""


def read_env_file(text: str) -> dict[str, str]:
    """Return the variables of `NAME=value` lines, as in compose's .env and systemd's EnvironmentFile."""
    return dict(_assignments(text))


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.replace("\r\n", "\n").replace("\\\n", "").splitlines():
        found = None if line.lstrip().startswith(("#", ";")) else _ASSIGNED.fullmatch(line.strip())
        if found is not None:
            quoted = _QUOTED.fullmatch(found[2])
            yield found[1], quoted[2] if quoted else _COMMENT.sub("", found[2]).strip()
