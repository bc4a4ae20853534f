import json

import pytest
from click.testing import CliRunner

from draftwise.cli import main
from draftwise.facts.rules import all_rules


def explained(name):
    result = CliRunner().invoke(main, ["explain", name, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
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
