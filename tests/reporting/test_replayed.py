"""The page of a replay: everything that was found is on it, and it needs no other file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from draftwise.cli import main
from draftwise.core import Finding, Severity
from draftwise.replaying import read_anchors, read_profile
from draftwise.reporting.replayed import render_replay


def make_profile(folder: Path) -> Path:
    """Replay a small log of two routes and two temperatures."""
    rows = [
        {
            "id": f"{route}-{temperature}-{number}",
            "prompt": [1, 2, 3, 4, 5, number],
            "answer_token_ids": [9, 1, 2, 3, 4 + (number % 2)],
            "temperature": temperature,
            "route": route,
        }
        for route in ("edit", "<chat>")
        for temperature in (0, 1)
        for number in range(6, 10)
    ]
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    candidate = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2})
    arguments = ("--candidate", candidate, "--target", folder, "--out", folder / "p", "--group-by", "route")
    result = CliRunner().invoke(main, ["replay", str(log), *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder / "p"


def test_the_page_shows_every_setting_group_and_finding(tmp_path: Path) -> None:
    folder = make_profile(tmp_path)
    page = (folder / "report.html").read_text()
    profile = read_profile(folder)
    for entry in profile.entries:
        assert f"{entry.by_k[4].tokens_per_step.value:.2f}" in page
    assert "T=0 · edit" in page
    assert "&lt;chat&gt;" in page
    assert "<chat>" not in page
    for finding in profile.findings:
        assert finding.code in page
    assert page.count("<svg") == 4  # two, drawn for phones, too
    assert not any(part in page for part in ("<script", "src=", "<link"))


def test_the_page_can_be_made_again_from_the_files(tmp_path: Path) -> None:
    folder = make_profile(tmp_path)
    made = render_replay(read_profile(folder), read_anchors(folder))
    assert made == (folder / "report.html").read_text()


def test_a_profile_without_findings_says_so(tmp_path: Path) -> None:
    folder = make_profile(tmp_path)
    profile, anchors = read_profile(folder), read_anchors(folder)
    assert "None: every row" in render_replay(replace(profile, findings=()), anchors)
    told = Finding(code="token-drift", severity=Severity.ERROR, message="Half of the rows differ.")
    assert "Half of the rows differ." in render_replay(replace(profile, findings=(told,)), anchors)
