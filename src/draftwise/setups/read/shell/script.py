"""The commands that a shell script starts, with their words on every path through it.

A variable of the caller is open: its default counts if the text has one, and both branches of a condition on it are
followed. Values from other programs are unknown, and so is everything beyond a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce

from draftwise.core import InvalidSetup
from draftwise.setups.read.shell.environment import NOTHING_SET, Environment
from draftwise.setups.read.shell.expansion import NAME
from draftwise.setups.read.shell.open_texts import Holes, OpenText, find_holes, is_known, without_marks
from draftwise.setups.read.shell.paths import PathState, Value, join
from draftwise.setups.read.shell.script_runner import ReachedCommand, Shell
from draftwise.setups.read.shell.syntax import Document, ShellWord, Simple, parse, walk
from draftwise.setups.read.shell.words import Word, check_length

_MAX_WAYS = 24


@dataclass(frozen=True, slots=True)
class HereDocument:
    """A text that a script passes to a command as input, such as a manifest or another script."""

    text: str
    """Text with the script's variables expanded as the shell does."""
    line: int
    """Line of the script where it begins."""
    unknown: Mapping[str, str]
    """References in it with unknown values -> their names in findings."""


@dataclass(frozen=True, slots=True)
class Way:
    """A command on one path through the script."""

    words: tuple[Word, ...]
    variables: Mapping[str, Word]
    """Variables that the script has set before, without arrays."""
    exported: tuple[str, ...] = ()
    """Those of them that are exported to programs."""
    where: str = ""
    """Decisions that lead here, e.g. `MODE=spec, line 12`; empty without any."""
    version: str = ""
    """The vLLM release that the script has installed."""
    packages: Mapping[str, bool] = field(default_factory=dict)
    """Optional packages -> whether the script has installed them, or taken them away."""
    assumed: tuple[str, ...] = ()
    """Variables assumed to be unset and therefore without a word, each with its source."""
    deviations: int = 0
    """Number of decisions that differ from those for a caller that sets nothing."""
    files: Mapping[str, Word] = field(default_factory=dict)
    """Texts of the files that the script has written, by their paths."""
    open_words: tuple[OpenText, ...] = ()
    """The words with their open parts, for `catalogue.oracle`."""


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """One command of a script, with the different ways in which it may run, the usual one first."""

    ways: tuple[Way, ...]
    lost_continuations: tuple[int, ...] = ()
    """Lines that end in a backslash and a space, where a shell ends the command; draftwise reads on."""
    is_partial: bool = False
    """Whether it may run in ways that are not listed."""

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the usual way."""
        return self.ways[0].words


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """Everything that a script starts, in order."""

    commands: tuple[ScriptCommand, ...]
    documents: tuple[HereDocument, ...]


def run_script(
    text: str | OpenText,
    *,
    line: int = 1,
    env: Environment = NOTHING_SET,
    arguments: Sequence[str | OpenText] | None = None,
) -> ScriptRun:
    """Return the commands of a shell script. Results are cached by text and environment.

    Args:
        text: the script.
        line: number of its first line.
        env: environment of the shell.
        arguments: `$0` and the following ones; None if unknown.

    Raises:
        InvalidSetup: a quote is never closed, or the expanded text is longer than `MAX_CHARS`.
    """
    if isinstance(text, OpenText) or arguments is not None or env != Environment(values=env.values):
        return _run(text, line, env, arguments)
    return _run_again(text, line, tuple(env.values.items()))


@lru_cache(maxsize=8)
def _run_again(text: str, line: int, values: tuple[tuple[str, str], ...]) -> ScriptRun:
    return _run(text, line, Environment(values=dict(values)), None)


def _run(text: str | OpenText, line: int, env: Environment, arguments: Sequence[str | OpenText] | None) -> ScriptRun:
    given = [each for each in (text, *(arguments or ())) if isinstance(each, OpenText)]
    shell = Shell(env, given[0].holes if given else Holes())
    source = text.text if isinstance(text, OpenText) else without_marks(text)
    check_length(len(source))
    state = PathState()
    if arguments is not None:
        name, *rest = [each.text if isinstance(each, OpenText) else without_marks(each) for each in arguments] or [""]
        state.variables["0"], state.arguments = name, tuple(rest)
    try:
        shell.run_all(parse(source.replace("\r\n", "\n"), line=line), state)
    except RecursionError:
        raise InvalidSetup.because("too-deep", "The text is nested too deeply.") from None
    return _tell_run(shell)


def evaluate_words(text: str, *, line: int = 1, env: Environment = NOTHING_SET) -> tuple[Word, ...]:
    """Return the words that a shell expands a partial command to, such as flags alone.

    Raises:
        InvalidSetup: a quote is never closed, or the expanded text is longer than `MAX_CHARS`.
    """
    shell, state = Shell(env, Holes()), PathState()
    words = [
        word for node in walk(parse(without_marks(text), line=line)) if isinstance(node, Simple) for word in node.words
    ]
    simple = Simple(tuple(word for word in words if isinstance(word, ShellWord)))
    ways = shell.fork([state], lambda each: shell.reach(simple, each))
    return _tell_run(shell).commands[0].words if ways else ()


def _tell_run(shell: Shell) -> ScriptRun:
    found: dict[object, ScriptCommand] = {}
    for (node, _), reached in shell.reached.items():
        command = _get_command(shell, reached)
        key = (node, *((way.words, *(way.variables[name].text for name in way.exported)) for way in command.ways))
        found.setdefault(key, command)  # turns of a loop may start the same
    commands = tuple(found.values())
    documents = tuple(_get_document(shell, *each) for each in shell.documents.values())
    return ScriptRun(commands, documents)


def _get_command(shell: Shell, reached: Sequence[ReachedCommand]) -> ScriptCommand:
    groups: dict[tuple[object, ...], list[ReachedCommand]] = {}
    for each in reached:
        passed = each.state.exported
        items = each.state.variables.items()
        shown = tuple((name, value) for name, value in items if name.startswith(("VLLM_", "ARCTIC_")) or name in passed)
        read = tuple(text for path, text in each.state.files.items() if any(path in word for word in each.words))
        groups.setdefault(
            (each.words, shown, each.state.version, read, frozenset(each.state.packages.items())), []
        ).append(each)
    ways = sorted((_get_way(shell, each) for each in groups.values()), key=lambda way: way.deviations)
    partial = len(ways) > _MAX_WAYS or any(each.state.is_partial for each in reached)
    lost = reached[0].node.lost
    return ScriptCommand(tuple(ways[:_MAX_WAYS]), lost, partial)


def _get_way(shell: Shell, reached: Sequence[ReachedCommand]) -> Way:
    first = min(reached, key=lambda each: each.state.deviations)
    state = first.state
    decided = reduce(join, [each.state for each in reached]).decisions.values()
    words: list[Word] = []
    gone: list[str] = []
    names_model = False  # in the words but the last, so that the arguments of the script may be none
    for text, line, mistake in zip(first.words, first.lines, first.mistakes, strict=True):
        if _is_left_out(shell, text) and (names_model or shell.holes.show(text) not in _ALL_ARGUMENTS):
            gone += shell.holes.name([text])
            continue
        told, unknown, assumed = shell.holes.tell(text)
        if shell.holes.show(text) in _ALL_ARGUMENTS:
            told, unknown, assumed = shell.holes.show(text), (*unknown, *assumed), ()
        source = None if is_known(text) else OpenText(text, shell.holes)
        names_model = names_model or (bool(words) and words[-1].text in ("--model", "serve"))
        blank = shell.holes.name_blank(text) if assumed else ()
        words.append(Word(told, line, "", mistake, unknown, assumed, blank, source))  # type: ignore[arg-type]
    variables = _Variables(shell, state)
    return Way(
        words=tuple(words),
        variables=variables,
        exported=tuple(sorted(state.exported & {*variables})),
        where="; ".join(decision.text for decision in decided if not decision.is_usual),
        version=state.version,
        packages=state.packages,
        assumed=tuple(gone),
        deviations=state.deviations,
        files=dict(_tell_files(shell, state)),
        open_words=tuple(OpenText(text, shell.holes) for text in first.words),
    )


_ALL_ARGUMENTS = ("$@", "$*")


def _is_left_out(shell: Shell, text: str) -> bool:
    """Say whether a word disappears where the variables that it depends on are not set."""
    holes = [shell.holes[mark] for mark in find_holes(text)]
    return len(holes) == len(text) > 0 and all(hole.splits and hole.assumed == "" for hole in holes)


def _tell(shell: Shell, value: Value | None) -> Word | None:
    if not isinstance(value, str):
        return None
    told, unknown, assumed = shell.holes.tell(value)
    return Word(
        told, unknown=unknown, assumed=assumed, source=None if is_known(value) else OpenText(value, shell.holes)
    )


def _get_document(shell: Shell, document: Document, texts: Sequence[tuple[str, PathState]]) -> HereDocument:
    text = min(texts, key=lambda each: each[1].deviations)[0]
    several = len({text for text, _ in texts}) > 1
    unknown: dict[str, str] = {}

    def fill(mark: str) -> str:
        hole = shell.holes[mark]
        if hole.assumed is not None:
            return hole.assumed
        unknown[hole.shown] = ", ".join(hole.names)
        return hole.shown

    for mark in set(find_holes(text)):
        text = text.replace(mark, fill(mark))
    if several:
        unknown[""] = "the way that the script takes"
    return HereDocument(text, document.line, unknown)


def _tell_files(shell: Shell, state: PathState) -> Iterator[tuple[str, Word]]:
    for path, text in state.files.items():
        told, unknown, _ = shell.holes.tell(state.get(path))
        word = _tell(shell, state.get(text))
        if word is not None and not unknown:
            yield told, word


class _Variables(Mapping[str, Word]):
    """What a script has set, looked up where it is asked for."""

    def __init__(self, shell: Shell, state: PathState) -> None:
        self._shell, self._state = shell, state
        self._names = [
            name for name, value in state.variables.items() if isinstance(value, str) and NAME.fullmatch(name)
        ]

    def __getitem__(self, name: str) -> Word:
        value = self._state.variables.get(name)
        word = _tell(self._shell, self._state.get(value) if isinstance(value, str) else value)
        if word is None:
            raise KeyError(name)
        return word

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
