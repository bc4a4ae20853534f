"""Errors and log lines as people paste them: cut off, wrapped, and of what vLLM stands on."""

from random import Random

import pytest

from draftwise.core import InvalidSetup
from draftwise.knowledge.terms import read_terms
from draftwise.knowledge.vllm import all_keys
from draftwise.knowledge.vllm_messages import find_messages, read_values
from draftwise.plan.explanations import explain

LONG = sorted(
    each for each in all_keys("messages") if len(each) > 120 and "{}" in each[16:60] and "{}" not in each[:16]
)


@pytest.mark.parametrize("template", Random(44).sample(LONG, 12))
def test_a_message_that_lacks_its_end_is_found(template: str) -> None:
    cut = template[:90].rpartition(" ")[0].replace("{}", "17")
    told = find_messages(f"ERROR 11-02 09:11:04 [core.py:842] ValueError: {cut}")
    assert any(each.template.lower().startswith(template[:20].lower()) for each in told)


@pytest.mark.parametrize("term", [each for each in read_terms() if each.says], ids=lambda term: term.names[0])
def test_errors_of_what_vllm_stands_on_lead_to_a_term(term) -> None:
    for part in term.says:
        found = explain(f"(EngineCore_DP0 pid=221) ERROR 11-02 09:11:04 [x.py:1] {part} 17 of /some/where")
        assert term.names[0] in {each.name for each in found}
        assert all(explain(name) for name in term.see)


@pytest.mark.parametrize(
    "template", Random(45).sample([each for each in LONG if "{}" not in each[len(each) // 3 :]], 12)
)
def test_a_message_with_an_invented_end_or_middle_is_unknown_and_the_nearest_is_said_to_be_another(
    template: str,
) -> None:
    words = template.replace("{}", "17").split()
    half = len(words) // 2
    ending = [*words[: half + 1], "and", "purple", "unicorns", "must", "never", "sing", "twice"]
    words[half : half + 3] = ["whose", "penguin", "never"]
    for invented in (ending, words):
        assert template not in {each.template for each in find_messages(f"ValueError: {' '.join(invented)}")}
    with pytest.raises(InvalidSetup, match="Nearest, not the same: 'Unknown prefix caching hash algorithm"):
        explain("ValueError: Unknown prefix caching hash algorithm must be one of the seven dwarfs")


@pytest.mark.parametrize(
    ("template", "text", "values"),
    [
        ("n_predict={}", "ValueError: n_predict=128", {"n_predict": "128"}),
        ("n_predict={}.", "ValueError: n_predict=12.5. [type=value_error]", {"n_predict": "12.5"}),
        ("sizes {}", "sizes [4, 16]\n(EngineCore pid=7)", {"sizes": "[4, 16]"}),
        ("took ({}) of {}", "took (3 or 4) of 'abc')", {"took": "3 or 4", "of": "'abc"}),
        ("took ({}) of it", "took (3 or 4) of it", {"took": "3 or 4"}),
    ],
)
def test_values_are_read_to_their_end(template: str, text: str, values: dict[str, str]) -> None:
    assert read_values(text, template) == values


@pytest.mark.parametrize(
    ("pasted", "fix"),
    [
        ("num_speculative_tokens:30 must be divisible by n_predict=12", "Give 12 or a multiple of it."),
        ("max_num_batched_tokens (2048) is smaller than max_model_len (8192).", "Give at least <max_model_len>, or"),
        (
            "draft_tensor_parallel_size=3 cannot be other value than 1 or target model tensor_parallel_size",
            "Leave it out, or give <tensor_parallel_size>.",
        ),
    ],
)
def test_a_fix_is_told_without_the_values_that_a_message_lacks(pasted: str, fix: str) -> None:
    (found,) = explain(f"ValueError: {pasted}")
    assert fix in found.text
    assert all(rule.fix.split()[0] in found.text for rule in found.related)


def test_a_message_with_words_left_out_is_only_the_nearest() -> None:
    (found,) = explain("draft_tensor_parallel_size=2 cannot be other than 1 or target model tensor_parallel_size")
    assert found.text.startswith("No release has this message. Nearest, not the same: ")
    (found,) = explain("ValueError: num_speculative_tokens:5 must be divisible by n_predict=2")
    assert found.text.startswith("vLLM ")


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: 'NoneType' object has no attribute 'shape' in my own plugin",
        "INFO 11-02 09:11:04 [launcher.py:38] Route: /health, Methods: GET",
        "ValueError: the cat sat on 17 mats and would not move",
        "TypeError: Worker.__init__() got an unexpected keyword argument 'my_own'",
        "llama_model_load: error loading model: draft model vocab type must match target model to use speculation",
        "draft model vocab type must match target model to use speculation",
        "[TRT-LLM] [E] Failed to initialize executor on rank 0: max_draft_len must be positive",
    ],
)
def test_other_lines_lead_to_nothing(line: str) -> None:
    with pytest.raises(InvalidSetup, match="No vLLM message"):
        explain(line)


def test_a_flag_that_a_line_names_is_explained() -> None:
    line = "argument '--disable-log-requests' is deprecated and replaced with '--enable-log-requests'."
    assert "--disable-log-requests" in {each.name for each in explain(line)}


def test_a_message_is_known_by_its_second_sentence() -> None:
    text = "Smaller values produce incorrect output. Use num_speculative_tokens=5 or larger (e.g. 7)."
    assert "dspark-block-too-short" in {rule.code for each in explain(text) for rule in each.related}


def test_a_rule_that_held_for_an_earlier_wording_is_named_with_its_last_release() -> None:
    template = next(each for each in all_keys("messages") if each.endswith("or decrease num_speculative_tokens."))
    found = next(each for each in explain(template.replace("{}", "-1792")) if each.kind == "message")
    assert "The rule for its earlier wording ended with 0.27.1: Draft slots leave no token" in found.text
    assert [rule.code for rule in found.related] == ["draft-slots-exhaust-tokens"]
