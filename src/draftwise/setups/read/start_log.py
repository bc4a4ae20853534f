"""Servers in a log of vLLM: the arguments and the release that it prints at each start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from draftwise.core import Setup
from draftwise.knowledge.log_lines import read_log_facts
from draftwise.knowledge.rules import get_rule
from draftwise.setups.read.python_code import is_python, read_engines
from draftwise.setups.read.setup_reading import SetupReading

_ARGUMENTS_LOGGED = re.compile(r"non-default args:[^\S\n]*(.*)")
_ENUM = re.compile(r"<\w+\.(\w+): (?:('[^'\n]*')|[^<>\n]*)>")
"""How Python prints a member of an enumeration: its name, and its value where that is a text."""
_LOG_OPEN = "The log does not name the release, so nothing is judged."


def read_start_log(text: str, engine_version: str | None) -> Iterator[SetupReading]:
    """Yield the servers whose arguments a log of vLLM lists, with the release that it names."""
    starts = [*_ARGUMENTS_LOGGED.finditer(text)]
    pattern = next(each.pattern for each in read_log_facts().values if each.name == "engine_version")
    named = [(found, str(next(filter(None, found.groups())))) for found in pattern.finditer(text)]
    for index, logged in enumerate(starts):
        line = text.count("\n", 0, logged.start())
        given = _ENUM.sub(lambda found: found[2] or repr(found[1]), logged[1][: logged[1].rfind("}") + 1])
        call = "\n" * line + f"import vllm; vllm.LLM(**{given})"
        before = starts[index - 1].end() if index else 0
        after = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        release = engine_version or _find_release(named, before, logged.start(), after)
        if not is_python(call):
            state = "cannot be read" if logged[1].rstrip().endswith("}") else "is cut"
            cut = get_rule("logged-start-cut").ruling(state=state, where=f"line {line + 1}")
            unread = Setup(target="", engine="vllm", engine_version=release)
            yield SetupReading(setup=unread, where=f"line {line + 1}", findings=(cut,), unknown={"": cut})
            continue
        for each in read_engines(call, given={}, engine_version=release):
            gap = get_rule("image-release-unknown").ruling(where=each.where, message=_LOG_OPEN)
            open_gap = {} if release else {"engine_version": gap}
            yield replace(each, unknown={**each.unknown, **open_gap}, findings=(*open_gap.values(), *each.findings))


def _find_release(named: Sequence[tuple[re.Match[str], str]], before: int, start: int, after: int) -> str:
    """Return the release of a start: the server names it before its arguments, the engine after them.

    Args:
        named: the log's releases, where it names them.
        before: end of the previous start.
        start: beginning of this one's arguments.
        after: beginning of the next one's.
    """
    by_server = [release for found, release in named if before <= found.start() < start and "engine" not in found[0]]
    by_engine = [release for found, release in named if start <= found.start() < after and "engine" in found[0]]
    if len({*by_server}) > 1:
        return ""  # several servers write one log
    earlier = {release for found, release in named if found.start() < start}
    return next(iter([*by_server[-1:], *by_engine, *(earlier if len(earlier) == 1 else ())]), "")
