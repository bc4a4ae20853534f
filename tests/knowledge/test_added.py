"""Releases that a user added: what is stored is what is looked up, beside what is shipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwise.core import InvalidSetup, StorageError
from draftwise.knowledge.added import AddedRelease, MissingFacts, read_added, read_table, remove_release, write_release
from draftwise.knowledge.vllm import Release, forget_added, get_release, history, releases, topics

Add = Callable[..., Release]
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=3)
TABLE = st.dictionaries(st.text(max_size=8), st.tuples(VALUES, st.text(max_size=8)), max_size=4)


def _about(version: str = "9.0") -> AddedRelease:
    return AddedRelease(version=version, built="2026-11-20", read_from="a.whl", added="2026-11-21", draftwise="0.1")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables=st.dictionaries(st.sampled_from(["flags", "flags2", "methods"]), TABLE, min_size=1))
def test_what_was_written_is_read(user_data: Path, tables: dict[str, dict[str, tuple[object, str]]]) -> None:
    write_release(_about(), tables)
    (about,) = read_added()
    assert (about.version, about.topics) == ("9.0", sorted(tables))
    for topic, table in tables.items():
        read = {key: (row.value, row.source) for key, row in read_table(about, topic).items()}
        assert json.dumps(read) == json.dumps(table)
    assert [file.name for file in about.file.parent.iterdir()] == ["vllm-9.0.jsonl"]


def test_without_added_releases_there_is_what_is_shipped(user_data: Path) -> None:
    assert not user_data.exists()
    assert all(release.added is None for release in releases())


def test_an_added_release_is_one_more_column(add_like_newest: Add) -> None:
    shipped = releases()
    keys = {topic: sorted(shipped[-1].table(topic)) for topic in topics()}
    before = {(topic, key): history(topic, key) for topic in topics() for key in keys[topic]}
    release = add_like_newest("99.1")
    assert releases() == (*shipped, release)
    assert get_release("newest") == get_release("v99.1") == release
    for (topic, key), spans in before.items():
        assert history(topic, key) == spans
        assert release.table(topic)[key] == shipped[-1].table(topic)[key]
        assert release.source(topic, key) == "vLLM 99.1, vllm/new.py: symbol"


def test_what_an_added_release_changes_is_a_span_of_its_own(add_like_newest: Add) -> None:
    newest = str(releases()[-1])
    add_like_newest(
        "99.1",
        methods=lambda table: {**table, "zap": ({"group": "x"}, "vllm/new.py: Zap")} | {"ngram": (1, "vllm/new.py: N")},
        spec_fields=lambda table: {key: row for key, row in table.items() if key != "method"},
    )
    (zap,) = history("methods", "zap")
    assert (str(zap.since), zap.until, zap.source) == ("99.1", None, "vLLM 99.1, vllm/new.py: Zap")
    assert [str(span.until) for span in history("methods", "ngram")][-2:] == [newest, "None"]
    assert str(history("spec_fields", "method")[-1].until) == newest
    assert history("spec_fields", "method", shipped=True)[-1].until is None


def test_a_release_between_shipped_ones_has_its_place(add_like_newest: Add) -> None:
    release = add_like_newest("0.19.2", methods=lambda _table: {"zap": (1, "vllm/new.py: Zap")})
    at = releases().index(release)
    assert [str(each) for each in releases()[at - 1 : at + 2]] == ["0.19.1", "0.19.2", "0.20.0"]
    assert [(str(span.since), str(span.until)) for span in history("methods", "zap")] == [("0.19.2", "0.19.2")]
    assert [str(span.since) for span in history("methods", "medusa")] == ["0.9.2", "0.20.0"]


def test_a_shipped_release_is_not_replaced(add_like_newest: Add) -> None:
    newest = releases()[-1]
    add_like_newest(str(newest), methods=lambda _table: {})
    assert releases()[-1].added is None
    assert get_release(str(newest)).table("methods")


def test_a_topic_that_could_not_be_read_is_an_error_that_names_it(add_like_newest: Add) -> None:
    release = add_like_newest("99.1", flags=lambda _table: None)
    assert release.table("methods")
    with pytest.raises(MissingFacts, match=r"The flags of vLLM 99\.1 are unknown, so draftwise.*no class X\."):
        release.table("flags")
    assert release not in releases("flags")
    assert history("flags", "--model")
    with pytest.raises(KeyError):
        release.table("no-such-topic")


def test_facts_of_another_format_are_not_taken_for_these(add_like_newest: Add) -> None:
    release = add_like_newest("99.1")
    assert release.added is not None
    file = release.added.file
    file.write_text(file.read_text().replace('"format": 1', '"format": 0', 1))
    forget_added()
    with pytest.raises(MissingFacts, match=r"which wrote them differently"):
        get_release("99.1").table("flags")


@pytest.mark.parametrize("damage", ["", "{", "[]\n", '{"version": "9.0"}\n'])
def test_a_damaged_file_is_named(user_data: Path, damage: str) -> None:
    write_release(_about(), {"methods": {}})
    _about().file.write_text(damage)
    with pytest.raises(InvalidSetup, match=r"vllm-9\.0\.jsonl cannot be read.*Delete the file") as caught:
        read_added()
    assert caught.value.findings[0].code == "facts-damaged"


def test_a_file_that_was_cut_off_is_named(user_data: Path) -> None:
    write_release(_about(), {"methods": {"ngram": (1, "x")}})
    (about,) = read_added()
    about.file.write_text(about.file.read_text()[:-9])
    with pytest.raises(InvalidSetup, match="facts"):
        read_table(about, "methods")


def test_a_folder_that_cannot_be_written_is_told(user_data: Path) -> None:
    user_data.write_text("a file")
    with pytest.raises(StorageError, match="DRAFTWISE_DATA_DIR"):
        write_release(_about(), {})


def test_removed_is_gone(add_like_newest: Add) -> None:
    release = add_like_newest("99.1")
    assert release.added is not None
    remove_release(release.added)
    forget_added()
    assert release not in releases()
