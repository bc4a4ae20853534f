import json
from importlib.resources import files

from draftwise.engine.spec_keys import ELSEWHERE, KEYS, METHODS, MTP_SUFFIX, NO_EFFECT
from draftwise.facts.vllm import releases

INTERNAL = {"target_model_config", "target_parallel_config", "draft_parallel_config", "tensor_parallel_size",
            "enable_chunked_prefill", "disable_log_stats"}  # fmt: skip
GONE = {"disable_logprobs", "disable_mqa_scorer", "acceptance_method", "posterior_threshold", "posterior_alpha"}


def test_every_key_that_some_vllm_knows_is_judged_by_the_embedded_engine():
    known = {key for release in releases() for key in release.table("spec_fields")}
    assert known - INTERNAL - {"synthetic_acceptance_rate"} <= set(KEYS) | set(NO_EFFECT)


def test_every_method_that_some_vllm_knows_is_known_to_the_embedded_engine():
    known = {method for release in releases() for method in release.table("methods")}
    assert {name for name in known if not name.endswith(MTP_SUFFIX)} <= {*METHODS, *ELSEWHERE, "[ngram]"}


def test_every_key_has_a_meaning_and_no_meaning_is_left_over():
    text = json.loads(files("draftwise.facts").joinpath("data/glossary.json").read_text())
    keys = {key for release in releases() for key in release.table("spec_fields")} | GONE
    assert set(text["keys"]) == keys
