"""A program that passes a value of another type gets findings, each with the field, and nothing is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import KW_ONLY, MISSING
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import pytest

import draftwise
from draftwise.core import InvalidRequest, InvalidSetup, SpecConfig
from draftwise.verbs import VERBS, load_verb
from draftwise.verbs.check import CheckRequest
from draftwise.verbs.field_types import Range, find_wrong_types

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("verb", "given", "said"),
    [
        ("size", {"target": LLAMA, "gpu": 3}, "gpu must be text or None, not 3."),
        ("size", {"target": LLAMA, "gpu": "H200", "contexts": "4096"}, "contexts must be a sequence (a whole number)"),
        (
            "pick",
            {"target": LLAMA, "gpu": "H200", "concurrency": True},
            "concurrency must be a whole number, not True.",
        ),
        ("pick", {"target": LLAMA, "gpu": "H200", "overlap": "all"}, "overlap must be one of none, some, high or None"),
        ("check", {"sources": None}, "sources must be text or a path or a Setup or a sequence (text or a path"),
        ("check", {"sources": LLAMA, "speculative_config": 5}, "speculative_config must be a SpecConfig or a mapping"),
        ("check", {"sources": LLAMA, "engine_flags": "--seed 1"}, "engine_flags must be a sequence (text), not"),
        (
            "forecast",
            {"profile": "p", "calibration": ""},
            "calibration must be a Calibration or text or a path, not ''.",
        ),
        ("facts", {"older_than_months": float("nan")}, "older_than_months must be a finite number, not nan."),
        ("bundle", {"setup": "\0"}, "setup must be text or a path, not"),
        ("train", {"method": "eagle3", "target": "t", "data": 1, "out": "o"}, "data must be text or a sequence (text)"),
    ],
)
def test_a_value_of_another_type_is_a_finding(verb: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        getattr(draftwise, verb)(**given)
    (finding,) = raised.value.findings
    assert said in finding.message
    assert finding.message.startswith(finding.where)


def test_all_of_them_are_findings_at_once() -> None:
    with pytest.raises(InvalidRequest) as raised:
        draftwise.size(3, gpu=4, vllm=5)  # type: ignore[arg-type]
    assert [finding.where for finding in raised.value.findings] == ["target", "gpu", "vllm"]


def test_a_name_that_no_field_has_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpuz'"):
        draftwise.size(LLAMA, gpu="H200", gpuz=1)  # type: ignore[call-arg]


def test_a_request_that_is_run_gets_the_finding_too() -> None:
    with pytest.raises(InvalidRequest, match="vllm must be text"):
        draftwise.check.run(CheckRequest(LLAMA, vllm=3))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", VERBS)
def test_every_default_has_the_type_of_its_field(name: str) -> None:
    request: Any = load_verb(name).request
    needed = {key for key, field in request.__dataclass_fields__.items() if _is_required(field)}
    made = request(**{key: [] if key == "candidates" else LLAMA for key in needed})
    assert not list(find_wrong_types(made))


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING and field.type is not KW_ONLY


def test_text_and_paths_name_files_alike(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text('{"method": "ngram", "num_speculative_tokens": 3}')
    (tmp_path / "env").write_text("A=1\n")
    expected = draftwise.check(LLAMA, speculative_config=SpecConfig.parse(NGRAM)).to_dict()
    for make in (str, Path):
        given, env = make(tmp_path / "spec.json"), make(tmp_path / "env")
        assert draftwise.check(LLAMA, speculative_config=given, env_files=[env]).to_dict() == expected


def test_a_name_that_no_file_can_have_is_a_finding() -> None:
    for verb in (draftwise.inspect, draftwise.report, draftwise.bundle):
        with pytest.raises(InvalidSetup, match=r"x\.\.\. is too long for a file name"):
            verb("x" * 5000, **({"out": "o"} if verb is draftwise.bundle else {}))


def test_a_platform_that_there_is_not_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="Unknown platform 'nope': give one of kubernetes, kserve"):
        draftwise.deploy(LLAMA, speculative_config=NGRAM, vllm="0.33.0", to="nope", out=tmp_path / "new")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompts": 0}, "prompts must be 1 or more, not 0."),
        ({"repeats": -1}, "repeats must be 1 or more, not -1."),
        ({"minutes": 0}, "minutes must be above 0, not 0."),
        ({"concurrency": 0}, "concurrency: 0 is below 1."),
        ({"rate": 1, "arrivals": "nope"}, "Unknown arrivals 'nope': give one of poisson"),
    ],
)
def test_a_measurement_of_nothing_is_a_finding(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        draftwise.decide(url="http://127.0.0.1:9", candidate_urls=["http://127.0.0.1:8"], **given)


def test_a_grouping_that_there_is_not_is_a_finding() -> None:
    with pytest.raises(InvalidRequest, match="Unknown grouping 'nope': give one of"):
        draftwise.replay("log.jsonl", target="target", candidates=[NGRAM], group_by="nope")


def read_ranges(kind: Any) -> Iterator[Range]:
    """Yield the ranges inside a field's type."""
    yield from (each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Range))
    for each in get_args(kind):
        yield from read_ranges(each)


@pytest.mark.parametrize("name", VERBS)
def test_a_field_has_the_range_of_its_option(name: str) -> None:
    """A program is refused what the command line refuses, with the field's name."""
    import draftwise.cli

    command = draftwise.cli.main.get_command(click.Context(draftwise.cli.main), name)
    hints = get_type_hints(load_verb(name).request, include_extras=True)
    for option in command.params if command is not None else ():
        kind = option.type
        if isinstance(kind, click.IntRange | click.FloatRange) and option.name in hints:
            given = Range(
                least=None if kind.min_open else kind.min,
                above=kind.min if kind.min_open else None,
                most=None if kind.max_open else kind.max,
                below=kind.max if kind.max_open else None,
            )
            assert [*read_ranges(hints[option.name])] == [given], option.name


@pytest.mark.parametrize(
    ("verb", "given", "said"),
    [
        ("pick", {"target": LLAMA, "gpu": "H200", "concurrency": 0}, "concurrency must be 1 or more, not 0."),
        (
            "pick",
            {"target": LLAMA, "gpu": "H200", "temperature": 10**400},
            "must be a finite number, not 1000",
        ),
        ("pick", {"target": LLAMA, "gpu": "H200", "slo_ttft_ms": 0}, "slo_ttft_ms must be above 0, not 0."),
        ("size", {"target": LLAMA, "gpu": "H200", "tensor_parallel_size": 2000}, "must be from 1 to 1024, not 2000."),
        ("size", {"target": LLAMA, "gpu": "0GiB"}, "draftwise does not know the GPU '0GiB'."),
        (
            "schedule",
            {"profile": "p", "calibration": "c", "max_num_seqs": -1},
            "max_num_seqs must be 1 or more, not -1.",
        ),
        (
            "forecast",
            {"profile": "p", "calibration": "c", "output_tokens": 0},
            "output_tokens must be 1 or more, not 0.",
        ),
        ("facts", {"older_than_months": 10**5000}, "older_than_months must be a finite number, not a longer number."),
    ],
)
def test_a_number_out_of_its_range_is_a_finding(verb: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSetup) as raised:
        getattr(draftwise, verb)(**given)
    assert said in raised.value.findings[0].message


def test_size_takes_a_speculative_config_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(NGRAM))
    assert draftwise.size(LLAMA, gpu="H200", speculative_config=tmp_path / "spec.json").method == "ngram"
