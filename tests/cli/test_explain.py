import json

import pytest
from click.testing import CliRunner

from draftwise.cli import main
from draftwise.core import InvalidSetup
from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.rules import all_rules
from draftwise.plan.explanations import explain


def explained(name):
    result = CliRunner().invoke(main, ["explain", name, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("outputs-differ", "finding"),
        ("dflash", "method"),
        ("k-by-cost", "advice"),
        ("disable_by_batch_size", "key"),
        ("--tensor-parallel-size", "flag"),
        ("LlamaForCausalLM", "architecture"),
        ("vllm:spec_decode_num_drafts_total", "metric"),
    ],
)
def test_every_kind_of_name_is_found(name, kind):
    assert kind in {each["kind"] for each in explained(name)}


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("--speculative-model", "flag", "as model"),
        ("speculative_max_model_len", "flag", "as max_model_len"),
        ("--disable-logprobs-during-spec-decoding", "flag", "No key takes its place"),
        ("spec_decode_draft_acceptance_rate", "metric", "spec_decode_num_draft_tokens_total"),
        ("vllm:spec_decode_num_emitted_tokens_total", "metric", "spec_decode_num_drafts_total"),
        ("vllm:spec_decode_efficiency", "metric", "Nothing takes its place"),
    ],
)
def test_what_old_guides_name_is_explained_by_what_there_is_now(name: str, kind: str, said: str) -> None:
    (found,) = explained(name)
    assert (found["kind"], said in found["text"]) == (kind, True)


def test_history_tells_first_and_last_release():
    spans = next(each for each in explained("disable_by_batch_size") if each["kind"] == "key")["history"]
    assert spans[-1]["until"] == "0.16.0"
    spans = next(each for each in explained("dflash") if each["kind"] == "method")["history"]
    assert (spans[0]["since"], spans[0]["until"]) == ("0.20.0", None)


def test_every_rule_can_be_explained_and_shown():
    for code, rule in all_rules().items():
        assert explained(code)[0]["text"] == rule.explains
    text = CliRunner().invoke(main, ["explain", next(iter(all_rules()))], catch_exceptions=False).stdout
    assert "source:" in text


def test_every_code_that_is_printed_can_be_explained() -> None:
    for kind, registry in (("finding", all_findings()), ("rule", all_rules()), ("advice", all_advice())):
        for code in registry:
            found = next(each for each in explain(code) if each.kind == kind)
            assert found.text, code
            assert found.link == f"docs/findings.md#{code}"


def test_a_finding_is_shown_with_its_fix_its_threshold_and_the_page() -> None:
    text = CliRunner().invoke(main, ["explain", "client-sends-late"], catch_exceptions=False).stdout
    assert "The load generator sent requests late" in text
    assert "Use more client processes" in text
    assert "error or warning, beyond the threshold client_late, from: measurement validity" in text
    assert "more: docs/findings.md#client-sends-late" in text
    (told,) = explained("client-sends-late")
    assert told["finding"]["severities"] == ["error", "warning"]
    assert told["finding"]["room"] == "Measurement validity"


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [("output-differs", "outputs-differ"), ("unknown-keys", "unknown-key"), ("k-by-costs", "k-by-cost")],
)
def test_the_nearest_names_of_every_registry_are_suggested(mistyped: str, meant: str) -> None:
    with pytest.raises(InvalidSetup, match=f"Did you mean.* {meant}"):
        explain(mistyped)
