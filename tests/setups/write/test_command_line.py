"""What is written is read back as it was: for every kind of flag, in releases from the first covered to the newest."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from draftwise.core import Setup, SpecConfig
from draftwise.facts.flag_types import takes_none, takes_text
from draftwise.facts.vllm import Release, get_release
from draftwise.setups.read import read_setups, read_words
from draftwise.setups.write import command_line as writer
from draftwise.setups.write import write_flags, write_shell, write_words

RELEASES = ("0.9.2", "0.16.0", "0.26.0", "0.33.0")
NOT_ENGINE = {"model", "model_tag", "config", "speculative_config", "spec_method", "spec_model", "spec_tokens"}
HIDDEN = {"api_key", "hf_token"}
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12)
NUMBERS = st.integers(-(10**6), 10**6)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)


def texts(row: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values of a flag that takes one text."""
    kinds = set(re.findall(r"\w+", str(row["type"])))
    none = st.none() if takes_none(row) else st.nothing()
    if row.get("choices") and not re.search(r"Enum\b|^OptimizationLevel$", str(row["type"])):
        return none | st.sampled_from(row["choices"])
    if "int" in kinds and "lambda" not in kinds:
        return none | NUMBERS
    if "float" in kinds:
        return none | st.floats(allow_nan=False, allow_infinity=False)
    return none | TEXT.filter(lambda text: text != "None")


def values(name: str, row: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that a flag may have been given on a command line."""
    if row["field"] in HIDDEN:
        return st.just("(not shown)")
    if row["kind"] == "switch":
        return st.booleans() if "negation" in row else st.just(True)
    if row["kind"] == "list":
        items = texts(row).filter(lambda item: not str(item).startswith(tuple(writer._DASHES)))
        return st.lists(items, min_size=1, max_size=3)
    if row["kind"] == "json":
        plain = TEXT.filter(lambda text: text != "None" and not re.fullmatch(r"\s*\{.*\}\s*", text))
        none = st.none() if takes_none(row) else st.nothing()
        return none | (OBJECTS | plain if takes_text(row) else JSON)
    return st.lists(texts(row), min_size=1, max_size=3) if isinstance(row["default"], list) else texts(row)


@st.composite
def setups(draw: st.DrawFn, release: Release) -> Setup:
    flags = {name: row for name, row in release.table("flags").items() if row["field"] not in NOT_ENGINE}
    chosen = draw(st.lists(st.sampled_from(sorted(flags)), unique=True, max_size=6))
    spec = draw(st.none() | OBJECTS)
    return Setup(
        target=draw(st.sampled_from(["m", "/models/a b", "org/Model-8B"])),
        engine="vllm",
        engine_version=str(release),
        spec=None if spec is None else SpecConfig.keep(spec),
        args={flags[name]["field"]: draw(values(name, flags[name])) for name in chosen},
        env=draw(st.dictionaries(st.sampled_from(["VLLM_USE_V1", "VLLM_X"]), TEXT, max_size=2)),
        extra_args=draw(st.sampled_from([(), ("--no-such-flag",), ("--no-such-flag", "3", "--nor-this=x")])),
    )


LAW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
UNSHRUNK = settings(LAW, max_examples=200, phases=[Phase.generate])


def hold_words(release: str, how: settings = LAW) -> None:
    @how
    @given(setups(get_release(release)))
    def law(setup: Setup) -> None:
        found = read_words(write_words(setup), engine_version=release).setup
        assert found == Setup(**{**fields(setup), "env": {}})

    law()


def hold_shell(release: str) -> None:
    @LAW
    @given(setups(get_release(release)), st.booleans())
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


GOLDEN = sorted((Path(__file__).parents[1] / "read").glob("vllm_arguments_*.json"))


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
