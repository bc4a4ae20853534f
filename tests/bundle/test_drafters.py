"""The bundled drafters: each loads for the bundled target and no other, and drafts as well as its card says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from draftwise import LLM, SamplingParams, StructuredOutputsParams
from draftwise.core import InvalidSetup
from draftwise.training.drafter_export import assemble_mtp

BUNDLE = Path(__file__).parents[2] / "bundle"
TARGET = str(BUNDLE / "target")
PARALLEL = {"parallel_drafting": True}
DRAFTERS: dict[str, tuple[dict[str, Any], float]] = {
    "medusa": ({"method": "medusa", "num_speculative_tokens": 3}, 1.2),
    "mlp_speculator": ({"method": "mlp_speculator", "num_speculative_tokens": 3}, 1.4),
    "draft_model": ({"method": "draft_model", "num_speculative_tokens": 3}, 1.9),
    "eagle": ({"method": "eagle", "num_speculative_tokens": 3}, 1.8),
    "eagle3": ({"method": "eagle3", "num_speculative_tokens": 3}, 2.2),
    "p_eagle": ({"method": "eagle3", "num_speculative_tokens": 3} | PARALLEL, 1.6),
    "mtp": ({"method": "mtp", "num_speculative_tokens": 3}, 1.9),
    "dflash": ({"method": "dflash", "num_speculative_tokens": 8}, 1.7),
}
"""How each is run, and the acceptance length that it must reach on a few prompts of code."""

PROMPTS = [
    json.loads(line)["prompt"]
    for line in (BUNDLE / "heldout" / "code.jsonl").read_text(encoding="utf-8").splitlines()[:6]
]
PARAMS = SamplingParams(temperature=0, max_tokens=32)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["function", "class", "module"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


def run(target: str, spec: dict[str, Any] | None) -> tuple[list[list[int]], float | None]:
    """Return the tokens of answers, free ones and one under a schema, and the acceptance length of the free ones."""
    llm = LLM(target, speculative_config=spec, dtype="float32", device="cpu", max_model_len=640)
    outputs = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]
    length = llm.engine.stats().spec.acceptance_length
    form = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    (output,) = llm.generate(PROMPTS[0], replace(PARAMS, structured_outputs=form))
    jsonschema.validate(json.loads(output.outputs[0].text), SCHEMA)
    return [*outputs, output.outputs[0].token_ids], length


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return run(TARGET, None)[0]


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafts_are_good_and_change_no_word(name: str, plain: list[list[int]]) -> None:
    spec, least = DRAFTERS[name]
    outputs, length = run(TARGET, spec | {"model": str(BUNDLE / name)})
    assert outputs == plain
    assert length is not None
    assert length >= least


def test_mtp_modules_draft_the_same_inside_their_target(plain: list[list[int]], tmp_path: Path) -> None:
    assemble_mtp(Path(TARGET), BUNDLE / "mtp", tmp_path / "mimo")
    spec = {"method": "mtp", "num_speculative_tokens": 3}
    assert run(str(tmp_path / "mimo"), spec) == run(TARGET, spec | {"model": str(BUNDLE / "mtp")})


def test_another_target_is_refused() -> None:
    spec = {"method": "medusa", "model": str(BUNDLE / "medusa"), "num_speculative_tokens": 2}
    with pytest.raises(InvalidSetup, match="trained for"):
        LLM(str(BUNDLE / "draft_model"), speculative_config=spec, device="cpu")


def test_measured_acceptance_is_ordered() -> None:
    """Over the three workloads together, with the best k of each that was measured."""
    rows = json.loads((BUNDLE / "drafters.json").read_text())["rows"]

    def length(drafter: str) -> float:
        by_k: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            if row["drafter"] == drafter:
                by_k.setdefault(row["k"], []).append(row)
        return max(
            sum(row["drafts"] * row["acceptance_length"] for row in group) / sum(row["drafts"] for row in group)
            for group in by_k.values()
        )

    assert length("eagle3") > length("eagle") > length("dflash") > length("medusa")
    assert all(row["outputs_equal"] == "64/64" for row in rows)
