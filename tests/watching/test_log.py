"""The lines that vLLM logs while it works, in the spellings of all releases, read as windows."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import draftwise
from draftwise.core import ServerLoad, Window
from draftwise.verbs.diagnosing import add_diagnoses
from draftwise.watching.log import read_log, see_log

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
LOGS = Path(__file__).parents[1] / "support" / "vllm_logs"
OLD = (  # 0.9.2 to 0.10.1.1
    "INFO 07-05 10:00:{0:02} [loggers.py:118] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation "
    "throughput: 187.0 tokens/s, Running: 8 reqs, Waiting: 1 reqs, GPU KV cache usage: 40.0%, Prefix cache hit rate: "
    "60.0%\n"
    "INFO 07-05 10:00:{0:02} [metrics.py:87] SpecDecoding metrics: Draft acceptance rate: 29.0%, Mean acceptance "
    "length: 1.87, Accepted: 870 tokens, Drafted: 3000 tokens, Per-position acceptance rate: 0.500, 0.250, 0.120\n"
)
NEW = (  # 0.10.2 to 0.31.0
    "(APIServer pid=7) INFO 11-22 10:00:{0:02} [loggers.py:236] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg "
    "generation throughput: 187.0 tokens/s, Running: 8 reqs, Waiting: 1 reqs, Preemptions: 3, GPU KV cache usage: "
    "40.0%, Prefix cache hit rate: 60.0%\n"
    "(APIServer pid=7) INFO 11-22 10:00:{0:02} [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 1.87, "
    "Accepted throughput: 87.00 tokens/s, Drafted throughput: 300.00 tokens/s, Accepted: 870 tokens, Drafted: 3000 "
    "tokens, Per-position acceptance rate: 0.500, 0.250, 0.120, Avg Draft acceptance rate: 29.0%\n"
)
NEWEST = NEW.replace("GPU KV cache", "XPU KV cache").replace("Waiting: 1 reqs", "Waiting: 1 reqs, Deferred: 2 reqs")


def read(text: str) -> list[Window]:
    return list(read_log(text.splitlines(), instance="pod.log", now=NOW))


@pytest.mark.parametrize("lines", [OLD, NEW, NEWEST])
def test_every_spelling_is_the_same_window(lines: str) -> None:
    first, second = read(lines.format(10) + lines.format(20))
    assert (first.instance, first.engine, first.pool) == ("pod.log", "000", "spec")
    for window in (first, second):
        assert window.duration_s == pytest.approx(10.0)
        assert window.counters.spec.num_drafts == 1000
        assert window.rate_per_pos == pytest.approx((0.5, 0.25, 0.12))
        assert window.mean_k == pytest.approx(3.0)
        assert window.output_tokens == 1870
        assert window.tokens_per_step == pytest.approx(1.87)
        assert window.coverage == pytest.approx(1.0)
        assert window.load == ServerLoad(running=8, waiting=1, kv_usage=0.4)
        assert window.counts_drafts is True
    assert second.start_s - first.start_s == pytest.approx(10.0)


EARLY = (  # 0.8: neither positions nor the number of drafts
    "INFO 07-05 10:00:{0:02} [metrics.py:53] Speculative metrics: Draft acceptance rate: 0.290, Number of accepted "
    "tokens: 870, Number of draft tokens: 3000, \n",
    "INFO 07-05 10:00:{0:02} [metrics.py:56] SpecDecoding metrics: Draft acceptance rate: 29.0%, Accepted: 870 tokens, "
    "Drafted: 3000 tokens\n",
    "Accepted: 870 tokens, Drafted: 3000 tokens\n",
)
ENGINE_LINE = OLD.splitlines(keepends=True)[0]


@pytest.mark.parametrize("line", EARLY)
def test_lines_of_draft_tokens_alone_tell_tokens_per_step_and_no_length(line: str) -> None:
    (window,) = see_log((ENGINE_LINE + line).format(10).splitlines(), name="pod.log", now=NOW).recent
    assert window.tokens_per_step == pytest.approx(1.87)
    assert (window.acceptance_length, window.coverage, window.mean_k) == (None, None, None)
    alone = see_log(line.format(10).splitlines(), name="pod.log", now=NOW)
    assert (alone.findings, alone.recent[0].counters.spec.acceptance_rate) == ((), pytest.approx(0.29))
    none = line.replace("870", "0")
    for lines in (ENGINE_LINE.replace("187.0", "100.0") + none, none):
        seen = add_diagnoses(see_log((lines * 2).format(10).splitlines(), name="pod.log", now=NOW), None, None)
        assert [each.code for each in seen.findings if not getattr(each, "follows_from", "")] == ["zero-acceptance"]


def test_a_log_of_two_releases_is_judged_by_the_newer_one() -> None:
    for line in EARLY:
        later = NEW.replace("11-22 10:00", "11-22 10:01")
        lines = "".join((ENGINE_LINE + line).format(i) for i in (10, 20)) + "".join(map(later.format, (10, 20)))
        (window,) = see_log(lines.splitlines(), name="pod.log", now=NOW).recent
        assert (window.acceptance_length, window.mean_k) == (pytest.approx(1.87), pytest.approx(3.0))


CUTS = (
    " tokens/s, Accepted:",
    ", Per-position",
    ", 0.120",
    "00 tokens, Per",
    "Accepted: 870 tokens, ",
    "11-22 10:00:{0:02}",
)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("lines", [OLD, NEW], ids=["old", "new"])
def test_cut_lines_and_lines_without_a_time_tell_nothing_false(cut: str, lines: str) -> None:
    def shorten(line: str) -> str:
        keeps_end = cut in CUTS[-2:]
        return line.replace(cut, "") if keeps_end else line.partition(cut)[0] + cut[:9] * (cut == CUTS[0]) + "\n"

    engine, drafts = lines.splitlines(keepends=True)
    snapshot = see_log((engine + shorten(drafts)).format(10).splitlines() * 3, name="pod.log", now=NOW)
    (window,) = snapshot.recent
    known = (window.tokens_per_step, window.acceptance_length, window.mean_k)
    for value, truth in zip(known, (1.87, 1.87, 3.0), strict=True):
        assert value is None or value == pytest.approx(truth, rel=0.01)
    assert any(known) or [each.code for each in snapshot.findings] == ["no-statistics"]


@pytest.mark.parametrize("engine", ["", "INFO [loggers.py:236] Engine 000: Avg prompt throughput: 1.0 tokens/s, "])
def test_lines_without_any_time_follow_each_other(engine: str) -> None:
    drafts = NEW.splitlines()[1].partition("] ")[2]
    lines = [line for _ in range(4) for line in (f"{engine}Avg generation throughput: 187.0 tokens/s", drafts)]
    (window,) = see_log(lines if engine else [drafts] * 4, name="pod.log", now=NOW).recent
    assert (window.counters.spec.num_drafts, window.duration_s) == (4000, pytest.approx(40.0))


def test_an_engine_whose_lines_end_while_the_others_work_is_told() -> None:
    hour = write_hour()
    other = [line.replace("Engine 000", "Engine 001").replace("pid=7", "pid=8") for line in hour[:60]]
    snapshot = see_log([*other, *hour], name="pod.log", now=NOW)
    (found,) = [each for each in snapshot.findings if each.code == "rank-silent"]
    assert found.message.startswith("Engine 001 of pod.log has generated no token for 1800 s")
    assert see_log(hour, name="pod.log", now=NOW).findings == ()


def test_preemptions_are_known_where_they_are_told() -> None:
    assert [window.sums.preemptions for window in read(OLD.format(10) + NEW.format(20))] == [None, 3]


def test_a_line_about_drafts_after_an_idle_while_does_not_stretch_the_window() -> None:
    # Its clock ran on while nothing was drafted: 870 tokens at 2.9/s would be five minutes.
    stretched = NEW.replace("87.00", "2.90").replace("300.00", "10.00")
    (_, window) = read(NEW.format(10) + stretched.format(20))
    assert window.duration_s == pytest.approx(10.0)


def test_lines_about_drafts_alone_tell_what_they_can() -> None:
    text = (LOGS / "h200_0.26.0_eagle3.txt").read_text()
    (window,) = read(text)
    assert window.acceptance_length == pytest.approx(2.52, abs=0.01)
    assert window.rate_per_pos == pytest.approx((0.699, 0.486, 0.338), abs=1e-3)
    assert window.tokens_per_step is None
    assert window.duration_s == pytest.approx(93.69, abs=0.05)


def test_a_server_that_does_not_draft_is_not_said_to_have_lost_its_flag() -> None:
    (window,) = read(NEW.format(10).splitlines()[0])
    assert window.counts_drafts is None
    assert window.tokens_per_step == pytest.approx(1.0)


def test_ranks_and_processes_keep_their_lines_apart() -> None:
    first, second = NEW.format(10).splitlines(), NEW.format(11).replace("pid=7", "pid=8").splitlines()
    second = [line.replace("APIServer", "APIServer_1").replace("Engine 000", "Engine 001") for line in second]
    windows = read("\n".join([first[0], second[0], second[1], first[1]]))
    assert [window.engine for window in windows] == ["001", "000"]
    assert all(window.counters.spec.num_drafts == 1000 for window in windows)
    aggregated = NEW.format(10).replace("Engine 000", "2 Engines Aggregated")
    assert [window.engine for window in read(aggregated)] == ["2 Engines Aggregated"]


def test_the_year_is_the_last_one_in_which_the_day_has_been() -> None:
    new_year = "INFO 12-31 23:59:50 x] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0"
    (window,) = read(new_year)
    assert datetime.fromtimestamp(window.start_s, tz=UTC).year == 2025
    (window,) = read("2024-02-29T10:00:00.5Z " + new_year)
    assert datetime.fromtimestamp(window.start_s, tz=UTC).year == 2024
    (window,) = read(new_year.replace("12-31", "02-30"))
    assert window.start_s == pytest.approx(NOW.timestamp() - 10.0)


def test_the_last_minutes_of_a_long_log_count() -> None:
    slow = NEW.replace("0.500, 0.250, 0.120", "0.100, 0.000, 0.000").replace("Accepted: 870", "Accepted: 100")
    lines = [NEW.replace("10:00:{0:02}", f"09:{minute:02}:00") for minute in range(50)]
    lines += [slow.replace("10:00:{0:02}", f"10:{minute:02}:00") for minute in range(10)]
    snapshot = see_log("".join(lines).splitlines(), name="pod.log", now=NOW)
    (window,) = snapshot.recent
    assert window.rate_per_pos == pytest.approx((0.1, 0.0, 0.0), abs=1e-3)
    (fall,) = snapshot.findings
    assert (fall.code, "at 2026-11-2" in fall.message) == ("fell-in-log", True)
    assert re.search(r"fell from 1\.87 to 1\.10 tokens at .* 09:59", fall.message)


def test_where_acceptance_fell_with_the_same_k_no_smaller_k_is_advised(tmp_path: Path) -> None:
    slow = NEW.replace("0.500, 0.250, 0.120", "0.100, 0.000, 0.000").replace("Accepted: 870", "Accepted: 100")
    before = [NEW.replace("10:00:{0:02}", f"09:{minute:02}:00") for minute in range(50)]
    after = [slow.replace("10:00:{0:02}", f"10:{minute:02}:00") for minute in range(10)]
    log = tmp_path / "pod.log"
    for lines, codes in ((before + after, ["fell-in-log"]), (after, ["tail-dead"])):
        log.write_text("".join(lines))
        said = [each["code"] for each in draftwise.watch(log=str(log)).to_dict()["findings"]]
        assert [code for code in said if code in ("fell-in-log", "tail-dead")] == codes


def test_a_log_whose_level_stays_tells_of_no_fall_and_one_that_stands_still_of_a_stall() -> None:
    lines = [NEW.replace("10:00:{0:02}", f"09:{minute:02}:00") for minute in range(50)]
    assert see_log("".join(lines).splitlines(), name="pod.log", now=NOW).findings == ()
    stalled = re.sub(r"generation throughput: [\d.]+", "generation throughput: 0.0", NEW.splitlines()[0])
    lines += [stalled.replace("10:00:{0:02}", f"09:50:{second:02}") + "\n" for second in (10, 20, 30)]
    (found,) = see_log("".join(lines).splitlines(), name="pod.log", now=NOW).findings
    assert (found.code, found.severity) == ("engine-hung", "error")


def test_a_log_that_never_speaks_of_drafts_is_a_finding_where_some_are_expected(tmp_path: Path) -> None:
    (tmp_path / "pod.log").write_text("".join(f"{NEW.format(second).splitlines()[0]}\n" for second in (10, 20, 30)))
    (tmp_path / "serve.sh").write_text('vllm serve m --speculative-config \'{"method": "ngram"}\'')
    log, setup = str(tmp_path / "pod.log"), str(tmp_path / "serve.sh")
    assert draftwise.watch(log=log).to_dict()["findings"] == []
    (found,) = draftwise.watch(log=log, setup=setup).to_dict()["findings"]
    assert (found["code"], "no line about drafts" in found["message"]) == ("spec-off", True)


def test_a_log_whose_workers_answer_their_engine_no_more_tells_of_a_stall() -> None:
    waits = [
        f"(EngineCore pid=9) INFO 11-22 10:0{minute}:20 [shm_broadcast.py:681] No available shared memory broadcast "
        "block found in 60 seconds. This typically happens when some processes are hanging."
        for minute in (1, 2)
    ]
    lines = (NEW.format(10) + NEW.format(20)).splitlines()
    assert see_log([*waits, *lines], name="pod.log", now=NOW).findings == ()  # while it compiled
    (found,) = see_log([*lines, *waits], name="pod.log", now=NOW).findings
    assert (found.code, "for 120 s" in found.message) == ("engine-hung", True)


def test_a_line_after_an_idle_while_is_about_one_interval() -> None:
    windows = read(NEW.format(10) + NEW.format(20) + NEW.replace("10:00:", "10:03:").format(20))
    assert [round(window.duration_s) for window in windows] == [10, 10, 10]
    assert windows[2].tokens_per_step == pytest.approx(1.87)


def test_a_log_without_such_lines_is_a_finding() -> None:
    snapshot = see_log(["INFO 11-22 hello"], name="pod.log", now=NOW)
    assert [finding.code for finding in snapshot.findings] == ["no-statistics"]
    assert snapshot.recent == ()
    (off,) = see_log(
        ["WARNING 11-22 AsyncLLM created with api_server_count more than 1; disabling stats logging"],
        name="pod.log",
        now=NOW,
    ).findings
    assert (off.code, "--api-server-count 1" in off.fix) == ("no-statistics", True)


SGLANG = (
    "[2026-11-22 10:{:02}:{:02} DP{} TP0] Decode batch, #running-req: 8, #token: 12345, token usage: 0.31, accept len: "
    "{:.2f}, accept rate: {:.2f}, cuda graph: True, gen throughput (token/s): 300.00, #queue-req: 2"
)


def test_a_log_of_sglang_tells_tokens_of_a_step() -> None:
    lines = [SGLANG.format(0, second, rank, 3.0, 0.67) for second in (0, 2, 2, 4) for rank in (0, 1)]
    windows = read("\n".join(lines))
    assert {window.engine for window in windows} == {"0", "1"}
    assert [window.duration_s for window in windows if window.engine == "0"] == [0, 2, 0, 2]
    assert [window.output_tokens for window in windows if window.engine == "0"] == [0, 600, 0, 600]
    assert (windows[2].tokens_per_step, windows[2].counts_drafts) == (pytest.approx(3.0), True)
    assert windows[2].mean_k == pytest.approx(3.0, rel=0.01)
    assert windows[2].load == ServerLoad(running=8, waiting=2, kv_usage=0.31)
    assert not any(window.restarted for window in windows)


@pytest.mark.parametrize(
    ("readings", "k"),
    [
        ([(2.31, 0.58)], 3),  # of k + 1 tokens, as in older releases
        ([(2.31, 0.44)], 3),
        ([(4.0, 1.0)], None),  # both fit
        ([(2.31, 0.5)], None),  # neither does
        ([(2.31, 0.58), (1.5, 0.37), (4.0, 1.0)], 3),
        ([(2.31, 0.58), (2.31, 0.44)], None),  # two meanings in one log
        ([(2.31, 0.58), (3.0, 0.67), (3.0, 0.5)], None),
        ([(5.72, 0.32), (9.08, 0.54)], 15),  # of k, rounded at the very half
        ([(1e7, 0.5)], None),  # damaged
        ([(1e300, 0.5)], None),
    ],
)
def test_the_k_of_sglang_is_what_fits_either_meaning_of_its_rate(
    readings: list[tuple[float, float]], k: int | None
) -> None:
    lines = [SGLANG.format(i // 30, 2 * i % 60, 0, *readings[i % len(readings)]) for i in range(30)]
    (window,) = see_log(lines, name="pod.log", now=NOW).recent
    assert window.mean_k == (None if k is None else pytest.approx(k))
    assert (window.wasted_per_token is None) == (k is None)


def test_a_fall_in_a_log_of_sglang_is_found() -> None:
    falls = [SGLANG.format(i // 30, 2 * i % 60, 0, *((3.1, 0.7) if i < 300 else (1.02, 0.01))) for i in range(900)]
    snapshot = see_log(falls, name="pod.log", now=NOW)
    found = {each.code: each.message for each in add_diagnoses(snapshot, None, None).findings}
    assert "zero-acceptance" in found
    assert "from 3.09 to 1.02 tokens at 2026-11-22 10:" in found["fell-in-log"]
    assert snapshot.recent[0].mean_k is None
    plain = [line.replace(", accept len: 3.10, accept rate: 0.70", "") for line in falls[:300]]
    assert see_log(plain, name="pod.log", now=NOW).findings == ()


LLAMA_CPP = (
    "slot print_timing: id  0 | task 7 | prompt eval time =     120.11 ms /   512 tokens (    0.23 ms per token)",
    "       eval time =    4120.11 ms /   256 tokens (   16.09 ms per token,    62.15 tokens per second)",
    "      total time =    4240.22 ms /   768 tokens",
)
LLAMA_CPP_DRAFTS = (
    "draft acceptance rate = 0.57447 (  {accepted:3} accepted /   282 generated)",
    "4.01.806.856 I slot print_timing: id  0 | task 7 | draft acceptance = 0.57447 (  {accepted:3} accepted /   282 "
    "generated), mean len = {length:5.2f}",
)


@pytest.mark.parametrize("draft", LLAMA_CPP_DRAFTS)
def test_a_log_of_llama_cpp_tells_what_drafts_gave(draft: str) -> None:
    lines = [*LLAMA_CPP, draft.format(accepted=162, length=2.72)] * 10
    windows = read("\n".join(lines))
    assert {(window.output_tokens, round(window.duration_s, 2)) for window in windows} == {(256, 4.12)}
    assert {window.counters.spec.num_accepted_tokens for window in windows} == {162}
    assert windows[0].tokens_per_step == pytest.approx(256 / 94, rel=0.01)
    assert "mean len" not in draft or windows[0].mean_k == pytest.approx(3.0, rel=0.01)
    assert add_diagnoses(see_log(lines, name="x", now=NOW), None, None).findings == ()
    dead = [*LLAMA_CPP, draft.format(accepted=0, length=1.0), *LLAMA_CPP, draft.format(accepted=1, length=1.02)] * 10
    found = add_diagnoses(see_log(dead, name="x", now=NOW), None, None).findings
    assert "zero-acceptance" in {each.code for each in found}
    few = [*LLAMA_CPP, draft.format(accepted=2, length=1.02)] * 20
    found = add_diagnoses(see_log(few, name="x", now=NOW), None, None).findings
    assert {each.code for each in found} & {"acceptance-low", "zero-acceptance"}
    for accepted, length, codes in ((1, 1.01, {"zero-acceptance"}), (162, 2.72, set())):
        times = (f"2026-11-22T10:{each // 60:02}:{each % 60:02}.1Z" for each in range(150))
        bare = [f"{time} {draft.format(accepted=accepted, length=length)}" for time in times]
        found = add_diagnoses(see_log(bare, name="x", now=NOW), None, None).findings
        assert {each.code for each in found} == codes


def test_a_fall_is_told_by_the_share_of_draft_tokens_where_nothing_else_is() -> None:
    rows = [LLAMA_CPP_DRAFTS[0].format(accepted=162 + i % 20 if i < 90 else 30) for i in range(180)]
    lines = [f"2026-11-21T{9 + i // 60:02}:{i % 60:02}:00.5Z {row}" for i, row in enumerate(rows)]
    (found,) = see_log(lines, name="x", now=NOW).findings
    assert (found.code, "from 61% to 11% at 2026-11-21 10:" in found.message) == ("fell-in-log", True)
    assert see_log(lines[:90], name="x", now=NOW).findings == ()


def test_corrupted_answers_in_a_log_are_told() -> None:
    lines = [line.replace("hit rate: 60.0%", "hit rate: 60.0%, Corrupted: 3 reqs") for line in write_hour()]
    found = see_log(lines, name="pod.log", now=NOW).findings
    assert [each.code for each in found] == ["logits-corrupted"]
    assert "had NaN" in found[0].message


@pytest.mark.parametrize(("later", "codes"), [("4", ["fell-in-log"]), ("35", []), ("95", [])])
def test_prefix_hits_that_fell_for_good_are_told(later: str, codes: list[str]) -> None:
    hours = [line.replace(" 09:", " 08:") for line in write_hour()]
    hours += [line.replace("hit rate: 60.0%", f"hit rate: {later}.0%") for line in write_hour()]
    found = see_log(hours, name="pod.log", now=NOW).findings
    assert [each.code for each in found] == codes
    assert not codes or "from 60% to 4% at 2026-11-22 08:59" in found[0].message
    cold = NEW.replace("hit rate: 60.0%", "hit rate: 0.0%")
    assert see_log(write_hour((range(40, 60), cold)), name="pod.log", now=NOW).findings == ()


def test_an_error_below_python_is_the_cause_of_what_follows() -> None:
    native = "[rank3]:[E1122 10:01:00.1 ProcessGroupNCCL.cpp:683] Watchdog caught collective operation timeout"
    lines = [*NEW.format(10).splitlines(), f"(EngineCore_DP0 pid=9) {native}", *ERRORS[2:]]
    (found,) = see_log(lines, name="pod.log", now=NOW).findings
    assert (found.code, "Watchdog caught collective operation timeout" in found.message) == ("engine-dies", True)


@pytest.mark.parametrize(
    "last", ["Watchdog timeout (self.watchdog_timeout=300)", "Received sigquit from a child process."]
)
def test_the_end_of_sglang_is_told_with_its_cause(last: str) -> None:
    lines = [SGLANG.format(0, second, 0, 3.0, 0.67) for second in range(0, 60, 2)]
    (found,) = see_log([*lines, f"[2026-11-22 10:05:02 TP0] {last}"], name="pod.log", now=NOW).findings
    assert (found.code, last in found.message) == ("engine-dies", True)


ERRORS = (
    "(EngineCore_DP0 pid=9) ERROR 11-22 10:01:00 [core.py:1102] EngineCore encountered a fatal error.",
    "(EngineCore_DP0 pid=9) ERROR 11-22 10:01:00 [core.py:1102] ValueError: Counters can only be incremented",
    "(APIServer pid=7) ERROR 11-22 10:01:00 [async_llm.py:474] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause.",
)
WRAPPED = {
    "as it is": str,
    "Kubernetes": "2026-11-22T10:00:00.123456789Z stdout F {}".format,
    "Docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-11-22T10:00:00.1Z"}),
    "journald": "Nov 22 10:00:00 gpu3 vllm[811]: {}".format,
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("newest_first", [False, True])
def test_a_log_that_ends_with_an_error_says_so(wrapped: str, newest_first: bool) -> None:
    lines = [*(line for second in range(0, 60, 10) for line in NEW.format(second).splitlines()), *ERRORS]
    shown = list(map(WRAPPED[wrapped], lines))
    (found,) = see_log(shown[::-1] if newest_first else shown, name="pod.log", now=NOW).findings
    assert (found.code, found.message) == (
        "engine-dies",
        "The log ends with an error: ValueError: Counters can only be incremented",
    )
    again = [*shown, *map(WRAPPED[wrapped], NEW.format(59).replace("10:00", "10:03").splitlines())]
    assert see_log(again[::-1] if newest_first else again, name="pod.log", now=NOW).findings == ()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("(EngineCore pid=71) ERROR 11-22 10:00:09 [core.py:790] EngineCore failed to start.", "CUDA out of memory."),
        ("(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.", "CUDA out of"),
        ("", "CUDA out of memory."),
        ("INFO:     Application startup complete.", ""),
    ],
)
def test_a_log_that_ends_at_start_up_says_why(line: str, cause: str) -> None:
    error = "(EngineCore pid=71) ERROR 11-22 10:00:09 [core.py:790] torch.OutOfMemoryError: CUDA out of memory."
    found = [each for each in see_log([error, line], name="x", now=NOW).findings if each.severity == "error"]
    assert [each.code for each in found] == ["engine-dies"] * bool(cause)
    assert all(cause in each.message for each in found)


@pytest.mark.parametrize(
    "error",
    [
        "vllm serve: error: argument --speculative-config: invalid loads value: 'eagle3'",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig",
        "OSError: yuhuili/EAGLE3 is not a local folder and is not a valid model identifier listed on the hub",
    ],
)
def test_a_server_that_never_started_is_told_from_one_without_statistics(error: str) -> None:
    lines = ["INFO 11-22 10:00:01 [__init__.py:216] Automatically detected platform cuda.", error]
    first = see_log(lines, name="x", now=NOW).findings[0]
    assert (first.code, first.where) == ("engine-dies", "x")


def test_an_error_of_one_request_is_no_end_and_a_worker_that_died_is_one() -> None:
    lines = [line for second in range(0, 60, 10) for line in NEW.format(second).splitlines()]
    request = (
        "(APIServer pid=7) ERROR 11-22 10:01:00 [serving_chat.py:250] Error in preprocessing prompt inputs",
        "(APIServer pid=7) ERROR 11-22 10:01:00 [serving_chat.py:250] ValueError: The decoder prompt is too long",
    )
    assert see_log([*lines, *request], name="pod.log", now=NOW).findings == ()
    worker = "(EngineCore_DP0 pid=9) ERROR 11-22 10:01:00 [multiproc.py:381] Worker proc VllmWorker-1 died unexpectedly"
    (found,) = see_log([*lines, worker], name="pod.log", now=NOW).findings
    assert (found.code, "VllmWorker-1 died unexpectedly" in found.message) == ("engine-dies", True)


def test_a_log_with_the_newest_line_first_is_the_same_log() -> None:
    slow = NEW.replace("0.500, 0.250, 0.120", "0.100, 0.000, 0.000").replace("Accepted: 870", "Accepted: 100")
    lines = [NEW.replace("10:00:{0:02}", f"09:{minute:02}:00") for minute in range(50)]
    lines += [slow.replace("10:00:{0:02}", f"10:{minute:02}:00") for minute in range(10)]
    text = "".join(lines).splitlines()
    told, turned = (see_log(each, name="pod.log", now=NOW) for each in (text, text[::-1]))
    assert told == turned


def test_what_one_rank_accepts_less_is_no_fall() -> None:
    slow = NEW.replace("0.500, 0.250, 0.120", "0.100, 0.000, 0.000").replace("Accepted: 870", "Accepted: 100")
    lines = [
        line.replace("10:00:{0:02}", f"09:{minute:02}:00")
        for minute in range(50)
        for line in (NEW, slow.replace("Engine 000", "Engine 001"))
    ]
    assert see_log("".join(lines).splitlines(), name="pod.log", now=NOW).findings == ()


def write_hour(*changed: tuple[range, str]) -> list[str]:
    """Return the lines of an hour, a pair each minute, some minutes of which are other ones."""
    texts = [next((text for minutes, text in changed if minute in minutes), NEW) for minute in range(60)]
    return "".join(text.replace("10:00:{0:02}", f"09:{minute:02}:00") for minute, text in enumerate(texts)).splitlines()


def test_another_k_is_told_with_its_time() -> None:
    longer = NEW.replace("0.500, 0.250, 0.120", "0.500, 0.250, 0.120, 0.000, 0.000").replace(
        "Drafted: 3000", "Drafted: 5000"
    )
    (found,) = see_log(write_hour((range(30, 60), longer)), name="pod.log", now=NOW).findings
    assert (found.code, "had 3 tokens until" in found.message, "and have 5 since" in found.message) == (
        "k-changed",
        True,
        True,
    )
    assert see_log(write_hour((range(10, 60, 2), longer)), name="pod.log", now=NOW).findings == ()  # a schedule


def test_a_fall_that_ended_is_told_with_its_time_and_a_slow_start_is_none() -> None:
    slow = NEW.replace("0.500, 0.250, 0.120", "0.100, 0.000, 0.000").replace("Accepted: 870", "Accepted: 100")
    (fall,) = see_log(write_hour((range(20, 30), slow)), name="pod.log", now=NOW).findings
    assert fall.code == "fell-in-log"
    assert re.search(r"fell from 1\.87 to 1\.10 tokens at .* 09:19:\d\d, until .* 09:29", fall.message)
    assert see_log(write_hour((range(10), slow)), name="pod.log", now=NOW).findings == ()


def write_busy(running: int = 8, pace: float = 1.0, k: int = 3, rates: tuple[float, ...] = (0.5, 0.25, 0.12)) -> str:
    """Return a pair of lines of 10 s with 1,000 steps, times a pace, each of which has a draft."""
    accepted, drafted = 1000 * pace * sum(rates), 1000 * pace * k
    return (
        NEW.replace("187.0", f"{100 * pace + accepted / 10:.1f}")
        .replace("Running: 8", f"Running: {running}")
        .replace("1.87", f"{1 + sum(rates):.2f}")
        .replace("87.00", f"{accepted / 10:.2f}")
        .replace("300.00", f"{drafted / 10:.2f}")
        .replace("870", f"{accepted:.0f}")
        .replace("3000", f"{drafted:.0f}")
        .replace("0.500, 0.250, 0.120", ", ".join(f"{rate:.3f}" for rate in rates))
    )


@pytest.mark.parametrize(
    ("later", "codes"),
    [
        (write_busy(8, 0.45), ["slower-in-log"]),
        (write_busy(18), ["slower-in-log"]),
        (write_busy(16, 1.8), []),
        (write_busy(rates=(0.1, 0.0, 0.0)), ["fell-in-log"]),
        (write_busy(8, 0.6, k=5), []),
    ],
    ids=["the same running", "the same throughput", "more load", "less acceptance", "longer drafts"],
)
def test_slower_steps_are_told_from_another_load_and_from_less_acceptance(later: str, codes: list[str]) -> None:
    texts = [write_busy()] * 120 + [later] * 120
    stamps = [(minute, second) for minute in range(40) for second in range(0, 60, 10)]
    lines = [text.replace("10:00:{0:02}", f"09:{a:02}:{b:02}") for (a, b), text in zip(stamps, texts, strict=True)]
    found = see_log("".join(lines).splitlines(), name="pod.log", now=NOW).findings
    assert [each.code for each in found] == codes
    told = [each.message for each in found if each.code == "slower-in-log"]
    assert all(re.search(r"From .* 09:(19|20):\d\d on, a step took 2\.\d times", message) for message in told)


def test_the_luck_of_few_requests_is_no_fall() -> None:
    lucky = [write_busy(1, 0.1, rates=(rate, 0.3, 0.1)) for rate in (0.9,) * 5 + (0.45,) * 5]
    lines = [text.replace("10:00:{0:02}", f"09:{i:02}:00") for i, text in enumerate(lucky)]
    assert see_log("".join(lines).splitlines(), name="pod.log", now=NOW).findings == ()


WRITERS = {
    "kubectl": "[pod/llm-{0}/vllm] {1}".format,
    "stern": "llm-{0} vllm {1}".format,
    "compose": "llm-{0}  | {1}".format,
    "Loki": lambda number, line: json.dumps({"labels": {"pod": f"llm-{number}"}, "line": line}),
    "Fluent Bit": lambda number, line: json.dumps({"kubernetes": {"pod_name": f"llm-{number}"}, "log": line}),
    "Fluent Bit with docker's fields": lambda number, line: json.dumps(
        {"kubernetes": {"pod_name": f"llm-{number}"}, "stream": "stdout", "time": "2026-11-22T10:00:00Z", "log": line}
    ),
    "Cloud Logging": lambda number, line: json.dumps(
        {"resource": {"labels": {"pod_name": f"llm-{number}"}}, "insertId": "x", "textPayload": line}
    ),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_servers_whose_logs_are_in_one_file_are_told_apart(write: Callable[[int, str], str]) -> None:
    dead = NEW.replace("870 tokens", "0 tokens").replace("0.500, 0.250, 0.120", "0.000, 0.000, 0.000")
    pairs = [(NEW.format(s).splitlines(), dead.format(s).splitlines()) for s in range(0, 60, 10)]
    lines = [write(n, pair[n][i]) for pair in pairs for i in (0, 1) for n in (0, 1)]
    lines += ["[pod/proxy-0/envoy] ready", write(0, "INFO 11-22 no statistics")]
    snapshot = see_log(lines, name="pod.log", now=NOW)
    assert {window.instance: window.counters.spec.num_accepted_tokens for window in snapshot.recent} == {
        "llm-0": 6 * 870,
        "llm-1": 0,
    }
    assert snapshot.findings == ()


def test_lines_without_positions_tell_of_a_drafter_of_which_nearly_nothing_is_accepted() -> None:
    engine = OLD.splitlines(keepends=True)[0]
    few = EARLY[1].replace("29.0%, Accepted: 870", "0.4%, Accepted: 12")
    pasted = few.replace("12 tokens", "1 tokens").replace("3000", "4000").format(0).splitlines() * 4
    assert [each.code for each in add_diagnoses(see_log(pasted, name="pod.log", now=NOW), None, None).findings] == [
        "zero-acceptance"
    ]
    for text, codes in ((engine + few, {"zero-acceptance"}), (engine + EARLY[1], set())):
        lines = [line for second in range(0, 60, 10) for line in text.format(second).splitlines()]
        found = add_diagnoses(see_log(lines, name="pod.log", now=NOW), None, None).findings
        assert {each.code for each in found} == codes


def test_an_engine_that_stood_still_and_went_on_is_told() -> None:
    stalled = re.sub(r"generation throughput: [\d.]+", "generation throughput: 0.0", NEW.splitlines(keepends=True)[0])
    (found,) = see_log(write_hour((range(20, 25), stalled)), name="pod.log", now=NOW).findings
    assert (found.code, found.severity) == ("engine-hung", "error")
    assert re.search(r"no token for 300 s from .* 09:19:\d\d on\. Then it went on", found.message)
    short = see_log([*NEW.format(10).splitlines(), stalled.format(20), *NEW.format(30).splitlines()], name="x", now=NOW)
    assert short.findings == ()


def test_an_engine_that_died_again_and_again_is_told_also_where_it_works_now() -> None:
    lines = write_hour()
    for index in (80, 60, 40):
        lines[index:index] = ERRORS
    (found,) = see_log(lines, name="pod.log", now=NOW).findings
    text = "In pod.log, an engine died with an error, or a server restarted without shutting down, 3 times."
    assert (found.code, found.message) == ("engine-dies", text)


def test_a_server_that_began_again_without_a_word_was_killed() -> None:
    start = "(APIServer pid=1) INFO 11-22 09:00:00 [api_server.py:1971] vLLM API server version 0.32.0"
    for before, codes in (([], ["engine-dies"]), (["(APIServer pid=7) INFO:     Shutting down"], [])):
        lines = write_hour()
        for index in (80, 40):
            lines[index:index] = [*before, start]
        assert [each.code for each in see_log(lines, name="pod.log", now=NOW).findings] == codes
    assert see_log([start, *write_hour(), start], name="pod.log", now=NOW).findings == ()
