"""Without the reading that tells a cause from its neighbours, what is named is its parent, whatever was planted."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.made_windows import (
    ASKED_SPEC,
    HEALTHY,
    PLAIN_WINDOW,
    expect,
    make_baseline,
    make_fingerprint,
    make_window,
)
from tests.support.production import PLAIN, SPEC, Server

from draftwise.core import Window
from draftwise.knowledge.findings import all_findings, get_finding
from draftwise.watching.diagnose import SideInfo, diagnose
from draftwise.watching.diagnose.diagnose import RULES
from draftwise.watching.fingerprint import Fingerprint

GIVEN = {
    "baseline": {"baseline", "break-even", "crossover", "curve", "k"},
    "earlier": {"baseline", "earlier", "k"},
    "plain": {"plain"},
    "probe": {"probe"},
    "releases": {"versions"},
    "spec": {"method", "k"},
    "config": {"config"},
    "log": {"log"},
}
"""What each thing that an operator can give brings of readings, told here a second time."""
OPTIONS = tuple(chain.from_iterable(combinations(GIVEN, count) for count in range(len(GIVEN) + 1)))
LOG = "\n".join(fact.diagnosis.logged for fact in all_findings().values() if fact.diagnosis and fact.diagnosis.logged)
RULINGS = {
    code: "It is so." for fact in all_findings().values() if fact.diagnosis for code in fact.diagnosis.confirmed_by
}


def find_readings(options: tuple[str, ...], windows: list[Window]) -> set[str]:
    """Return what is at hand."""
    readings = {"metrics", "uptime"}.union(*(GIVEN[option] for option in options))
    readings |= {"replicas"} if len({window.instance for window in windows}) > 1 else set()
    return readings | ({"wakes"} if any(window.sleeping for window in windows) else set())


def judge(options: tuple[str, ...], windows: list[Window], plain: Window, probe: Fingerprint) -> list[str]:
    """Return the codes that are named with some of the readings."""
    expected = expect(
        earlier=HEALTHY if "earlier" in options else None, baseline=make_baseline() if "baseline" in options else None
    )
    asked = SideInfo(
        spec=ASKED_SPEC if "spec" in options else None,
        probe=probe if "probe" in options else None,
        releases=("0.26.0", "0.33.0") if "releases" in options else None,
        rulings=RULINGS if "config" in options else None,
        log=LOG if "log" in options else None,
    )
    found = diagnose({"spec": windows}, expected, [plain] if "plain" in options else [], asked)
    for each in found:
        assert each.evidence or each.message
        assert 0 < each.certainty <= 1
        assert not set(each.candidates) & {other.code for other in found}
    return [each.code for each in found]


shares = st.floats(0.0, 1.0)
servers = st.builds(
    Server,
    coverage=st.sampled_from([0.0, 0.3, 0.99]),
    k=st.sampled_from([1.0, 2.0, 3.0]),
    positions=st.tuples(shares, shares, shares).map(lambda each: tuple(sorted(each, reverse=True))),
    step_s=st.sampled_from([0.02, 0.027, 0.05]),
    finished=st.sampled_from([0.02, 1.5]),
    running=st.sampled_from([2.0, 8.0, 60.0]),
    waiting=st.sampled_from([0.0, 20.0]),
    kv=st.sampled_from([0.4, 0.95]),
    prompt_tokens=st.sampled_from([500.0, 4000.0]),
    prefix_hits=st.sampled_from([0.2, 0.6]),
    preemptions=st.sampled_from([0.0, 0.3]),
    speculates=st.booleans(),
)
probes = st.builds(make_fingerprint, st.sampled_from([0, 2, 12, 48]), change=st.sampled_from([-0.3, 0.0]))


@given(st.lists(servers, min_size=1, max_size=3), servers, probes, st.sampled_from(OPTIONS), st.booleans())
def test_what_is_named_had_every_reading_that_it_needs(
    spec: list[Server], plain: Server, probe: Fingerprint, options: tuple[str, ...], sleeps: bool
) -> None:
    windows = [make_window(each, instance=f"s{i}", sleeping=sleeps) for i, each in enumerate(spec)]
    beside = make_window(replace(plain, speculates=False), pool="plain", instance="p")
    readings = find_readings(options, windows)
    for code in judge(options, windows, beside, probe):
        told = get_finding(code).diagnosis
        assert told is not None
        lacking = [need for need in told.needs if not readings & set(need.split(" or "))]
        assert lacking == [], f"{code} was named without {lacking}"


FALLEN = make_window(replace(SPEC, positions=(0.3, 0.12, 0.05)))
SLOWER = make_window(replace(SPEC, step_s=0.04))
SLOWER_PLAIN = make_window(replace(PLAIN, step_s=0.03), pool="plain", instance="p")
HITS = make_window(replace(SPEC, prefix_hits=0.3))
ZERO = make_window(replace(SPEC, positions=(0.0,) * 3))
DIFFERS = make_fingerprint(44, change=-0.3)


@pytest.mark.parametrize(
    ("window", "plain", "child", "parent", "discriminating"),
    [
        (FALLEN, PLAIN_WINDOW, "drafter-changed", "acceptance-fell", "probe"),
        (SLOWER, SLOWER_PLAIN, "machine-slower", "step-cost-up", "plain"),
        (HITS, PLAIN_WINDOW, "prefix-lost", "prefix-hits-fell", "plain"),
        (ZERO, PLAIN_WINDOW, "context-gated", "zero-acceptance", "config"),
    ],
)
def test_the_parent_stands_in_until_the_reading_is_there(
    window: Window, plain: Window, child: str, parent: str, discriminating: str
) -> None:
    for options in OPTIONS:
        if not {"baseline", "earlier"} <= set(options):
            continue
        found = judge(options, [window], plain, DIFFERS)
        assert (child in found) == (discriminating in options)
        assert parent in found


def test_a_parent_lists_what_it_may_be_and_how_to_find_out() -> None:
    (found,) = diagnose({"spec": [FALLEN]}, expect(baseline=make_baseline()))
    assert found.code == "acceptance-fell"
    assert {"traffic-changed", "drafter-changed", "context-grew"} <= set(found.candidates)
    assert found.settles == "draftwise watch URL --baseline baseline.json --probe"


def test_every_rule_and_every_row_can_be_reached() -> None:
    rows = {fact.code: fact.diagnosis for fact in all_findings().values() if fact.diagnosis is not None}
    decided = {rule.code for rule in RULES}
    assert len(decided) == len(RULES)
    assert decided <= rows.keys()
    told_by_others = {"scrape-gap", "stats-off", "drafts-uncounted", "metrics-renamed", "metrics-v0", "engine-dies"}
    told_by_others |= {"metrics-differ", "models-differ"}
    for code, row in rows.items():
        counted = "metrics" in row.needs or row.parent
        assert code in decided or row.parent in rows or code in told_by_others or not counted, code
