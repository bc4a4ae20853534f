"""Rules say which input they need: found by hiding it from judgements whose outcome vLLM itself gave."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from catalogue.oracle.compare import setup_of
from catalogue.oracle.models import write_models
from catalogue.oracle.sample import read_sample

from draftwise.core import Severity
from draftwise.knowledge.rules import all_rules
from draftwise.plan.check import Context, check_context, get_context

SAMPLE = Path(__file__).with_name("oracle_outcomes") / "outcomes.jsonl.gz"
STEP = 17
"""Of the cases as many are judged, each once more for every input that is hidden."""
HIDDEN = ("target", "drafter", "gpu")
OFTEN = 8
"""So many findings of a rule make its loss no accident of what else the case holds."""


def _hide(context: Context, what: str) -> Context | None:
    if what == "gpu":
        return replace(context, setup=replace(context.setup, device=None)) if context.platform == "cuda" else None
    if getattr(context, what) is None or context.verifier is not None:
        return None
    return replace(context, **{what: None}, **({"draft_config": {}} if what == "drafter" else {}))


def _find_codes(context: Context) -> set[str]:
    return {each.code for each in check_context(context).findings if each.severity is not Severity.INFO}


def test_a_rule_is_never_found_without_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_models(tmp_path)
    monkeypatch.chdir(tmp_path)
    known, kept = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for version, platform, case, _ in list(read_sample(SAMPLE))[::STEP]:
        context = get_context(setup_of(case, version, platform))
        found = None
        for what in HIDDEN:
            if (hidden := _hide(context, what)) is not None:
                found = _find_codes(context) if found is None else found
                known.update((what, code) for code in found)
                kept.update((what, code) for code in _find_codes(hidden))
    rules = all_rules()
    declared = {(what, code) for code, rule in rules.items() for what in rule.reads if what != "gpu"}
    assert {pair for pair in kept if pair in declared} == set()
    lost = {pair for pair, count in known.items() if count >= OFTEN and not kept[pair] and pair[1] in rules}
    assert {(what, code) for what, code in lost if what not in rules[code].reads} == set()
