"""Follows a script without executing it: every path through branches, loops and functions, within limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from posixpath import normpath

from draftwise.knowledge.stored import read_data
from draftwise.setups.read.shell.branch_tests import Conditions
from draftwise.setups.read.shell.environment import describe_unknown
from draftwise.setups.read.shell.expansion import ASSIGNMENT, BY_SHELL, NAME
from draftwise.setups.read.shell.installations import (
    find_installed,
    find_requirements,
    read_installation,
    settle_release,
)
from draftwise.setups.read.shell.open_texts import PER_COMMAND, Hole, check_work, is_known
from draftwise.setups.read.shell.paths import UNSET, Items, OpenQuestion, PathState, merge
from draftwise.setups.read.shell.syntax import (
    AndOr,
    Arithmetic,
    Array,
    Branches,
    Case,
    CommandList,
    Document,
    For,
    Function,
    Literal,
    Node,
    Not,
    Output,
    Parameter,
    Pipeline,
    ShellWord,
    Simple,
    Substitution,
    Test,
    While,
    parse,
    walk,
)

_COMMANDS = read_data("shell_commands")
_DECLARING = frozenset(_COMMANDS["declaring"])
_HARMLESS = re.compile(r"(?:^|/)(?:activate|conda\.sh|\.bashrc|\.profile|\.bash_profile)$")
"""Files that set no variable of a script of one's own."""
_NOTED = (".yaml", ".yml", ".env")
"""Endings of files whose text is kept where the script writes it."""
_SUCCEEDS = frozenset(_COMMANDS["succeeds"])
_READING = frozenset(_COMMANDS["reading"])
"""Commands that change none of the files that they name."""
_SETTING = frozenset(_COMMANDS["setting"])
"""Commands that set variables by their names."""
_MAX_STEPS = 3_000
_MAX_TURNS = 64
_MAX_CALLS = 16
_PER_LOOK = 60
"""What it costs to see what a command may set."""
_PER_EXPORT = 40
"""What it costs to hand a variable to a program."""
_PER_ITEM = 4
"""What it costs to copy an item of an array."""
_BUILTINS = frozenset(_COMMANDS["builtins"])
_INPUT_OPTIONS = {
    "read": frozenset({"-r", "-d", "-rd", ""}), "mapfile": frozenset({"-t"}), "readarray": frozenset({"-t"}),
}  # fmt: skip
"""Options of commands that set a variable to lines of their input."""


@dataclass(slots=True)
class ReachedCommand:
    """A command that one path through the script reaches."""

    words: tuple[str, ...]
    lines: tuple[int, ...]
    mistakes: tuple[str, ...]
    state: PathState
    node: Simple


@dataclass(slots=True)
class Shell(Conditions):
    """Follows one script, and records what it starts."""

    reached: dict[tuple[int, tuple[int, ...]], list[ReachedCommand]] = field(default_factory=dict)
    """Commands by node and by the loop iterations and calls around it."""
    documents: dict[int, tuple[Document, list[tuple[str, PathState]]]] = field(default_factory=dict)
    """Here-documents with their texts on each path."""
    trees: dict[tuple[str, int], CommandList] = field(default_factory=dict)
    """Parsed texts, kept so that the identities of their parts stay unique."""
    called: set[str] = field(default_factory=set)
    depth: int = 0
    work: int = 0
    """Values copied so far, which are limited."""

    def count(self, line: int, work: int) -> None:
        """Count the work of a command.

        Raises:
            InvalidSetup: it exceeds the limit.
        """
        self.work += work
        check_work(self.work, line)

    def run_all(self, script: CommandList, state: PathState) -> None:
        """Follow a script, and then functions that it defines but never calls."""
        self.trees["", 0] = script
        states = self.run(script, [state])
        defined = [node for node in walk(script) if isinstance(node, Function)]
        left = [node for node in defined if node.name not in self.called]
        for node in left:
            if node.name in self.called:
                continue
            last = min(states, key=lambda each: each.deviations).copy() if states else state.copy()
            last.flow, last.arguments, last.turn = "", None, ()
            self.called.add(node.name)
            self.run(node.body, [last])

    def fork(
        self, states: Iterable[PathState], action: Callable[[PathState], bool | None]
    ) -> list[tuple[PathState, bool | None]]:
        """Do something in every state; if it depends on an open question, for both answers."""
        waiting, done = list(states), list[tuple[PathState, bool | None]]()
        while waiting:
            state = waiting.pop(0)
            trial = state.copy()
            trial.tick += 1
            self.steps += 1
            try:
                trial.status = action(trial)
                done.append((trial, trial.status))
            except OpenQuestion as question:
                doubted = self.doubt(question.fact)
                ways = [state.decide(question, holds, doubted) for holds in (True, False)]
                ways.sort(key=lambda each: each.deviations)
                if self.steps > _MAX_STEPS or len(waiting) + len(done) > 4 * _MAX_TURNS:
                    ways = ways[:1]
                    ways[0].is_partial = True
                waiting[0:0] = ways
        return done

    def run(self, node: Node, states: Sequence[PathState]) -> list[PathState]:
        """Follow a command from every state, and return the states after it."""
        going = [state for state in states if not state.flow]
        left = [state for state in states if state.flow]
        for state in left:
            if state.flow == "exec" and isinstance(node, Simple) and _begins_with_flag(node):
                self._run_simple(node, state)
        if not going:
            return left
        behind = self._run_compound(node, going)
        if behind is None:
            behind = [state for state, _ in self._do(node, going)]
        return self._bound([*left, *behind])

    def _bound(self, states: Iterable[PathState]) -> list[PathState]:
        """Return the paths that differ. Only the most usual one where the script has taken too many steps."""
        kept = merge(states)
        if self.steps <= _MAX_STEPS or not kept:
            return kept
        nearest = min(kept, key=lambda state: (bool(state.flow), state.deviations))
        nearest.is_partial |= len(kept) > 1
        if len(nearest.facts) > _MAX_TURNS:
            nearest.facts.clear()
            nearest.decisions.clear()
        return [nearest]

    def _run_compound(self, node: Node, states: list[PathState]) -> list[PathState] | None:
        """Run a command that consists of others. None for one that does not."""
        match node:
            case CommandList():
                return self._run_group(node, states)
            case AndOr(first, operator, second):
                true, false = self.decide(first, states)
                chosen, others = (true, false) if operator == "&&" else (false, true)
                return [*others, *self.run(second, chosen)]
            case Not() | Pipeline():
                return self._run_apart(node, states)
            case Branches() | Case():
                return self._run_branches(node, states)
            case For() | While():
                return self._run_for(node, states) if isinstance(node, For) else self._run_while(node, states)
            case Function(name, _):
                for state in states:
                    state.functions[name] = node
                return states
        return None

    def _run_apart(self, node: Not | Pipeline, states: list[PathState]) -> list[PathState]:
        if isinstance(node, Not):
            return [replace(state, status=None) for state in self.run(node.inner, states)]
        for each in node.commands:
            for ended in self.run(each, [state.copy() for state in states]):
                self._lose_files(ended, states)
        return [replace(state, status=None) for state in states]

    def _run_branches(self, node: Branches | Case, states: list[PathState]) -> list[PathState]:
        if isinstance(node, Case):
            return self._run_case(node, states)
        behind: list[PathState] = []
        for condition, body in node.branches:
            true, states = (states, []) if condition is None else self.decide(condition, states)
            behind += self.run(body, true)
        return [*behind, *(replace(state, status=True) for state in states)]

    def _run_group(self, group: CommandList, states: list[PathState]) -> list[PathState]:
        inner = [state.copy() for state in states] if group.is_subshell else states
        for command in group.commands:
            inner = self.run(command, inner)
            if not inner:
                break
        self._read_documents(group.documents, inner)
        if any(isinstance(each, Output) for each in group.documents):
            write = partial(self._write_files, group.documents, None)
            inner = [state for state, _ in self.fork(inner, lambda state: write(state) or state.status)]
        if not group.is_subshell:
            return inner
        for state in inner:
            self._lose_files(state, states)
        return [replace(state, status=None) for state in states]

    def decide(self, node: Node, states: Sequence[PathState]) -> tuple[list[PathState], list[PathState]]:
        """Follow a command as a condition; return the states in which it holds, and those in which it does not."""
        match node:
            case AndOr(first, operator, second):
                true, false = self.decide(first, states)
                if operator == "&&":
                    both, not_both = self.decide(second, true)
                    return both, merge([*false, *not_both])
                either, neither = self.decide(second, false)
                return merge([*true, *either]), neither
            case Not(inner):
                true, false = self.decide(inner, states)
                return false, true
            case CommandList(commands, False) if commands:
                for command in commands[:-1]:
                    states = self.run(command, states)
                gone = [state for state in states if state.flow]
                true, false = self.decide(commands[-1], [state for state in states if not state.flow])
                return [*true, *gone], false
            case Simple() | Test() | Arithmetic():
                return self._settle(node, self._do(node, states))
        behind = self.run(node, states)
        return self._settle(node, [(state, state.status) for state in behind])

    def _settle(
        self, node: Node, done: Iterable[tuple[PathState, bool | None]]
    ) -> tuple[list[PathState], list[PathState]]:
        """Part states by the status of a command. One that is not known goes both ways."""
        sides: tuple[list[PathState], list[PathState]] = ([], [])
        line, shown = _describe(node)
        for state, status in done:
            if status is not None or state.flow:
                sides[status is False].append(state)
                continue
            fact = ("status", str(id(node)), *map(str, state.turn))
            question = OpenQuestion(fact, f"{shown} succeeds", f"{shown} fails", None, line=line)
            for holds in (True, False):
                sides[not holds].append(state.decide(question, holds))
        return merge(sides[0]), merge(sides[1])

    def _do(self, node: Node, states: Iterable[PathState]) -> list[tuple[PathState, bool | None]]:
        """Run a simple command or a test, and return the states with its status."""
        for state in states:
            self.count(getattr(node, "line", 0), PER_COMMAND + state.size)
        if isinstance(node, Simple):
            self._read_documents(node.documents, states)
            calls = self.fork(states, lambda state: self._run_simple(node, state))
            return [pair for state, status in calls for pair in self._enter(node, state, status)]
        if isinstance(node, Arithmetic):
            return self.fork(states, lambda state: self.test_number(node, state))
        return self.fork(states, lambda state: self.test(node, state) if isinstance(node, Test) else None)

    def _run_case(self, node: Case, states: list[PathState]) -> list[PathState]:
        behind: list[PathState] = []
        entered: list[PathState] = []
        for clause in node.clauses:
            self.count(node.line, sum(PER_COMMAND + state.size for state in states))

            def matches(state: PathState, patterns: Sequence[ShellWord] = clause.patterns) -> bool:
                subject = self.join(node.subject, state)
                return any(self.matches(subject, self.get_pattern(each, state), node.line, state) for each in patterns)

            done = self.fork(states, matches)
            states = merge(state for state, found in done if not found)
            entered = self.run(clause.body, [*entered, *(state for state, found in done if found)])
            if clause.ending == ";&":
                continue
            if clause.ending == ";;&":
                states = merge([*states, *entered])
            else:
                behind += entered
            entered = []
        return [*behind, *entered, *(replace(state, status=True) for state in states)]

    def _run_for(self, node: For, states: list[PathState]) -> list[PathState]:
        behind: list[PathState] = []
        for state in states:
            self.count(node.line, PER_COMMAND + 2 * state.size)
            listed = self._get_items(node, state)
            behind += self._turn_openly(node, [state]) if listed is None else self._turn(node, state, listed)
        return self._leave_loop(behind)

    def _get_items(self, node: For, state: PathState) -> list[str] | None:
        """Return what a loop goes through. None where that is not known."""
        if node.words is None:
            items = None if state.arguments is None else list(state.arguments)
        elif not node.name or any(word.mistake for word in node.words):
            items = None
        else:
            try:
                items = [text for word in node.words for text in self.expand(word, state.copy())]
            except OpenQuestion:
                items = None
        if items is None or len(items) > _MAX_TURNS or self.steps > _MAX_STEPS:
            return None
        return None if self.has_splits(items) else items

    def _turn(self, node: For, state: PathState, items: Sequence[str]) -> list[PathState]:
        states, around = [state], state.turn
        for index, item in enumerate(items):
            going = [each for each in states if not each.flow]
            for each in going:
                each.variables[node.name] = item
                each.turn = (*around, node.line, index)
            behind = self.run(node.body, going)
            for each in behind:
                _next_turn(each)
            states = merge([*(each for each in states if each.flow), *behind])
        return [replace(each, turn=around) for each in states]

    def _turn_openly(self, node: For | While, states: Sequence[PathState]) -> list[PathState]:
        """Run a loop of any number of turns: what it sets is not known, inside and behind it."""
        behind: list[PathState] = []
        for state in states:
            around = state.turn
            fact = ("loop", str(id(node)), *map(str, around))
            usual = False if state.arguments is None and _reads_arguments(node) else None
            question = OpenQuestion(fact, "the loop runs", "the loop does not run", usual, line=node.line)
            skipped, entered = (state.decide(question, holds) for holds in (False, True))
            self._forget(node, entered, f"set in a loop, line {node.line}")
            if isinstance(node, For) and node.name:
                self.open(node.name, entered, f"set by a loop, line {node.line}")
            entered.turn = (*around, node.line, 0)
            ended = self.run(node.body, [entered])
            for each in ended:
                _next_turn(each)
                self._lose_files(skipped, [each])
                self._forget(node, each, f"set in a loop, line {node.line}")
                each.turn = around
            behind += [skipped, *ended]
        return behind

    def _run_while(self, node: While, states: list[PathState]) -> list[PathState]:
        behind: list[PathState] = []
        around = states[0].turn
        for turn in range(_MAX_TURNS):
            self.count(node.line, sum(PER_COMMAND + state.size for state in states))
            known = [state for state in states if self._is_certain(node, state)]
            behind += self._turn_openly(node, [state for state in states if state not in known])
            true, false = self.decide(node.condition, known)
            going, ended = (false, true) if node.until else (true, false)
            behind += ended
            if not going or self.steps > _MAX_STEPS:
                break
            going = [replace(state, turn=(*around, node.line, turn)) for state in going]
            after = self.run(node.body, going)
            for state in after:
                _next_turn(state)
            behind += [state for state in after if state.flow]
            before, states = states, [state for state in after if not state.flow]
            if {state.identity for state in before} == {state.identity for state in states}:
                break
        else:
            behind += self._turn_openly(node, states)
        return self._leave_loop([replace(state, turn=around) for state in behind])

    def _is_certain(self, node: While, state: PathState) -> bool:
        kept, self.reached = self.reached, {}
        true, false = self.decide(node.condition, [state.copy()])
        self.reached = kept
        sides = [*true, *false]
        return len(sides) == 1 and len(sides[0].facts) == len(state.facts)

    def _leave_loop(self, states: Iterable[PathState]) -> list[PathState]:
        states = list(states)
        for state in states:
            if state.flow in ("break", "continue"):
                state.levels -= 1
                if state.levels <= 0:
                    state.flow, state.levels = "", 0
        return merge(states)

    def _forget(self, body: Node, state: PathState, why: str) -> None:
        names = self._find_assigned(body, state.functions, set())
        if names is None:
            names = {*state.variables}
            state.reads = why
        for name in names:
            self.open(name, state, why)

    def _find_assigned(self, node: Node, functions: Mapping[str, Function], seen: set[str]) -> set[str] | None:
        """Return the variables that commands may set, `@` for the arguments. None for any."""
        names: set[str] = set()
        for each in walk(node):
            if isinstance(each, For) and each.name:
                names.add(each.name)
            elif isinstance(each, Arithmetic):
                names |= set(NAME.findall(each.text))
            elif isinstance(each, Simple):
                self.count(each.line, _PER_LOOK)
                plain = [word.plain if isinstance(word, ShellWord) else "" for word in each.words]
                first = next((text for text in plain if text), "")
                if first in ("eval", "source", "."):
                    return None
                names |= set(_find_in_words(each))
                names |= {"@"} if first in ("shift", "set") else set()
                names |= set(_find_set(first, plain[1:])) if first in _SETTING else set()
                if first in functions and first not in seen:
                    seen.add(first)
                    inner = self._find_assigned(functions[first].body, functions, seen)
                    if inner is None:
                        return None
                    names |= inner
        return {name for name in names if name == "@" or NAME.fullmatch(name)}

    def _read_documents(self, documents: Iterable[Document | Output], states: Iterable[PathState]) -> None:
        for document in documents:
            if isinstance(document, Output):
                continue
            body = ShellWord(document.body)
            going = [state for state in states if not state.flow]
            for ready, _ in self.fork(going, lambda state, body=body: bool(self.join(body, state))):  # type: ignore[misc]
                found = self.documents.setdefault(id(document), (document, []))[1]
                if len(found) < _MAX_TURNS:
                    found.append((self.join(body, ready), ready))

    def _run_simple(self, node: Simple, state: PathState) -> bool | None:
        """Expand a command and do what it does to the script itself. Return its status."""
        words: list[str] = []
        lines: list[int] = []
        mistakes: list[str] = []
        is_declaring, prefix = False, True
        for word in node.words:
            if isinstance(word, Array):
                items = Items(tuple(self.get_array(word, state)))
                self.assign_items(word, items, state)
                self._count_items({word.name}, node.line, state)
                continue
            if (prefix or is_declaring) and _is_assignment(word):
                text = self.join(word if prefix else replace(word, parts=tuple(self.open_braces(word.parts))), state)
                texts = [text.replace('"', "") if word.mistake else text]  # the quotes of JSON that needs more of them
            else:
                texts = self.expand(word, state)
            is_declaring = is_declaring or (bool(texts) and not words and texts[0] in _DECLARING)
            words += texts
            prefix = prefix and all(map(ASSIGNMENT.fullmatch, texts))
            lines += [word.line] * len(texts)
            mistakes += [word.mistake] * len(texts)
        self.grow(words)
        first = next((index for index, text in enumerate(words) if not ASSIGNMENT.fullmatch(text)), None)
        self._note_files(node, [] if first is None else words[first:], state)
        if first is None or words[first] in _DECLARING:
            self.declare(words, first, state)
            self._count_items({text.partition("=")[0].partition("[")[0] for text in words}, node.line, state)
            state.status = None if _runs_something(node) else True
            return state.status
        while (
            first < len(words) - 1
            and words[first] in ("command", "builtin", "time", "env")
            and words[first + 1][:1] != "-"
        ):
            first += 1
        name, rest = words[first], words[first + 1 :]
        if name in state.functions or name in _BUILTINS - {"exec"}:  # what a shell makes of JSON without its quotes
            pairs = zip(rest, mistakes[first + 1 :], strict=True)
            rest = [self.mark(text, BY_SHELL, splits=True) if mistake else text for text, mistake in pairs]
        if name == "exec" and rest:
            self._reach(node, words, lines, mistakes, state)
            state.flow = "exec"
            return None
        if name in state.functions:
            state.pending = "function", name, tuple(rest)
            return None
        state.status = self._do_builtin(name, rest, node, state)
        if name not in _BUILTINS:
            self._reach(node, words, lines, mistakes, state)
            for word in node.words:
                if isinstance(word, ShellWord):
                    self._look_inside(word, state)
        return state.status

    def _count_items(self, names: Iterable[str], line: int, state: PathState) -> None:
        """Count the items of arrays that a command has set."""
        set_anew = (state.variables.get(name.rstrip("+")) for name in names)
        self.count(line, _PER_ITEM * sum(len(value.items) for value in set_anew if isinstance(value, Items)))

    def _note_files(self, node: Simple, words: Sequence[str], state: PathState) -> None:
        """Note what a command writes to files, and which of those that the script has written it may change."""
        name, *rest = [each for each in words if each != "sudo"] or [""]
        text = self.get_written([name, *rest], node.documents, state)
        is_named = any(each in "\n".join(rest) for each in state.files)
        if name in ("cd", "pushd", "popd") or (is_named and name not in _READING):
            self._lose_files(replace(state, files={}), [state])
        named = [ShellWord((Literal(each, True),)) for each in rest if name == "tee"]
        self._write_files((*node.documents, *(Output(each, "-a" in rest) for each in named)), text, state)

    def _write_files(self, outputs: Iterable[Document | Output], text: str | None, state: PathState) -> None:
        """Note what redirections write; None for a text that is not known."""
        for each in outputs:
            if isinstance(each, Output) and (path := normpath(self.join(each.file, state))).endswith(_NOTED):
                before = state.files.get(path) if each.appends else ""
                unknown = self.mark(path, "written by the script", salt=(state.tick,))
                state.files[path] = unknown if text is None or before is None else before + text

    def _lose_files(self, ended: PathState, states: Iterable[PathState]) -> None:
        """Forget the texts of files that another shell, which ends in a state, may have changed meanwhile."""
        for state in states:
            for path in ended.files.keys() | state.files.keys():
                if state.files.get(path) != ended.files.get(path):
                    state.files[path] = self.mark(path, "written by the script", salt=(state.tick,))

    def reach(self, node: Simple, state: PathState) -> None:
        """Record the words of any command."""
        expanded = [
            (text, word) for word in node.words if isinstance(word, ShellWord) for text in self.expand(word, state)
        ]
        texts = [text for text, _ in expanded]
        self._reach(node, texts, [word.line for _, word in expanded], [word.mistake for _, word in expanded], state)

    def _look_inside(self, word: ShellWord, state: PathState) -> None:
        """Run what a command substitution runs, where it may start a server."""
        for part in word.parts:
            if isinstance(part, Substitution) and "vllm" in part.script and self.depth < _MAX_CALLS:
                self.depth += 1
                self.run(self._parse(part.script, word.line), [state.copy()])
                self.depth -= 1

    def _enter(self, node: Simple, state: PathState, status: bool | None) -> list[tuple[PathState, bool | None]]:
        """Run a function or an evaluated text that a command calls. Else return what there is."""
        if state.pending is None:
            return [(state, status)]
        (kind, name, arguments), state.pending = state.pending, None
        is_function = kind == "function"
        body = state.functions[name].body if is_function else self._parse(name, node.line)
        self.called |= {name} if is_function else set()
        if self.depth >= _MAX_CALLS or self.steps > _MAX_STEPS:
            self._forget(body, state, f"set by {name if is_function else kind}, line {node.line}")
            return [(state, None)]
        before = state.copy()
        if is_function:
            state.arguments, state.own = arguments, frozenset()
        state.turn = (*before.turn, -node.line)
        self.depth += 1
        true, false = self.decide(body, [state])
        self.depth -= 1
        behind: list[tuple[PathState, bool | None]] = []
        for each, found in [*((one, True) for one in true), *((one, False) for one in false)]:
            status = each.status if each.flow == "return" else found
            each.turn = before.turn
            if is_function:
                _restore(each, before)
                each.flow = "" if each.flow == "return" else each.flow
            behind.append((each, status))
        return behind

    def _parse(self, text: str, line: int) -> CommandList:
        found = self.trees.get((text, line))
        if found is None:
            found = self.trees[text, line] = parse(text, line=line)
        return found

    def _reach(self, node: Simple, words: list[str], lines: list[int], mistakes: list[str], state: PathState) -> None:
        found = self.reached.setdefault((id(node), state.turn), [])
        self.count(node.line, _PER_EXPORT * len(state.exported))
        texts = tuple(state.get(text) for text in words)
        if len(found) < 4 * _MAX_TURNS:
            found.append(ReachedCommand(texts, tuple(lines), tuple(mistakes), state.copy(), node))
        version = find_installed(texts) or ("" if state.version else find_requirements(texts))
        state.version = settle_release(state.version, version)
        state.packages = {} if "activate" in texts[1:] else {**state.packages, **read_installation(texts)}

    def _do_builtin(self, name: str, rest: list[str], node: Simple, state: PathState) -> bool | None:
        if name in ("[", "test"):
            return self.test_words(rest[:-1] if name == "[" else rest, node.line, state)
        if name in ("exit", "return", "break", "continue"):
            return _leave(name, rest, state)
        if name in ("shift", "set", "unset"):
            self._change(name, rest, state)
        elif (taken := self._read_input(name, rest, node, state)) is not None:
            state.variables[rest[-1]] = taken
            return "" not in rest  # the end of the text comes before the end of what is read
        elif name in ("read", "mapfile", "readarray", "getopts", "printf", "let"):
            for each in _find_set(name, rest):
                self.open(each, state, f"set by {name}, line {node.line}")
        elif name in ("eval", "source", "."):
            self._take_in(name, rest, node.line, state)
        return False if name == "false" else True if name in _SUCCEEDS else None

    def _read_input(self, name: str, rest: Sequence[str], node: Simple, state: PathState) -> str | Items | None:
        """Return what `read` or `mapfile` sets one variable to from a here-document. None where that is not known."""
        *options, variable = rest or [""]
        bodies = [each.body for each in node.documents if isinstance(each, Document)]
        if not bodies or not NAME.fullmatch(variable) or not set(options) <= _INPUT_OPTIONS.get(name, frozenset()):
            return None
        text, to_end = self.join(ShellWord(bodies[-1]), state), "" in options
        if not (is_known(text) or to_end):
            return None
        if name != "read":
            lines = text.splitlines(keepends="-t" not in options)
            return Items(tuple((str(number), line) for number, line in enumerate(lines)))
        given = [self.join(word, state) for word in node.words if isinstance(word, ShellWord) and _is_assignment(word)]
        blank = dict(each.split("=", 1) for each in given).get("IFS", state.variables.get("IFS", " \t\n"))
        if not isinstance(blank, str) or blank.strip(" \t\n") or ("\\" in text and not {"-r", "-rd"} & {*options}):
            return None
        text = text if to_end else text.partition("\n")[0]
        return text.strip(blank) if blank else text

    def _take_in(self, name: str, rest: Sequence[str], line: int, state: PathState) -> None:
        """Go on with a text that is evaluated, or with what a file may have set."""
        if name == "eval":
            text = " ".join(state.get(each) for each in rest)
            if self.holes.assume(text) is None:
                self._forget_all(f"set by eval, line {line}", state)
            state.pending = "eval", text, ()
            return
        file = self.holes.show(rest[0]) if rest else ""
        state.packages = {} if file.endswith("activate") else state.packages
        if (written := state.files.get(normpath(file))) is not None:
            self._take_in("eval", [written], line, state)
        elif not _HARMLESS.search(file):
            self._assume_all(f"set by {file}, which draftwise does not read", state)

    def _change(self, name: str, rest: Sequence[str], state: PathState) -> None:
        """Change the arguments, or unset variables."""
        if name == "shift":
            self._shift(rest, state)
        elif name == "unset":
            state.variables |= dict.fromkeys((each for each in rest if NAME.fullmatch(each)), UNSET)
        elif "--" in rest:
            state.arguments = tuple(rest[rest.index("--") + 1 :])
        elif rest and rest[0][:1] not in ("-", "+"):
            state.arguments = tuple(rest)

    def _shift(self, rest: Sequence[str], state: PathState) -> None:
        if state.arguments is None:
            return
        count = int(rest[0]) if rest and rest[0].isdecimal() and len(rest[0]) < 5 else 1
        if self.has_splits(state.arguments) or (rest and not is_known(rest[0])):
            self.open("@", state, "shifted by an unknown number")
        elif count <= len(state.arguments):
            state.arguments = state.arguments[count:]

    def _forget_all(self, why: str, state: PathState) -> None:
        for name in [*state.variables]:
            if NAME.fullmatch(name):
                self.open(name, state, why)
        state.reads = why

    def _assume_all(self, why: str, state: PathState) -> None:
        """Take what is set as it is, although something that is not read may set it anew."""
        for name, value in state.variables.items():
            if isinstance(value, str) and NAME.fullmatch(name):
                assumed = self.holes.assume(value)
                hole = Hole(
                    f"${name}", (*self.holes.name([value]), describe_unknown(name, why)), assumed, salt=(state.tick,)
                )
                state.variables[name] = value if assumed is None else self.holes.mark(hole)
        state.reads = why


def _is_assignment(word: ShellWord) -> bool:
    head = word.parts[0] if word.parts else None
    return isinstance(head, Literal) and not head.quoted and re.match(r"[A-Za-z_]\w*(?:\[|\+?=)", head.text) is not None


def _runs_something(node: Simple) -> bool:
    words = (word for word in node.words if isinstance(word, ShellWord))
    return any(isinstance(part, Substitution) and part.script for word in words for part in word.parts)


def _leave(name: str, rest: Sequence[str], state: PathState) -> bool | None:
    """Go out of a loop, a function or the script. Return the status."""
    state.flow = name
    if name in ("break", "continue"):
        state.levels = int(rest[0]) if rest and rest[0].isdecimal() and len(rest[0]) < 3 else 1
    elif rest and is_known(rest[0]):
        return rest[0] == "0"
    return state.status


def _begins_with_flag(node: Simple) -> bool:
    """Say whether a command begins with a flag: the command above lost it."""
    parts = next((word.parts for word in node.words if isinstance(word, ShellWord)), ())
    return bool(parts) and isinstance(parts[0], Literal) and parts[0].text.startswith("--")


def _next_turn(state: PathState) -> None:
    """Begin the next turn of a loop that a command goes on with."""
    if state.flow == "continue" and state.levels <= 1:
        state.flow, state.levels = "", 0


def _restore(state: PathState, before: PathState) -> None:
    """Give a state back what a function had of its own."""
    for name in state.own:
        if name in before.variables:
            state.variables[name] = before.variables[name]
        else:
            state.variables.pop(name, None)
    state.arguments, state.own = before.arguments, before.own


def _find_set(name: str, rest: Sequence[str]) -> Iterator[str]:
    """Yield the variables that a command of the shell sets."""
    if name == "printf":
        yield from rest[rest.index("-v") + 1 : rest.index("-v") + 2] if "-v" in rest else ()
    elif name == "let":
        yield from (found[0] for text in rest if (found := NAME.match(text)))
    elif name == "getopts":
        yield from (*rest[1:2], "OPTARG")
    else:
        yield from ([each for each in rest if NAME.fullmatch(each)] or ["REPLY", "MAPFILE"])


def _find_in_words(node: Simple) -> Iterator[str]:
    """Yield the variables that the words of a command assign."""
    for word in node.words:
        if isinstance(word, Array):
            yield word.name
            continue
        if word.parts and isinstance(word.parts[0], Literal) and _is_assignment(word):
            yield re.split(r"[\[+=]", word.parts[0].text)[0]
        yield from (part.name for part in word.parts if isinstance(part, Parameter) and part.operator in ("=", ":="))


def _reads_arguments(loop: For | While) -> bool:
    """Say whether a loop goes over the arguments of the script: a caller that passes none skips it."""
    if isinstance(loop, For):
        head = ["$@" if loop.name else ""] if loop.words is None else [*map(_show, loop.words)]
    else:
        head = [_describe(loop.condition)[1]]
    return all(re.search(r"\$[@*#1]|\bgetopts\b", each) for each in head)


def _describe(node: Node) -> tuple[int, str]:
    for each in walk(node):
        if isinstance(each, Simple) and each.words:
            texts = [_show(word) for word in each.words if isinstance(word, ShellWord)]
            return each.line, f"`{' '.join(texts)[:50]}`"
        if isinstance(each, Test | Arithmetic):
            return each.line, "the test"
    return 0, "the command"


def _show(word: ShellWord) -> str:
    return "".join(part.text if isinstance(part, Literal) else part.shown for part in word.parts)
