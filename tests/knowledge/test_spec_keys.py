"""Every key of the speculative config is described, and what the embedded engine makes of it is said and true."""

from dataclasses import fields

import pytest

from draftwise.knowledge.spec_keys import find_name_traps, keys_where, read_spec_keys
from draftwise.knowledge.vllm import releases


def test_every_key_that_some_vllm_knows_has_a_row_and_no_row_is_left_over() -> None:
    assert set(read_spec_keys()) == {key for release in releases() for key in release.table("spec_fields")}
    assert all(key.meaning and key.source for key in read_spec_keys().values())


def test_a_key_is_idle_for_a_reason() -> None:
    for key in read_spec_keys().values():
        assert bool(key.reason) == (key.embedded == "idle"), key.name


@pytest.mark.engine
def test_a_key_that_the_engine_has_under_the_same_name_points_to_it() -> None:
    from draftwise.engine.engine_config import EngineConfig

    settings = {field.name for field in fields(EngineConfig)}
    for name in settings & keys_where(embedded="idle").keys():
        assert f"the engine's own {name}" in read_spec_keys()[name].reason


def test_what_the_newest_release_says_of_a_key_holds() -> None:
    key = read_spec_keys()["disable_by_batch_size"]
    assert (key.type, key.default, key.bounds, key.source[:11]) == ("int | None", None, {"ge": 2}, "vLLM 0.11.1")


def test_what_lies_behind_a_field_narrows_it() -> None:
    assert read_spec_keys()["suffix_decoding_min_token_prob"].bounds == {"ge": 0, "le": 1}
    assert read_spec_keys()["rejection_sample_method"].choices == ("standard", "synthetic", "block")


@pytest.mark.parametrize("trap", ["eagle-", "eagle3", "dflash", "dspark"])
def test_names_that_mislead_the_newest_release(trap: str) -> None:
    assert trap in set(find_name_traps())
