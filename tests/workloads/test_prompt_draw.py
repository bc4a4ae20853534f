"""A run that ends anywhere has asked of all of a log: every beginning of the order is spread over it."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.core import Prompt, RecordedAnswer
from draftwise.workloads import load_workloads
from draftwise.workloads.reshape import draw, locate, spread_places


@given(st.integers(0, 400), st.floats(0, 0.999))
def test_every_place_comes_once(count: int, begin: float) -> None:
    assert sorted(spread_places(count, begin)) == list(range(count))


@given(st.integers(20, 2000), st.integers(6, 200), st.floats(0, 0.999))
def test_every_beginning_is_spread_over_the_whole(count: int, taken: int, begin: float) -> None:
    """Of each half, and of each quarter, it has its share but for two or three."""
    places = list(spread_places(count, begin))[: min(taken, count)]
    for parts in (2, 4):
        shares = Counter(place * parts // count for place in places)
        for part in range(parts):
            size = sum(place * parts // count == part for place in range(count)) / count
            assert abs(shares[part] - size * len(places)) <= 3


def prompts(*sources: tuple[str | None, str | None, str | None]) -> tuple[Prompt, ...]:
    return locate(
        Prompt(
            id=str(number),
            text=f"t{number}",
            max_tokens=8,
            recorded=RecordedAnswer(route=route, tenant=tenant, conversation=conversation),
        )
        for number, (route, tenant, conversation) in enumerate(sources)
    )


def test_the_seed_decides_the_draw_and_another_workload_is_drawn_otherwise() -> None:
    log = prompts(*[(None, None, None)] * 100)
    first = [each.id for each in draw(log, 1, "w")]
    assert first == [each.id for each in draw(log, 1, "w")]
    assert first[:10] != [each.id for each in draw(log, 2, "w")][:10]
    assert first[:10] != [each.id for each in draw(log, 1, "v")][:10]


@pytest.mark.parametrize("kind", ["max_tokens", "recorded", "prompt"])
def test_prompts_and_answers_far_longer_than_most_are_drawn_by_their_share(kind: str) -> None:
    """They may lose alone, and with a random draw 15 of 60 prompts hold none of six in one run of six."""
    for seed in range(60):
        long = set(Random(seed).sample(range(60), 6))
        by = [12 if row in long else 1 for row in range(60)]
        log = locate(
            Prompt(
                id=str(row),
                text="x" * 30 * (by[row] if kind == "prompt" else 1),
                max_tokens=30 * (by[row] if kind == "max_tokens" else 1),
                recorded=RecordedAnswer(num_tokens=30 * by[row] if kind == "recorded" else None),
            )
            for row in range(60)
        )
        assert 1 <= sum(int(each.id) in long for each in draw(log, seed, "w")[:15]) <= 3


def test_each_route_and_tenant_has_its_share_however_they_are_mixed() -> None:
    sources = [("chat", None, None)] * 200 + [("edit", None, None)] * 60 + [("json", None, None)] * 40
    order = draw(prompts(*sources), 0, "w")
    for taken in (15, 30, 60):
        shares = Counter(each.origin.route for each in order[:taken] if each.origin is not None)
        assert shares["chat"] == pytest.approx(taken * 2 / 3, abs=1.5)
        assert shares["json"] == pytest.approx(taken * 40 / 300, abs=1.5)


def test_a_large_tenant_weighs_as_much_as_it_sends() -> None:
    sources = [(None, "big", None)] * 240 + [(None, f"small {n}", None) for n in range(60)]
    order = draw(prompts(*sources), 0, "w")
    big = sum(each.recorded.tenant == "big" for each in order[:30])
    assert big == pytest.approx(24, abs=1.5)
    assert {each.origin.cluster for each in order if each.origin is not None} > {"big", "small 3"}


def test_few_tenants_are_parts_of_the_traffic_and_conversations_its_clusters() -> None:
    found = prompts(*[(None, f"t{n % 3}", f"c{n // 2}") for n in range(12)])
    origins = [each.origin for each in found if each.origin is not None]
    assert {each.route for each in origins} == {"t0", "t1", "t2"}
    assert len({each.cluster for each in origins}) == 6
    alone = prompts(*[(None, "one", None)] * 5)
    assert all(each.origin is not None and not each.origin.route for each in alone)


def test_a_conversation_stands_together_where_it_began() -> None:
    found = prompts((None, None, "z"), (None, None, "a"), (None, None, "z"), (None, None, None))
    assert [each.origin.place for each in found if each.origin is not None] == [0, 2, 1, 3]


def write(path: Path, rows: int, **keys: object) -> str:
    path.write_text("".join(json.dumps({"prompt": f"p{n}", **keys, "id": str(n)}) + "\n" for n in range(rows)))
    return str(path)


def test_a_sample_is_drawn_over_the_log(tmp_path: Path) -> None:
    text = write(tmp_path / "log.jsonl", 400)
    (found,) = load_workloads(f"{text}#sample=20,seed=3")
    rows = [int(each.id) for each in found.prompts]
    assert (len(rows), found.population, found.choice) == (20, 400, "")
    assert Counter(row // 100 for row in rows) == {part: pytest.approx(5, abs=2) for part in range(4)}


def test_the_first_ones_are_said_to_be_the_first(tmp_path: Path) -> None:
    text = write(tmp_path / "log.jsonl", 40)
    (found,) = load_workloads(f"{text}#n=5")
    assert [each.id for each in found.prompts] == list("01234")
    assert (found.population, found.choice) == (5, "the first 5 of 40")


def times(path: Path, rows: int) -> str:
    lines = (json.dumps({"prompt": f"p{n}", "id": str(n), "arrival_s": float(n)}) + "\n" for n in range(rows))
    path.write_text("".join(lines))
    return str(path)


def test_a_long_recording_is_drawn_row_by_row_where_its_rate_does_not_matter(tmp_path: Path) -> None:
    (found,) = load_workloads(times(tmp_path / "log.jsonl", 12_000), keeps_times=False)
    assert (len(found.prompts), found.population) == (10_000, 12_000)
    assert max(int(each.id) for each in found.prompts) > 11_900


def test_of_a_long_recording_that_is_replayed_stretches_are_drawn(tmp_path: Path) -> None:
    (found,) = load_workloads(times(tmp_path / "log.jsonl", 25_000))
    rows = [int(each.id) for each in found.prompts]
    stretches = Counter(each.origin.stretch for each in found.prompts if each.origin is not None)
    assert stretches == dict.fromkeys(range(20), 500)
    assert rows == sorted(rows)
    assert sum(after - before == 1 for before, after in pairwise(rows)) >= 10_000 - 20
    assert max(rows) > 20_000
