"""What is written is read back as it was: for every kind of flag, in releases from the first covered to the newest."""

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.combinations import tries
from tests.support.drawn_setups import drawn_setups

from draftwise.core import Setup, SpecConfig
from draftwise.knowledge.vllm import get_release
from draftwise.setups import write as writer
from draftwise.setups.read import read_setups, read_words
from draftwise.setups.write import write_flags, write_shell, write_words

RELEASES = ("0.9.2", "0.16.0", "0.26.0", "0.33.0")
LAW = settings(max_examples=tries(60), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
UNSHRUNK = settings(LAW, max_examples=500, phases=[Phase.generate])


def hold_words(release: str, how: settings = LAW) -> None:
    @how
    @given(drawn_setups(get_release(release)))
    def law(setup: Setup) -> None:
        found = read_words(write_words(setup), engine_version=release).setup
        assert found == Setup(**{**fields(setup), "env": {}})

    law()


def hold_shell(release: str) -> None:
    @LAW
    @given(drawn_setups(get_release(release)), st.booleans())
    def law(setup: Setup, line_per_flag: bool) -> None:
        (reading,) = read_setups(write_shell(setup, line_per_flag=line_per_flag), engine_version=release)
        assert reading.setup == setup

    law()


def fields(setup: Setup) -> dict[str, Any]:
    return {name: getattr(setup, name) for name in Setup.__slots__}


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_written_as_words_is_read_back(release: str) -> None:
    hold_words(release)


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_written_for_a_shell_is_read_back(release: str) -> None:
    hold_shell(release)


GOLDEN = sorted((Path(__file__).parent / "read").glob("vllm_arguments_*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_whatever_command_line_was_read_is_written_and_read_again(path: Path) -> None:
    golden = json.loads(path.read_text(encoding="utf-8"))
    differing = []
    for case in golden["cases"]:
        once = read_words(["vllm", "serve", *case["argv"]], engine_version=golden["vllm"]).setup
        again = read_words(write_words(once), engine_version=golden["vllm"]).setup
        if "error" not in case and again != once:
            differing.append((case["argv"], once, again))
    assert len(golden["cases"]) >= 300
    assert differing == []


def no_json(value: Any, row: Mapping[str, Any]) -> str:
    return str(value)


def no_tie(flag: str, given_values: list[str]) -> list[str]:
    return [flag, *given_values]


def no_none(value: Any) -> str:
    return "" if value is None else json.dumps(value)


@pytest.mark.parametrize(("name", "mutant"), [("_to_json", no_json), ("_join", no_tie), ("_to_text", no_none)])
def test_the_law_sees_a_writer_that_is_wrong(name: str, mutant: Callable[..., Any], monkeypatch) -> None:
    monkeypatch.setattr(writer, name, mutant)
    with pytest.raises((AssertionError, ExceptionGroup)):
        hold_words("0.33.0", UNSHRUNK)


NGRAM = SpecConfig(method="ngram", num_speculative_tokens=5)


def test_every_kind_of_value_has_its_spelling() -> None:
    setup = Setup(
        target="m",
        engine="vllm",
        engine_version="0.33.0",
        spec=NGRAM,
        args={
            "tensor_parallel_size": 2,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "served_model_name": ["a", "b"],
            "allowed_origins": ["*"],
            "compilation_config": {"level": 3},
            "middleware": ["x", "y"],
            "max_model_len": -1,
            "quantization": None,
        },
        extra_args=("--not-known", "1"),
    )
    assert write_words(setup) == [
        "vllm", "serve", "m", "--tensor-parallel-size", "2", "--enforce-eager", "--no-enable-prefix-caching",
        "--served-model-name", "a", "b", "--allowed-origins", '["*"]', "--compilation-config", '{"level": 3}',
        "--middleware", "x", "--middleware", "y", "--max-model-len=-1", "--quantization", "None",
        "--speculative-config", NGRAM.to_json(), "--not-known", "1",
    ]  # fmt: skip


def test_a_shell_gets_quotes_variables_and_a_line_for_each_flag() -> None:
    setup = Setup(target="my model", engine="vllm", spec=NGRAM, args={"seed": 1}, env={"VLLM_X": "a b"})
    assert write_shell(setup) == (
        f"VLLM_X='a b' vllm serve 'my model' --seed 1 --speculative-config {shlex.quote(NGRAM.to_json())}"
    )
    assert write_shell(setup, line_per_flag=True).count(" \\\n  ") == 2


def test_a_model_that_is_a_config_has_no_name() -> None:
    setup = Setup(target='{"architectures": []}', engine="vllm")
    assert write_shell(setup) == "vllm serve MODEL"
    assert list(write_flags(setup)) == []
