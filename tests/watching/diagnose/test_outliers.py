"""Engine, replica, pool, service: what is ill is named by the smallest of them, and the rest is judged without it."""

from dataclasses import replace

import pytest
from tests.support.made_windows import make_window
from tests.support.production import PLAIN, SPEC, Server

from draftwise.core import ServerLoad, Window
from draftwise.watching.diagnose.diagnose import diagnose

DEAD = replace(SPEC, positions=(0.0,) * 3)
SLOW = replace(SPEC, step_s=0.05)


def make(server: Server, number: int, *, ranks: bool) -> Window:
    window = make_window(server, instance="http://a" if ranks else f"http://{number}")
    return replace(window, engine=str(number) if ranks else "")


@pytest.mark.parametrize("ranks", [False, True], ids=["replicas", "data-parallel ranks"])
@pytest.mark.parametrize("ill", [DEAD, SLOW], ids=["accepts nothing", "slow"])
@pytest.mark.parametrize("of", [2, 3, 4])
def test_one_ill_engine_is_named_and_the_pool_is_not_blamed(ill: Server, of: int, ranks: bool) -> None:
    windows = [make(ill if number == 0 else SPEC, number, ranks=ranks) for number in range(of)]
    found = diagnose({"spec": windows})
    first = found[0]
    assert first.where == windows[0].instance
    assert ("engine 0" in first.message) == ranks
    assert not [each.code for each in found if not each.where.startswith("http")]


@pytest.mark.parametrize(
    ("ill", "said", "unsaid"),
    [
        (SLOW, "clocks", "checksums"),
        (replace(SPEC, positions=(0.2, 0.05, 0.01)), "checksums", "clocks"),
        (replace(SLOW, positions=(0.2, 0.05, 0.01)), "checksums", ""),
    ],
    ids=["slow", "accepts less", "both"],
)
def test_the_advice_is_of_what_is_unlike(ill: Server, said: str, unsaid: str) -> None:
    found = diagnose({"spec": [make(SPEC if number else ill, number, ranks=False) for number in range(3)]})
    (one,) = [each for each in found if each.code == "replica-outlier"]
    assert said in one.fix
    assert not unsaid or unsaid not in one.fix


@pytest.mark.parametrize("lucky", [DEAD, replace(SPEC, positions=(0.001, 0.0, 0.0))], ids=["nothing", "by chance"])
@pytest.mark.parametrize("of", [2, 3, 4])
def test_where_all_are_ill_none_is_accused(of: int, lucky: Server) -> None:
    found = diagnose({"spec": [make(DEAD if number else lucky, number, ranks=False) for number in range(of)]})
    assert "replica-outlier" not in {each.code for each in found}
    assert found[0].where == "spec"


def test_one_of_servers_that_count_no_drafts_is_named() -> None:
    windows = [make(DEAD if number == 0 else SPEC, number, ranks=False) for number in range(2)]
    counters = [replace(each.counters, spec=replace(each.counters.spec, num_drafts=0)) for each in windows]
    uncounted = [replace(a, counters=b, counts_drafts=None) for a, b in zip(windows, counters, strict=True)]
    first = diagnose({"spec": uncounted})[0]
    assert (first.code, first.where) == ("replica-outlier", "http://0")


@pytest.mark.parametrize(
    ("lengths", "named"),
    [((2.8, 2.7, 1.0, 2.9), "2"), ((3.1, 1.1), "1"), ((2.8, 2.0, 2.9), ""), ((1.0, 1.0), ""), ((2.8,), "")],
)
def test_a_rank_is_told_by_the_gauges_of_a_server_that_counts_over_all(lengths: tuple[float, ...], named: str) -> None:
    load = ServerLoad(running=16.0, lengths={str(rank): each for rank, each in enumerate(lengths)})
    found = diagnose({"spec": [replace(make(SPEC, 0, ranks=False), load=load)]})
    assert [(each.code, f"rank {named} gives" in each.message) for each in found] == [("replica-outlier", True)] * bool(
        named
    )


@pytest.mark.parametrize("load", [ServerLoad(running=16.0, waiting=0.0), ServerLoad(running=0.0, waiting=90.0)])
def test_a_hung_engine_is_the_first_finding(load: ServerLoad) -> None:
    idle = replace(SPEC, steps=0.0, finished=0.0, prompt_tokens=0.0)
    hung = replace(make_window(idle, instance="http://b"), load=load, duration_s=20.0)
    for windows in ([hung], [make(SPEC, 1, ranks=False), hung]):
        first = diagnose({"spec": windows})[0]
        assert (first.code, first.severity, first.where) == ("engine-hung", "error", "http://b")
    resting = replace(hung, load=ServerLoad(running=0.0, waiting=0.0))
    assert "engine-hung" not in {each.code for each in diagnose({"spec": [resting]})}


NAMES = [("llama",) * 3 + ("qwen",), ("a/llama", "llama", "llama-plain"), ("llama", "qwen"), ("", "qwen", "qwen")]


@pytest.mark.parametrize("names", NAMES)
def test_what_serves_another_model_is_named_and_compared_with_nothing(names: tuple[str, ...]) -> None:
    ill = {"qwen"} & set(names) and {"llama"} & set(names)
    windows = [
        replace(make(DEAD if ill and name == "qwen" else SPEC, number, ranks=False), model=name)
        for number, name in enumerate(names)
    ]
    found = {each.code: each for each in diagnose({"spec": windows})}
    assert ("models-differ" in found) == bool(ill)
    assert not {"replica-outlier", "zero-acceptance", "revisions-differ"} & found.keys()
    if ill and len(names) > 2:
        assert found["models-differ"].where == windows[-1].instance


def test_a_plain_server_of_another_model_is_compared_with_nothing() -> None:
    spec = replace(make(SPEC, 1, ranks=False), model="llama")
    slow = replace(make_window(replace(PLAIN, step_s=0.002), instance="http://p"), pool="plain")
    for name, compared in (("llama-plain", True), ("qwen", False)):
        codes = {each.code for each in diagnose({"spec": [spec]}, plain=[replace(slow, model=name)])}
        assert ("models-differ" in codes, "slower-than-plain" in codes) == (not compared, compared)


LOOPS = replace(SPEC, positions=(0.999, 0.998, 0.997))
COLD = replace(SPEC, prefix_hits=0.05)


@pytest.mark.parametrize("ranks", [False, True], ids=["replicas", "data-parallel ranks"])
@pytest.mark.parametrize(("ill", "code"), [(LOOPS, "too-perfect"), (COLD, "prefix-hits-fell")])
def test_one_ill_part_of_three_is_named_whatever_it_is_part_of(ill: Server, code: str, ranks: bool) -> None:
    windows = [
        replace(make(ill if not number else SPEC, number, ranks=ranks), uptime_s=90_000.0) for number in range(3)
    ]
    found = next(each for each in diagnose({"spec": windows}) if each.code == code)
    assert found.where == windows[0].instance
    assert ("engine 0" in found.message) == ranks


def test_a_server_without_the_counts_of_its_prefix_cache_is_unlike_the_others() -> None:
    windows = [make(SPEC, number, ranks=False) for number in range(3)]
    silent = replace(windows[2].counters, prefix_queries=None, prefix_hits=None)
    found = diagnose({"spec": [*windows[:2], replace(windows[2], counters=silent)]})
    assert [(each.code, each.where) for each in found] == [("metrics-differ", "http://2")]
    assert diagnose({"spec": [replace(each, counters=silent) for each in windows]}) == ()
