import json

import pytest
from click.testing import CliRunner

from draftwise.cli import main

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SUFFIX = '{"method": "suffix"}'


def compared(spec, before, after, *flags):
    arguments = ["upgrade", LLAMA, "-sc", spec, "--from", before, "--to", after, "--", *flags]
    result = CliRunner().invoke(main, ["upgrade", "--json", *arguments[1:]], catch_exceptions=False)
    text = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert text.exit_code == result.exit_code
    assert f"{before} -> {after}" in text.stdout
    return result.exit_code, json.loads(result.stdout)[0]


def test_a_method_that_is_gone_breaks():
    code, answer = compared('{"method": "medusa", "model": "x/y", "num_speculative_tokens": 2}', "0.32.0", "0.33.0")
    assert code == 1
    assert [finding["code"] for finding in answer["breaks"]] == ["unknown-method"]
    assert answer["gone"] == []
    assert {(choice["kind"], choice["name"]) for choice in answer["removed"]} >= {("method", "medusa")}


def test_a_key_that_was_ignored_breaks_where_it_is_rejected():
    spec = '{"method": "ngram", "num_speculative_tokens": 3, "disable_by_batch_size": 8}'
    code, answer = compared(spec, "0.16.0", "0.17.0")
    assert code == 1
    assert [finding["code"] for finding in answer["breaks"]] == ["unknown-key"]


def test_silent_changes_and_new_choices_are_told():
    code, answer = compared('{"method": "ngram", "num_speculative_tokens": 3}', "0.19.1", "0.33.0")
    assert code == 0
    changes = {change["what"]: (change["before"], change["after"]) for change in answer["changes"]}
    assert changes["default of --gpu-memory-utilization"] == (0.9, 0.92)
    assert changes["async_scheduling"] == (False, True)
    possible = {(choice["kind"], choice["name"]): choice["since"] for choice in answer["possible"]}
    assert possible["method", "dflash"] == "0.20.0"
    assert possible["rejection_sample_method", "fly"] == "0.33.0"
    assert possible["key", "num_speculative_tokens_per_batch_size"] == "0.24.0"


def test_nothing_differs_between_a_release_and_itself():
    code, answer = compared('{"method": "ngram", "num_speculative_tokens": 3}', "0.32.0", "0.32.0")
    assert code == 0
    assert not any(answer[part] for part in ("breaks", "other", "gone", "changes", "possible", "removed"))


def test_a_flag_that_the_new_release_has_not_breaks():
    spec = '{"method": "ngram", "num_speculative_tokens": 3}'
    code, answer = compared(spec, "0.19.1", "0.33.0", "--calculate-kv-scales")
    assert code == 1
    assert ["--calculate-kv-scales" in finding["where"] for finding in answer["breaks"]] == [True]


def test_the_release_that_a_file_names_is_no_news(tmp_path):
    file = tmp_path / "compose.yaml"
    file.write_text(
        "services:\n  llm:\n    image: vllm/vllm-openai:v0.19.1\n    command:\n"
        f"      - --model={LLAMA}\n      - --speculative-config\n"
        """      - '{"method": "ngram", "num_speculative_tokens": 3}'\n"""
    )
    arguments = ["upgrade", str(file), "--from", "0.19.1", "--to", "newest", "--json"]
    answer = json.loads(CliRunner().invoke(main, arguments, catch_exceptions=False).stdout)[0]
    assert answer["after"]["vllm"] == "0.33.0"
    assert "other-version-asked" not in {finding["code"] for finding in answer["other"]}


NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'


def test_a_roll_back_is_compared_like_an_upgrade():
    code, answer = compared('{"method": "ngram", "num_speculative_tokens": 3}', "0.33.0", "0.32.0")
    assert code == 0
    assert {(choice["kind"], choice["name"]) for choice in answer["possible"]} >= {("method", "medusa")}
    assert ("rejection_sample_method", "fly") in {(choice["kind"], choice["name"]) for choice in answer["removed"]}
    code, answer = compared('{"method": "dflash", "model": "x/y", "num_speculative_tokens": 2}', "0.20.0", "0.19.1")
    assert (code, [finding["code"] for finding in answer["breaks"]]) == (1, ["unknown-method"])


@pytest.mark.parametrize(("before", "after"), [("0.33.0", "0.9.2"), ("0.26.0", "0.12.0"), ("0.24.0", "0.23.0")])
def test_every_roll_back_has_an_answer(before, after):
    code, _ = compared(NGRAM, before, after)
    assert code in (0, 1)


def test_a_setup_that_starts_on_neither_release_is_no_success():
    spec = '{"method": "ngram", "num_speculative_tokens": 3, "disable_by_batch_size": 8}'
    code, answer = compared(spec, "0.18.0", "0.33.0")
    assert (code, answer["starts_on_neither"], answer["breaks"]) == (1, True, [])
    assert [finding["code"] for finding in answer["still"]] == ["unknown-key"]
    text = CliRunner().invoke(main, ["upgrade", LLAMA, "-sc", spec, "--from", "0.18.0", "--to", "newest"]).stdout
    assert "The setup starts on neither of the two." in text
    assert "Fails on both" in text


def test_one_reason_may_take_the_place_of_another():
    spec = '{"method": "medusa", "model": "x/y", "num_speculative_tokens": 2, "disable_by_batch_size": 8}'
    code, answer = compared(spec, "0.18.0", "0.33.0")
    assert (code, answer["starts_on_neither"]) == (1, True)
    assert [finding["code"] for finding in answer["breaks"]] == ["unknown-method"]


def test_a_release_that_is_not_known_is_compared_only_on_request():
    arguments = ["upgrade", LLAMA, "-sc", NGRAM, "--from", "0.33.0", "--to", "0.34.0"]
    assert CliRunner().invoke(main, arguments).exit_code == 2
    assert "0.33.0 -> 0.34.0, judged as 0.33.0" in CliRunner().invoke(main, [*arguments, "--nearest"]).stdout


def test_the_release_that_runs_is_the_one_that_the_source_names(tmp_path):
    command = f"--model {LLAMA} --speculative-config '{SUFFIX}'"
    service = {"image": "vllm/vllm-openai:v0.19.1", "command": command}
    file = tmp_path / "compose.yaml"
    file.write_text(json.dumps({"services": {"llm": service}}))
    named, asked = (
        CliRunner().invoke(main, ["upgrade", str(file), *words, "--to", "newest", "--json"])
        for words in ((), ("--from", "0.19.1"))
    )
    assert json.loads(named.stdout) == json.loads(asked.stdout)
    for image in ("vllm/vllm-openai", "vllm/vllm-openai:latest"):
        file.write_text(json.dumps({"services": {"llm": service | {"image": image}}}))
        done = CliRunner().invoke(main, ["upgrade", str(file), "--to", "newest"])
        assert (done.exit_code, "--from" in done.stderr or "not a version" in done.stderr) == (2, True), done.stderr
