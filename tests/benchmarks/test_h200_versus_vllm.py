"""What the H200 benchmarks compute from clock readings, traces and logs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import report
import versus_vllm
from cases import CASES, nominal_acceptance_length, prompts, settings_for, spec_config
from clock import first_tokens_s, median_row, run, steady_row
from floors import kv_bytes, kv_bytes_for, products, weight_bytes
from peer import Peer, PeerError
from profile_steps import short_name, summarise
from record import Record
from sanitize import Part, collect, read_logs, run_part
from shapes import SCALES, Folders, write_tokenizer

from draftwise.engine.engine_config import EngineConfig

H200 = Path(__file__).parents[2] / "benchmarks" / "h200"

FULL = SCALES["8b"]


class Fake:
    """Answers `per_step` tokens a request and step; request i starts i steps late; prompts cost a slow step."""

    def __init__(self, per_step: int) -> None:
        self.now, self._per_step = 0.0, per_step
        self._left: dict[str, int] = {}
        self._late: dict[str, int] = {}

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        self._late[request_id] = len(self._left)
        self._left[request_id] = max_tokens

    def step(self) -> list[tuple[str, int, bool]]:
        waiting = [each for each, late in self._late.items() if late >= 0]
        self.now += 1.0 if waiting else 0.01
        news = []
        for each in list(self._left):
            self._late[each] -= 1
            if self._late[each] < 0:
                count = min(self._per_step, self._left[each])
                self._left[each] -= count
                news.append((each, count, not self._left[each]))
                if not self._left[each]:
                    del self._left[each]
        return news

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize(("batch", "per_step"), [(1, 1), (3, 1), (3, 2)])
def test_a_row_holds_only_steps_with_the_whole_batch(batch: int, per_step: int) -> None:
    engine = Fake(per_step)
    start, steps = run(engine, [[1]] * batch, 60, now=engine.clock)
    row = steady_row(start, steps, batch)
    assert row["ms_step"] == pytest.approx(10)
    assert row["acceptance_length"] == per_step
    assert row["tokens_per_s"] == pytest.approx(batch * per_step / 0.01)
    assert row["all_first_ms"] == pytest.approx(1000 * batch)
    assert first_tokens_s(start, steps, batch) == pytest.approx(batch)
    assert row["whole_tokens_per_s"] < row["tokens_per_s"]


def test_a_run_that_is_never_full_has_no_row() -> None:
    engine = Fake(1)
    start, steps = run(engine, [[1]] * 3, 2, now=engine.clock)
    with pytest.raises(ValueError, match="no steady part"):
        steady_row(start, steps, 3)


def test_runs_make_one_row() -> None:
    runs = [{"ms_step": ms, "steps": 10.0, "tokens": tokens} for ms, tokens in ((1.0, 20.0), (3.0, 40.0), (2.0, 30.0))]
    row = median_row(runs, 1)
    assert (row["ms_step"], row["acceptance_length"], row["ms_step_runs"]) == (2.0, 3.0, [1.0, 3.0, 2.0])


def test_floors_are_the_published_shapes() -> None:
    assert weight_bytes(CASES["plain"], FULL) == 15_009_316_864
    assert kv_bytes(CASES["plain"], FULL, batch=2, context=100) == 2 * 100 * 131_072
    eagle = weight_bytes(CASES["eagle3-k3"], FULL) - weight_bytes(CASES["plain"], FULL)
    layer = 2 * (6144 * 8192 + 4096 * 4096 + 3 * 4096 * 14336)
    assert eagle == 3 * (layer + 2 * 32000 * 4096) + 2 * 4096 * 3 * 4096
    assert {p.rows for p in products(CASES["eagle3-k3"], FULL)} == {4, 1}
    assert weight_bytes(CASES["ngram-k5"], FULL) == weight_bytes(CASES["plain"], FULL)
    assert kv_bytes_for(CASES["dflash-k7"], FULL, 64, 256) > 64 * 768 * (131_072 + 5 * 4096)


def test_fp8_halves_layers_and_cache_only() -> None:
    both, weights = SCALES["8b-fp8"], SCALES["8b-fp8w"]
    head = 2 * 128256 * 4096
    assert weight_bytes(CASES["plain"], both) == (15_009_316_864 - head) // 2 + head
    drafter = [weight_bytes(CASES["eagle3-k3"], each) - weight_bytes(CASES["plain"], each) for each in (FULL, both)]
    assert drafter[0] == drafter[1]
    assert [kv_bytes(CASES["plain"], each, batch=2, context=100) for each in (both, weights)] == [
        13_107_200,
        26_214_400,
    ]
    folders = Folders(target=Path("t"), draft_model=Path("d"), eagle3=Path("e"), dflash=Path("f"))
    assert EngineConfig.from_settings(**settings_for(both, folders, "cuda")).kv_cache_dtype == "fp8"


class FakePeer:
    """Answers at once; notes what it is told."""

    told: list[str]

    def __init__(self, name: str, command: list[str], *, log: Path) -> None:
        self._name = name

    def tell(self, do: str, **task: Any) -> None:
        self.told.append(f"{self._name}: {do} {task.get('case') or task.get('batch') or ''}".strip())

    def answer(self, timeout_s: float) -> dict[str, Any]:
        return {"ready_s": 1.0, "ms_step": 2.0, "acceptance_length": 1.0, "first_ms": [1.0]}

    def ask(self, do: str, *, timeout_s: float, **task: Any) -> dict[str, Any]:
        self.tell(do, **task)
        return self.answer(timeout_s)

    def close(self) -> None:
        self.told.append(f"{self._name}: close")


def test_an_engine_makes_room_once_its_case_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(FakePeer, "told", told, raising=False)
    monkeypatch.setattr(versus_vllm, "Peer", FakePeer)
    words = ["run", "--vllm-python", "python", "--out", str(tmp_path), "--folders", str(tmp_path / "models")]
    words += ["--scale", "tiny", "--device", "cpu", "--no-transformers", "--no-large", "--batches", "4", "1"]
    monkeypatch.setattr(sys, "argv", ["versus_vllm.py", *words, "--cases", "plain", "eagle3-k3"])
    versus_vllm.main()
    assert told.index("vllm plain: close") < told.index("draftwise: open eagle3-k3", told.index("vllm plain: row 1"))
    rows = [each for each in told if ": row" in each]
    assert rows == [f"{name}: row {batch}" for case in ("plain", "eagle3-k3") for batch in (4, 1)
                    for name in (f"vllm {case}", "draftwise")], "in the order that was given"  # fmt: skip
    assert told[-2:] == ["vllm eagle3-k3: close", "draftwise: close"]


def test_both_engines_get_the_same_speculative_config() -> None:
    folders = Folders(target=Path("t"), draft_model=Path("d"), eagle3=Path("e"), dflash=Path("f"))
    config = spec_config(CASES["eagle3-k3"], folders)
    assert config is not None
    assert config["model"] == "e"
    assert config["synthetic_acceptance_rates"] == [0.6914, 0.478034, 0.330513]
    assert nominal_acceptance_length(3) == pytest.approx(1 + sum(config["synthetic_acceptance_rates"]), abs=1e-5)
    assert spec_config(CASES["plain"], folders) is None
    assert CASES["eagle3-k3"].spec == {"method": "eagle3", "num_speculative_tokens": 3}, "the case itself stays"


def test_prompts_for_lookups_repeat_themselves() -> None:
    import random

    (ids,) = prompts(CASES["ngram-k5"], FULL, 1, random.Random(0))
    assert len(ids) == 512
    assert ids[:480] == ids[32:]
    (ids,) = prompts(CASES["plain"], FULL, 1, random.Random(0))
    assert len(set(ids)) > 500


def test_overlapping_kernels_are_busy_once() -> None:
    spans = [(0.0, 10.0, "a"), (5.0, 12.0, "b"), (6.0, 8.0, "c"), (15.0, 20.0, "a")]
    found = summarise(spans, 1)
    assert found["launched_ms_per_step"] == pytest.approx(0.024)
    assert found["busy_ms_per_step"] == pytest.approx(0.017)
    own = {row["name"]: row["ms_per_step"] for row in found["top"]}
    assert own == {"a": 0.015, "b": 0.002, "c": 0.0}, "what begins early waits for what came before"
    assert found["idle_share"] == pytest.approx(3 / 20)
    assert found["top"][0]["name"] == "a"
    assert found["gaps"] == [{"name": "b -> a", "calls_per_step": 1.0, "ms_per_step": 0.003, "us_each": 3.0}]
    name = "void at::native::(anonymous namespace)::f<at::g<int (int*)>, 2>(int*, std::array<char*, 2ul>)"
    assert short_name(name) == "at::native::f<at::g<int (int*)>, 2>"
    assert short_name("_add_norm") == "_add_norm"


def line(engine: str, case: str, batch: int, ms: float, length: float = 1.0) -> dict[str, object]:
    return {"engine": engine, "case": case, "batch": batch, "ms_step": ms, "acceptance_length": length} | {
        "output_tokens": 256
    }


def result(**other: object) -> dict[str, object]:
    rows = [
        line("draftwise", "plain", 1, 4.0),
        line("vllm", "plain", 1, 5.0),
        line("draftwise", "eagle3-k3", 1, 5.0, 2.5),
        line("vllm", "eagle3-k3", 1, 6.0, 1.5),
    ]
    empty = {"first": [], "notes": [], "capacity": [], "transformers": {}, "engines": {}}
    about = {"scale": "8b", "gpu": "g", "date": "d", "commit": "c", "acceptance": 0.6914}
    return {"about": about, "rows": rows, "floor": {"copy_bytes_per_s": 5e12, "chains": []}} | empty | other


def test_the_table_compares_at_equal_acceptance() -> None:
    plain, eagle = report.lines(result())
    assert plain["ratio"] == pytest.approx(1.25)
    assert plain["floor_ms"] == pytest.approx(1e3 * (15_009_316_864 + 640 * 131_072) / 5e12)
    assert eagle["ratio"] == pytest.approx(1.2)
    assert eagle["ours_break_even"] == pytest.approx(1.25)
    assert eagle["ours_tokens_per_s"] == pytest.approx(nominal_acceptance_length(3) / 0.005)
    assert (eagle["ours_stray"], eagle["vllm_stray"]) == (False, True)
    table = report.as_markdown(result())
    assert "| **1.250** | 1.08 |" in table, "a goal that is reached stands out"
    assert "| 1.200 | 1.25 | 1.25 (goal 1.20) |" in table
    fp8 = result(about=dict(result()["about"], scale="8b-fp8"))
    assert "| **1.200** | 1.00 | 1.25 |" in report.as_markdown(fp8), "a scale may have a goal of its own"


def test_later_results_replace_rows(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(result()))
    new.write_text(json.dumps(result(rows=[line("draftwise", "plain", 1, 3.0)], floor={})))
    found = report.merged([old, new])
    assert {(r["engine"], r["case"]): r["ms_step"] for r in found["rows"]} == {
        ("draftwise", "plain"): 3.0,
        ("vllm", "plain"): 5.0,
        ("draftwise", "eagle3-k3"): 5.0,
        ("vllm", "eagle3-k3"): 6.0,
    }
    assert found["floor"]["copy_bytes_per_s"] == 5e12


def test_results_are_on_disk_at_once_and_are_taken_up_again(tmp_path: Path) -> None:
    first = Record(tmp_path / "r.json", {"run": 1}, {})
    first.add("rows", line("vllm", "plain", 8, 5.0))
    again = Record(tmp_path / "again.json", {"run": 2}, json.loads((tmp_path / "r.json").read_text()))
    assert again.has("rows", engine="vllm", case="plain", batch=8)
    assert not again.has("rows", engine="vllm", case="plain", batch=1)
    assert json.loads((tmp_path / "again.json").read_text())["resumed"] == [{"run": 1}]


@pytest.fixture
def echo(tmp_path: Path) -> Peer:
    program = (
        f"import sys, os, time; sys.path.insert(0, {str(H200)!r}); from peer import obey\n"
        "print('noise', flush=True)\n"
        "def echo(x):\n    print('more noise', flush=True)\n    return {'x': x}\n"
        "def fail():\n    raise KeyError('no such thing')\n"
        "obey({'echo': echo, 'fail': fail, 'die': lambda: os._exit(3), 'sleep': lambda: time.sleep(60)})"
    )
    return Peer("echo", [sys.executable, "-c", program], log=tmp_path / "log")


def test_a_peer_answers_and_its_failures_are_told_apart(echo: Peer) -> None:
    assert echo.ask("echo", timeout_s=60, x=[1, 2]) == {"x": [1, 2]}
    with pytest.raises(PeerError, match="no such thing"):
        echo.ask("fail", timeout_s=60)
    assert echo.ask("echo", timeout_s=60, x=3) == {"x": 3}, "a failed command does not end it"
    with pytest.raises(PeerError, match="took longer"):
        echo.ask("sleep", timeout_s=0.2)
    echo.close()


def test_a_peer_that_dies_is_noticed(echo: Peer) -> None:
    with pytest.raises(PeerError, match="ended at die"):
        echo.ask("die", timeout_s=60)
    echo.close()


def test_every_id_has_a_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    write_tokenizer(tmp_path, 700)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 700
    assert tokenizer.decode([256, 257]) == " aaaa aaab"
    assert all(tokenizer.decode([i]) for i in range(256, 700))


def test_errors_of_all_processes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "kernels.1.log").write_text("========= Invalid __global__ read\n========= ERROR SUMMARY: 2 errors\n")
    races = "".join(f"=========     and Write access at f+0x{at} in a.py:2 [{at} hazards]\n" for at in (4, 8))
    (tmp_path / "kernels.2.log").write_text(f"{races}========= RACECHECK SUMMARY: 2 hazards displayed (2 errors)\n")
    first = ["Invalid __global__ read", "and Write access at f in a.py:2"]
    assert read_logs(tmp_path, "kernels") == {"errors": 4, "first": first}
    assert read_logs(tmp_path, "eager") == {"errors": None, "first": []}


@pytest.mark.parametrize(
    ("says", "outcome"),
    [
        ("Target application terminated before first instrumented API call", "used no GPU"),
        ("ERROR SUMMARY: 0 errors", "ran"),
    ],
)
def test_a_process_without_a_gpu_was_not_watched(
    says: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\nwhile [ "$1" != --log-file ]; do shift; done\necho "========= {says}" >"$2"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (row,) = run_part("kernels", Part(tool="memcheck", commands={"one": ("true",)}, env={}, share=1.0), 60)
    assert row["outcome"] == outcome
    assert row["errors"] == (None if outcome == "used no GPU" else 0)


def test_tests_are_collected_in_groups_of_cases() -> None:
    commands = collect("test_prompts_by_the_copy_engine", 4)
    cases = [len([word for word in command if "::" in word]) for command in commands.values()]
    assert cases == [4] * (len(cases) - 1) + [cases[-1]]
    assert 1 <= cases[-1] <= 4
    with pytest.raises(ValueError, match="there are no tests 'nosuch'"):
        collect("nosuch", 4)
