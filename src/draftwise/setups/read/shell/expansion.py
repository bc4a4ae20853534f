"""Expands a shell's words: variables, defaults, arrays and arithmetic, as far as the script determines them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftwise.knowledge.messages import refusal
from draftwise.setups.read.shell import patterns
from draftwise.setups.read.shell.environment import Environment, describe_unknown
from draftwise.setups.read.shell.open_texts import (
    MAX_CHARS,
    Hole,
    Holes,
    find_holes,
    is_known,
    replace_marks,
    without_marks,
)
from draftwise.setups.read.shell.paths import UNSET, Items, OpenQuestion, PathState, Value
from draftwise.setups.read.shell.syntax import (
    Arithmetic,
    Array,
    Document,
    Literal,
    Output,
    Parameter,
    Part,
    ShellWord,
    Simple,
    Substitution,
    parse,
)

_NOT_SET = "not set in this text"
_ARGUMENT = "an argument of the script"
BY_SHELL = "computed by the shell"
_ALWAYS_SET = frozenset(
    ["HOME", "PATH", "PWD", "OLDPWD", "USER", "HOSTNAME", "UID", "RANDOM", "SECONDS", "LINENO", "SHELL", "IFS", "PPID",
     "BASHPID", "BASH_SOURCE", "FUNCNAME", "OPTARG", "OPTIND", "REPLY", "PIPESTATUS", "EPOCHSECONDS", "BASH_VERSION"]
)  # fmt: skip
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)", re.DOTALL)
NAME = re.compile(r"[A-Za-z_]\w*")
_SPACE = re.compile(r"[ \t\n]+")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*\+?=")
_WRITES = re.compile(r"\s*(?:cat\s*<<-?[^<]|echo\s)")
_BRACES = re.compile(r"\{(?=[^{}\s]*\})[^{}\s]*?(?:,|\.\.)[^{}\s]*\}")


@dataclass(slots=True)
class Expansion:
    """Expands the words of one script, in the state of one path through it."""

    env: Environment
    holes: Holes
    steps: int = 0
    """Number of commands run, which is limited."""
    chars: int = 0

    def declare(self, words: Sequence[str], first: int | None, state: PathState) -> None:
        """Assign what a command assigns or declares; `first` is the index of the declaring word, if any."""
        if first is None:
            for text in words:
                self.assign(text, state)
            return
        rest = words[first + 1 :]
        options = "".join(text for text in rest if text.startswith("-"))
        names = {text.partition("=")[0].rstrip("+") for text in rest if not text.startswith("-")}
        if words[first] == "export" or "x" in options:
            state.exported |= names
        if words[first] in ("local", "declare", "typeset") and min(state.turn, default=0) < 0 and "g" not in options:
            state.own |= names
            for name in names & {text for text in rest if "=" not in text}:
                state.variables[name] = UNSET
        for text in rest:
            self.assign(text, state)
            if "n" in options or "i" in options:
                for name in text.split("=", 1) if "n" in options else [text.partition("=")[0]]:
                    self.open(name, state, "declared as a reference or a number")

    def assign(self, text: str, state: PathState) -> None:
        """Assign a text `NAME=value`; other texts assign nothing."""
        found = ASSIGNMENT.fullmatch(text)
        if found is None:
            return
        name, index, appends, value = found.groups()
        before = state.variables.get(name)
        if index is not None:
            items = dict(before.items) if isinstance(before, Items) else {}
            if not is_known(index):
                self.open(name, state, "an array item with an unknown index")
                return
            items[index.strip("\"'")] = value
            state.variables[name] = Items(tuple(items.items()))
        elif isinstance(before, Items):
            items = dict(before.items)
            items["0"] = items.get("0", "") + value if appends else value
            state.variables[name] = Items(tuple(items.items()))
        else:
            head = self._get_text(name, state) if appends else ""
            state.variables[name] = head + value

    def _get_text(self, name: str, state: PathState) -> str:
        value = self.look_up(name, state)
        return value if isinstance(value, str) else ""

    def get_array(self, word: Array, state: PathState) -> Iterator[tuple[str, str]]:
        """Yield the items of `NAME=(...)` by their indices or keys."""
        number = 0
        for item in word.items:
            head = item.parts[0] if item.parts else None
            keyed = re.match(r"\[([^\]]*)\]=", head.text) if isinstance(head, Literal) and not head.quoted else None
            whole = (
                self.join(item, state)
                if isinstance(head, Literal) and head.text.startswith("[") and not head.quoted
                else ""
            )
            if keyed or (whole and re.match(r"\[[^\]]+\]=", whole)):
                key, _, value = (whole or self.join(item, state))[1:].partition("]=")
                yield key, value
                continue
            lost = [self.mark(self.join(item, state), BY_SHELL, splits=True)] if item.mistake else None
            for text in lost or self.expand(item, state):
                yield str(number), text
                number += 1

    def assign_items(self, word: Array, items: Items, state: PathState) -> None:
        """Assign an array, or add to it."""
        before = state.variables.get(word.name)
        if word.appends and before is not None and before is not UNSET:
            old = before.items if isinstance(before, Items) else (("0", self._as_items(str(before))),)
            numbers = [int(key) for key, _ in old if key.isdecimal()]
            first = max(numbers, default=-1) + 1
            shifted = ((str(first + int(key)) if key.isdecimal() else key, text) for key, text in items.items)
            items = Items((*old, *shifted))
        elif word.appends and word.name in self.env.values:
            items = Items(
                (("0", self.env.values[word.name]), *((str(int(key) + 1), text) for key, text in items.items))
            )
        self.grow(items.texts)
        state.variables[word.name] = items

    def look_up(self, name: str, state: PathState) -> Value:
        """Return the value of a variable; for one of the caller, a text of one mark."""
        if name in state.variables:
            return state.variables[name]
        if name.isdecimal() and name != "0":
            if state.arguments is None:
                return self._mark_free(name, _ARGUMENT, state)
            return self._get_argument(int(name), state.arguments)
        if name in self.env.values:
            value = without_marks(self.env.values[name])
            why = self.env.assumed.get(name)
            return value if why is None else state.get(self.holes.mark(Hole(f"${name}", (why,), value)))
        if name == "#":
            return self._count_arguments(state)
        if name in _ALWAYS_SET:
            return self.mark(name, _NOT_SET)
        if name in ("?", "$", "!", "-", "_", "0"):
            return self.mark(name, BY_SHELL, salt=() if name == "0" else (state.tick,))
        origin = self.env.origin(name)
        return self._mark_free(name, origin or state.reads or _NOT_SET, state, is_set=bool(origin))

    def mark(self, name: str, why: str, assumed: str | None = None, *, shown: str = "", **more: Any) -> str:
        """Return the mark for an unknown variable, or for an unknown part written as `shown`."""
        return self.holes.mark(Hole(shown or f"${name}", (describe_unknown(name, why),), assumed, **more))

    def _mark_free(self, name: str, origin: str, state: PathState, *, is_set: bool = False) -> str:
        return state.get(self.mark(name, origin, variable="" if is_set else name))

    def _count_arguments(self, state: PathState) -> str:
        if state.arguments is None:
            return self.mark("#", _ARGUMENT, "0")
        if self.has_splits(state.arguments):
            return self.mark("#", _ARGUMENT, salt=(1,))
        return str(len(state.arguments))

    def _get_argument(self, number: int, arguments: Sequence[str]) -> Value:
        if self.has_splits(arguments[:number]):
            return self.mark(str(number), _ARGUMENT)
        return arguments[number - 1] if number <= len(arguments) else UNSET

    def _get_list(self, part: Parameter, state: PathState) -> list[str] | None:
        """Return the items behind `$@`, `${NAME[@]}` and their like. None for a single value."""
        if part.name in ("@", "*"):
            if state.arguments is None:
                return [self.mark(part.name, _ARGUMENT, "", splits=True)]
            return list(state.arguments)
        if part.index not in ("@", "*"):
            return None
        value = self.look_up(part.name, state)
        if isinstance(value, Items):
            return list(value.texts)
        if isinstance(value, str) and self.is_free(value):  # no caller hands on an array
            return [self.holes.mark(Hole(part.shown, self.holes.name([value]), "", splits=True))]
        return [] if value is UNSET else [self._as_items(str(value))]

    def _as_items(self, text: str) -> str:
        """Return the value of a variable as items of an array: any number of them, where all of it is open."""
        return self._split_mark(text) if len(text) == 1 and not is_known(text) else text

    def is_free(self, text: str) -> bool:
        """Return whether a text is the value of one variable that the caller may set."""
        return len(text) == 1 and not is_known(text) and bool(self.holes[text].variable)

    def open(self, name: str, state: PathState, why: str) -> None:
        """Make a variable unknown; `@` means the arguments."""
        if name == "@":
            state.arguments = (self.mark("@", why, splits=True, salt=(state.tick,)),)
        else:
            state.variables[name] = self.mark(name, why, salt=(state.tick,))

    def expand(self, word: ShellWord, state: PathState) -> list[str]:
        """Return the words that a shell expands a word to.

        Raises:
            OpenQuestion: they depend on something undecided.
        """
        fields = _Fields()
        for part in self.open_braces(word.parts):
            self._add(part, fields, state)
        fields.close()
        self.grow(fields.words)
        return fields.words

    def open_braces(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Yield the parts, with what braces make unknown: they may enclose what is quoted or escaped."""
        bare = [isinstance(part, Literal) and not part.quoted and not part.is_operand for part in parts]
        texts = [part.text if isinstance(part, Literal) else "" for part in parts]
        masked = "".join(text if is_bare else "_" * len(text) for text, is_bare in zip(texts, bare, strict=True))
        if _BRACES.search(masked) and not any(map(_BRACES.search, texts)):
            name = _ASSIGNED.match(masked)
            yield Literal(name[0] if name else "")
            yield Substitution("".join(texts)[name.end() if name else 0 :])
            return
        for part, text, is_bare in zip(parts, texts, bare, strict=True):
            yield Substitution(text) if is_bare and _BRACES.search(text) else part

    def join(self, word: ShellWord, state: PathState) -> str:
        """Return a word as one text, as in assignments.

        Raises:
            OpenQuestion: it depends on something undecided.
        """
        parts = (" ".join(value for value, _ in self._get_values(part, state)) for part in word.parts)
        text = "".join(self._as_one(part) for part in parts)
        self.grow([text])
        return text

    def _add(self, part: Part, fields: _Fields, state: PathState) -> None:
        if isinstance(part, Literal):
            if part.quoted or not (part.is_operand or not is_known(part.text)):
                fields.add(part.text)
            elif not part.is_operand:
                fields.split(self._split_marks(part.text))  # text that is evaluated holds what is open
            else:
                fields.split(part.text)
            return
        for index, (value, is_quoted) in enumerate(self._get_values(part, state)):
            if index:
                fields.close()
            if is_quoted:
                fields.add(value)
            elif value:
                fields.split(self._split_marks(value))

    def _as_one(self, text: str) -> str:
        """Return a text in which nothing that is open is several words."""
        return replace_marks(text, lambda mark: self.holes.mark(replace(self.holes[mark], splits=False)))

    def _split_marks(self, text: str) -> str:
        """Return a text outside of quotes: what is open in it may be several words."""
        return replace_marks(text, self._split_mark)

    def _split_mark(self, mark: str) -> str:
        hole = self.holes[mark]
        if hole.splits:
            return mark
        if hole.assumed is None or hole.assumed == "":
            return self.holes.mark(replace(hole, splits=True))
        pieces = _SPACE.split(hole.assumed)
        marks = [self.holes.mark(replace(hole, assumed=piece, splits=True)) if piece else "" for piece in pieces]
        return " ".join(marks)

    def _get_values(self, part: Part, state: PathState) -> list[tuple[str, bool]]:
        """Return what an expansion stands for: texts, each with whether it stays one word."""
        quoted = not isinstance(part, Literal) and part.quoted
        match part:
            case Parameter():
                return self._get_parameter(part, state)
            case Arithmetic(text, shown):
                return [(self.compute(text, shown, part.line, state), True)]
            case Substitution(shown):
                self.steps += 1
                if (output := self._find_output(part.script, state)) is not None:
                    return [(output.rstrip("\n"), quoted)]
                return [(self.mark(shown, BY_SHELL, shown=shown, salt=(state.tick, id(part))), quoted)]
            case Literal(text):
                return [(text, True)]
        return []

    def _find_output(self, script: str, state: PathState) -> str | None:
        """Return what a substitution of one `cat` or `echo` writes; None for anything else."""
        commands = parse(script).commands if _WRITES.match(script) else ()
        match commands:
            case (Simple(words=words, documents=documents),) if all(isinstance(each, ShellWord) for each in words):
                texts = [text for word in words if isinstance(word, ShellWord) for text in self.expand(word, state)]
                return None if texts[0] in state.functions else self.get_written(texts, documents, state)
        return None

    def get_written(self, words: Sequence[str], documents: Sequence[Document | Output], state: PathState) -> str | None:
        """Return the text that `echo`, or `cat` and `tee` with a here-document, write. None for other commands."""
        name, *rest = words
        bodies = [each.body for each in documents if isinstance(each, Document)]
        if name == "echo" and not any(each[:1] == "-" or "\\" in each for each in rest):
            return " ".join(rest) + "\n"
        return self.join(ShellWord(bodies[-1]), state) if bodies and (name == "tee" or words == ["cat"]) else None

    def _get_parameter(self, part: Parameter, state: PathState) -> list[tuple[str, bool]]:
        listed = self._get_list(part, state)
        if part.prefix == "!" and part.index:
            value = state.variables.get(part.name)
            keys = [key for key, _ in value.items] if isinstance(value, Items) else None
            return [(key, part.quoted) for key in keys] if keys is not None else [(self._unknown(part), part.quoted)]
        if part.prefix == "#":
            return [(self._measure(part, listed, state), True)]
        if listed is not None:
            return self._get_listed(part, [state.get(text) for text in listed], state)
        value = self._get_one(part, state)
        operand = part.operand if part.operand is not None else ShellWord(())
        name = part.operator.lstrip(":") if len(part.operator) == 2 and part.operator[0] == ":" else part.operator
        if name in ("-", "=", "?", "+"):
            return self._choose(part, name, value, operand, state)
        text = "" if value is UNSET else str(value)
        if part.operator:
            return [(self._apply(part, text, operand, state), part.quoted)]
        return [(text, part.quoted)]

    def _get_one(self, part: Parameter, state: PathState) -> Value:
        """Return the value that a reference without its operator has."""
        value = self.look_up(part.name, state)
        if isinstance(value, Items):
            index = "0" if part.index == "" else self._get_index(part.index, state)
            if not is_known(index) or self.has_splits(value.texts):
                return self._unknown(part)
            items = dict(value.items)
            if index == "-1" and items:
                return state.get(value.items[-1][1])
            found = items.get(index)
            return UNSET if found is None else state.get(found)
        if part.prefix == "!":
            named = str(value) if isinstance(value, str) else ""
            inner = self.look_up(named, state) if NAME.fullmatch(named) else self._unknown(part)
            return inner if not isinstance(inner, Items) else self._unknown(part)
        if isinstance(value, str):
            return state.get(value)
        return value

    def _get_index(self, index: ShellWord | str, state: PathState) -> str:
        text = index if isinstance(index, str) else self.join(index, state)
        if re.fullmatch(r"[A-Za-z_]\w*", text) and isinstance(self.look_up(text, state), str):
            found = str(self.look_up(text, state))
            return found if found.isdecimal() else text
        return text

    def _unknown(self, part: Parameter) -> str:
        return self.mark(part.shown, BY_SHELL, shown=part.shown)

    def _get_listed(self, part: Parameter, texts: list[str], state: PathState) -> list[tuple[str, bool]]:
        operator = part.operator
        if operator in ("+", ":+", "-", ":-") and part.operand is not None:
            if bool(texts) == operator.endswith("+"):
                return self._get_operand(part, part.operand, state)
            if operator.endswith("+"):
                return []
        elif operator == ":" and part.operand is not None and part.name == "@" and state.arguments is None:
            return [(text, True) for text in texts]  # any number of words, like all of them
        elif operator == ":" and part.operand is not None:
            numbers = [number.strip() for number in self.join(part.operand, state).split(":")]
            if not all(number.isdecimal() for number in numbers) or self.has_splits(texts):
                return [(self._split_mark(self._unknown(part)), True)]
            begin = int(numbers[0]) - (part.name in ("@", "*"))
            texts = texts[max(begin, 0) :]
            texts = texts[: int(numbers[1])] if len(numbers) > 1 else texts
        elif operator:
            texts = [self._apply(part, text, part.operand or ShellWord(()), state) for text in texts]
        if part.quoted and "*" in (part.name, part.index):
            return [(" ".join(texts), True)]
        return [(text, part.quoted) for text in texts]

    def has_splits(self, texts: Iterable[str]) -> bool:
        """Return whether a part of the texts may be any number of words."""
        return any(self.holes[mark].splits for text in texts for mark in find_holes(text))

    def _get_operand(self, part: Parameter, operand: ShellWord, state: PathState) -> list[tuple[str, bool]]:
        if part.quoted:
            return [(self.join(operand, state), True)]
        return [(text, True) for text in self.expand(operand, state)]

    def _choose(
        self, part: Parameter, name: str, value: Value, operand: ShellWord, state: PathState
    ) -> list[tuple[str, bool]]:
        """Return what `${NAME:-OTHERWISE}`, `=`, `?` and `+` stand for."""
        by_length = part.operator.startswith(":")
        text = None if value is UNSET else str(value)
        if not by_length and text == "" and self._may_be_unset(part, state):
            text = None
        if text is None or (is_known(text) and not text and by_length):
            is_set: bool | None = False
        elif any(is_known(char) for char in text) or (not text) or not (by_length or self._is_of_caller(part, state)):
            is_set = True
        else:
            is_set = state.facts.get(("-n", text))
        if name == "+":
            if is_set is None and text is not None:
                is_set = state.ask(self.ask_length(text))
            return self._get_operand(part, operand, state) if is_set else [("", True)] if part.quoted else []
        if is_set and text is not None:
            return [(text, part.quoted)]
        if is_set is None and text is not None:
            otherwise = self._assume(part, text, operand, state) if name in "-=" else [(text, part.quoted)]
        elif name == "?":
            state.flow = "exit"
            return []
        else:
            otherwise = self._get_operand(part, operand, state)
        if name == "=" and NAME.fullmatch(part.name):
            state.variables[part.name] = " ".join(each for each, _ in otherwise)
        return otherwise

    def _assume(self, part: Parameter, text: str, operand: ShellWord, state: PathState) -> list[tuple[str, bool]]:
        """Return the operand as what counts where a variable is not set."""
        names = self.holes.name([text])
        before = self.holes.assume(text)
        if before is None and not self.is_free(text):
            return [(self.holes.mark(Hole(part.shown, names)), part.quoted)]
        if before:
            return [(text, part.quoted)]
        texts = self._get_operand(part, operand, state) or [("", part.quoted)]
        marks: list[tuple[str, bool]] = []
        for each, _ in texts:
            assumed = self.holes.assume(each)
            every = (*names, *self.holes.name([each]))
            hole = Hole(
                part.shown, every, assumed, self.holes[text].variable if len(text) == 1 else "", splits=not part.quoted
            )
            marks.append((self.holes.mark(hole), True))
        return marks

    def _is_of_caller(self, part: Parameter, state: PathState) -> bool:
        """Say whether only the caller can set a variable."""
        known = part.name in state.variables or part.name in self.env.values
        return not (known or part.prefix or part.index)

    def _may_be_unset(self, part: Parameter, state: PathState) -> bool:
        """Say whether an empty variable of the caller is not set at all."""
        if not self._is_of_caller(part, state):
            return False
        shown = f"{part.name} is set to nothing"
        return not state.ask(OpenQuestion(("set", part.name), shown, f"{part.name} is not set", usual=False))

    def ask_length(self, text: str, line: int = 0) -> OpenQuestion:
        """Return the question whether an open text is not empty."""
        shown = self.name(text)
        binds_not = {text: ""} if len(text) == 1 else {}
        guessed = self.holes.guess(text)
        usual = None if guessed is None else bool(guessed)
        return OpenQuestion(
            ("-n", text), f"{shown} is set", f"{shown} is not set", usual, binds_not=binds_not, line=line
        )

    def doubt(self, texts: Iterable[str]) -> dict[str, str]:
        """Return the marks in texts that have an assumed value, each with a mark of the same part without it."""
        marks = {mark for text in texts for mark in find_holes(text)}
        holes = {mark: self.holes[mark] for mark in sorted(marks)}
        return {
            mark: self.holes.mark(replace(hole, assumed=None, variable=""))
            for mark, hole in holes.items()
            if hole.assumed is not None
        }

    def name(self, text: str) -> str:
        """Return the name of an open text in findings."""
        if len(text) == 1 and not is_known(text) and len(self.holes[text].names) == 1:
            return self.holes[text].names[0].partition(" (")[0]
        return self.holes.show(text)[:60]

    def _apply(self, part: Parameter, text: str, operand: ShellWord, state: PathState) -> str:
        given = self.get_pattern(operand, state)
        if is_known(text) and is_known(given):
            made = patterns.apply(part.operator, text, given)
            if made is not None:
                return made
        assumed, other = self.holes.assume(text), self.holes.assume(given)
        made = None if assumed is None or other is None else patterns.apply(part.operator, assumed, other)
        names = self.holes.name([text, given]) if made is not None else (describe_unknown(part.shown, BY_SHELL),)
        return self.holes.mark(Hole(part.shown, names, made))

    def _measure(self, part: Parameter, listed: list[str] | None, state: PathState) -> str:
        if listed is not None:
            return self._unknown(part) if self.has_splits(listed) else str(len(listed))
        value = self._get_one(part, state)
        text = "" if value is UNSET else str(value)
        if is_known(text):
            return str(len(text))
        assumed = self.holes.assume(text)
        return self.holes.mark(
            Hole(part.shown, self.holes.name([text]), None if assumed is None else str(len(assumed)))
        )

    def compute(self, text: str, shown: str, line: int, state: PathState) -> str:
        """Return the value of `$((...))`."""
        filled = self._fill_numbers(text, line, state)
        if filled is not None:
            found = patterns.compute(filled) if is_known(filled) else None
            if found is not None:
                return str(found)
            assumed = self.holes.assume(filled)
            guess = None if assumed is None or is_known(filled) else patterns.compute(assumed)
            if guess is not None:
                return self.holes.mark(Hole(shown, self.holes.name([filled]), str(guess)))
        for name in re.findall(
            r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)", text
        ):
            self.open(name[0] or name[1], state, f"set by arithmetic, line {line}")
        self.steps += 1
        names = self.holes.name([filled]) if filled else ()
        return self.holes.mark(Hole(shown, names or (describe_unknown(shown, BY_SHELL),), salt=(state.tick, line)))

    def _fill_numbers(self, text: str, line: int, state: PathState) -> str | None:
        """Return an arithmetic expression with its variables put in. None where it does more than compute."""
        if re.search(r"(?<![=!<>])=(?!=)|\+\+|--|\?|\[|\b0\d|#|\*\*|<<|>>|~", re.sub(r"\$\{[^}]*\}|\$#", "", text)):
            return None
        word = parse(f'"{text}"' if '"' not in text else f"'{text}'", line=line).commands
        parts = (
            word[0].words[0].parts
            if word and isinstance(word[0], Simple) and isinstance(word[0].words[0], ShellWord)
            else ()
        )
        filled = self.join(ShellWord(parts), state)

        def value(found: re.Match[str]) -> str:
            held = self.look_up(found[0], state)
            inner = state.get(held) if isinstance(held, str) else "0"
            if self.is_free(inner):
                hole = self.holes[inner]
                return self.holes.mark(Hole(hole.shown, hole.names, "0"))
            return inner or "0"

        filled = NAME.sub(value, filled)
        return NAME.sub(value, filled) if NAME.search(filled) else filled

    def grow(self, texts: Iterable[str]) -> None:
        """Count the length of expanded texts.

        Raises:
            InvalidSetup: it exceeds the limit.
        """
        self.chars += sum(map(len, texts))
        if self.chars > 8 * MAX_CHARS or any(len(text) > MAX_CHARS for text in texts):
            raise refusal("too-long", case="expanded", max_chars=MAX_CHARS)

    def get_pattern(self, word: ShellWord, state: PathState) -> str:
        """Return a pattern in which quoted text is literal."""
        text = ""
        for part in word.parts:
            if isinstance(part, Literal):
                text += patterns.escape(part.text) if part.quoted else part.text
            else:
                values = " ".join(value for value, _ in self._get_values(part, state))
                text += patterns.escape(values) if part.quoted else values
        return text


@dataclass(slots=True)
class _Fields:
    """Words that are being put together."""

    words: list[str] = field(default_factory=list)
    current: str | None = None

    def add(self, text: str) -> None:
        """Add text that stays in one word."""
        self.current = (self.current or "") + text

    def split(self, text: str) -> None:
        """Add text that is taken apart at spaces."""
        for index, piece in enumerate(_SPACE.split(text)):
            if index:
                self.close()
            if piece:
                self.add(piece)

    def close(self) -> None:
        """End a word."""
        if self.current is not None:
            self.words.append(self.current)
        self.current = None
