"""One row a method: every name of every release leads to one, and rows that cannot be right are refused."""

import json
import re
from importlib.resources import files

import pytest

from draftwise.knowledge.methods import find_method, get_method, methods_where, read_methods
from draftwise.knowledge.vllm import releases

ROWS = json.loads(files("draftwise.knowledge").joinpath("data/methods.json").read_text())


def test_every_name_that_some_release_has_is_one_method_and_others_are_embedded() -> None:
    released = {get_method(name).name for release in releases() for name in release.table("methods")}
    assert all(method.embedded for name, method in methods_where().items() if name not in released)


def test_aliases_are_names_of_some_release_and_lead_to_their_method() -> None:
    named = {name for release in releases() for name in release.table("methods")}
    for name, method in methods_where().items():
        assert get_method(name) is method
        assert set(method.aliases) <= named
        assert all(get_method(alias) is method for alias in method.aliases)


def test_an_unknown_name_is_found_nowhere() -> None:
    assert find_method("eagle4") is None
    assert find_method(None) is None
    with pytest.raises(KeyError):
        get_method("eagle4")


def test_queries_keep_to_their_columns() -> None:
    assert set(methods_where(drafts_from="target_states", network="chain")) == {"eagle", "eagle3", "mtp"}
    assert set(methods_where(needs_drafter=False, has_weights=True)) == {"mtp", "dspark"}
    with pytest.raises(AttributeError):
        methods_where(no_such_column=True)


def test_keys_are_keys_of_some_release_and_patterns_compile() -> None:
    known = {key for release in releases() for key in release.table("spec_fields")}
    for method in methods_where().values():
        assert {*method.keys, *method.embedded_keys} <= known
        assert {method.default_k_key, method.required_key} - {None} <= set(method.keys)
        assert all(re.compile(pattern) for pattern in method.tensors)


def test_columns_agree_with_each_other() -> None:
    for method in methods_where().values():
        assert method.source
        assert method.checked
        assert (method.network in ("chain", "one_pass")) == method.keeps_kv == (method.lookahead != "none")
        assert (method.parallel == "always") == (method.network == "one_pass")
        assert method.embedded or not method.trainable
        if not method.has_weights:
            assert (method.architectures, method.tensors, method.shares, method.trainable) == ((), (), (), False)


def test_the_rows_as_they_are_can_be_read() -> None:
    assert [method.name for method in read_methods(ROWS)] == list(methods_where())


@pytest.mark.parametrize(
    "change",
    [
        {"network": "tree"},
        {"drafts_form": "text"},
        {"name": "mtp"},
        {"aliases": ["deepseek_mtp"]},
        {"aliases": ["ngram", "ngram"]},
    ],
    ids=["value", "column", "name", "alias", "alias-twice"],
)
def test_a_row_that_cannot_be_right_is_refused(change: dict[str, object]) -> None:
    first, *others = ROWS
    with pytest.raises(ValueError, match=re.escape("methods.json")):
        read_methods([first | change, *others])
