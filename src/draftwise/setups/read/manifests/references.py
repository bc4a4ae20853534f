"""References to variables in compose, Kubernetes and systemd, and files of variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from draftwise.setups.read.shell.environment import Environment, describe_unknown
from draftwise.setups.read.shell.words import Word, check_length, split_words

_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(.*)", re.DOTALL)
_COMMENT = re.compile(r"(?:^|(?<!\s)\s+)#.*")
_QUOTED = re.compile(r"""(['"])(.*)\1\s*(?:#.*)?""", re.DOTALL)
_MARK = re.compile("\0([0-9]+)\0")
"""Stands for a reference whose value is not at hand while its text is split into words; no YAML holds a NUL."""


@dataclass(frozen=True, slots=True)
class References:
    """How one format refers to variables."""

    pattern: re.Pattern[str]
    """Has the groups `name`, `braced` and `operator`; a match without a name is an escape. A braced reference ends at
    its closing brace."""
    unset_is_empty: bool = False
    """Whether a variable that is known to be unset becomes empty; else the reference stays as written."""

    def fill_in(self, word: Word, env: Environment) -> Word:
        """Return a word with its references replaced; it names those with unknown values.

        Raises:
            InvalidSetup: the expanded word is too long.
        """
        filled = _TextFiller(self, env)
        marked = filled.fill(word.text)
        return filled.restore(replace(word, text=marked))

    def split(self, word: Word, env: Environment) -> tuple[Word, ...]:
        """Return the words of a text whose references are replaced before it is split.

        Raises:
            InvalidSetup: the expanded text is too long, or a quote is never closed.
        """
        filled = _TextFiller(self, env)
        marked = filled.fill(word.text)
        return tuple(filled.restore(each) for each in split_words(marked, line=word.line, place=word.place))


@dataclass(slots=True)
class _TextFiller:
    """A text whose references are being replaced."""

    references: References
    env: Environment
    left: list[tuple[str, str]] = field(default_factory=list)
    """References without a value: as written and as described. A mark in the text stands for each."""
    assumed: dict[str, None] = field(default_factory=dict)
    """Some variables are assumed to be unset, as described."""
    blank: dict[str, None] = field(default_factory=dict)
    """Those whose default is empty."""
    chars: int = 0

    def fill(self, text: str) -> str:
        """Return a text with values, and with a mark for each value that is missing."""
        parts: list[str] = []
        pos = 0
        while found := self.references.pattern.search(text, pos):
            end, operand = found.end(), ""
            if found["braced"]:
                end = _find_brace(text, found.start())
                if end < 0:
                    break
                operand = text[found.end() : end]
                end += 1
            parts += [text[pos : found.start()], self._value(found, text[found.start() : end], operand)]
            pos = end
        parts.append(text[pos:])
        self.chars += sum(map(len, parts))
        check_length(self.chars)
        return "".join(parts)

    def _value(self, found: re.Match[str], written: str, operand: str) -> str:
        name = found["name"] or found["braced"]
        if not name:
            return written[1:]
        operator, env = found["operator"] or "", self.env
        if operand and not operator:
            return written
        value = env.values.get(name)
        is_set = value is not None and not (operator.startswith(":") and not value)
        origin = env.origin(name)
        if operator.endswith(("-", "+")) and name not in env.unknown:
            if origin and not is_set:
                self.assumed[describe_unknown(name, origin)] = None
                if not operand and operator.endswith("-"):
                    self.blank[describe_unknown(name, origin)] = None
            if is_set is operator.endswith("+"):
                return self.fill(operand)
            return (value or "") if operator.endswith("-") else ""
        is_demanded = operator.endswith("?") and not is_set
        if is_demanded or (value is None and origin):
            self.left.append((written, describe_unknown(name, origin or "required, but not set")))
            return f"\0{len(self.left) - 1}\0"
        if value is None:
            return "" if self.references.unset_is_empty else written
        if name in env.assumed:
            self.assumed[env.assumed[name]] = None
        return value

    def restore(self, word: Word) -> Word:
        """Return a word with the references behind its marks as they were written."""
        unknown = [self.left[int(number)][1] for number in _MARK.findall(word.text)]
        text = _MARK.sub(lambda match: self.left[int(match[1])][0], word.text)
        return replace(
            word,
            text=text,
            unknown=(*word.unknown, *unknown),
            assumed=(*word.assumed, *self.assumed),
            blank=(*word.blank, *self.blank),
        )


def _find_brace(text: str, begin: int) -> int:
    """Return the position of the brace that closes a reference, or -1."""
    depth = 0
    for found in _BRACE.finditer(text, begin):
        depth += 1 if found[0] == "${" else -1
        if depth == 0:
            return found.start()
    return -1


_BRACE = re.compile(r"\$\{|\}")
COMPOSE = References(
    re.compile(r"\$(?:\$|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>\w+)(?P<operator>:?[-?+])?)"), unset_is_empty=True
)
"""compose-spec, Interpolation; compose-go template/template.go."""
KUBERNETES = References(re.compile(r"\$\$|\$\((?P<name>[A-Za-z_][\w.-]*)\)(?P<braced>)(?P<operator>)"))
"""Kubernetes core/v1 Container.args: references to unset variables stay as written."""
SYSTEMD = References(re.compile(r"\$\$|\$\{(?P<braced>\w+)(?=\})(?P<name>)(?P<operator>)"), unset_is_empty=True)
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
