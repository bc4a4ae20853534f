"""The next draft token: the likeliest, or a draw whose distribution is returned and true."""

from __future__ import annotations

import torch

from draftwise.engine.kernels.sampling_constants import Lane
from draftwise.engine.proposers.proposer import choose
from draftwise.engine.sampling.random import gumbel

GENERATOR = torch.Generator().manual_seed(0)


def draw(logits, *, temperature, positions=None, target_ids=None, vocab_size=None):
    """Choose for every row with its own seed."""
    n = len(logits)
    return choose(
        logits,
        temperature_B=torch.tensor([temperature] * n if isinstance(temperature, float) else temperature),
        seeds_B=torch.arange(100, 100 + n),
        positions_B=torch.tensor(positions or [3] * n),
        probabilistic=True,
        target_ids_U=target_ids,
        vocab_size=vocab_size or logits.shape[-1],
    )


def certain(logits, target_ids=None, vocab_size=None):
    return choose(
        logits,
        probabilistic=False,
        target_ids_U=target_ids,
        vocab_size=vocab_size or logits.shape[-1],
    )


def test_deterministic_drafting_takes_the_likeliest_token_and_needs_nothing_else():
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, -1.0, 4.0]])
    tokens, probs = certain(logits)
    assert tokens.tolist() == [1, 0]
    assert tokens.dtype == torch.int64
    assert probs is None


def test_a_smaller_vocabulary_is_translated():
    ids = torch.tensor([7, 2, 9])
    tokens, _ = certain(torch.tensor([[0.0, 2.0, 1.0], [5.0, -1.0, 4.0]]), ids, 10)
    assert tokens.tolist() == [2, 7]


def test_draws_follow_the_softmax_at_the_temperature():
    # Chi-square with 7 degrees of freedom: 24.3 is passed once in a thousand when the distribution is the one claimed.
    row, temperature, num_draws = torch.randn(8, generator=GENERATOR), 0.7, 20_000
    tokens, probs = draw(row.expand(num_draws, 8), temperature=temperature)
    distribution = (row / temperature).softmax(0)
    torch.testing.assert_close(probs, distribution.expand(num_draws, 8))
    counts = torch.bincount(tokens, minlength=8)
    assert ((counts - num_draws * distribution) ** 2 / (num_draws * distribution)).sum() < 24.3


def test_a_draw_depends_on_seed_and_position_alone_and_not_on_the_verdicts_noise():
    logits = torch.randn(64, 50, generator=GENERATOR)
    tokens, _ = draw(logits, temperature=1.5)
    one, _ = choose(
        logits[5:6],
        temperature_B=torch.tensor([1.5]),
        seeds_B=torch.tensor([105]),
        positions_B=torch.tensor([3]),
        probabilistic=True,
        target_ids_U=None,
        vocab_size=50,
    )
    assert one.tolist() == tokens[5:6].tolist()
    flat, positions = torch.zeros(64, 50), torch.full((64,), 3)
    noise = {lane: gumbel(torch.arange(100, 164), positions, torch.arange(50), lane).argmax(-1) for lane in Lane}
    assert torch.equal(draw(flat, temperature=1.0)[0], noise[Lane.DRAFT])
    assert (noise[Lane.DRAFT] != noise[Lane.TOKEN]).float().mean() > 0.8
    assert (draw(flat, temperature=1.0, positions=[4] * 64)[0] != noise[Lane.DRAFT]).float().mean() > 0.8


def test_greedy_rows_are_certain_beside_sampled_ones():
    logits = torch.randn(3, 20, generator=GENERATOR)
    tokens, probs = draw(logits, temperature=[0.0, 1.0, 0.0])
    assert tokens[[0, 2]].tolist() == logits[[0, 2]].argmax(-1).tolist()
    for row in (0, 2):
        assert probs[row].nonzero().flatten().tolist() == [tokens[row]]
        assert probs[row, tokens[row]] == 1
    torch.testing.assert_close(probs[1], logits[1].softmax(0))


def test_probabilities_lie_on_the_targets_ids():
    ids = torch.tensor([11, 3, 0, 8])
    logits = torch.randn(6, 4, generator=GENERATOR)
    tokens, probs = draw(logits, temperature=[0.8, 0.8, 0.8, 0.8, 0.0, 0.0], target_ids=ids, vocab_size=12)
    assert probs.shape == (6, 12)
    torch.testing.assert_close(probs[:4, ids], (logits[:4] / 0.8).softmax(-1))
    torch.testing.assert_close(probs.sum(-1), torch.ones(6))
    assert (probs.gather(1, tokens.unsqueeze(1)) > 0).all()
    assert tokens[4:].tolist() == ids[logits[4:].argmax(-1)].tolist()


def test_half_precision_and_tiny_temperatures_stay_finite():
    logits = (torch.randn(4, 30, generator=GENERATOR) * 50).bfloat16()
    _, probs = draw(logits, temperature=1e-6)
    assert probs.dtype == torch.float32
    assert probs.isfinite().all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(4))
