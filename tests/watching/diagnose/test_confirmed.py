"""A cause that the setup or the start-up log shows is named where the counters show what it does."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from tests.support.made_windows import EXPECTED, PLAIN_WINDOW, expect, make_fingerprint, make_window
from tests.support.production import PLAIN, SPEC

from draftwise.core import SpecConfig
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.findings import all_findings, get_finding
from draftwise.knowledge.rules import all_rules
from draftwise.watching.diagnose import SideInfo, diagnose

ILL = [
    make_window(replace(SPEC, **changes))  # type: ignore[arg-type]
    for changes in (
        {"positions": (0.3, 0.12, 0.05)},
        {"positions": (0.03, 0.001, 0.0)},
        {"positions": (0.75, 0.0, 0.0)},
        {"positions": (0.0, 0.0, 0.0)},
        {"step_s": 0.04},
        {"coverage": 0.3},
        {"waiting": 40.0, "preemptions": 0.3},
        {},
    )
]
SUMS = make_window(SPEC).sums
ILL.append(make_window(SPEC, sums=replace(SUMS, prefill_s=3 * (SUMS.prefill_s or 0.0))))
OTHERS = {
    *("admission-squeezed", "logprobs-drift", "lora-changed", "prefix-lost", "schedule-ignored", "spec-off"),
}
"""They need another course of the counters, or no counter shows them."""
CONFIRMED = sorted(
    code
    for code, fact in all_findings().items()
    if fact.diagnosis and (fact.diagnosis.confirmed_by or fact.diagnosis.logged) and code not in OTHERS
)
PLAINS = ([], [PLAIN_WINDOW], [make_window(replace(PLAIN, step_s=0.03), pool="plain", instance="p")])
PROBES = (None, make_fingerprint(0), make_fingerprint(44, change=-0.3))


def tell(code: str) -> str:
    """Return what `check` says, in general."""
    known = all_rules().get(code) or all_findings().get(code)
    return f"{known.title if known else all_defects()[code].what}."


@pytest.mark.parametrize("code", CONFIRMED)
def test_a_cause_that_setup_or_log_shows_is_named(code: str) -> None:
    row = get_finding(code).diagnosis
    assert row is not None
    method = row.methods[0] if row.methods else "eagle3"
    spec = SpecConfig.keep({"method": method, "model": "org/drafter", "num_speculative_tokens": 3})
    rulings = {each: tell(each) for each in row.confirmed_by}
    asked = SideInfo(spec=spec, rulings=rulings, log=f"INFO 11-29 {row.logged}" if row.logged else None)
    for probe, window, expected, plain in product(PROBES, ILL, (EXPECTED, expect()), PLAINS):
        if code in {each.code for each in diagnose({"spec": [window]}, expected, plain, replace(asked, probe=probe))}:
            return
    pytest.fail(f"{code} is not named")
