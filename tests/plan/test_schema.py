"""The schema of --speculative-config says of single keys what `check` says, in every release."""

from functools import cache
from typing import Any

import pytest
from jsonschema import Draft7Validator

from draftwise.core import Setup, SpecConfig
from draftwise.knowledge.vllm import Release, get_release, releases
from draftwise.plan.check import check
from draftwise.plan.spec_schema import make_schema

ABOUT_KEYS = {"unknown-key", "wrong-type", "value-out-of-range", "unknown-choice", "unknown-method"}
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 5, 0.0, 0.5, 1.5, "", "x", "5", [], [0.5], [[1, 2, 3]], [[1, 2]], [["a", 1, 1]],
    {}, {"a": 1},
)  # fmt: skip
EVERY_FEW = {*map(str, releases()[::6]), "0.15.1", "0.16.0", "0.26.0", "0.33.0"}


@cache
def validator_of(release: Release) -> Draft7Validator:
    return Draft7Validator(make_schema(release))


def is_valid(release: Release, spec: dict[str, Any]) -> bool:
    return validator_of(release).is_valid(spec)


def faults(release: Release, spec: dict[str, Any], key: str) -> set[str]:
    report = check(Setup(engine="vllm", engine_version=str(release), target="m", spec=SpecConfig.keep(spec)))
    return {finding.code for finding in report.findings if finding.where == key} & ABOUT_KEYS


@pytest.mark.parametrize("release", releases(), ids=str)
def test_it_is_a_schema_that_accepts_every_default_and_every_choice(release: Release) -> None:
    schema = make_schema(release)
    Draft7Validator.check_schema(schema)
    for name, described in schema["properties"].items():
        assert described["description"]
        accepted = [described["default"]] if "default" in described else []
        accepted += release.table("spec_fields")[name].get("choices") or ()
        assert all(is_valid(release, {name: value}) for value in accepted), name
        assert not [value for value in accepted if faults(release, {name: value}, name)], name


@pytest.mark.parametrize("version", sorted(EVERY_FEW))
def test_what_check_refuses_of_a_key_the_schema_refuses(version: str) -> None:
    release = get_release(version)
    keys = [*make_schema(release)["properties"], "no_such_key", "num-speculative-tokens", "Method"]
    passed = [(key, value) for key in keys for value in VALUES if is_valid(release, {key: value})]
    assert len(passed) > len(keys)
    assert [(key, value) for key, value in passed if faults(release, {key: value}, key)] == []


@pytest.mark.parametrize("release", releases(), ids=str)
def test_each_bound_is_kept(release: Release) -> None:
    beyond = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
    for name, row in release.table("spec_fields").items():
        for bound in beyond.keys() & row.keys():
            inside = row[bound] + (1 if bound == "gt" else -1 if bound == "lt" else 0)
            assert is_valid(release, {name: inside}), name
            assert not is_valid(release, {name: row[bound] + beyond[bound]}), name


def test_the_configs_of_the_documentation_are_valid() -> None:
    newest = releases()[-1]
    for spec in (
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
        {"method": "suffix"},
        {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1},
        {"method": "ngram", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 8, 3]]},
        {"method": "dflash", "model": "a/b", "num-speculative-tokens": 7, "attention_backend": "flash_attn"},
    ):
        assert is_valid(newest, spec), spec


@pytest.mark.parametrize(
    ("version", "extra", "dashed"), [("0.15.1", True, True), ("0.16.0", False, False), ("0.26.0", False, True)]
)
def test_unknown_and_dashed_keys_are_taken_as_the_release_takes_them(version: str, extra: bool, dashed: bool) -> None:
    release = get_release(version)
    assert is_valid(release, {"no_such_key": 1}) is extra
    assert is_valid(release, {"num-speculative-tokens": 3}) is dashed
    assert is_valid(release, {"num-speculative-tokens": 0}) is (version == "0.15.1")
