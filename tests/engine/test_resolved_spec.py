"""The speculative config means here what it means in vLLM, and every fault is named at once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.core import InvalidSetup, Severity, SpecConfig
from draftwise.engine.resolved_spec import ResolvedSpec, accepts, resolve_spec
from draftwise.engine.sampling.acceptance_rules import Standard, Synthetic, Typical
from draftwise.knowledge.methods import methods_where
from draftwise.knowledge.spec_keys import keys_where


def resolve(**given: Any) -> ResolvedSpec:
    return resolve_spec(SpecConfig.parse(json.dumps(given)))


def faults(**given: Any) -> list[tuple[str, str]]:
    """(key, code) of every error."""
    with pytest.raises(InvalidSetup) as caught:
        resolve(**given)
    assert all(f.severity is Severity.ERROR and f.message and f.fix for f in caught.value.findings)
    return [(f.where.removeprefix("speculative_config."), f.code) for f in caught.value.findings]


def notes(spec: ResolvedSpec) -> list[tuple[str, str]]:
    assert all(finding.severity is not Severity.ERROR for finding in spec.findings)
    return [(f.where.removeprefix("speculative_config."), f.code) for f in spec.findings]


NGRAM = {"method": "ngram", "num_speculative_tokens": 5}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 4}, (4, 4)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4)),
    ],
)
@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
def test_lookup_bounds(given: dict[str, int], expected: tuple[int, int], method: str) -> None:
    spec = resolve(**{**NGRAM, "method": method, **given})
    assert (spec.prompt_lookup_min, spec.prompt_lookup_max) == expected
    assert (spec.method, spec.k, spec.model, spec.acceptance, spec.findings) == (method, 5, None, Standard(), ())


def test_suffix_defaults() -> None:
    spec = resolve(method="suffix")
    assert spec.k == spec.suffix_decoding_max_tree_depth == 24
    assert spec.suffix_decoding_max_cached_requests == 10_000
    assert (spec.suffix_decoding_max_spec_factor, spec.suffix_decoding_min_token_prob) == (1.0, 0.1)
    assert resolve(method="suffix", suffix_decoding_max_tree_depth=7).k == 7
    assert resolve(method="suffix", num_speculative_tokens=32).k == 32


@pytest.mark.parametrize(
    ("given", "method", "model"),
    [
        ({"model": "ngram"}, "ngram", None),
        ({"model": "[ngram]"}, "ngram", None),
        ({"model": "some/drafter"}, "draft_model", "some/drafter"),
        ({"model": "some/drafter", "method": "draft_model"}, "draft_model", "some/drafter"),
    ],
)
def test_method_is_inferred_as_vllm_does(given: dict[str, str], method: str, model: str | None) -> None:
    spec = resolve(num_speculative_tokens=3, **given)
    assert (spec.method, spec.model, spec.findings) == (method, model, ())


@pytest.mark.parametrize("name", ["mtp", "deepseek_mtp", "mimo_mtp"])
def test_one_method_has_many_names(name: str) -> None:
    spec = resolve(method=name, num_speculative_tokens=1)
    assert (spec.method, spec.model, spec.findings) == ("mtp", None, ())
    assert resolve(method=name, num_speculative_tokens=1, model="modules").model == "modules"


def test_layers_to_extract() -> None:
    layers = {"hf_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 8]}}
    spec = resolve(method="extract_hidden_states", num_speculative_tokens=1, draft_model_config=layers)
    assert spec.layer_ids == (0, 2, 8)


def test_dashes_are_underscores() -> None:
    assert resolve(**{"method": "ngram", "num-speculative-tokens": 4, "prompt-lookup-max": 3}).k == 4


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [("method", "missing-method"), ("num_speculative_tokens", "missing-k")]),
        ({"method": "ngram"}, [("num_speculative_tokens", "missing-k")]),
        ({"method": "ngrm", "num_speculative_tokens": 2}, [("method", "unknown-method")]),
        ({"method": "draft_model", "num_speculative_tokens": 2}, [("model", "missing-model")]),
        ({"method": "dspark", "model": "x", "num_speculative_tokens": 2}, [("method", "method-not-here")]),
        ({"method": "eagle3", "num_speculative_tokens": 2}, [("model", "missing-model")]),
        (
            {"method": "eagle3", "model": "x", "num_speculative_tokens": 2, "parallel_drafting": 1},
            [("parallel_drafting", "wrong-value")],
        ),
        ({"method": "extract_hidden_states", "num_speculative_tokens": 1}, [("draft_model_config", "missing-key")]),
        (
            {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": {"layers": [1]}},
            [("draft_model_config", "wrong-value"), ("draft_model_config", "missing-key")],
        ),
        ({**NGRAM, "num_speculative_tokens": 0}, [("num_speculative_tokens", "wrong-value")]),
        ({**NGRAM, "prompt_lookup_min": 0}, [("prompt_lookup_min", "wrong-value")]),
        ({**NGRAM, "prompt_lookup_min": 5, "prompt_lookup_max": 2}, [("prompt_lookup_min", "crossed-bounds")]),
        ({**NGRAM, "prompt_lookup_max": True}, [("prompt_lookup_max", "wrong-value")]),
        ({**NGRAM, "disable_by_batch_size": 1}, [("disable_by_batch_size", "wrong-value")]),
        ({**NGRAM, "draft_sample_method": "gumbel"}, [("draft_sample_method", "wrong-value")]),
        ({**NGRAM, "rejection_sample_method": "fly"}, [("rejection_sample_method", "wrong-value")]),
        ({**NGRAM, "posterior_threshold": 1}, [("posterior_threshold", "wrong-value")]),
        (
            {"method": "suffix", "suffix_decoding_min_token_prob": 1.5},
            [("suffix_decoding_min_token_prob", "wrong-value")],
        ),
        (
            {"method": "ngram", "prompt_lookup_max": "3", "foo": 1, "disable_by_batch_size": 0},
            [
                ("prompt_lookup_max", "wrong-value"),
                ("foo", "unknown-key"),
                ("disable_by_batch_size", "wrong-value"),
                ("num_speculative_tokens", "missing-k"),
            ],
        ),
    ],
    ids=str,
)
def test_faults(given: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert faults(**given) == expected


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("prompt_lookup_maximum", "prompt_lookup_max"),
        ("tensor_parallel_size", "draft_tensor_parallel_size"),
        ("synthetic_acceptance_rate", "synthetic_acceptance_rates"),
        ("disable_by_batchsize", "disable_by_batch_size"),
    ],
)
def test_the_nearest_key_is_suggested(wrong: str, right: str) -> None:
    with pytest.raises(InvalidSetup, match=rf"{wrong} is not a key.*Did you mean {right}\?"):
        resolve(**NGRAM, **{wrong: 1})


def test_keys_without_effect_are_named() -> None:
    spec = resolve(
        **NGRAM, quantization="fp8", draft_tensor_parallel_size=2, parallel_drafting=False, enforce_eager=True
    )
    assert notes(spec) == [
        ("quantization", "no-effect"),
        ("draft_tensor_parallel_size", "no-effect"),
        ("enforce_eager", "no-effect"),
    ]
    assert notes(resolve(**NGRAM, suffix_decoding_max_tree_depth=3, model="x")) == [
        ("model", "no-effect"),
        ("suffix_decoding_max_tree_depth", "no-effect"),
    ]
    assert notes(resolve(model="org/EAGLE-small", num_speculative_tokens=2)) == [("model", "name-trap")]


def test_disable_by_batch_size_counts_the_value_itself() -> None:
    spec = resolve(**NGRAM, disable_by_batch_size=4)
    assert [spec.k_for(n) for n in (1, 3, 4, 5)] == [5, 5, 0, 0]


def dense(schedule: list[tuple[int, int, int]], size: int, k: int) -> list[int]:
    """vLLM's lookup table by its documented rule: gaps and tail keep the k before them, k is an upper bound."""
    table, current = [], k
    for batch_size in range(1, size + 1):
        current = next((wanted for first, last, wanted in schedule if first <= batch_size <= last), current)
        table.append(min(current, k))
    return table


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=4), st.data())
def test_schedule(steps: list[tuple[int, int, int]], data: st.DataObject) -> None:
    schedule: list[tuple[int, int, int]] = []
    first = 1
    for gap, length, k in steps:
        first += gap if schedule else 0
        schedule.append((first, first + length, k))
        first += length + 1
    shuffled = data.draw(st.permutations(schedule))
    spec = resolve(**NGRAM, num_speculative_tokens_per_batch_size=shuffled)
    assert [spec.k_for(n) for n in range(1, first + 3)] == dense(schedule, first + 2, 5)
    assert [code for _, code in notes(spec)] == ["clamped-k"] * sum(k > 5 for _, _, k in schedule)


def test_schedule_of_vllms_documentation() -> None:
    spec = resolve(**NGRAM, num_speculative_tokens_per_batch_size=[[1, 16, 3], [32, 128, 2], [129, 200, 0]])
    assert [spec.k_for(n) for n in (1, 16, 17, 31, 32, 128, 129, 500)] == [3, 3, 3, 3, 2, 2, 0, 0]


@pytest.mark.parametrize(
    ("schedule", "code"),
    [
        ([[2, 4, 1]], "uncovered-range"),
        ([[1, 4, 1], [4, 6, 2]], "overlapping-ranges"),
        ([[1, 4, -1]], "bad-range"),
        ([[4, 1, 1], [1, 2, 1]], "bad-range"),
        ([[1, 4]], "wrong-value"),
        ([], "wrong-value"),
    ],
)
def test_bad_schedules(schedule: list[list[int]], code: str) -> None:
    key = "num_speculative_tokens_per_batch_size"
    assert faults(**NGRAM, **{key: schedule}) == [(key, code)]


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ({"synthetic_acceptance_rates": [0.9, 0.5, 0.1]}, (0.9, 0.5, 0.1)),
        ({"synthetic_acceptance_length": 2.5}, (1.0, 0.5, 0.0)),
        ({"synthetic_acceptance_length": 1}, (0.0, 0.0, 0.0)),
        ({"synthetic_acceptance_length": 4}, (1.0, 1.0, 1.0)),
    ],
)
def test_synthetic(given: dict[str, Any], rates: tuple[float, ...]) -> None:
    spec = resolve(method="ngram", num_speculative_tokens=3, rejection_sample_method="synthetic", **given)
    assert spec.acceptance == Synthetic(rates=rates)
    assert notes(spec) == [("rejection_sample_method", "lossy")]


@pytest.mark.parametrize(
    ("given", "where", "code"),
    [
        ({}, "rejection_sample_method", "synthetic-rates"),
        (
            {"synthetic_acceptance_rates": [1], "synthetic_acceptance_length": 1},
            "rejection_sample_method",
            "synthetic-rates",
        ),
        ({"synthetic_acceptance_rates": [0.5]}, "synthetic_acceptance_rates", "synthetic-rates"),
        ({"synthetic_acceptance_rates": [0.5, 0.6, 0.1]}, "synthetic_acceptance_rates", "synthetic-rates"),
        ({"synthetic_acceptance_length": 9}, "synthetic_acceptance_length", "synthetic-rates"),
        (
            {"synthetic_acceptance_length": 2, "acceptance_method": "typical_acceptance_sampler"},
            "acceptance_method",
            "conflicting-keys",
        ),
        (
            {"synthetic_acceptance_length": 2, "rejection_sample_method": "standard"},
            "synthetic_acceptance_length",
            "conflicting-keys",
        ),
    ],
)
def test_bad_synthetic(given: dict[str, Any], where: str, code: str) -> None:
    base = {"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic"}
    assert faults(**{**base, **given}) == [(where, code)]


def test_typical() -> None:
    typical = {"acceptance_method": "typical_acceptance_sampler"}
    spec = resolve(**NGRAM, **typical)
    assert spec.acceptance == Typical(threshold=0.09, alpha=0.3)
    assert notes(spec) == [("acceptance_method", "lossy")]
    assert resolve(**NGRAM, **typical, posterior_alpha=0.5, posterior_threshold=0.2).acceptance == Typical(
        threshold=0.2, alpha=0.5
    )
    assert notes(resolve(**NGRAM, posterior_alpha=0.5)) == [("posterior_alpha", "no-effect")]
    assert resolve(**NGRAM, posterior_alpha=0.5).acceptance == Standard()


def test_block_verification() -> None:
    block = {"rejection_sample_method": "block"}
    sampled = {"method": "eagle", "model": "head", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
    assert resolve(**sampled, **block).acceptance == Standard(by_block=True)
    assert notes(resolve(**sampled, **block)) == []
    assert resolve(**sampled).acceptance == Standard(by_block=False)
    for idle in (NGRAM, NGRAM | {"draft_sample_method": "probabilistic"}, sampled | {"draft_sample_method": "greedy"}):
        assert ("rejection_sample_method", "no-effect") in notes(resolve(**idle, **block))
    assert faults(**NGRAM, **block, acceptance_method="typical_acceptance_sampler") == [
        ("acceptance_method", "conflicting-keys")
    ]


def test_every_default_is_a_value_that_its_key_takes() -> None:
    for name, key in keys_where(embedded="acts").items():
        assert key.default is None or accepts(key, key.default), name


def test_what_a_method_needs_acts_here() -> None:
    acting = keys_where(embedded="acts")
    for method in methods_where(embedded=True).values():
        assert {method.default_k_key, method.required_key} - {None} <= acting.keys()
        assert set(method.embedded_keys) <= acting.keys()


def test_every_resolved_setting_has_a_key() -> None:
    derived = {"k", "schedule", "acceptance", "findings"}
    assert {field.name for field in fields(ResolvedSpec)} - derived <= keys_where(embedded="acts").keys()


def test_needs_no_torch() -> None:
    code = "import sys, draftwise.engine.resolved_spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
