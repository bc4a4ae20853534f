"""Each row of the ledger is told for its own example in its releases, and not for one that differs in one thing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
from packaging.version import Version

from draftwise.core import Device, Effect, Severity
from draftwise.knowledge.defects import Certainty, Defect, all_defects
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.methods import all_methods
from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.vllm import Release, releases
from draftwise.plan.check import Report, get_context, judge
from draftwise.plan.check.cli.condition_values import names_in
from draftwise.plan.check.known_defects import _PRAISED_FOR, read_facts
from draftwise.setups.read import read_words

ROWS = tuple(all_defects().values())
KNOWN = [each.version for each in releases()]


@cache
def judge_example(row: Defect, text: str, version: Version) -> Report:
    reading = read_words(shlex.split(text), engine_version=str(version))
    if row.gpu:
        reading = reading.with_fields(device=Device(name=row.gpu, kind="cpu" if row.gpu == "CPU" else "cuda"))
    return judge(reading, installed=frozenset(row.installed) if row.installed else None)


def tells(row: Defect, report: Report) -> bool:
    """Say whether a report tells a fault, by its own code or by a rule that tells the same."""
    codes = {finding.code for finding in report.findings}
    return row.code in codes or not codes.isdisjoint(row.rules)


def test_the_ledger_is_as_large_as_promised() -> None:
    assert len(ROWS) >= 220
    assert {row.certainty for row in ROWS} >= {Certainty.WHEEL, Certainty.MERGED, Certainty.MANY, Certainty.ONE}


def test_each_row_is_met_by_its_example() -> None:
    wrong = []
    for row in ROWS:
        report = judge_example(row, row.hit, row.last_release)
        if row not in report.defects and not tells(row, report):
            wrong.append((row.code, [str(each)[:120] for each in report.findings if each.severity is Severity.ERROR]))
        elif row.told_by == "watch" and row.code in {finding.code for finding in report.findings}:
            wrong.append((row.code, ["is for watch to tell"]))
        elif row.told_by != "watch" and not tells(row, report):
            wrong.append((row.code, ["is not told"]))
    assert wrong == []


def test_a_row_that_only_the_gpu_decides_is_a_note_where_no_gpu_is_named() -> None:
    rows = [row for row in ROWS if "sm" in names_in(row.when) and row.gpu and row.told_by == "check"]
    assert len(rows) > 3
    for row in rows:
        report = judge_example(replace(row, gpu=""), row.hit, row.last_release)
        told = [each for each in report.findings if each.code == row.code]
        assert [each.severity for each in told] == [Severity.INFO], row.code
        assert "--gpu" in told[0].fix


def test_no_row_is_met_by_its_counterexample() -> None:
    wrong = []
    for row in ROWS:
        report = judge_example(row, row.miss, row.last_release)
        if row in report.defects or row.code in {finding.code for finding in report.findings}:
            wrong.append((row.code, "is met"))
        elif report.setup.spec is not None and report.resolved is None:
            wrong.append((row.code, "is rejected, which proves nothing"))
    assert wrong == []


def test_a_row_is_silent_outside_its_releases() -> None:
    wrong = []
    for row in ROWS:
        before = [each for each in KNOWN if each < row.first_release][-1:]
        after = [each for each in KNOWN if each > row.last_release][:1] if row.is_end_known else []
        reports = {version: judge_example(row, row.hit, version) for version in (*before, *after)}
        wrong += [(row.code, str(version)) for version, report in reports.items() if row in report.defects]
    assert wrong == []


def test_what_was_only_reported_is_unknown_later_and_no_more_than_a_note() -> None:
    told = 0
    for row in ROWS:
        later = [each for each in releases() if each.version > row.last_release]
        if row.is_end_known or row.last is None or not later:
            continue
        ruling = row.ruling(later[0])
        assert f"reported up to {row.last_release}; nobody has said it of {later[0]}" in ruling.message, row.code
        assert (ruling.severity, ruling.effect) == (Severity.INFO, Effect.DEFECT), row.code
        told += 1
    assert told > 20


def test_rows_are_complete_and_name_what_exists() -> None:
    rules, findings, methods = all_rules(), all_findings(), all_methods()
    reference = re.compile(r"[\w.-]+/[\w.-]+#\d+")
    newest = str(releases()[-1])
    for row in ROWS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row.code)
        assert row.code not in {*rules, *findings}
        assert row.what.endswith("."), row.code
        assert row.fix.endswith("."), row.code
        assert row.first_release <= row.last_release <= Version(newest), row.code
        assert all(map(reference.fullmatch, (*row.reports, *row.fixes))), row.code
        assert row.reports or row.certainty in (Certainty.WHEEL, Certainty.REPRODUCED), f"{row.code} rests on nothing"
        assert set(row.rules) <= rules.keys(), row.code
        assert set(row.symptoms) <= findings.keys(), row.code
        assert set(row.methods) <= methods.keys(), row.code


def test_conditions_ask_for_facts_that_exist() -> None:
    report = judge_example(ROWS[0], ROWS[0].hit, KNOWN[-1])
    assert report.resolved is not None
    facts = read_facts(get_context(report.setup), report.resolved)
    assert {name for row in ROWS for name in names_in(row.when)} <= facts.keys()


def test_only_what_is_certain_stops_a_server() -> None:
    for row in ROWS:
        ruling = row.ruling(next(each for each in releases() if each.version == row.last_release))
        is_error = ruling.severity is Severity.ERROR
        assert is_error is (ruling.effect is Effect.FAILS_LATER), row.code
        assert not is_error or row.certainty not in (Certainty.MANY, Certainty.ONE), row.code


def _praised(report: Report) -> Iterator[str]:
    for finding in report.findings:
        if finding.code in _PRAISED_FOR:
            yield _PRAISED_FOR[finding.code]


def test_no_feature_is_praised_that_a_row_speaks_against() -> None:
    against = 0
    for row in ROWS:
        for version in {row.last_release, KNOWN[-1]}:
            report = judge_example(row, row.hit, version)
            named = {name for met in report.defects for name in names_in(met.when)}
            assert named.isdisjoint(_praised(report)), (row.code, str(version))
            against += not named.isdisjoint(_PRAISED_FOR.values())
    assert against > 5


def test_a_feature_is_praised_where_no_row_speaks_against_it() -> None:
    words = "vllm serve meta-llama/Llama-3.1-8B-Instruct --enable-prefix-caching --speculative-config"
    spec = '{"method": "ngram", "num_speculative_tokens": 3}'
    report = judge(read_words([*words.split(), spec], engine_version=str(KNOWN[-1])))
    assert "prefix_caching" in _praised(report)


def test_a_feature_is_not_praised_where_the_target_is_unknown_and_a_row_may_speak_against_it() -> None:
    words = "vllm serve someone/Unheard-Of-27B --enable-prefix-caching --speculative-config"
    spec = '{"method": "mtp", "num_speculative_tokens": 3}'
    report = judge(read_words([*words.split(), spec], engine_version="0.24.0"))
    assert "target-not-here" in {finding.code for finding in report.findings}
    assert not {*_praised(report)}


@pytest.mark.parametrize(
    ("flags", "version", "met"),
    [
        ("--enable-prefix-caching", "0.19.0", True),  # the default of these releases, as the report has it
        ("--enable-prefix-caching --mamba-cache-mode none", "0.19.1", True),
        ("--enable-prefix-caching --mamba-cache-mode align", "0.19.0", False),
        ("", "0.19.0", False),  # hybrids do not cache prefixes
        ("--mamba-cache-mode all", "0.19.0", False),
        ("--enable-prefix-caching", "0.21.0", False),  # align is the default with drafts
        ("--enable-prefix-caching --mamba-cache-mode all", "0.21.0", True),
    ],
)
def test_the_cache_of_states_has_the_mode_that_the_release_chooses(flags: str, version: str, met: bool) -> None:
    words = f"vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 {flags} --speculative-config".split()
    report = judge(read_words([*words, '{"method": "mtp", "num_speculative_tokens": 1}'], engine_version=version))
    assert ("nemotron-h-mamba-all" in {row.code for row in report.defects}) is met


def test_an_open_row_is_unknown_in_a_release_that_a_user_added(add_like_newest: Callable[..., Release]) -> None:
    row = next(each for each in ROWS if each.last is None and not each.first.startswith("~"))
    assert row.state_in(KNOWN[-1]) == "present"
    added = add_like_newest("99.1")
    assert row.state_in(added.version) == "later"
    assert "nobody has said it of 99.1" in row.ruling(added).message


@pytest.mark.parametrize(
    ("code", "words", "method", "version", "met"),
    [
        ("quantized-cache-no-noncausal-backend", "deepseek-ai/DeepSeek-V4-Flash --kv-cache-dtype fp8", "dspark",
         "0.25.1", False),
        ("step35-mtp-start-0-19", "stepfun-ai/Step-3.5-Flash --trust-remote-code", "mtp", "0.28.0", True),
        ("mrope-draft-slots-v1", "Qwen/Qwen3.5-27B", "mtp", "0.20.0", True),
        ("mrope-draft-slots-v1", "Qwen/Qwen3.5-27B --quantization ascend", "mtp", "0.20.0", False),
    ],
)  # fmt: skip
def test_a_row_is_met_by_what_reports_tell_of(code: str, words: str, method: str, version: str, met: bool) -> None:
    line = ["vllm", "serve", *words.split(), "--speculative-config"]
    spec = f'{{"method": "{method}", "num_speculative_tokens": 3}}'
    report = judge(read_words([*line, spec], engine_version=version))
    assert (code in {row.code for row in report.defects}) is met
