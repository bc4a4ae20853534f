"""`draftwise size` from the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from draftwise.cli import main

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["size", *arguments])


def test_the_table_shows_both_sides_of_a_drafter() -> None:
    result = run(LLAMA, "--gpu", "H200", "--method", "eagle3", "--drafter", "some/EAGLE3-head", "--vllm", "0.26.0")
    assert result.exit_code == 0, result.output
    for text in ("target weights", "drafter weights", "KV cache", "with drafter", "without", "eagle3 k=3", "█"):
        assert text in result.output


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("fp8", 8.5), ("int8", 8.5), ("int4", 5.6), ("awq", 5.6), ("mxfp4", 5.7), ("nvfp4", 5.9)]
)
def test_the_precisions_that_help_offers_are_sized(name: str, gigabytes: float) -> None:
    result = run(LLAMA, "--gpu", "H100", "--quantization", name, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["with_drafter"]["target"] == pytest.approx(gigabytes * 1e9, rel=0.1)


def test_json_is_in_bytes() -> None:
    arguments = (LLAMA, "--gpu", "L40S", "--vllm", "0.33.0", "--max-model-len", "8192", "--context", "3000", "--json")
    shown = json.loads(run(*arguments).output)
    assert shown["with_drafter"] == shown["without_drafter"]
    assert shown["with_drafter"]["kv_bytes_per_token"] == 131072
    assert list(shown["with_drafter"]["sequences"]) == ["3000"]
    assert shown["method"] is None


def test_the_whole_speculative_config_can_be_given() -> None:
    spec = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
    shown = json.loads(run(LLAMA, "--gpu", "H200", "--speculative-config", spec, "--json").output)
    assert (shown["method"], shown["num_speculative_tokens"]) == ("ngram", 5)


def test_a_compile_cache_leaves_more() -> None:
    cold, warm = (
        json.loads(run(LLAMA, "--gpu", "L4", "--max-model-len", "4096", "--vllm", "0.26.0", "--json", flag).output)
        for flag in ("--cold", "--compiled")
    )
    assert warm["with_drafter"]["kv_tokens"] > cold["with_drafter"]["kv_tokens"]


def test_any_number_of_tokens_ends() -> None:
    spec = json.dumps({"method": "ngram", "num_speculative_tokens": 10**20})
    result = run("meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100", "-sc", spec)
    assert (result.exit_code, "before it caches the first token" in result.output) == (1, True)


COMPOSE = """
services:
  vllm:
    image: vllm/vllm-openai:v0.19.1
    command: --model meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384 --tensor-parallel-size 2 SPEC
"""

OWN_IMAGE = f"services:\n  vllm:\n    image: registry/own:1\n    command: vllm serve {LLAMA}\n"


def test_a_file_is_sized_as_it_starts_the_server_unless_an_option_says_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(COMPOSE.replace("SPEC", """--speculative-config '{"method":"ngram","num_speculative_tokens":4}'"""))

    def read(*options: str) -> list[object]:
        shown = json.loads(run(str(file), "--gpu", "H100", "--json", *options).output)
        names = ("vllm", "tensor_parallel_size", "max_model_len", "method", "num_speculative_tokens")
        return [shown[name] for name in names]

    assert read() == ["0.19.1", 2, 16384, "ngram", 4]
    assert read("--tp", "1", "--vllm", "0.33.0", "--max-model-len", "4096") == ["0.33.0", 1, 4096, "ngram", 4]
    assert read("--method", "ngram") == ["0.19.1", 2, 16384, "ngram", 3]
    file.write_text(file.read_text() + "  other:\n    image: vllm/vllm-openai:v0.19.1\n    command: --model a/b\n")
    assert "starts 2 servers" in run(str(file), "--gpu", "H100").output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: 1\n", "names no model"),
        (OWN_IMAGE, "does not show which vLLM"),
        (COMPOSE.replace("--tensor-parallel-size 2 SPEC", "--tensor-parallel-size ${RANKS}"), "RANKS"),
    ],
)
def test_what_a_file_leaves_open_has_no_number(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(text)
    result = run(str(file), "--gpu", "H100")
    assert (result.exit_code != 0, said in result.output, "KV cache" in result.output) == (True, True, False)


def test_a_release_that_the_image_does_not_show_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(OWN_IMAGE)
    assert run(str(file), "--gpu", "H100", "--vllm", "0.33.0").exit_code == 0


def test_a_command_and_flags_are_sized() -> None:
    flags = ("--max-model-len", "4096", "--max-num-seqs", "64")
    options = ("--gpu", "H100", "--vllm", "0.33.0", "--json")
    said = [
        json.loads(run(*each).output)
        for each in (
            (LLAMA, *options, *flags),
            (LLAMA, *options, "--", *flags),
            (*options, "vllm", "serve", LLAMA, *flags),
            (*options, "--", "vllm", "serve", LLAMA, *flags),
            (shlex.join(["vllm", "serve", LLAMA, *flags]), *options),
        )
    ]
    assert all(each == said[0] for each in said)


@pytest.mark.parametrize(
    ("model", "flags", "named"),
    [
        (LLAMA, ["--enable-lora"], "--enable-lora"),
        ("Qwen/Qwen3-30B-A3B", ["--data-parallel-size", "2"], "--data-parallel-size"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", ["--limit-mm-per-prompt", '{"image": 0}'], "--limit-mm-per-prompt"),
    ],
)
def test_a_flag_whose_memory_is_unknown_leaves_no_number(model: str, flags: list[str], named: str) -> None:
    options = (model, "--gpu", "B200", "--vllm", "0.33.0")
    assert run(*options).exit_code == 0
    result = run(*options, "--", *flags)
    assert (result.exit_code, f"the effect of {named}" in result.output) == (2, True), result.output
    assert run(LLAMA, "--gpu", "B200", "--", "--data-parallel-size", "2").exit_code == 0


def test_graphs_of_other_sizes_are_noted() -> None:
    flags = ("--", "--max-cudagraph-capture-size", "1024")
    assert "--max-cudagraph-capture-size may change it" in run(LLAMA, "--gpu", "H100", *flags).output
    assert "may change it" not in run(LLAMA, "--gpu", "H100", "--enforce-eager", *flags).output


def test_what_does_not_fit_exits_with_1() -> None:
    result = run("meta-llama/Llama-3.1-70B-Instruct", "--gpu", "L4")
    assert result.exit_code == 1
    assert "error: " in result.output
    assert "Try" in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((LLAMA, "--gpu", "Voodoo2"), "draftwise does not know the GPU 'Voodoo2'"),
        (("nobody/nothing", "--gpu", "H200"), "neither a checkpoint directory"),
        ((LLAMA, "--gpu", "H200", "--vllm", "0.1"), "older than"),
        ((LLAMA, "--gpu", "H200", "--method", "eagle3", "--drafter", "nothing"), "neither a directory here"),
        ((LLAMA, "--gpu", "H200", "--speculative-config", "{"), "The text has an unclosed brace"),
    ],
)
def test_mistakes_become_lines(arguments: tuple[str, ...], text: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.output
    assert "Traceback" not in result.output


def test_two_ways_of_saying_the_same_are_refused() -> None:
    result = run(LLAMA, "--gpu", "H200", "--method", "mtp", "--speculative-config", "{}")
    assert result.exit_code == 2


def test_the_plot_is_written(tmp_path: Path) -> None:
    file = tmp_path / "size.svg"
    result = run(LLAMA, "--gpu", "H200", "--method", "ngram", "--num-speculative-tokens", "5", "--plot", str(file))
    assert result.exit_code == 0, result.output
    assert "<svg" in file.read_text()
    failed = run(LLAMA, "--gpu", "H200", "--plot", str(tmp_path / "missing/size.svg"))
    assert failed.exit_code not in (0, 1)
    assert "cannot be written (No such file or directory)" in failed.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("size", LLAMA, "--gpu", "H100", "--method", "ngram"),
        ("pick", LLAMA, "--gpu", "H200", "--workload", "code"),
    ],
    ids=["size", "pick"],
)
def test_in_a_narrow_terminal_no_number_is_cut(arguments, monkeypatch) -> None:
    """A table that has no room leaves out columns, and then shows each row as a paragraph."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("TERM", "dumb")
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    assert "…" not in result.output
    shown = {"size": ("1,024", "KV tokens", "454,576"), "pick": ("dflash", " 7 ", "speed-up")}[arguments[0]]
    assert [each for each in shown if each not in result.output] == []
