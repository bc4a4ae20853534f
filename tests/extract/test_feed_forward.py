"""Whether a decoder's feed-forward layer has a gate, read from the sources of its class."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwise.extract.model_registry import feed_forward
from draftwise.extract.tree import Tree
from draftwise.knowledge.model_types import find_matrices
from draftwise.knowledge.vllm import releases

REGISTRY = """
_TEXT_GENERATION_MODELS = {"XForCausalLM": ("x", "XForCausalLM"), "YForCausalLM": ("y", "YForCausalLM")}
_VLLM_MODELS = {**_TEXT_GENERATION_MODELS}
"""
MLP = """
class {0}MLP:
    def __init__(self):
        self.down = RowParallelLinear()
        self.act = ACT()
"""
GATED, PLAIN = MLP.replace("ACT", "SiluAndMul"), MLP.replace("ACT", "get_act_fn")
MODEL = """
class {0}Layer:
    def __init__(self):
        self.mlp = {1}


class {0}ForCausalLM:
    layer = {0}Layer
"""


def tree_of(folder: Path, **files: str) -> Tree:
    models = folder / "vllm/model_executor/models"
    models.mkdir(parents=True)
    for name, text in {"registry": REGISTRY, "interfaces": "", **files}.items():
        (models / f"{name}.py").write_text(text)
    return Tree(folder, "9.9.9")


def test_the_activation_of_the_class_or_of_what_it_imports_tells(tmp_path: Path) -> None:
    tree = tree_of(
        tmp_path,
        x=GATED.format("X") + MODEL.format("X", "XMLP()"),
        y="from vllm.model_executor.models.z import ZMLP\n" + MODEL.format("Y", "ZMLP()"),
        z=PLAIN.format("Z"),
    )
    found = {name: (value, source) for name, (value, source) in feed_forward(tree).items()}
    assert found["XForCausalLM"] == ("gated", "vllm/model_executor/models/x.py: XMLP")
    assert found["YForCausalLM"] == ("plain", "vllm/model_executor/models/z.py: ZMLP")


@pytest.mark.parametrize("second", ["class XVisionMLP:\n    pass\n", PLAIN.format("XVision")])
def test_towers_of_other_modalities_do_not_count(tmp_path: Path, second: str) -> None:
    text = GATED.format("X") + second + MODEL.format("X", "(XMLP(), XVisionMLP())")
    tree = tree_of(tmp_path, x=text, y=MODEL.format("Y", "None"))
    assert {name: value for name, (value, _) in feed_forward(tree).items()} == {"XForCausalLM": "gated"}


def test_a_class_with_both_kinds_is_left_out(tmp_path: Path) -> None:
    text = GATED.format("X") + PLAIN.format("Other") + MODEL.format("X", "XMLP() or OtherMLP()")
    assert "XForCausalLM" not in feed_forward(tree_of(tmp_path, x=text, y=MODEL.format("Y", "None")))


def test_most_text_models_of_the_newest_release_are_read() -> None:
    newest = releases()[-1]
    rows, known = newest.table("architectures"), newest.table("feed_forward")
    own = {name for name, row in rows.items() if row["group"] == "text_generation" and row["module"] != "transformers"}
    assert len(own & known.keys()) >= 0.75 * len(own)


@pytest.mark.parametrize(("architecture", "matrices"), [
    ("LlamaForCausalLM", 3), ("Qwen3ForCausalLM", 3), ("GPT2LMHeadModel", 2), ("FalconForCausalLM", 2),
    ("GPTNeoXForCausalLM", 2), ("PhiForCausalLM", 2), ("Starcoder2ForCausalLM", 2), ("NemotronHForCausalLM", 2),
    ("NobodyForCausalLM", 3),
])  # fmt: skip
def test_matrices_are_those_of_the_newest_release_that_shows_them(architecture: str, matrices: int) -> None:
    assert find_matrices({"architectures": [architecture]}) == matrices
