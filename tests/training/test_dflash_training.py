"""DFlash in training against the engine that runs what it exports."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.support.training import accepted, build, engine_accepted, evaluate, greedy_batch, random_batch, train

from draftwise.engine.models import load_model
from draftwise.engine.proposers.dflash import DFlashProposer, load_dflash
from draftwise.training.frozen_target import FrozenTarget


@pytest.fixture(scope="module")
def target(tiny_target):
    return FrozenTarget.load(tiny_target)


def test_lesson_counts_what_the_engine_drafts_right(target, tiny_target, tmp_path):
    method = build(
        "dflash", target, num_speculative_tokens=3, num_layers=2, anchors=24, target_layers=(1, 2), mask_token_id=7
    )
    batch = greedy_batch(target)
    states = target.compute_states(batch, method.aux_layers)
    before = evaluate(method, batch, states)
    after = train(method, batch, states, steps=60)
    assert accepted(after).sum() > accepted(before).sum() + 10
    method.export(tmp_path)
    proposer = DFlashProposer(load_dflash(tmp_path, load_model(tiny_target), max_model_len=64), max_model_len=64)
    counted_BT = torch.stack(after.counted).all(0)  # near the end the engine drafts a shorter block
    engine = engine_accepted(proposer, batch, states, 3)
    assert counted_BT.sum() > 20
    assert torch.equal(engine[counted_BT], accepted(after)[counted_BT])


def test_blocks_see_what_lies_before_their_anchor_only(target):
    method = build("dflash", target, num_speculative_tokens=3, num_layers=2, anchors=18)
    batch = random_batch(target)
    states = target.compute_states(batch, method.aux_layers)
    hidden_BNKH = _hidden(method, batch, states)
    tokens_BT = batch.tokens_BT.clone()
    tokens_BT[:, 9:] = 3
    other = type(batch)(tokens_BT=tokens_BT, valid_BT=batch.valid_BT, learned_BT=batch.learned_BT)
    changed_BNKH = _hidden(method, other, target.compute_states(other, method.aux_layers))
    same_N = (hidden_BNKH - changed_BNKH).abs().amax((0, 2, 3)) < 1e-5
    assert same_N.tolist() == [True] * 9 + [False] * 9


def test_a_cut_block_is_what_a_drafter_of_fewer_masks_drafts(target):
    long, short = (build("dflash", target, num_speculative_tokens=k, num_layers=2, anchors=9) for k in (3, 2))
    short.network.load_state_dict(long.network.state_dict())
    batch = random_batch(target)
    states = target.compute_states(batch, long.aux_layers)
    with torch.no_grad():
        blocks, shorter = long.draw_blocks(batch), short.draw_blocks(batch)
        cut = dataclasses.replace(blocks, sizes_BN=torch.full_like(blocks.sizes_BN, 2))
        cut_BNKH, shorter_BNKH = long.fill_in(batch, states, cut), short.fill_in(batch, states, shorter)
        whole_BNKH = long.fill_in(batch, states, blocks)
    torch.testing.assert_close(cut_BNKH[:, :, :2], shorter_BNKH)
    assert not torch.allclose(whole_BNKH[:, :, :2], shorter_BNKH, atol=1e-3)


def test_half_of_the_blocks_are_cut_where_that_is_asked_for(target):
    method = build("dflash", target, num_speculative_tokens=3, anchors=18, shorter_blocks=True)
    batch = random_batch(target, length=40)
    drawn = [method.draw_blocks(batch) for _ in range(20)]
    sizes_D = torch.cat([each.sizes_BN.flatten() for each in drawn])
    assert set(sizes_D.tolist()) == {1, 2, 3}
    assert 0.5 < (sizes_D == 3).float().mean() < 0.8  # a half, and a third of the others
    assert not any(each.learned_BNK[..., 2][each.sizes_BN < 3].any() for each in drawn)
    with torch.no_grad():
        assert (method.draw_blocks(batch).sizes_BN == 3).all()


@torch.no_grad()
def _hidden(method, batch, states):
    return method.fill_in(batch, states, method.draw_blocks(batch))


def test_anchors_are_answers_spread_evenly_when_nothing_is_learned(target):
    method = build("dflash", target, num_speculative_tokens=3, anchors=5)
    batch = random_batch(target, length=40)
    with torch.no_grad():
        anchors_BN = method.draw_blocks(batch).anchors_BN
    assert torch.equal(anchors_BN[0], anchors_BN[1])
    assert anchors_BN.min() >= 3  # its next token is the first of the answer
    assert anchors_BN[0].diff().max() <= 16
    drawn = {tuple(method.draw_blocks(batch).anchors_BN[0].tolist()) for _ in range(5)}
    assert len(drawn) > 1
