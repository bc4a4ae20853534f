"""What a terminal of 80 and of 140 columns shows, as files of `screens/`; DRAFTWISE_UPDATE=1 writes them again."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.support.made_runs import arm, closed, gains, make_run, workload
from tests.support.made_windows import HEALTHY, PLAIN_WINDOW
from tests.support.watched import make_baseline

from draftwise.cli import main
from draftwise.cli._decision import show_outcome
from draftwise.cli._watching import TextShow
from draftwise.cli.decide_command import decide
from draftwise.cli.pick_command import render as render_pick
from draftwise.cli.size_command import render as render_size
from draftwise.core import Arm
from draftwise.deciding.conclusions import conclude_run
from draftwise.verbs.pick import pick
from draftwise.verbs.size import size
from draftwise.verbs.watch import WatchResult, Yardstick
from draftwise.watching.watcher import Snapshot

SCREENS = Path(__file__).parent / "screens"
TARGET = "meta-llama/Llama-3.1-8B-Instruct"
WIDTHS = (80, 140)
MOST_LINES = 30
"""Of the end of `decide`."""


def show_help(*words: str) -> Callable[[Console], None]:
    def show(console: Console) -> None:
        for command in (main, decide):
            command._help_option = None  # click keeps the one that another test's bare `click.Context` made, without -h
        text = CliRunner().invoke(main, [*words, "--help"], terminal_width=console.width).output
        console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    return show


def show_pick(console: Console) -> None:
    render_pick(console, pick(target=TARGET, gpu="H200", vllm="0.33.0", workload="code", concurrency=8))


def show_size(console: Console) -> None:
    config = '{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 3}'
    render_size(console, size(target=TARGET, gpu="H200", vllm="0.33.0", speculative_config=config))


def show_watch(console: Console) -> None:
    snapshot = Snapshot(at_s=0.0, windows=(HEALTHY, PLAIN_WINDOW), recent=(HEALTHY, PLAIN_WINDOW))
    seen = SimpleNamespace(
        snapshot=snapshot, yardstick=Yardstick(baseline=make_baseline()), is_only=True, unanswered=(), services=()
    )
    TextShow(console).show(cast("WatchResult", seen))


def show_decide(console: Console) -> None:
    truths = {"eagle3 k=3": gains(1.8), "ngram k=4": gains(1.3), "medusa k=2": gains(0.8), "mtp k=1": gains(1.02)}
    arms = [Arm(name="plain"), *(replace(arm(int(name[-1])), name=name) for name in truths)]
    workloads = [workload(name) for name in ("code", "chat", "summary")]
    run = make_run(truths, arms=arms, workloads=workloads, conditions=closed(1, 8), repeats=2)
    found = conclude_run(run)
    show_outcome(console, found.decision, found.run)


SHOWN: dict[str, Callable[[Console], None]] = {
    "help": show_help(),
    "decide-help": show_help("decide"),
    "pick": show_pick,
    "size": show_size,
    "watch": show_watch,
    "decide": show_decide,
}


def screen_of(show: Callable[[Console], None], width: int) -> list[str]:
    """Return the lines of a terminal, which breaks those that are too long wherever they end."""
    text = io.StringIO()
    show(Console(file=text, width=width, force_terminal=True, color_system=None, legacy_windows=False))
    lines = (line.rstrip() for line in text.getvalue().splitlines())
    return [line[at : at + width] for line in lines for at in range(0, max(len(line), 1), width)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_the_screen_is_the_one_on_file(name: str, width: int) -> None:
    file = SCREENS / f"{name}-{width}.txt"
    shown = "\n".join(screen_of(SHOWN[name], width)) + "\n"
    if os.environ.get("DRAFTWISE_UPDATE"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_end_of_decide_fits_one_screen(width: int) -> None:
    assert len(screen_of(show_decide, width)) <= MOST_LINES - 2  # two lines follow: what resumes the run, its report


def test_every_option_of_decide_is_in_one_panel_and_the_first_ten_matter_most() -> None:
    named = [name for names in decide.panels.values() for name in names]
    assert sorted(named) == sorted({*(p.name for p in decide.params if p.param_type_name == "option"), "help"})
    assert len(decide.panels["Start here"]) == 10


def test_an_earlier_spelling_works_with_a_note() -> None:
    for verb in ("decide", "calibrate"):
        result = CliRunner().invoke(main, [verb, "--vllm=docker run", "--resume", "nowhere"])
        assert "--vllm is now --vllm-command; the earlier name still works." in result.stderr
        assert "No such option" not in result.stderr


def test_tensor_parallelism_is_said_alike_wherever_a_setup_is_described() -> None:
    config = '{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}'  # noqa: E501
    for verb, more in (("check", ["--vllm", "0.33.0"]), ("upgrade", ["--from", "0.32.0", "--to", "0.33.0"])):
        words = [verb, TARGET, "--gpu", "H200", "-sc", config, *more]
        short, long = ([*words, *given] for given in (["--tp", "2"], ["--", "--tensor-parallel-size", "2"]))
        assert CliRunner().invoke(main, short).output == CliRunner().invoke(main, long).output
        assert CliRunner().invoke(main, words).output != CliRunner().invoke(main, short).output
    wrong = CliRunner().invoke(main, ["check", "README.md", "--tp", "2"])
    assert wrong.exit_code == 2
    assert "--tp" in wrong.stderr
