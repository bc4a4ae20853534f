"""What real_faults.py draws, does to servers and makes of its rows; the runs themselves take minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from real_faults import (
    KINDS,
    LONGEST,
    PAIRS,
    TROUBLED_SERVERS,
    Run,
    find_truths,
    is_false,
    keep_busy,
    kind_of,
    slow_down,
    summarise,
)

DRAWN = {kind: [Run.draw(kind, number) for number in range(12)] for kind in KINDS}


def row(verdict: str, *ratio: float, kind: str = "drift", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"candidate": "suffix", "workload": "code", "verdict": verdict, "reason": "", "busy": []}
    if ratio:
        found["ratio"] = list(ratio)
    about = {"cpu": "imaginary", "date": "2026-11-22", "draftwise": "0", "seconds": 60.0, "minutes": 1.0}
    return {**found, **about, "kind": kind, "prompts": None, **more}


def test_quiet_runs_are_left_alone_and_go_through_all_pairs() -> None:
    quiet = [Run.draw("quiet", number) for number in range(4)]
    assert {(each.candidate, each.workload) for each in quiet} == set(PAIRS)
    assert not any(each.busy or each.slower or each.server for each in quiet)


def test_a_core_is_taken_for_spells_of_the_run() -> None:
    for each in DRAWN["busy-core"]:
        ends = [time for spell in each.busy for time in spell]
        assert ends
        assert ends == sorted(ends)
        assert each.busy[-1][0] < LONGEST * 60 * each.minutes
    assert Run.draw("busy-core", 7) == DRAWN["busy-core"][7]


def test_every_kind_brings_its_trouble() -> None:
    for kind in ("late-compiling", "late-start"):
        assert all("compile" in (each.server or {}) for each in DRAWN[kind])
        assert {each.server["arm"] for each in DRAWN[kind] if each.server} == {"plain", "candidate"}
    assert all(0 < each.slower < 1 for each in DRAWN["drift"])
    assert all(3 <= (each.prompts or 0) <= 10 for each in DRAWN["few-prompts"])
    assert all("lognormal" in each.workload for each in DRAWN["heavy-tails"])
    assert {(each.candidate, each.tells_config) for each in DRAWN["memory"]} == {
        ("suffix", False),
        ("lookup of 20", True),
    }


@pytest.mark.parametrize(
    ("verdict", "truth", "expected"),
    [
        ("adopt", (0.97, 1.0, 1.02), True),
        ("adopt", (0.98, 1.02, 1.06), True),
        ("adopt", (1.05, 1.1, 1.2), False),
        ("reject", (0.98, 1.0, 1.02), True),
        ("reject", (0.8, 0.85, 0.9), False),
        ("inconclusive", (0.8, 0.85, 0.9), False),
    ],
)
def test_a_verdict_is_false_where_quiet_runs_do_not_show_it_right(
    verdict: str, truth: tuple[float, ...], expected: bool
) -> None:
    truths = find_truths([row("inconclusive", *truth, kind="quiet")])
    assert is_false(row(verdict), truths) == expected


def test_what_no_quiet_run_has_measured_counts_as_false() -> None:
    noisy = row("inconclusive", 1.2, 1.3, 1.4, kind="quiet", reason="80 of 99 pairs of turns were disturbed")
    found = summarise([row("adopt", 1.1, 1.2, 1.3), row("no result", kind="memory"), noisy])
    assert (found["quiet_runs"], found["disturbed"]["runs"], found["disturbed"]["false"]) == (1, 2, 1)
    assert found["kinds"]["drift"]["verdicts"] == {"adopt": 1}
    assert found["kinds"]["late-start"]["false_share_at_most"] is None


def test_no_false_verdict_in_few_runs_bounds_the_share_loosely() -> None:
    """1 - 0.025^(1/n), by Clopper and Pearson."""
    few = summarise([*[row("inconclusive", 0.9, 1.0, 1.1)] * 3, row("no result")])
    assert few["disturbed"]["false_share_at_most"] == pytest.approx(0.708, abs=1e-3)


def test_rows_from_before_there_were_kinds_had_a_busy_core() -> None:
    old = {name: value for name, value in row("inconclusive", busy=[[0.0, 5.0]]).items() if name != "kind"}
    assert (kind_of(old), kind_of(old | {"busy": []})) == ("busy-core", "quiet")


def test_company_that_is_not_due_yet_ends_with_the_run() -> None:
    with keep_busy(((600.0, 700.0),)):
        pass


SERVE = """
import sys
sys.orig_argv = [sys.executable, "-m", "draftwise", "serve", "x", *sys.argv[1:]]
import sitecustomize, os
print(os.environ["DRAFTWISE_ENGINE_OF"], sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--speculative-config", "{}"], "candidate ['--speculative-config', '{}', '--more']"), ([], "plain []")],
)
def test_trouble_reaches_the_server_of_its_arm_only(words: list[str], told: str) -> None:
    trouble = json.dumps({"arm": "candidate", "arguments": ["--more"]})
    environment = os.environ | {"DRAFTWISE_TROUBLE": trouble}
    boot = f"import sys; sys.path.insert(0, {str(TROUBLED_SERVERS)!r})\nsys.modules.pop('sitecustomize', None)\n{SERVE}"
    found = subprocess.run(
        [sys.executable, "-c", boot, *words], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == told


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_engines_stand_still_for_a_part_of_the_time_and_go_on_after_it() -> None:
    trouble = json.dumps({"run": f"test {os.getpid()}"})
    environment = os.environ | {"DRAFTWISE_ENGINE_OF": "plain", "DRAFTWISE_TROUBLE": trouble}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as process:

        def state() -> str:
            with open(f"/proc/{process.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0]

        seen = set()
        with slow_down(trouble, 1.0, 1e-9):
            end = time.monotonic() + 10
            while "T" not in seen and time.monotonic() < end:
                seen.add(state())
        assert "T" in seen
        assert state() != "T"
        process.communicate(b"\n")
