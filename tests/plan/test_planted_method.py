"""A further method planted in a copy of the package, in at most five files: every room follows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src/draftwise"
VICUNA = "lmsys/vicuna-7b-v1.3"
PLACES = 5
"""A row, a proposer, a trainer, a recogniser where no column tells, and what loads tensors that are new."""
ROW = {
    "name": "hydra",
    "meaning": "Heads that know the draft tokens before them.",
    "layout": "draftwise.plan.size.hydra:describe_hydra",
    "recognizer": "draftwise.checkpoints.hydra:is_hydra",
    "proposer": "draftwise.engine.proposers.hydra:build",
    "trainer": "draftwise.training.hydra_trainer:HydraTraining",
}
"""What medusa's row does not say of it."""
FILES = {
    "checkpoints/hydra.py": """
def is_hydra(config, names):
    return config.get("heads_of") == "hydra"
""",
    "plan/size/hydra.py": """
from draftwise.plan.size.drafter_parts import Drafter
from draftwise.plan.size.weight_parts import Part

def describe_hydra(target, config, k):
    width = target["hidden_size"]
    return Drafter(parts=(Part(name="blocks", role="mlp", rows=width, cols=width, copies=k, quantized=False),))
""",
    "engine/proposers/hydra.py": """
from draftwise.engine.proposers.medusa import MedusaProposer, load_medusa

def build(spec, config, target):
    return MedusaProposer(load_medusa(spec.model, target, k=spec.k), target, probabilistic=spec.probabilistic)
""",
    "training/hydra_trainer.py": """
import json

from draftwise.training.medusa_trainer import MedusaTraining

class HydraTraining(MedusaTraining):
    name = "hydra"

    def export(self, folder):
        super().export(folder)
        file = folder / "config.json"
        known = json.loads(file.read_text())
        file.write_text(json.dumps(known | {"model_type": "", "architectures": ["HydraModel"], "heads_of": "hydra"}))
""",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a copy of the package that has one more method."""
    home = tmp_path_factory.mktemp("planted")
    copy = shutil.copytree(SOURCE, home / "draftwise", ignore=shutil.ignore_patterns("__pycache__"))
    table = copy / "knowledge/data/methods.json"
    rows = json.loads(table.read_text())
    medusa = next(row for row in rows if row["name"] == "medusa")
    marks = {"architectures": (), "model_types": (), "config_keys": (), "tensors": (), "embedded_keys": ()}
    like = {column: value for column, value in medusa.items() if column not in {*marks, "advice"}}
    table.write_text(json.dumps([like | ROW, *rows]))
    for name, text in FILES.items():
        assert not (copy / name).exists()
        (copy / name).write_text(text)
    return home


def run(planted: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(planted)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def ask(planted: Path, *words: object, code: int = 0) -> Any:
    """Return the JSON answer of a verb."""
    done = run(planted, "-m", "draftwise", *words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def spec(**keys: object) -> str:
    return json.dumps({"method": "hydra", "num_speculative_tokens": 3, **keys})


def test_it_takes_no_more_places_than_are_promised() -> None:
    assert len(FILES) + 1 <= PLACES


def test_explain_knows_it(planted: Path) -> None:
    (answer,) = ask(planted, "explain", "hydra")
    assert (answer["kind"], ROW["meaning"] in answer["text"]) == ("method", True)


def test_check_says_that_no_release_has_it(planted: Path) -> None:
    (answer,) = ask(planted, "check", VICUNA, "-sc", spec(model="heads"), code=1)
    assert [each["code"] for each in answer["findings"] if each["severity"] == "error"] == ["unknown-method"]


def test_size_takes_its_own_tensors_and_not_those_of_a_draft_model(planted: Path) -> None:
    answer = ask(planted, "size", VICUNA, "--gpu", "H200", "--speculative-config", spec(model="heads"), code=1)
    assert answer["method"] == "hydra"
    assert answer["with_drafter"]["drafter"] == 3 * 4096 * 4096 * 2


def test_size_does_not_guess_without_a_layout(planted: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(planted, tmp_path / "unshaped")
    table = copy / "draftwise/knowledge/data/methods.json"
    table.write_text(json.dumps([{**row, "layout": ""} for row in json.loads(table.read_text())]))
    unshaped, unknown = "The tensors of a hydra drafter are unknown", '"warp" is not a method of vLLM'
    for named, words, code in (("hydra", unshaped, 2), ("warp", unknown, 1)):
        asked = spec(model="heads", method=named)
        done = run(copy, "-m", "draftwise", "size", VICUNA, "--gpu", "H200", "--speculative-config", asked, "--json")
        assert done.returncode == code
        assert set(json.loads(done.stdout)) == {"error"}
        assert words in " ".join(done.stderr.split())


PICK = """
import sys
from draftwise.knowledge.vllm import Release
from tests.support.requirements import advise
table = Release.table
if sys.argv[1] == "released":
    Release.table = lambda release, topic: table(release, topic) | ({"hydra": {}} if topic == "methods" else {})
advice = advise("lmsys/vicuna-7b-v1.3", version="0.32.0")
(found,) = [each for each in (*advice.ranked, *advice.refused) if each.method == "hydra"]
print(" ".join(each.code for each in found.reasons))
"""


@pytest.mark.parametrize(("when", "code"), [("embedded", "not-in-release"), ("released", "no-drafter-known")])
def test_pick_proposes_or_refuses_it_by_its_row(planted: Path, when: str, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PICK, when],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(planted), str(SOURCE.parents[1])])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [code]


@pytest.mark.engine
def test_it_is_trained_inspected_and_drafts_losslessly(planted: Path, tiny_target: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data.txt", tmp_path / "drafter"
    data.write_text("one two three four five six. " * 100)
    words = ["--target", tiny_target, "--data", data, "--out", out, "--answers", "given", "--device", "cpu"]
    words += ["--steps", 20, "--batch-tokens", 512, "--max-length", 64, "--learn-from", "tokens", "--num-heads", 2]
    trained = ask(planted, "train", "hydra", *words)
    assert trained["speculative_config"] == {"method": "hydra", "model": str(out), "num_speculative_tokens": 2}

    assert ask(planted, "inspect", out, "--target", tiny_target)["drafter"]["method"] == "hydra"

    script = f"""
from draftwise import LLM, SamplingParams
given = (["one two", "three four five"], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
plain = LLM({str(tiny_target)!r})
drafting = LLM({str(tiny_target)!r}, speculative_config={trained["speculative_config"]!r})
texts = [[answer.outputs[0].token_ids for answer in llm.generate(*given)] for llm in (plain, drafting)]
assert texts[0] == texts[1]
counted = {{each.name: getattr(each, "value", 0) for each in drafting.get_metrics()}}
assert counted["vllm:spec_decode_num_draft_tokens"] > 0
"""
    done = run(planted, "-c", script)
    assert done.returncode == 0, done.stderr
