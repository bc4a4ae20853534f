"""The run directory keeps everything across crashes, and refuses what it cannot vouch for."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.measuring import CONTEXT, FASTER, PLAIN, make_plan, make_session

from draftwise.core import BackendError, Hardware, InvalidSetup, SpecConfig
from draftwise.runs import RunDirectory
from draftwise.runs.turn_order import plan_turns


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured") / "run"
    virtual_time.run(make_session(path, make_plan(), (PLAIN, FASTER)).run())
    return path


@pytest.fixture
def measured(measured_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured_once, tmp_path / "run"))


def test_what_is_read_back_is_the_plan_and_all_answers(measured: Path) -> None:
    run = RunDirectory(measured).read()
    assert run.plan == make_plan()
    assert len(run.answers) == len(run.turns) == 2 * 8 * 3
    assert run.context.model == CONTEXT.model
    assert all(isinstance(answer.timing.chunks[0], tuple) for answer in run.answers)


def test_a_line_cut_off_by_a_crash_is_as_if_never_written(measured: Path) -> None:
    whole = RunDirectory(measured).read()
    turns = measured / "turns.jsonl"
    turns.write_text(turns.read_text()[:-40])
    run = RunDirectory(measured).read()
    assert len(run.turns) == len(whole.turns) - 1
    assert len(run.answers) == len(whole.answers) - 1, "answers of a turn that was not finished do not count"


def test_a_resumed_run_appends_after_a_cut_off_line(measured: Path) -> None:
    whole = RunDirectory(measured).read()
    for name in ("turns.jsonl", "requests.jsonl"):
        (measured / name).write_text((measured / name).read_text()[:-40])
    session = make_session(measured, whole.plan, (PLAIN, FASTER), resume=True)
    virtual_time.run(session.run())
    run = RunDirectory(measured).read()
    assert {(w.arm, w.repeat, w.block) for w in run.turns} == {(w.arm, w.repeat, w.block) for w in whole.turns}
    assert len(run.turns) == len(whole.turns)
    assert session.progress.plans[0][1] == 48
    assert session.progress.done[-1] == 48
    assert set(session.progress.done) == {47, 48}


def test_a_run_that_a_dying_server_ended_can_be_resumed(tmp_path: Path) -> None:
    path, plan = tmp_path / "run", make_plan()
    dying = replace(FASTER, dies_after=16)
    with pytest.raises(BackendError, match="candidate 1: the connection"):
        virtual_time.run(make_session(path, plan, (PLAIN, dying)).run())
    kept = len(RunDirectory(path).read().answers)
    assert 12 <= kept < 48
    session = make_session(path, plan, (PLAIN, FASTER), resume=True)
    virtual_time.run(session.run())
    assert (session.progress.plans[0][1], session.progress.done[0]) == (48, kept)
    assert len(RunDirectory(path).read().answers) == 48


def test_resuming_on_another_machine_is_refused(measured: Path) -> None:
    other = replace(CONTEXT, hardware=Hardware(cpu="another"))
    with pytest.raises(InvalidSetup, match=r"""hardware\.cpu changed from "imaginary" to "another"\."""):
        virtual_time.run(make_session(measured, make_plan(), (PLAIN, FASTER), resume=True, context=other).run())


def test_resuming_on_another_version_of_a_server_is_refused(measured: Path) -> None:
    upgraded = replace(FASTER, version={"version": "fake-2"})
    with pytest.raises(InvalidSetup, match=r"""servers\.candidate 1\.version changed from "fake-1" to "fake-2"\."""):
        virtual_time.run(make_session(measured, make_plan(), (PLAIN, upgraded), resume=True).run())


def test_a_changed_workload_is_refused(measured: Path) -> None:
    path = measured / "workload-code.jsonl"
    path.write_text(path.read_text().replace("code 3", "code 4"))
    with pytest.raises(InvalidSetup, match=f"{path} has changed since the run"):
        RunDirectory(measured).read()


def test_a_folder_in_use_is_not_claimed(measured: Path) -> None:
    folder = measured.rename(measured.parent / "a run")
    with pytest.raises(InvalidSetup, match=f"--resume '{folder}'"):
        RunDirectory.claim(folder)


def test_a_folder_with_nothing_but_server_logs_is(tmp_path: Path) -> None:
    log = RunDirectory.claim(tmp_path / "run").log_of("draft model k=4")
    log.parent.mkdir(parents=True)
    log.write_text("")
    assert log.name == "draft-model-k=4.log"
    RunDirectory.claim(tmp_path / "run")


@pytest.mark.parametrize("manifest", [None, "", "[]", "{}"])
def test_what_is_no_run_is_said_to_be_none(tmp_path: Path, manifest: str | None) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    reason = "it has no manifest.json." if manifest is None else "its manifest.json cannot be understood."
    with pytest.raises(InvalidSetup) as caught:
        RunDirectory(tmp_path).read()
    fix = "Name the folder that `draftwise decide` wrote."
    fix += " If the run was killed early, start it again." * (manifest is None)
    assert str(caught.value) == f"{tmp_path} is not a run directory: {reason} {fix}"


def test_another_format_is_not_guessed_at(measured: Path) -> None:
    path = measured / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(InvalidSetup, match="has format 99"):
        RunDirectory(measured).read()


def edit(path: Path, change: Callable[[dict[str, Any]], object], line: int | None = None) -> None:
    """Change the JSON of a file, or of one line of it."""
    lines = [path.read_text()] if line is None else path.read_text().splitlines()
    row = json.loads(lines[line or 0])
    change(row)
    lines[line or 0] = json.dumps(row)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("file", "line", "change", "words"),
    [
        (
            "requests.jsonl",
            4,
            lambda row: row.pop("timing"),
            "requests.jsonl:5 is not a row of a run (lacks the key 'timing')",
        ),
        (
            "requests.jsonl",
            4,
            lambda row: row["timing"].update(sent=None),
            "(timing.sent: must be a finite number, not None)",
        ),
        ("requests.jsonl", 4, lambda row: row["timing"].update(finished=-1.0), "(its times are no clock's)"),
        ("requests.jsonl", 4, lambda row: row.update(arm="x"), "readings of the arm 'x', which manifest.json does not"),
        (
            "turns.jsonl",
            0,
            lambda row: row.update(wall_s=math.nan),
            "turns.jsonl:1 is not a row of a run (wall_s: must be a finite number",
        ),
        ("turns.jsonl", 0, lambda row: row.update(condition="c=3"), "readings of the condition 'c=3'"),
        ("manifest.json", None, lambda row: row.pop("context"), "manifest.json is not a row of a run"),
        ("manifest.json", None, lambda row: row.update(arms="x"), "manifest.json is not a row of a run"),
        ("manifest.json", None, lambda row: row.update(conditions=[]), "it plans no conditions"),
        ("manifest.json", None, lambda row: row.update(repeats="3"), "(repeats: must be a whole number, not '3')"),
        ("manifest.json", None, lambda row: row["arms"][1].update(name="y"), "readings of the arm 'candidate 1'"),
    ],
)
def test_what_was_changed_by_hand_is_named(measured: Path, file: str, line: int | None, change, words: str) -> None:
    edit(measured / file, change, line)
    with pytest.raises(InvalidSetup, match=re.escape(words)) as caught:
        RunDirectory(measured).read()
    assert [finding.code for finding in caught.value.findings] == ["damaged-run"]


def test_a_pace_that_no_server_has_is_named(measured: Path) -> None:
    (measured / "paces.jsonl").write_text('{"arm": "plain", "seconds": 0.0, "is_late": true}\n')
    with pytest.raises(InvalidSetup, match=r"a decoding step cannot take 0\.0 s"):
        RunDirectory(measured).read()


def test_a_line_that_is_no_json_is_named(measured: Path) -> None:
    with (measured / "requests.jsonl").open("ab") as file:
        file.write(b"\xff not JSON\n")
    with pytest.raises(InvalidSetup, match=r"requests.jsonl:49 is not a row of a run .* Restore the file"):
        RunDirectory(measured).read()


def test_a_file_that_cannot_be_read_is_named(measured: Path) -> None:
    (measured / "turns.jsonl").unlink()
    (measured / "turns.jsonl").mkdir()
    with pytest.raises(InvalidSetup, match=r"turns.jsonl is not a row of a run \(Is a directory\)"):
        RunDirectory(measured).read()


def test_a_missing_workload_is_named(measured: Path) -> None:
    (file,) = measured.glob("workload-*.jsonl")
    file.unlink()
    with pytest.raises(InvalidSetup, match=file.name):
        RunDirectory(measured).read()


def test_a_path_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetup, match=r"cannot be written .* Choose another --out"):
        RunDirectory.claim(tmp_path / "file" / "run")


def test_a_claimed_folder_goes_again_only_if_nothing_came_into_it(tmp_path: Path) -> None:
    empty, full = RunDirectory.claim(tmp_path / "a"), RunDirectory.claim(tmp_path / "b")
    full.write("report.html", "x")
    empty.leave()
    full.leave()
    assert [each.name for each in tmp_path.iterdir()] == ["b"]


def test_why_candidates_could_remember_is_kept(tmp_path: Path) -> None:
    plan = replace(make_plan(2), remembering={"candidate 2": "nobody knows its config"})
    RunDirectory.claim(tmp_path / "run").begin(plan, CONTEXT)
    assert RunDirectory(tmp_path / "run").read().plan == plan


def test_an_earlier_run_that_does_not_say_who_could_remember_goes_by_the_configs(tmp_path: Path) -> None:
    plan = make_plan(2)
    plan = replace(plan, arms=(*plan.arms[:2], plan.arms[2].with_spec(SpecConfig(method="suffix"))))
    RunDirectory.claim(tmp_path / "run").begin(plan, CONTEXT)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    del manifest["remembering"]
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    found = RunDirectory(tmp_path / "run").read().plan
    assert found.remembering.keys() == {"candidate 2"}
    of_last = [turn for turn in plan_turns(found, found.conditions, found.repeats) if turn.arm == "candidate 2"]
    assert len(of_last) == 8, "it was asked all prompts in each repetition, and goes on so"


def test_a_manifest_in_which_strangers_remember_is_refused(tmp_path: Path) -> None:
    RunDirectory.claim(tmp_path / "run").begin(replace(make_plan(), remembering={"who": "?"}), CONTEXT)
    with pytest.raises(InvalidSetup, match="no candidate 'who'"):
        RunDirectory(tmp_path / "run").read()


def test_what_a_server_is_about_to_be_asked_is_read_back(tmp_path: Path) -> None:
    directory = RunDirectory.claim(tmp_path / "run")
    directory.add_asked("a", "code", ["1", "2"])
    directory.add_asked("a", "prose", ["1"])
    directory.close()
    assert RunDirectory(tmp_path / "run").read_asked() == {("a", "code", "1"), ("a", "code", "2"), ("a", "prose", "1")}
