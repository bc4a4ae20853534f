"""Every method of a release is proposed or refused, once: also one of which little is known."""

from dataclasses import replace

import pytest
from tests.support.requirements import advise

from draftwise.knowledge import methods
from draftwise.knowledge.method_advice import NO_ADVICE
from draftwise.knowledge.methods import methods_where
from draftwise.knowledge.vllm import Release


def test_every_method_of_the_table_is_proposed_or_refused() -> None:
    advice = advise(kind="code-editing")
    named = [each.method for each in (*advice.ranked, *advice.refused)]
    assert sorted(named) == sorted(methods_where())


def test_a_method_of_which_only_the_name_is_known_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Release.table

    def with_another(release: Release, topic: str) -> object:
        return {**table(release, topic), "warp": {}} if topic == "methods" else table(release, topic)

    monkeypatch.setattr(Release, "table", with_another)
    refused = {each.method: each.reasons[0].code for each in advise().refused}
    assert refused["warp"] == "method-not-described"


def test_a_method_without_advice_is_proposed_and_not_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [replace(each, advice=NO_ADVICE) if each.name == "ngram" else each for each in methods_where().values()]
    monkeypatch.setattr(methods, "_rows", lambda: tuple(rows))
    monkeypatch.setattr(methods, "_by_name", lambda: {name: row for row in rows for name in (row.name, *row.aliases)})
    (ngram,) = [each for each in advise(kind="code-editing").ranked if each.method == "ngram"]
    assert ngram.estimate is None
    assert "acceptance-unknown" in {each.code for each in ngram.caveats}


@pytest.mark.parametrize(("release", "is_proposed"), [("0.28.0", True), ("0.27.1", False)])
def test_a_drafter_of_a_class_that_the_release_lacks_is_not_proposed(release: str, is_proposed: bool) -> None:
    ranking = advise(target="Qwen/Qwen3.8-27B", version=release)
    models = {each.setup.spec.model for each in ranking.ranked if each.setup.spec}
    assert ("z-lab/Qwen3.8-27B-DFlash2" in models) == is_proposed


@pytest.mark.parametrize(("release", "is_proposed"), [("0.33.0", True), ("0.20.2", False)])
def test_modules_that_are_published_apart_are_proposed_with_their_name(release: str, is_proposed: bool) -> None:
    ranking = advise(target="google/gemma-4-31B-it", version=release)
    models = [each.setup.spec.model for each in ranking.ranked if each.method == "mtp" and each.setup.spec]
    assert models == ["google/gemma-4-31B-it-assistant"] * is_proposed
    if not is_proposed:
        (refused,) = [each for each in ranking.refused if each.method == "mtp"]
        assert "has no MTP for gemma4" in refused.reasons[0].message
