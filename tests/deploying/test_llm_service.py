"""KServe's LLMInferenceService: arguments that read the same with and without the shell of its template."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.deploying.test_kserve import EAGLE, HEAD
from tests.deploying.test_render import NGRAM, SETUP
from tests.support.adopted import limits_of

from draftwise.core import InvalidSetup, Setup
from draftwise.deploying import deploy, make_order


def args_of(setup: Setup, name: str = "spec.yaml") -> list[str]:
    files = deploy(make_order(setup), "llminferenceservice").files
    args: list[str] = yaml.safe_load(files[name])["spec"]["template"]["containers"][0]["args"]
    return args


def test_the_config_is_written_key_by_key() -> None:
    assert sorted(args_of(HEAD)) == [
        "--speculative-config.method=eagle3",
        f"--speculative-config.model={EAGLE.model}",
        "--speculative-config.num_speculative_tokens=3",
    ]
    assert args_of(HEAD, "plain.yaml") == []


@pytest.mark.parametrize("value", [[[1, 32, 5]], None, "5", {"a.b": 1}])
def test_what_no_argument_says_is_refused(value: Any) -> None:
    order = make_order(SETUP)
    spec = replace(NGRAM, options={"draft_sample_method": value})
    with pytest.raises(InvalidSetup, match="cannot be an argument"):
        deploy(replace(order, setup=replace(order.setup, spec=spec)), "llminferenceservice")


@pytest.mark.parametrize("value", ["a b", "$HOME", '{"x":1}', "it's"])
def test_what_a_shell_would_change_is_refused(value: str) -> None:
    order = make_order(SETUP)
    with pytest.raises(InvalidSetup, match="a shell reads"):
        deploy(replace(order, setup=replace(order.setup, args={"chat_template": value})), "llminferenceservice")


def test_a_directory_is_refused() -> None:
    with pytest.raises(InvalidSetup, match="is a directory"):
        deploy(make_order(replace(SETUP, target="/srv/llama")), "llminferenceservice")


def test_gpus_are_given_as_parallelism_and_long_starts_are_told() -> None:
    folder = deploy(make_order(SETUP), "llminferenceservice")
    assert yaml.safe_load(folder.files["spec.yaml"])["spec"]["parallelism"] == {"tensor": 2}
    assert [limit.code for limit in limits_of(folder)] == ["progress-deadline-fixed"]
