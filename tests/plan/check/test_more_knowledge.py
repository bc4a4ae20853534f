"""More knowledge never says less: no true file, flag or GPU turns a refusal or a warning of a rule into nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from catalogue.oracle.compare import setup_of
from catalogue.oracle.models import write_models
from catalogue.oracle.sample import read_sample
from tests.support.made_checkpoints import EAGLE3, judge, write

from draftwise.core import CheckOutcome, Effect, Ruling, Severity
from draftwise.knowledge.rules import all_rules
from draftwise.plan.check import Context, Report, check_context, get_context

SAMPLE = Path(__file__).with_name("oracle_outcomes") / "outcomes.jsonl.gz"
STEP = 89
"""Of the recorded cases as many are judged, each with every part of it hidden as well."""
STOPS = (CheckOutcome.REJECTED, CheckOutcome.FAILS_LATER)


def _hide(context: Context) -> Iterator[Context]:
    """Yield the context with less known of it."""
    without = (
        {"target": None},
        {"drafter": None, "draft_config": {}},
        {"target": None, "drafter": None, "draft_config": {}},
    )
    if context.verifier is None:
        yield from (replace(context, **each) for each in without)
    if context.platform == "cuda":
        yield replace(context, setup=replace(context.setup, device=None))


def _find_warnings(report: Report) -> set[str]:
    """Return the rules that stop a server or warn of something that is known."""
    told = (each for each in report.findings if isinstance(each, Ruling) and each.severity is not Severity.INFO)
    return {each.code for each in told if each.effect is not Effect.UNKNOWN} & all_rules().keys()


def _says_less(more: Report, less: Report) -> set[str]:
    """Return what the report on more knowledge leaves out; a rejection takes the place of what would come after it."""
    lost = set[str]() if more.outcome is CheckOutcome.REJECTED else _find_warnings(less) - _find_warnings(more)
    return lost | {str(less.outcome)} if less.outcome in STOPS and more.outcome not in STOPS else lost


def test_what_is_hidden_is_never_said_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_models(tmp_path)
    monkeypatch.chdir(tmp_path)
    wrong = []
    for version, platform, case, _ in list(read_sample(SAMPLE))[::STEP]:
        context = get_context(setup_of(case, version, platform))
        full = check_context(context)
        wrong += [(case["id"], lost) for less in _hide(context) if (lost := _says_less(full, check_context(less)))]
    assert wrong == []


WIDE = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936}
FAULTS: Mapping[str, dict[str, Any]] = {
    "hidden-size-differs": {"hidden_size": 5120, "num_attention_heads": 40},
    "layer-ids-out-of-range": {"eagle_aux_hidden_state_layer_ids": [2, 18, 99]},
    "mask-token-out-of-range": {"ptd_token_id": 999999},
    "head-without-layers": {"num_hidden_layers": 0},
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_heads_config_alone_tells_what_keeps_it_from_its_target(tmp_path: Path, code: str) -> None:
    head = write(tmp_path, "head", {**EAGLE3, **WIDE, **FAULTS[code]})
    spec = {"method": "eagle3", "model": head, "num_speculative_tokens": 3}
    report = judge("Qwen/Qwen3-8B", spec, "0.33.0")
    assert (report.outcome, report.accepted) == (CheckOutcome.FAILS_LATER, True)
    assert code in _find_warnings(report)


def test_a_width_that_no_states_have_is_none(tmp_path: Path) -> None:
    head = write(tmp_path, "head", {**EAGLE3, **WIDE, "hidden_size": -4096})
    report = judge("Qwen/Qwen3-8B", {"method": "eagle3", "model": head, "num_speculative_tokens": 3}, "0.33.0")
    assert report.outcome in STOPS


@pytest.mark.parametrize(
    ("target", "fits"), [("Qwen/Qwen3-8B", True), ("Qwen/Qwen3-32B", False), ("Qwen/Qwen3-4B", False)]
)
def test_the_files_of_a_published_head_say_no_less_than_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, fits: bool
) -> None:
    """Judged by its name, with its config.json, and with the weights of neither: for its own target and for others."""
    spec = {"method": "eagle3", "model": "RedHatAI/Qwen3-8B-speculator.eagle3", "num_speculative_tokens": 3}
    by_name = judge(target, spec, "0.33.0")
    monkeypatch.chdir(tmp_path)
    Path(spec["model"]).mkdir(parents=True)  # type: ignore[arg-type]
    config = {**EAGLE3, **WIDE, "draft_vocab_size": 32000}
    Path(str(spec["model"]), "config.json").write_text(json.dumps(config), encoding="utf-8")
    with_file = judge(target, spec, "0.33.0")
    assert ("drafter-of-other-target" in _find_warnings(by_name)) is not fits
    assert _says_less(with_file, by_name) == set()
    assert (with_file.outcome in STOPS) is not fits


def test_a_flag_that_is_given_leaves_no_refusal_out() -> None:
    """Flags that say what is the default, or what has nothing to do with a fault."""
    faults = {"max_model_len": 10**6}, {"quantization": "gptq"}, {"tensor_parallel_size": 3}
    idle = {"seed": 0}, {"dtype": "auto"}, {"max_num_seqs": 64}, {"enable_prefix_caching": True}, {"block_size": 16}
    for fault, more in product(faults, idle):
        less, full = (
            judge("Qwen/Qwen3-8B", None, "0.33.0", **fault),
            judge("Qwen/Qwen3-8B", None, "0.33.0", **fault, **more),
        )
        assert less.outcome is CheckOutcome.REJECTED
        assert _says_less(full, less) == set()
