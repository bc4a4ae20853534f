"""Conditions of shell scripts: tests, patterns and numbers; each path decides the unknown ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from draftwise.setups.read.shell import patterns
from draftwise.setups.read.shell.expansion import Expansion
from draftwise.setups.read.shell.open_texts import Hole, is_known
from draftwise.setups.read.shell.paths import UNSET, Fact, OpenQuestion, PathState
from draftwise.setups.read.shell.syntax import Arithmetic, Literal, ShellWord, Test

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}


@dataclass(slots=True)
class Conditions(Expansion):
    """Decides the conditions of one script."""

    def matches(self, subject: str, pattern: str, line: int, state: PathState) -> bool:
        """Return whether a pattern matches.

        Raises:
            OpenQuestion: it is unknown on this path.
        """
        subject, pattern = state.get(subject), state.get(pattern)
        if pattern == "*":
            return True
        if is_known(subject) and is_known(pattern) and not patterns.is_long(subject, pattern):
            return patterns.matches(subject, pattern)
        if is_known(pattern) and not re.search(r"(?<!\\)[*?\[]", pattern):
            return self._equals(subject, re.sub(r"\\(.)", r"\1", pattern), line, state)
        guesses = self.holes.guess(subject), self.holes.guess(pattern)
        usual = None if guesses[0] is None or guesses[1] is None else patterns.matches(guesses[0], guesses[1])
        shown, wanted = self.name(subject), self.holes.show(pattern)
        question = OpenQuestion(
            ("match", subject, pattern),
            f"{shown} matches {wanted}",
            f"{shown} does not match {wanted}",
            usual,
            line=line,
        )
        return state.ask(question)

    def _equals(self, left: str, right: str, line: int, state: PathState) -> bool:
        left, right = state.get(left), state.get(right)
        if left == right:
            return True
        if is_known(left) and is_known(right):
            return False
        if is_known(left):
            left, right = right, left
        if right == "":
            return not self._is_filled(left, line, state)
        if len(left) == 1 and state.facts.get(("-n", left)) is False and is_known(right):
            return False
        guesses = self.holes.guess(left), self.holes.guess(right)
        usual = None if None in guesses else guesses[0] == guesses[1]
        binds = self._find_bound(left, right)
        shown, other = self.name(left), self.holes.show(right)
        return state.ask(
            OpenQuestion(("=", left, right), f"{shown}={other}", f"{shown} is not {other}", usual, binds, line=line)
        )

    def _find_bound(self, left: str, right: str) -> dict[str, str]:
        """Return what follows for open parts where a text is one that is known."""
        if len(left) != 1 or not is_known(right):
            return {}
        hole = self.holes[left]
        bound = {left: right}
        if hole.variable and hole.assumed is not None and hole.assumed != right:
            bare = Hole(f"${hole.variable}", hole.names[:1], None, hole.variable)
            if bare in self.holes.marks:
                bound[self.holes.marks[bare]] = right
        return bound

    def _is_filled(self, text: str, line: int, state: PathState) -> bool:
        text = state.get(text)
        if is_known(text) or any(is_known(char) for char in text):
            return bool(text)
        return state.ask(self.ask_length(text, line))

    def test_words(self, words: Sequence[str], line: int, state: PathState) -> bool:
        """Return the result of `[ ... ]`."""
        words = list(words)
        if not words:
            return False
        for operator in ("-o", "-a"):
            if operator in words[1:-1] and len(words) > 3:
                index = words.index(operator, 1)
                first, second = words[:index], words[index + 1 :]
                held = self.test_words(first, line, state)
                if operator == "-o":
                    return held or self.test_words(second, line, state)
                return held and self.test_words(second, line, state)
        if words[0] == "!" and len(words) > 1:
            return not self.test_words(words[1:], line, state)
        if len(words) == 1:
            return self._is_filled(words[0], line, state)
        if len(words) == 2:
            return self._test_one(words[0], words[1], line, state)
        if len(words) == 3:
            return self._test_two(words[1], words[0], words[2], line, state)
        text = " ".join(words)
        return state.ask(self._ask(("test", text), f"[ {text} ]", line))

    def _ask(self, fact: Fact, shown: str, line: int) -> OpenQuestion:
        shown = self.holes.show(shown)[:60]
        return OpenQuestion(fact, f"{shown} holds", f"{shown} does not hold", None, line=line)

    def _test_one(self, operator: str, text: str, line: int, state: PathState) -> bool:
        if operator == "-n":
            return self._is_filled(text, line, state)
        if operator == "-z":
            return not self._is_filled(text, line, state)
        text = state.get(text)
        if operator == "-v" and is_known(text):
            value = self.look_up(text, state)
            return value is not UNSET and (not self.is_free(str(value)) or self._is_filled(str(value), line, state))
        return state.ask(self._ask((operator, text), f"{operator} {text}", line))

    def _test_two(self, operator: str, left: str, right: str, line: int, state: PathState) -> bool:
        left, right = state.get(left), state.get(right)
        if operator in ("=", "=="):
            return self._equals(left, right, line, state)
        if operator == "!=":
            return not self._equals(left, right, line, state)
        if operator in _NUMBERS:
            return self._compare(operator, left, right, line, state)
        if operator in ("<", ">") and is_known(left) and is_known(right):
            return left < right if operator == "<" else left > right
        return state.ask(self._ask((operator, left, right), f"{left} {operator} {right}", line))

    def _compare(self, operator: str, left: str, right: str, line: int, state: PathState) -> bool:
        numbers = [_to_number(text) if is_known(text) else None for text in (left, right)]
        if is_known(left) and is_known(right):
            return numbers[0] is not None and numbers[1] is not None and _NUMBERS[operator](numbers[0], numbers[1])
        guesses = [
            None if guess is None else _to_number(guess or "0") for guess in map(self.holes.guess, (left, right))
        ]
        usual = None if guesses[0] is None or guesses[1] is None else _NUMBERS[operator](guesses[0], guesses[1])
        one, other = (text if is_known(text) else self.name(text) for text in (left, right))
        shown = f"{one} {operator} {other}"
        return state.ask(OpenQuestion((operator, left, right), shown, f"not {shown}", usual, line=line))

    def test(self, test: Test, state: PathState) -> bool:
        """Return the result of `[[ ... ]]`."""
        first = test.operands[0]
        if isinstance(first, Test):
            held = self.test(first, state)
            if test.operator == "!":
                return not held
            other = test.operands[1]
            if held is (test.operator == "||") or not isinstance(other, Test):
                return held
            return self.test(other, state)
        left = self.join(first, state)
        if test.operator == "word":
            return self._is_filled(left, test.line, state)
        if len(test.operands) == 1:
            return self._test_one(test.operator, left, test.line, state)
        second = test.operands[1]
        assert isinstance(second, ShellWord)
        if test.operator in ("=", "==", "!="):
            held = self.matches(left, self.get_pattern(second, state), test.line, state)
            return held is not (test.operator == "!=")
        right = self.join(second, state)
        if test.operator == "=~":
            quoted = any(isinstance(part, Literal) and part.quoted and part.text for part in second.parts)
            left, right = state.get(left), state.get(right)
            if is_known(left) and is_known(right) and not quoted:
                found = patterns.matches_regex(left, right)
                if found is not None:
                    return found
        return self._test_two(test.operator, left, right, test.line, state)

    def test_number(self, node: Arithmetic, state: PathState) -> bool | None:
        """Return the status of `((...))`."""
        value = state.get(self.compute(node.text, node.shown, node.line, state))
        if is_known(value):
            return value != "0"
        guessed = self.holes.guess(value)
        usual = None if guessed is None else guessed != "0"
        shown = self.holes.show(node.shown)[:60]
        if re.search(r"(?<![=!<>])=(?!=)|\+\+|--", node.text):
            return None
        return state.ask(
            OpenQuestion(("number", value), f"{shown} holds", f"{shown} does not hold", usual, line=node.line)
        )


def _to_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else None
