"""What README.md and docs/ show can be run: commands and Python as they are written, and the output beside them.

A comment in front of each fenced block says which: `<!-- runs -->`, or `<!-- not run: why -->`. The commands of the
latter are parsed all the same, so that no option is shown that there is not.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.support.production import PLAIN, SPEC
from tests.support.watched import serving_counters

from draftwise.cli import main
from draftwise.core import InvalidSetup

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACES = {
    "bundle": ROOT / "bundle",
    "compose.yaml": Path(__file__).with_name("documented") / "compose.yaml",
    "my_eagle3": ROOT / "bundle" / "eagle3",
    "pod.log": ROOT / "tests" / "support" / "vllm_logs" / "h200_0.26.0_eagle3.txt",
    "MODEL_DIR": ROOT / "bundle" / "target",
}
"""What stands for the reader's own files."""
WITH_SERVERS = "runs against a server"
"""Of a block in which a speculating server and a plain one stand for those at 127.0.0.1:8000 and :8001."""
FENCED = re.compile(r"^(?:<!-- (?P<choice>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    place: str
    choice: str | None
    language: str
    text: str

    @property
    def runs(self) -> bool:
        return self.choice in ("runs", WITH_SERVERS)


def find_blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in FENCED.finditer(text):
        line = text[: found.start("text")].count("\n")
        yield Block(f"{page}:{line}", found["choice"], found["language"], found["text"])


BLOCKS = [
    block
    for page in PAGES
    for block in find_blocks(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
]


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a block, whole, and the output shown below it."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    session = any(line.startswith("$ ") for line in lines)
    while lines:
        command = lines.pop(0).removeprefix("$ ")
        while lines and not is_whole(command):
            command += "\n" + lines.pop(0)
        shown = []
        while session and lines and not lines[0].startswith("$ "):
            shown.append(lines.pop(0))
        yield command, "\n".join(shown)


def is_whole(command: str) -> bool:
    """Return whether a command goes on in no further line."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return not command.endswith("\\")


def assert_shown(shown: str, printed: str) -> None:
    """Assert that the lines shown are those printed; `...` stands for any lines."""
    rest = [line.strip() for line in printed.splitlines() if line.strip()]
    skips = False
    for line in map(str.strip, shown.splitlines()):
        if line == "...":
            skips = True
            continue
        assert line in rest, f"not printed: {line}"
        at = rest.index(line)
        assert skips or at == 0, f"printed and not shown: {rest[:at]}"
        rest, skips = rest[at + 1 :], False
    assert skips or not shown or not rest, f"printed and not shown: {rest}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_every_block_says_whether_it_runs(block: Block) -> None:
    assert block.runs or re.fullmatch(r"not run: \S.+", block.choice or "")


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder with what the pages take for the reader's own."""
    for name, path in PLACES.items():
        (tmp_path / name).symlink_to(path)
    return tmp_path


@pytest.mark.parametrize(
    ("block", "command", "shown"),
    [
        pytest.param(block, *pair, id=f"{block.place} {pair[0].splitlines()[0]}")
        for block in BLOCKS
        if block.runs and block.language != "python"
        for pair in commands(block.text)
    ],
)
def test_commands_do_what_is_shown(
    block: Block, command: str, shown: str, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shell would start them; that the installed command starts is tested elsewhere (`test_installed.py`)."""
    monkeypatch.chdir(places)
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    program, *words = lexer
    assert program == "draftwise"
    words, redirected = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
    assert not {">", "<", "|", "&", ";"} & set(words), "what else a shell does is not done here"
    with serving_counters(*((SPEC, PLAIN) if block.choice == WITH_SERVERS else ())) as urls:
        hosts = dict(zip(("http://127.0.0.1:8000", "http://127.0.0.1:8001"), urls, strict=False))
        words = [hosts.get(word, word) for word in words] + (["--interval", "0.2"] if urls else [])
        done = CliRunner().invoke(main, words, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip()
    assert_shown(shown, "" if redirected else done.stdout)


@pytest.mark.engine
@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.runs and block.language == "python"], ids=lambda block: block.place
)
def test_python_runs(block: Block, places: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block.text], cwd=places, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.engine if command.startswith("draftwise train") else ())
        for block in BLOCKS
        if not block.runs
        for command, _ in commands(block.text if "draftwise " in block.text else "")
        if command.startswith("draftwise ")
    ],
)
def test_commands_that_are_not_run_can_be_parsed(command: str) -> None:
    verb, *arguments = shlex.split(command.replace("\\\n", " "), comments=True)[1:]
    context = click.Context(main, info_name="draftwise")
    found = main.get_command(context, verb)
    assert found is not None, verb
    if isinstance(found, click.Group) and arguments:
        context = click.Context(found, parent=context, info_name=verb)
        found, arguments = found.get_command(context, arguments[0]), arguments[1:]
    assert found is not None, command
    found.make_context(verb, arguments, parent=context)


def find_wrong_options(text: str) -> Iterator[str]:
    """Yield the `draftwise VERB ...` in backticks that name a verb or an option that there is not."""
    for verb, rest in re.findall(r"`draftwise ([a-z][\w-]*)([^`\n]*)`", text):
        found = main.get_command(click.Context(main), verb)
        if isinstance(found, click.Group):
            try:
                found = found.get_command(click.Context(found), (rest.split() or [""])[0]) or found
            except InvalidSetup:  # without torch, `train` does not know its methods
                continue
        known = {"--help", "-h"}.union(*(p.opts + p.secondary_opts for p in found.params)) if found else set()
        own = re.sub(r"'[^']*'", "", rest.split(" -- ")[0])
        if found is None or not known.issuperset(re.findall(r"(?<![\w-])--?[a-z][\w-]*", own)):
            yield f"draftwise {verb}{rest}"


def test_commands_within_sentences_exist() -> None:
    rows = (path for path in (ROOT / "src/draftwise/knowledge/data").rglob("*.json") if path.parent.name != "vllm")
    for path in [*PAGES, *rows]:
        assert list(find_wrong_options(path.read_text())) == [], path


@pytest.mark.parametrize("shown", ["deploy --metric-prefix x", "watc URL", "bundle make --form x", "check x -z"])
def test_a_command_that_does_not_exist_is_noticed(shown: str) -> None:
    assert list(find_wrong_options(f"Use `draftwise {shown}`.")) == [f"draftwise {shown}"]


class TestTheReadingItself:
    TEXT = "<!-- runs -->\n```\n$ echo '{\n}'\n{\n...\n```\n\n```python\nx\n```\n"

    def test_blocks_commands_and_output(self) -> None:
        runs, unmarked = find_blocks("page.md", self.TEXT)
        assert (runs.place, runs.runs, unmarked.choice, unmarked.language) == ("page.md:2", True, None, "python")
        assert list(commands(runs.text)) == [("echo '{\n}'", "{\n...")]

    @pytest.mark.parametrize(
        ("shown", "holds"),
        [
            ("a\nb\nc", True),
            ("a\n...", True),
            ("a\nb", False),
            ("b\n...", False),
            ("...\nc", True),
            ("a\n...\nd", False),
        ],
    )
    def test_output_is_compared(self, shown: str, holds: bool) -> None:
        if holds:
            assert_shown(shown, "a\n\nb\nc\n")
        else:
            with pytest.raises(AssertionError):
                assert_shown(shown, "a\n\nb\nc\n")
