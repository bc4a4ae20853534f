from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from catalogue.probes import judge, report, report_defects

from draftwise.core import Effect, Severity, Stage
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.rules import Probe, VllmRule

Wheel = Callable[..., Path]
RELEASES = ("1.0", "1.1", "1.2")


@pytest.fixture
def folder(wheel: Wheel) -> Path:
    wheel("1.0", {"vllm/old.py": "raise ValueError('too\\nlong')"})
    wheel("1.1", {"vllm/new.py": "raise ValueError('too\\nlong')"})
    return wheel("1.2", {"vllm/new.py": "pass"})


def _rule(
    first: str, last: str | None, pattern: str = r"too.long", *, absent: bool = False, file: str = ""
) -> VllmRule:
    files = (file,) if file else ("vllm/new.py", "vllm/old.py")
    return VllmRule(
        code="too-long",
        title="t",
        explains="e",
        severity=Severity.ERROR,
        effect=Effect.REJECTED,
        stage=next(iter(Stage)),
        spans=((first, last),),
        source="s",
        probe=Probe(files=files, pattern=pattern.replace(".", r"\\n"), absent=absent),
    )


def test_a_rule_that_agrees_with_the_wheels(folder: Path) -> None:
    assert not judge(_rule("1.0", "1.1"), folder, RELEASES).rotten
    assert not judge(_rule("1.2", None, absent=True), folder, RELEASES).rotten


def test_a_rule_that_says_too_much_or_too_little(folder: Path) -> None:
    assert judge(_rule("1.0", None), folder, RELEASES).missing == ("1.2",)
    assert judge(_rule("1.1", "1.1"), folder, RELEASES).surplus == ("1.0",)


def test_a_probe_that_cannot_see_anything_is_rotten(folder: Path) -> None:
    assert "no release has" in judge(_rule("1.2", None, absent=True, file="vllm/gone.py"), folder, RELEASES).error
    assert "regular expression" in judge(_rule("1.0", None, pattern="("), folder, RELEASES).error


def test_the_report_says_where_and_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(folder, {"too-long": _rule("1.0", "1.1")}) == 0
    assert report(folder, {"too-long": _rule("1.2", None)}) == 1
    assert "ROT: not seen in 1.2; also seen in 1.0-1.1" in capsys.readouterr().out


def test_a_defect_that_a_wheel_contradicts_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = [each for each in all_defects().values() if each.code == "short-conv-no-rollback"]
    assert row.probe is not None
    for version, text in (("0.28.0", "conv_state = 1"), ("0.29.0", "num_accepted_tokens = 1")):
        file = tmp_path / version / row.probe.files[0]
        file.parent.mkdir(parents=True)
        file.write_text(text)
        (tmp_path / version / "wheel.json").write_text(json.dumps({"version": version}))
    assert report_defects(tmp_path, {row.code: row}) == 0
    assert "short-conv-no-rollback  ok" in capsys.readouterr().out
    (tmp_path / "0.29.0" / row.probe.files[0]).write_text("conv_state = 1")
    assert report_defects(tmp_path, {row.code: row}) == 1
    assert "ROT: also seen in 0.29.0" in capsys.readouterr().out
