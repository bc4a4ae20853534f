"""`draftwise pick` on the command line."""

import json
import shlex
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from draftwise.cli import main
from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.vllm import Release

Add = Callable[..., Release]
QWEN = ("Qwen/Qwen3-8B", "--gpu", "H200")


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["pick", *words])


def test_the_answer_holds_verdict_table_config_refusals_and_how_to_defend_it() -> None:
    result = run(*QWEN, "--workload", "code", "--concurrency", "8")
    assert result.exit_code == 0
    for part in (
        "Start with dflash",
        "break-",
        "To paste:",
        "--speculative-config '{",
        "Not recommended:",
        "medusa",
        "draftwise decide --url",
    ):
        assert part in result.output


def test_the_pasted_command_is_one_that_check_accepts() -> None:
    lines = run(
        *QWEN, "--vllm", "0.26.0", "--workload", "agentic", "--", "--max-model-len", "16384"
    ).output.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("  vllm serve"))
    pasted = [line.strip() for line in lines[start:]]
    pasted = pasted[: next(index for index, line in enumerate(pasted) if not line.endswith("\\")) + 1]
    command = " ".join(line.removesuffix("\\") for line in pasted)
    assert shlex.split(command)[:5] == ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "16384"]
    checked = CliRunner().invoke(main, ["check", command, "--vllm", "0.26.0", "--json"])
    assert checked.exit_code == 0
    assert {each["code"] for each in json.loads(checked.output)[0]["findings"] if each["effect"] == "unknown"} <= {
        "drafter-not-here"
    }


def test_json_has_everything() -> None:
    result = run(*QWEN, "--workload", "code", "--json")
    answer = json.loads(result.output)
    assert answer["vllm"] == "0.33.0"
    first = answer["ranked"][0]
    assert first["speculative_config"]["method"] == first["method"]
    assert first["estimate"]["acceptance_prior"][0] <= first["estimate"]["acceptance_expected"]
    assert first["memory"]["kv_tokens"] > 0
    assert first["check"]["outcome"] in ("accepted", "not judged")
    methods = [each["method"] for each in (*answer["ranked"], *answer["refused"])]
    assert len(methods) == len(set(methods)) > 10


def test_why_shows_the_rules_with_their_sources() -> None:
    output = run(*QWEN, "--workload", "chat", "--temperature", "0.9", "--why").output
    rule = all_advice()["temperature-high"]
    assert rule.explains in output
    assert rule.source in output
    assert all_advice()["starting-point"].explains in output
    assert "Published results:" in output


def test_the_table_shows_the_speedup_and_what_it_rests_on() -> None:
    output = run("deepseek-ai/DeepSeek-V3", "--gpu", "H200", "--gpus", "8", "--workload", "code").output
    assert "speed-up" in output
    assert "Speed-up of decoding = tokens per step / break-even, unless" in output
    assert " loses " in output


def test_a_reason_that_several_methods_share_is_said_once() -> None:
    output = run("google/gemma-3-27b-it", "--gpu", "H200", "--workload", "chat").output
    assert output.count("draftwise knows of no published one") == 1
    assert "dflash, draft_model, dspark" in output


def test_nothing_is_offered_to_paste_where_speculation_should_stay_off() -> None:
    result = run(*QWEN, "--workload", "chat", "--uses", "min_p")
    assert result.exit_code == 1
    assert "To paste:" not in result.output


def test_a_parameter_that_changes_nothing_is_named() -> None:
    assert "drafts for requests with n, seed" in run(*QWEN, "--uses", "seed", "--uses", "n").output


def test_the_verdict_comes_last_also_when_speculation_is_the_wrong_lever() -> None:
    result = run(*QWEN, "--workload", "extraction", "--output-tokens", "1")
    assert result.exit_code == 1
    assert result.output.rpartition("\n\n")[2].startswith("Leave speculation off.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("Qwen3-8X", "--gpu", "H200"), "Did you mean Qwen/Qwen3-8B"),
        (("Qwen/Qwen3-8B", "--gpu", "H2000"), "H2000"),
        (("Qwen/Qwen3-8B", "--gpu", "H200", "--vllm", "0.1"), "0.1"),
        (("Qwen/Qwen3-8B", "--gpu", "H200", "--drafter", "nowhere"), "nowhere"),
        (("Qwen/Qwen3-8B", "--gpu", "H200", "--uses", "lora"), "Choose from allowed_token_ids"),
        (("Qwen/Qwen3-8B", "--gpu", "H200", "--concurrency", "8", "--peak-concurrency", "4"), "below the median"),
        (("Qwen/Qwen3-8B", "--gpu", "H200", "--vllm", "0.10.2", "--uses", "guided_decoding"), "structured_outputs"),
    ],
)
def test_mistakes_are_answered_without_a_traceback(words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_the_gpu_is_asked_for() -> None:
    assert run("Qwen/Qwen3-8B").exit_code == 2


def test_facts_that_the_user_added_are_named(add_like_newest: Add) -> None:
    add_like_newest("99.1")
    answer = json.loads(run(*QWEN, "--vllm", "99.1", "--json").stdout)
    assert [each["code"] for each in answer["remarks"]] == ["facts-added"]
    assert "You added vLLM 99.1 from its sources" in run(*QWEN, "--vllm", "99.1").stderr
    assert json.loads(run(*QWEN, "--vllm", "0.33.0", "--json").stdout)["remarks"] == []


def test_flags_that_the_release_does_not_take_are_refused() -> None:
    result = run(*QWEN, "--workload", "code", "--", "--frobnicate", "3")
    assert result.exit_code == 1
    assert "--frobnicate" in result.output
