"""Keys and values of the speculative JSON alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from tests.support.made_checkpoints import LLAMA, judge, rejections, write

from draftwise.core import Effect, Ruling
from draftwise.knowledge.vllm import releases


@pytest.fixture
def llama(tmp_path: Path) -> str:
    return write(tmp_path, "llama", LLAMA)


def test_every_fault_is_told_at_once(llama: str) -> None:
    spec = {"method": "ngrm", "num_speculative_tokens": 0, "prompt_lookup_min": "x", "foo": 1, "moe_backend": "none"}
    report = judge(llama, spec)
    assert rejections(report) == [
        "unknown-method", "value-out-of-range", "wrong-type", "unknown-key", "unknown-choice"
    ]  # fmt: skip
    assert {each.where for each in report.findings if isinstance(each, Ruling)} >= set(spec)


@pytest.mark.parametrize(
    ("version", "effect"), [("0.15.1", Effect.INEFFECTIVE), ("0.16.0", Effect.REJECTED), ("0.33.0", Effect.REJECTED)]
)
def test_unknown_keys_are_ignored_until_they_are_refused(llama: str, version: str, effect: Effect) -> None:
    report = judge(llama, {"method": "ngram", "num_speculative_tokens": 3, "num_speculative_token": 4}, version)
    (found,) = [each for each in report.findings if isinstance(each, Ruling) and each.where == "num_speculative_token"]
    assert found.effect is effect
    assert "num_speculative_tokens" in found.fix


def test_a_key_of_another_release_says_when_it_existed(llama: str) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3}
    gone = judge(llama, {**spec, "disable_by_batch_size": 32}, "0.33.0")
    early = judge(llama, {**spec, "kv_cache_dtype": "fp8"}, "0.20.0")
    assert "0.9.2 to 0.16.0" in str(gone.findings[0])
    assert "from 0.26.0 on" in str(early.findings[0])


def test_dashes_in_keys(llama: str) -> None:
    spec = {"method": "ngram", "num-speculative-tokens": 3}
    assert rejections(judge(llama, spec, "0.25.1")) == ["unknown-key", "tokens-missing"]
    assert judge(llama, spec, "0.26.0").accepted


@pytest.mark.parametrize(
    ("method", "first", "last"),
    [
        ("dflash", "0.20.0", "0.33.0"),
        ("medusa", "0.9.2", "0.32.0"),
        ("suffix", "0.11.1", "0.33.0"),
        ("dspark", "0.25.0", "0.33.0"),
    ],
)
def test_methods_come_and_go(llama: str, method: str, first: str, last: str) -> None:
    spec = {"method": method, "num_speculative_tokens": 3}
    for release in releases():
        known = Version(first) <= release.version <= Version(last)
        assert ("unknown-method" in rejections(judge(llama, spec, str(release)))) is not known, release


def test_null_where_a_number_must_be(llama: str) -> None:
    assert rejections(judge(llama, {"method": "ngram", "num_speculative_tokens": None})) == ["wrong-type"]


def test_numbers_as_text_are_read(llama: str) -> None:
    resolved = judge(llama, {"method": "ngram", "num_speculative_tokens": "4"}).resolved
    assert resolved is not None
    assert resolved.num_speculative_tokens == 4


@pytest.mark.parametrize(("version", "code"), [("0.11.0", "tokens-not-whole-lookahead"), ("0.11.1", "wrong-type")])
def test_a_fraction_is_refused_by_the_scheduler_before_the_number_has_a_type(
    llama: str, version: str, code: str
) -> None:
    assert rejections(judge(llama, {"method": "ngram", "num_speculative_tokens": 2.5}, version)) == [code]


def test_a_whole_float_is_a_number_of_tokens_before_the_number_has_a_type(llama: str) -> None:
    resolved = judge(llama, {"method": "ngram", "num_speculative_tokens": 3.0}, "0.11.0").resolved
    assert resolved is not None
    assert resolved.num_speculative_tokens == 3


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_no_number_is_not_whole(llama: str, number: float) -> None:
    assert rejections(judge(llama, {"method": "ngram", "num_speculative_tokens": number}, "0.11.0"))


def test_a_flag_wins_over_a_dashed_key(llama: str) -> None:
    resolved = judge(llama, {"method": "ngram", "num-speculative-tokens": 4}, "0.33.0", spec_tokens=3).resolved
    assert resolved is not None
    assert resolved.num_speculative_tokens == 3


def test_a_flag_that_repeats_a_key(llama: str) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3}
    assert rejections(judge(llama, spec, spec_tokens=4)) == ["spec-flag-repeats-key"]
    only_flags = judge(llama, None, spec_method="ngram", spec_tokens=4).resolved
    assert only_flags is not None
    assert (only_flags.method, only_flags.num_speculative_tokens) == ("ngram", 4)


def test_a_faulty_value_leads_to_no_further_findings(llama: str) -> None:
    """What depends on the value is not judged: neither as given nor as if it were missing."""
    assert rejections(judge(llama, {"method": "ngram", "num_speculative_tokens": "x"})) == ["wrong-type"]
    assert rejections(judge(llama, {"method": "nope", "num_speculative_tokens": 3})) == ["unknown-method"]


@pytest.mark.parametrize(
    ("method", "fix"),
    [
        ("eagel3", 'Did you mean "eagle3"?'),
        ("NEXTN", 'In vLLM write "method": "mtp"'),
        ("medussa", 'Did you mean "medusa"? It exists from 0.9.2 to 0.32.0. Use one of ngram, '),
        (5, "Use one of ngram, "),
    ],
)
def test_a_wrong_method_is_told_what_to_write(llama: str, method: object, fix: str) -> None:
    (ruling,) = [each for each in judge(llama, {"method": method}, "0.33.0").findings if each.code == "unknown-method"]
    assert fix in ruling.fix
    assert rejections(judge(llama, {"method": "eagle3", "model": 7, "num_speculative_tokens": 3})) == ["wrong-type"]
