"""EAGLE, EAGLE-3, P-EAGLE and MTP in training against the engine that runs what they export."""

from __future__ import annotations

import json

import pytest
import torch
from tests.support.training import (
    accepted,
    as_batch,
    build,
    engine_accepted,
    engine_logits,
    evaluate,
    features_of,
    greedy_batch,
    random_batch,
    train,
)

from draftwise.core import InvalidSetup
from draftwise.engine.models import load_model
from draftwise.engine.proposers.eagle import load_eagle
from draftwise.engine.proposers.eagle3 import load_eagle3
from draftwise.engine.proposers.mtp import load_mtp
from draftwise.engine.proposers.paged import ChainProposer
from draftwise.training.frozen_target import FrozenTarget

K = "num_speculative_tokens"
LOADERS = {"eagle": load_eagle, "eagle3": load_eagle3, "mtp": load_mtp}
KINDS = [
    pytest.param("eagle", {K: 3, "noise": 0}, id="eagle"),
    pytest.param("eagle", {K: 3, "noise": 0, "num_layers": 2}, id="eagle-2-layers"),
    pytest.param("eagle3", {K: 3}, id="eagle3"),
    pytest.param("eagle3", {K: 3, "norm_before_residual": True, "draft_vocab_size": 90}, id="eagle3-vocabulary"),
    pytest.param("eagle3", {K: 3, "num_layers": 2, "target_layers": (0, 1)}, id="eagle3-2-layers"),
    pytest.param("eagle3", {K: 3, "lm_head": "target", "num_key_value_heads": 4}, id="eagle3-target-head"),
    pytest.param("mtp", {K: 3}, id="mtp"),
]
PARALLEL = {K: 3, "parallel": True, "mask_token_id": 7}


@pytest.fixture(scope="module")
def target(tiny_target):
    return FrozenTarget.load(tiny_target)


@pytest.fixture(scope="module")
def engine_target(tiny_target):
    return load_model(tiny_target)


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_unrolled_steps_are_what_the_engine_computes_from_the_export(name, options, target, engine_target, tmp_path):
    method = build(name, target, **options)
    with torch.no_grad():
        for parameter in method.network.parameters():  # norms that are all ones would hide a norm left out
            parameter.add_(torch.randn_like(parameter) * 0.2 * parameter.std().nan_to_num(0.5).clamp(min=0.1))
    batch = random_batch(target)
    states = target.compute_states(batch, method.aux_layers)
    with torch.no_grad():
        logits_JBRU = torch.stack([step.hidden_BRH @ method.head_UH.T for step in method.unroll(batch, states)])
    method.export(tmp_path)
    drafter = LOADERS[name](tmp_path, engine_target)
    for b, tokens in enumerate(batch.tokens_BT.tolist()):
        for last in (1, 6, 13):
            with torch.inference_mode():
                expected = engine_logits(drafter, tokens, features_of(states)[b], last, 3)
            torch.testing.assert_close(logits_JBRU[:, b, last - 1], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "options"), [*KINDS, pytest.param("eagle3", PARALLEL | {"num_layers": 2}, id="p-eagle-2-layers")]
)
def test_result_counts_what_the_engine_drafts_right(name, options, target, engine_target, tmp_path):
    method = build(name, target, **options)
    batch = greedy_batch(target)
    states = target.compute_states(batch, method.aux_layers)
    before = evaluate(method, batch, states)
    after = train(method, batch, states, steps=40)
    assert after.loss < 0.7 * before.loss
    assert accepted(after).sum() > accepted(before).sum() + 10
    method.export(tmp_path)
    parallel = bool(options.get("parallel"))
    proposer = ChainProposer(LOADERS[name](tmp_path, engine_target), max_model_len=64, parallel=parallel)
    assert torch.equal(engine_accepted(proposer, batch, states, 3), accepted(after))


def test_result_learns_and_counts_answers_only(target):
    method = build("mtp", target, **{K: 2})
    tokens_BT = random_batch(target, sequences=1, length=12).tokens_BT
    batch = as_batch(tokens_BT, prompt=6)
    result = evaluate(method, batch, target.compute_states(batch, method.aux_layers))
    assert [counted.nonzero()[:, 1].tolist() for counted in result.counted] == [[5, 6, 7, 8, 9, 10], [4, 5, 6, 7, 8, 9]]


def test_padding_changes_nothing(target):
    method = build("eagle3", target, **{K: 3})
    short, long = random_batch(target, length=14), random_batch(target, length=14)
    padded = torch.nn.functional.pad(long.tokens_BT, (0, 6))
    learned = torch.nn.functional.pad(long.learned_BT, (0, 6))
    long = type(long)(tokens_BT=padded, valid_BT=padded != 0, learned_BT=learned)
    results = [evaluate(method, batch, target.compute_states(batch, method.aux_layers)) for batch in (short, long)]
    torch.testing.assert_close(results[0].loss, results[1].loss)
    for here, there in zip(results[0].counted, results[1].counted, strict=True):
        assert torch.equal(here, there[:, :14])


def test_eagle_learns_states_and_distributions(target):
    method = build("eagle", target, noise=0, token_weight=0.5)
    batch = random_batch(target)
    states = target.compute_states(batch, method.aux_layers)
    with torch.no_grad():
        guessed_BRH = method.unroll(batch, states)[0].carry_BRH[:, 2:-1]  # labels 4 and on are learned
        aim_BLH = states.final_BTH[:, 3:-1]
        states_error = torch.nn.functional.smooth_l1_loss(guessed_BRH, aim_BLH)
        shares = (aim_BLH @ target.head_VH.T).softmax(-1)
        entropy = -(shares * (guessed_BRH @ target.head_VH.T).log_softmax(-1)).sum(-1).mean()
        loss = method.compute_loss(batch, states).loss
    torch.testing.assert_close(loss, states_error + 0.5 * entropy, rtol=1e-4, atol=1e-5)


def test_eagle3_names_the_most_frequent_tokens(target, tmp_path):
    method = build("eagle3", target, draft_vocab_size=3)
    counts_V = torch.zeros(target.vocab_size)
    counts_V[[200, 5, 77, 9]] = torch.tensor([4.0, 9.0, 2.0, 1.0])
    method.prepare(counts_V)
    assert torch.equal(method.head_UH, target.head_VH[[5, 77, 200]])
    method.export(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["draft_vocab_size"], config["norm_before_residual"]) == (3, False)
    drafter = load_eagle3(tmp_path, load_model(target.path))
    assert drafter.target_ids_U.tolist() == [5, 77, 200]


def test_exports_name_what_vllm_would_guess(target, tmp_path):
    build("eagle3", target, **PARALLEL).export(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2]
    assert config["num_aux_hidden_states"] == 2
    assert config["ptd_token_id"] == 7
    assert config["rope_parameters"]["rope_theta"] == 10000.0


def test_refuses_layers_and_tokens_that_the_target_lacks(target):
    with pytest.raises(InvalidSetup, match=r"layers \[1, 3\] of a target that has 0 to 2") as caught:
        build("eagle3", target, target_layers=(1, 3))
    assert [finding.code for finding in caught.value.findings] == ["layer-ids-out-of-range"]
    with pytest.raises(InvalidSetup, match="100,000 is outside the vocabulary") as caught:
        build("eagle3", target, parallel=True, mask_token_id=100_000)
    assert [finding.code for finding in caught.value.findings] == ["mask-token-out-of-range"]
    with pytest.raises(InvalidSetup, match="names all"):
        build("eagle3", target, draft_vocab_size=3, lm_head="target")
