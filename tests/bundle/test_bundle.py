"""The bundled models: their size on disk, their tokenizer, their evaluation, and a few real rewrites."""

import hashlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from draftwise.deciding.validity.output_checks import find_loop

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "bundle"
WORKLOADS = ROOT / "src" / "draftwise" / "workloads" / "bundled"
MODELS = ("target", "draft_model")
WORKLOAD_NAMES = ("code", "prose", "rewrite")


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BUNDLE / "recipe"))
    import checks

    return checks


def test_files_stay_small() -> None:
    sizes = {path: path.stat().st_size for path in BUNDLE.rglob("*") if path.is_file()}
    of_smollm2 = sum(size for path, size in sizes.items() if path.is_relative_to(BUNDLE / "smollm2"))
    assert max(sizes.values()) < 15_000_000
    assert of_smollm2 < 60_000_000
    assert sum(sizes.values()) - of_smollm2 < 125_000_000


def test_weights_tokenizers_and_prompts_are_those_of_the_provenance() -> None:
    provenance = json.loads((BUNDLE / "provenance.json").read_text())
    for name, digest in provenance["sha256"].items():
        assert hashlib.sha256((BUNDLE / name).read_bytes()).hexdigest() == digest, name


def test_both_models_share_one_tokenizer() -> None:
    target, draft = ((BUNDLE / model / "tokenizer.json").read_bytes() for model in MODELS)
    assert target == draft


def test_workloads_are_the_first_heldout_prompts() -> None:
    for name in WORKLOAD_NAMES:
        workload = read_lines(WORKLOADS / f"{name}.jsonl")
        assert len(workload) >= 40
        assert workload == read_lines(BUNDLE / "heldout" / f"{name}.jsonl")[: len(workload)]


@pytest.mark.parametrize("group", ["heldout", "workload"])
def test_evaluation_meets_its_thresholds(group: str) -> None:
    evaluation = json.loads((BUNDLE / "evaluation.json").read_text())
    results = evaluation[group]
    assert all(results[name]["loop_share"] < 0.05 for name in WORKLOAD_NAMES)
    assert results["rewrite"]["contains_edit_share"] >= 0.80
    assert results["rewrite"]["ended_share"] == 1.0
    assert evaluation["meets_thresholds"]


def test_the_heldout_answers_pass_their_own_checks(checks: ModuleType) -> None:
    for prompt in read_lines(BUNDLE / "heldout" / "rewrite.jsonl"):
        verdict = checks.judge(prompt["check"]["expected"], prompt["check"])
        assert all(verdict.values()), prompt["id"]


def test_a_rewrite_that_changes_nothing_fails_its_check(checks: ModuleType) -> None:
    for prompt in read_lines(BUNDLE / "heldout" / "rewrite.jsonl"):
        source = prompt["messages"][0]["content"].split("\n\n", 1)[1]
        verdict = checks.judge(source, prompt["check"])
        assert not verdict["contains_edit"], prompt["id"]


def test_tokenizer_gives_back_every_workload_prompt() -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(BUNDLE / "target" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 4096
    for name in ("code", "prose"):
        for prompt in read_lines(WORKLOADS / f"{name}.jsonl"):
            ids = tokenizer.encode(prompt["prompt"]).ids
            assert len(ids) <= 450
            assert tokenizer.decode(ids, skip_special_tokens=False) == prompt["prompt"]


def greedy(model: Any, ids: Any, max_tokens: int) -> list[int]:
    output = model.generate(ids, attention_mask=ids.new_ones(ids.shape), max_new_tokens=max_tokens)
    return output[0, ids.shape[1] :].tolist()


def test_target_rewrites_and_ends_by_itself(checks: ModuleType) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(BUNDLE / "target")
    model = transformers.AutoModelForCausalLM.from_pretrained(BUNDLE / "target", dtype="float32")
    prompts = sorted(read_lines(WORKLOADS / "rewrite.jsonl"), key=lambda prompt: len(prompt["check"]["expected"]))[:4]
    verdicts = []
    for prompt in prompts:
        ids = tokenizer.apply_chat_template(
            prompt["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        output = greedy(model, ids, prompt["max_tokens"])
        assert output[-1] in model.generation_config.eos_token_id, prompt["id"]
        assert find_loop(output[:-1]) is None
        verdicts.append(checks.judge(tokenizer.decode(output, skip_special_tokens=True), prompt["check"]))
    assert sum(verdict["contains_edit"] for verdict in verdicts) >= 3


def test_draft_model_loads_and_is_a_tenth_of_the_target() -> None:
    import transformers

    target, draft = (transformers.AutoModelForCausalLM.from_pretrained(BUNDLE / model) for model in MODELS)
    assert draft.config.vocab_size == target.config.vocab_size
    assert 8 <= target.num_parameters() / draft.num_parameters() <= 12
