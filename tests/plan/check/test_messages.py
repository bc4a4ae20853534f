"""Messages can be read alone: whole sentences, each with its subject, in JSON as in the terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from catalogue.oracle.cases import generate  # noqa: E402
from catalogue.oracle.compare import DEVICES  # noqa: E402
from catalogue.oracle.models import write_models  # noqa: E402

from draftwise.core import Finding, InvalidSetup, Setup, SpecConfig  # noqa: E402
from draftwise.knowledge.methods import methods_where  # noqa: E402
from draftwise.knowledge.rules import all_rules  # noqa: E402
from draftwise.plan.check import check  # noqa: E402

_VERB_FIRST = re.compile(
    r"(?:is|are|has|must|needs?|asks?|does|cannot|can|reads?|works?|makes?|lacks?|names?|gives?|takes?|lets|will|rises)\b"
)


def is_sentence(message: str) -> bool:
    """Say whether a message has a subject at its beginning and an end."""
    return bool(message) and not _VERB_FIRST.match(message) and message.endswith((".", "?"))


def findings_of(count: int) -> Iterator[Finding]:
    for case in generate(23, count):
        spec = None if case["spec"] is None else SpecConfig.keep(case["spec"])
        setup = Setup(target=case["target"], engine="vllm", spec=spec, args=case["flags"], env=case["env"])
        for version in ("0.9.2", "0.11.0", "0.19.1", "0.24.0", "0.28.0", "0.33.0"):
            for device in DEVICES.values():
                try:
                    yield from check(replace(setup, engine_version=version, device=device)).findings
                except InvalidSetup as error:
                    yield from error.findings


@pytest.fixture
def among_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_models(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("among_models")
def test_every_message_is_a_sentence_with_its_subject() -> None:
    said = {finding.code: finding for finding in findings_of(120)}
    assert len(said) > 80
    assert [finding for finding in said.values() if not is_sentence(finding.message)] == []


def test_a_message_without_subject_is_noticed() -> None:
    assert not is_sentence("is not given: only n-grams of exactly 5 tokens are looked up.")
    assert is_sentence("prompt_lookup_max is not given: only n-grams of exactly 5 tokens are looked up.")


def test_rules_name_methods_of_the_table() -> None:
    known = {
        name for method in methods_where().values() for name in (method.name, *method.aliases, *method.placeholders)
    }
    named = {name for rule in all_rules().values() for name in rule.methods}
    assert named
    assert named <= known
