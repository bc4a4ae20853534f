"""Batch files and PowerShell scripts, and texts as Windows writes them: judged as they run, or not judged."""

from pathlib import Path

import pytest

import draftwise
from draftwise.core import SpecConfig
from draftwise.setups.read.windows_scripts import to_shell

JSON = '{"method": "ngram", "num_speculative_tokens": 3}'
ESCAPED = JSON.replace('"', '\\"')


def judge(folder: Path, name: str, *lines: str) -> tuple[str, int | None, str]:
    """Return the outcome, --max-num-seqs and method of a script with line ends of Windows."""
    ends = "\n" if name.startswith("unix") else "\r\n"
    (folder / name).write_bytes(ends.join((*lines, "")).encode())
    (judged,) = draftwise.check(folder / name, vllm="0.33.0").judgements
    method = judged.speculative_config.method if judged.speculative_config else ""
    return str(judged.outcome), judged.args.get("max_num_seqs"), method


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("run.bat", ("@echo off", "rem don't", "set SEQS=8", "vllm serve gpt2 ^", "  --max-num-seqs %seqs%")),
        ("run.cmd", ('set "Seqs=8"', ":: don't", "@vllm serve gpt2 --max-num-seqs %SEQS%")),
        ("run.ps1", ("$seqs = 8", "vllm serve gpt2 `", "  --max-num-seqs $Seqs")),
        ("run.PS1", ("$env:SEQS = '8'", "docker run vllm/vllm-openai --model gpt2 --max-num-seqs $env:SEQS")),
    ],
)
def test_lines_that_go_on_and_plain_values_are_read(name: str, lines: tuple[str, ...], tmp_path: Path) -> None:
    assert judge(tmp_path, name, *lines) == ("accepted", 8, "")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.bat", ("set /a SEQS=4+4", "vllm serve gpt2 --max-num-seqs %SEQS%")),
        ("a.bat", ("vllm serve gpt2 --max-num-seqs %1",)),
        ("a.cmd", ('if "%GPU%"=="1" goto big', "set SEQS=4", ":big", "vllm serve gpt2 --max-num-seqs %SEQS%")),
        ("a.ps1", ("$seqs = 4", "$seqs = Get-Seqs", "vllm serve gpt2 --max-num-seqs $seqs")),
        ("a.ps1", ("$seqs = 4", "$seqs += 1", "vllm serve gpt2 --max-num-seqs $seqs")),
        ("a.ps1", ("if ($x) {", "$seqs = 4", "}", "vllm serve gpt2 --max-num-seqs $seqs")),
        ("a.ps1", ("$spec = @'", JSON, "'@", "vllm serve gpt2 --speculative-config $spec")),
        ("unix.ps1", ("$spec = @'", JSON, "'@", "vllm serve gpt2 --speculative-config $spec")),
        ("a.ps1", (f"vllm serve gpt2 --speculative-config '{JSON}'",)),
    ],
)
def test_what_only_the_script_s_interpreter_knows_is_not_judged(
    name: str, lines: tuple[str, ...], tmp_path: Path
) -> None:
    assert judge(tmp_path, name, *lines)[0] == "cannot be judged"


def test_a_batch_file_keeps_escaped_quotes_and_takes_single_ones_for_letters(tmp_path: Path) -> None:
    serve = "vllm serve gpt2 --speculative-config"
    assert judge(tmp_path, "a.bat", f'{serve} "{ESCAPED}"')[2] == "ngram"
    assert judge(tmp_path, "b.bat", f"{serve} '{JSON}'")[0] == "rejected"


def test_scripts_of_other_suffixes_stay_as_they_are() -> None:
    assert to_shell("set A=1 ^\n$x = 3 %A%", ".sh") == "set A=1 ^\n$x = 3 %A%"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_texts_with_a_mark_are_read(encoding: str, tmp_path: Path) -> None:
    mark = "" if encoding in ("utf-8-sig", "utf-16") else "\ufeff"
    (tmp_path / "run.sh").write_text(f"{mark}vllm serve gpt2", encoding=encoding)
    (tmp_path / "spec.json").write_text(mark + JSON, encoding=encoding)
    result = draftwise.check(tmp_path / "run.sh", speculative_config=tmp_path / "spec.json")
    assert result.judgements[0].speculative_config == SpecConfig.parse(JSON)


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        (("N = 8", "serve: build", "\t@vllm serve gpt2 --max-num-seqs $(N)"), "accepted"),
        (("K=4", f"SPEC ?= {JSON}", "a:", "\tvllm serve gpt2 --speculative-config '$(SPEC)'"), "accepted"),
        (("a:", "\tN=8; vllm serve gpt2 --max-num-seqs $$N"), "accepted"),
        (("a:", "\tvllm serve gpt2 \\", "\t--max-num-seqs 8"), "accepted"),
        (("F = --seed 1 \\", " --dtype half", "F += --no-such-flag", "a:", "\tvllm serve gpt2 $(F)"), "rejected"),
        (("K = 4", "K = 0", "a:", "\tvllm serve gpt2 --max-num-seqs $(K)"), "cannot be judged"),
        (("a:", "\tvllm serve gpt2 --speculative-config '$(SPEC)'"), "cannot be judged"),
        (("a:", "\tvllm serve gpt2 --max-num-seqs ${N}"), "cannot be judged"),
        ((f"SPEC = {JSON}", "a:", "\tvllm serve gpt2 --speculative-config $(SPEC)"), "rejected"),
    ],
)
def test_a_makefile_is_read_as_make_hands_it_to_a_shell(lines: tuple[str, ...], outcome: str, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("\n".join((*lines, "")))
    (judged,) = draftwise.check(tmp_path / "Makefile", vllm="0.33.0").judgements
    assert judged.outcome == outcome
    if outcome == "accepted":
        assert "$" not in str(judged.args)
