"""Medusa, the MLP speculator, draft models and PARD in training against the engine that runs what they export."""

from __future__ import annotations

import pytest
import torch
from tests.support.confirming import confirm
from tests.support.training import accepted, build, engine_accepted, evaluate, greedy_batch, random_batch, train

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import load_model
from draftwise.engine.proposers import make_proposer
from draftwise.engine.resolved_spec import resolve_spec
from draftwise.training.frozen_target import FrozenTarget

SMALL = {"hidden_size": 32, "num_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
HEADS = [
    pytest.param("medusa", {"num_heads": 3}, id="medusa"),
    pytest.param("medusa", {"num_heads": 3, "num_layers": 2, "lm_head": "shared"}, id="medusa-shared"),
    pytest.param("medusa", {"num_heads": 3, "lm_head": "frozen", "learn_from": "tokens"}, id="medusa-frozen"),
    pytest.param("mlp_speculator", {"n_predict": 3}, id="mlp"),
    pytest.param("mlp_speculator", {"n_predict": 3, "inner_dim": 96, "scale_input": True}, id="mlp-wide"),
    pytest.param("mlp_speculator", {"n_predict": 3, "tie_weights": True, "learn_from": "tokens"}, id="mlp-tied"),
]
MODELS = [
    pytest.param({**SMALL, "num_speculative_tokens": 3, "token_weight": 0.5}, id="draft_model"),
    pytest.param({**SMALL, "num_speculative_tokens": 3, "parallel": True, "mask_token_id": 9}, id="pard"),
]


@pytest.fixture(scope="module")
def target(tiny_target):
    return FrozenTarget.load(tiny_target)


@pytest.fixture(scope="module")
def engine_target(tiny_target):
    return load_model(tiny_target)


def load(method, folder, target, engine_target, k):
    """Return the engine's proposer of an exported drafter."""
    method.export(folder)
    path, config = method.describe_serving(folder, target.path, k)
    assert path == target.path
    return make_proposer(resolve_spec(SpecConfig.parse(config)), EngineConfig(model=str(path)), engine_target)


@pytest.mark.parametrize(("name", "options"), HEADS)
def test_heads_learn_and_the_engine_accepts_what_training_counts(name, options, target, engine_target, tmp_path):
    batch = greedy_batch(target)
    method = build(name, target, **options)
    states = target.compute_states(batch, method.aux_layers)
    before = evaluate(method, batch, states)
    after = train(method, batch, states, steps=60)
    assert after.loss < 0.8 * before.loss
    counts_BT = accepted(after)
    assert counts_BT.sum() > accepted(before).sum() + 30
    engine_BT = engine_accepted(load(method, tmp_path, target, engine_target, 3), batch, states, 3)
    assert torch.equal(engine_BT[:, 1:], counts_BT[:, 1:])


@pytest.mark.parametrize("options", MODELS)
def test_a_draft_model_learns_and_the_engine_accepts_what_training_counts(options, target, engine_target, tmp_path):
    batch = greedy_batch(target)
    method = build("draft_model", target, **options)
    states = target.compute_states(batch, method.aux_layers)
    before = evaluate(method, batch, states)
    after = train(method, batch, states, steps=90, lr=1e-2)
    assert after.loss < 0.8 * before.loss
    proposer = load(method, tmp_path, target, engine_target, 3)
    measured_BT = after.counted[2]
    assert measured_BT.any()
    counts_BT = accepted(after)
    assert counts_BT[measured_BT].float().mean() > 1
    for b, t in measured_BT.nonzero().tolist():
        assert counts_BT[b, t] == draft_behind(proposer, batch.tokens_BT[b].tolist(), t), (b, t)


def draft_behind(proposer, tokens, last):
    """Return how many of the draft tokens behind token `last` are right."""
    proposer.allocate(num_pages=16, block_size=4)
    new = confirm([tokens[: last + 1]], starts=[0], limits=[3], num_prompt=[last + 1], pages=[range(16)], scratch=16)
    drafted = proposer.propose(new, 3).tokens_BK[0].tolist()
    right = [draft == token for draft, token in zip(drafted, tokens[last + 1 :], strict=False)]
    return [*right, False].index(False)


def test_masks_are_dropped_at_random_while_learning_and_never_while_measuring(target):
    method = build("draft_model", target, **SMALL, num_speculative_tokens=4, parallel=True, mask_token_id=9, keep=0.5)
    learned = method._choose_rows(32, torch.device("cpu"))
    per_depth = torch.bincount(learned.depths_R)
    assert per_depth.tolist() == [32, 16, 8, 6]
    for depth in (2, 3):  # a mask's earlier masks are there too
        assert set(learned.anchors_R[learned.depths_R == depth].tolist()) <= set(
            learned.anchors_R[learned.depths_R == depth - 1].tolist()
        )
    with torch.no_grad():
        measured = method._choose_rows(32, torch.device("cpu"))
    assert torch.bincount(measured.depths_R).tolist() == [32, 8, 8, 8]


def test_fresh_medusa_heads_say_what_the_target_says(target):
    batch = random_batch(target)
    states = target.compute_states(batch, ())
    hidden = build("medusa", target, num_heads=2, num_layers=2).network(states.final_BTH)
    assert all(torch.equal(each, states.final_BTH) for each in hidden)


def test_a_draft_model_goes_on_from_a_checkpoint(target, tiny_draft, tmp_path):
    batch = random_batch(target)
    states = target.compute_states(batch, ())
    method = build("draft_model", target, init=str(tiny_draft))
    method.export(tmp_path)
    again = build("draft_model", target, init=str(tmp_path))
    assert torch.equal(evaluate(method, batch, states).loss, evaluate(again, batch, states).loss)
    assert (tmp_path / "tokenizer.json").read_bytes() == (target.path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("draft_model", {"hidden_size": 30, "num_attention_heads": 4}, "bad-sizes"),
        ("draft_model", {"parallel": True}, "no-mask-token"),
        ("medusa", {"num_head": 2}, "unknown-option"),
        ("medusa", {"num_heads": 0}, "bad-option"),
    ],
)
def test_what_cannot_work_is_refused(name, options, code, target):
    with pytest.raises(InvalidSetup) as error:
        build(name, target, **options)
    assert error.value.findings[0].code == code
