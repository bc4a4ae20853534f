"""Paths through a script, with the variables and the decisions of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from draftwise.setups.read.shell.open_texts import bind
from draftwise.setups.read.shell.syntax import Function

MAX_PATHS = 64
"""Maximum number of paths followed at once; beyond it, those that differ least from the usual one."""

_MAX_TEXT = 200
Fact = tuple[str, ...]
"""A question: a relation and its open texts, e.g. `("=", MODE, "spec")`."""


@dataclass(frozen=True, slots=True)
class Items:
    """An array: index or key -> text."""

    items: tuple[tuple[str, str], ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Only the texts."""
        return tuple(text for _, text in self.items)


@dataclass(frozen=True, slots=True)
class _Unset:
    """A variable that the script itself has unset."""


UNSET = _Unset()
Value = str | Items | _Unset


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision of a path, in words."""

    text: str
    """The decision, e.g. `MODE=spec, line 12`."""
    holds: bool = True
    is_usual: bool = False
    """Whether it holds for a caller that sets nothing."""


@dataclass(slots=True)
class OpenQuestion(Exception):  # noqa: N818  (no error: both ways are followed)
    """It is unknown whether something holds."""

    fact: Fact
    holds: str
    """Sentence for readers if it holds."""
    fails: str
    usual: bool | None
    """Answer if the caller sets nothing; None if unknown."""
    binds: Mapping[str, str] = field(default_factory=dict)
    """Values of the open parts if it holds."""
    binds_not: Mapping[str, str] = field(default_factory=dict)
    """Values of the open parts if it does not."""
    line: int = 0


@dataclass(slots=True)
class PathState:
    """What is known at one place of a script, on one path."""

    variables: dict[str, Value] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    """None for the script's own, which its caller gives."""
    functions: dict[str, Function] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    """Marks of open parts -> their values on this path."""
    facts: dict[Fact, bool] = field(default_factory=dict)
    decisions: dict[Fact, Choice] = field(default_factory=dict)
    deviations: int = 0
    """Number of decisions that differ from those for a caller that sets nothing."""
    flow: str = ""
    """`exit`, `exec`, `return`, `break` or `continue`, while it takes effect."""
    levels: int = 0
    """Number of loops to leave."""
    status: bool | None = True
    """Exit status of the previous command; None if unknown."""
    version: str = ""
    """The vLLM release that the script installs, or what leaves it open."""
    packages: Mapping[str, bool] = field(default_factory=dict)
    """Optional packages -> whether the script has installed them, or taken them away."""
    reads: str = ""
    """File that is not read and may have set any variable."""
    exported: frozenset[str] = frozenset()
    """Variables exported to programs."""
    files: dict[str, str] = field(default_factory=dict)
    """Texts of the files that the script has written, by their paths."""
    own: frozenset[str] = frozenset()
    """Local variables of the current function."""
    pending: tuple[str, str, tuple[str, ...]] | None = None
    """Call of the command: (`function` or `eval`, its name or text, its arguments)."""
    turn: tuple[int, ...] = ()
    """Calls and loop iterations around it."""
    tick: int = 0
    """Number of earlier commands, which distinguishes values computed at different times."""
    is_partial: bool = False
    """Whether similar paths were left out."""

    def copy(self) -> PathState:
        """Return an independent copy of the state."""
        return replace(
            self,
            variables=dict(self.variables),
            functions=dict(self.functions),
            bound=dict(self.bound),
            facts=dict(self.facts),
            decisions=dict(self.decisions),
            files=dict(self.files),
        )

    def decide(
        self, open_question: OpenQuestion, holds: bool, doubted: Mapping[str, str] = MappingProxyType({})
    ) -> PathState:
        """Return the state after a decision.

        Args:
            open_question: the question.
            holds: the answer.
            doubted: marks of open parts with an assumed value -> marks without it, for an answer that contradicts
                these values.
        """
        state = self.copy()
        state.facts[open_question.fact] = holds
        if open_question.usual is not None and open_question.usual is not holds:
            fresh = {mark: other for mark, other in doubted.items() if mark not in state.bound}
            state.bound.update(fresh)
            state.facts[tuple(bind(text, fresh) for text in open_question.fact)] = holds
        state.bound.update(open_question.binds if holds else open_question.binds_not)
        text = open_question.holds if holds else open_question.fails
        place = f", line {open_question.line}" if open_question.line else ""
        usual = open_question.usual if open_question.usual is not None else True
        state.decisions[open_question.fact] = Choice(text + place, holds, is_usual=holds is usual)
        state.deviations += open_question.usual is not None and open_question.usual is not holds
        return state

    def get(self, text: str) -> str:
        """Return a text with its values on this path."""
        return bind(text, self.bound)

    def ask(self, question: OpenQuestion) -> bool:
        """Return whether something holds.

        Raises:
            OpenQuestion: it is unknown on this path.
        """
        known = self.facts.get(question.fact)
        if known is None:
            raise question
        return known

    @property
    def size(self) -> int:
        """Number of values that a copy holds."""
        values = len(self.variables) + len(self.functions) + len(self.bound) + len(self.files) + len(self.exported)
        return values + len(self.facts) + len(self.decisions)

    @property
    def identity(self) -> tuple[object, ...]:
        """What is set; paths that are equal in it need not be distinguished."""
        functions = frozenset((name, id(body)) for name, body in self.functions.items())
        return (
            frozenset(self.variables.items()), self.arguments, functions,
            self.flow, self.levels, self.status, self.version, self.reads, self.exported, self.own,
            frozenset(self.files.items()), frozenset(self.packages.items()),
        )  # fmt: skip


def merge(states: Iterable[PathState]) -> list[PathState]:
    """Return the paths with different values; equal ones are joined. At most `MAX_PATHS`."""
    states = list(states)
    if len(states) < 2:
        return states
    found: dict[tuple[object, ...], PathState] = {}
    for state in states:
        before = found.get(identity := state.identity)
        found[identity] = state if before is None else join(before, state)
    kept = list(found.values())
    if len(kept) <= MAX_PATHS:
        return kept
    nearest = sorted(kept, key=lambda state: state.deviations)[:MAX_PATHS]
    for state in nearest:
        state.is_partial = True
    return nearest


def join(first: PathState, second: PathState) -> PathState:
    """Return the common state of two paths that set the same values."""
    shared = {fact: told for fact, told in first.decisions.items() if second.decisions.get(fact) == told}
    either = [_tell(state, shared) for state in (first, second)]
    if all(either) and either[0] != either[1] and len(" or ".join(either)) < _MAX_TEXT:
        text = " or ".join(either)
        shared["or", text] = Choice(text)
    return replace(
        first if first.deviations <= second.deviations else second,
        bound=dict(first.bound.items() & second.bound.items()),
        facts=dict(first.facts.items() & second.facts.items()),
        decisions=shared,
        deviations=min(first.deviations, second.deviations),
        is_partial=first.is_partial or second.is_partial,
    )


def _tell(state: PathState, shared: Iterable[Fact]) -> str:
    return "; ".join(told.text for fact, told in state.decisions.items() if fact not in shared and not told.is_usual)
