"""What "not judged" counts for where the oracle's lines give names alone."""

from pathlib import Path

import pytest
from catalogue.oracle.compare import compare
from catalogue.oracle.lines import generate_lines, name_models
from catalogue.oracle.models import MODELS, PUBLISHED

from draftwise.knowledge.models import read_models
from draftwise.knowledge.vllm import get_release

UNKNOWN = {"id": "1", "target": "nobody/knows", "spec": None, "env": {}, "line": ["nobody/knows"]}
TAKEN = {"accepted": True, "resolved": {"method": None}}
REFUSED = {"accepted": False, "stage": "engine config", "exception": "ValueError", "message": "too long"}
NO_EXPERTS = {**REFUSED, "message": "Number of experts in the model must be greater than 0 when ..."}


@pytest.mark.parametrize(
    ("outcome", "swapped", "agreed"),
    [
        (TAKEN, TAKEN, 1),
        (REFUSED, TAKEN, 1),
        (REFUSED, {**REFUSED, "message": "another"}, 1),
        (REFUSED, REFUSED, 0),
        (NO_EXPERTS, NO_EXPERTS, 1),
        ({"accepted": True, "resolved": {"method": "eagle3"}}, TAKEN, 1),
    ],
)
def test_not_judged_agrees_only_where_the_answer_depends_on_the_model(
    tmp_path: Path, outcome: dict[str, object], swapped: dict[str, object], agreed: int
):
    agreement = compare([UNKNOWN], {"1": outcome}, "0.32.0", "cuda", tmp_path, swapped={"1": swapped})
    assert (agreement.agreed, agreement.unjudged) == (agreed, agreed)


def test_a_known_name_is_judged(tmp_path: Path):
    case = {**UNKNOWN, "target": "Qwen/Qwen3-8B", "line": ["Qwen/Qwen3-8B"]}
    assert compare([case], {"1": TAKEN}, "0.32.0", "cuda", tmp_path, swapped={"1": TAKEN}).unjudged == 0


def test_lines_of_names_hold_published_names():
    known = {model.id for model in read_models()} | set(PUBLISHED)
    cases = [*name_models(3, generate_lines(3, 60, get_release("0.32.0")))]
    assert len(cases) == 60
    assert all(case["line"][0] == case["target"] for case in cases)
    assert all(case["target"] in known for case in cases if case["spec"] is None)
    assert all(case["target"] in known | set(MODELS) for case in cases)
