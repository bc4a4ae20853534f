"""Speculation keeps the target's law exactly, and the test that says so sees every mistake we could think of.

The target is a Markov chain over a tiny vocabulary, so the law of the first few tokens is known by enumeration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from draftwise.engine.acceptance import Acceptance, Standard, Synthetic, Typical
from draftwise.engine.proposers.base import Draft
from draftwise.engine.random import Lane, gumbel
from draftwise.engine.verify import Verdict, verify

VOCAB, K, LENGTH, SAMPLES = 3, 3, 4, 120_000
TARGET = torch.tensor([[0.0, 0.9, -0.5], [1.2, -0.3, 0.1], [-0.4, 0.2, 0.8]]).log_softmax(-1)
DRAFTER = torch.tensor([[0.7, -0.2, 0.3], [0.1, 0.6, -0.6], [0.9, -0.8, 0.2]]).log_softmax(-1)
Verify = Callable[..., Verdict]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How drafts are made: by lookup (q = 1) or by sampling, for how many steps, and of equal length or not."""

    probabilistic: bool
    num_steps: int
    ragged: bool = True
    target: Tensor = TARGET


SCENARIOS = {
    "one-hot, one step": Scenario(probabilistic=False, num_steps=1),
    "one-hot, two steps": Scenario(probabilistic=False, num_steps=2),
    "probabilities, one step": Scenario(probabilistic=True, num_steps=1),
    "probabilities, two steps": Scenario(probabilistic=True, num_steps=2),
    "probabilities, equal lengths": Scenario(probabilistic=True, num_steps=2, ragged=False),
}


def make_draft(last: Tensor, seeds: Tensor, positions: Tensor, scenario: Scenario) -> Draft:
    tokens, probs = [], []
    for j in range(K):
        logq = DRAFTER[last]
        noise = gumbel(seeds, positions + j, VOCAB, Lane.DRAFT) if scenario.probabilistic else 0.0
        last = (logq + noise).argmax(-1)
        tokens.append(last)
        probs.append(logq.exp())
    lengths = seeds % (K + 1) if scenario.ragged else torch.full_like(seeds, K)
    probs_BKV = torch.stack(probs, 1) if scenario.probabilistic else None
    return Draft(tokens_BK=torch.stack(tokens, 1), lengths_B=lengths, probs_BKV=probs_BKV)


def decode(verify_fn: Verify, scenario: Scenario, *, greedy: Tensor | None = None, n: int = SAMPLES) -> Tensor:
    """Return the first LENGTH tokens of n sequences: speculative steps, then plain ones (drafts of no tokens)."""
    seeds, sizes = torch.arange(n), torch.ones(n, dtype=torch.long)
    greedy = torch.zeros(n, dtype=torch.bool) if greedy is None else greedy
    tokens = torch.zeros(n, 1 + LENGTH + scenario.num_steps * (K + 1), dtype=torch.long)
    for step in range(scenario.num_steps + LENGTH):
        last = tokens.gather(1, sizes.unsqueeze(1) - 1).squeeze(1)
        draft = Draft.empty(n)
        if step < scenario.num_steps:
            draft = make_draft(last, seeds, sizes, scenario)
        contexts = torch.cat([last.unsqueeze(1), draft.tokens_BK], 1)
        logits = scenario.target[contexts]
        verdict = verify_fn(
            logits, draft, greedy_B=greedy, seeds_B=seeds, positions_B=sizes, acceptance=Standard()
        )
        columns = sizes.unsqueeze(1) + torch.arange(logits.shape[1])
        emitted = verdict.tokens_BS >= 0
        rows = torch.arange(n).unsqueeze(1).expand_as(columns)
        tokens[rows[emitted], columns[emitted]] = verdict.tokens_BS[emitted]
        sizes = sizes + verdict.num_accepted_B + 1
    return tokens[:, 1 : 1 + LENGTH]


def law(target: Tensor) -> Tensor:
    """Probability of every sequence of LENGTH tokens, from start token 0."""
    probs, total = target.double().exp(), torch.ones(1, dtype=torch.float64)
    last = torch.tensor([0])
    for _ in range(LENGTH):
        total = (total.unsqueeze(1) * probs[last]).flatten()
        last = torch.arange(VOCAB).repeat(len(last))
    return total


def pvalue(tokens: Tensor, target: Tensor = TARGET) -> float:
    """Chi-square of the observed sequences against the target's law; 0 if an impossible one occurs."""
    weights = VOCAB ** torch.arange(LENGTH - 1, -1, -1)
    counts = torch.bincount((tokens * weights).sum(1), minlength=VOCAB**LENGTH).numpy()
    expected = len(tokens) * law(target).numpy()
    possible = expected > 0
    if counts[~possible].any():
        return 0.0
    assert expected[possible].min() > 5
    return float(stats.chisquare(counts[possible], expected[possible]).pvalue)


@pytest.mark.parametrize("name", SCENARIOS)
def test_output_has_the_targets_law(name: str) -> None:
    assert pvalue(decode(verify, SCENARIOS[name])) > 1e-3


@pytest.mark.parametrize("probabilistic", [False, True])
def test_law_where_the_target_forbids_tokens(probabilistic: bool) -> None:
    """Top-k and the like leave -inf logits; a drafter that proposes such a token loses it every time."""
    target = TARGET.clone()
    target[0, 2], target[1, 0] = -torch.inf, -torch.inf
    scenario = Scenario(probabilistic=probabilistic, num_steps=2, target=target.log_softmax(-1))
    assert pvalue(decode(verify, scenario), scenario.target) > 1e-3


@pytest.mark.parametrize("probabilistic", [False, True])
def test_greedy_and_sampled_rows_share_a_batch(probabilistic: bool) -> None:
    greedy = torch.arange(SAMPLES) % 3 == 0
    tokens = decode(verify, Scenario(probabilistic=probabilistic, num_steps=2), greedy=greedy)
    expected, last = [], 0
    for _ in range(LENGTH):
        last = int(TARGET[last].argmax())
        expected.append(last)
    assert (tokens[greedy] == torch.tensor(expected)).all()
    assert pvalue(tokens[~greedy]) > 1e-3


@pytest.mark.parametrize("num_steps", [1, 2])
def test_lookup_drafts_emit_the_very_tokens_of_plain_decoding(num_steps: int) -> None:
    plain = decode(verify, Scenario(probabilistic=False, num_steps=0))
    assert pvalue(plain) > 1e-3
    assert torch.equal(decode(verify, Scenario(probabilistic=False, num_steps=num_steps)), plain)


# An independent textbook implementation, one row at a time in effect; each keyword is a place to make a mistake.


def sample(weights: Tensor, u: Tensor) -> Tensor:
    """Inverse-CDF draw from unnormalised weights (with weights that do not add up to 1, the last token takes the rest
    unless they are normalised first)."""
    return (weights.cumsum(-1) < u.unsqueeze(-1)).sum(-1).clamp(max=VOCAB - 1)


def normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)


def textbook(
    logits_BSV: Tensor,
    draft: Draft,
    *,
    seeds_B: Tensor,
    positions_B: Tensor,
    ratio: Callable[[Tensor, Tensor], Tensor] = lambda p, q: p / q,
    residual: Callable[[Tensor, Tensor], Tensor] = lambda p, q: normalised((p - q).clamp(min=0)),
    bonus: Callable[[Tensor, Tensor], Tensor] = lambda p, q: p,
    shift: int = 0,
    stop_at_first_fall: bool = True,
    respect_lengths: bool = True,
    **_: Any,
) -> Verdict:
    """Rejection sampling as in Leviathan et al., algorithm 1."""
    n, num_rows = logits_BSV.shape[:2]
    generator = torch.Generator().manual_seed(int(positions_B.sum()) + num_rows)
    p, k = logits_BSV.exp(), num_rows - 1
    q = draft.probs_BKV
    if q is None:
        q = torch.nn.functional.one_hot(draft.tokens_BK, VOCAB).float()
    q = torch.cat([q, q[:, -1:] if k else torch.zeros(n, 1, VOCAB)], 1)
    lengths = draft.lengths_B if respect_lengths else torch.full((n,), k)
    accepted, open_ = torch.zeros(n, dtype=torch.long), torch.ones(n, dtype=torch.bool)
    for s in range(k):
        d, row = draft.tokens_BK[:, s : s + 1], min(s + shift, k)
        chance = ratio(p[:, row].gather(1, d), q[:, s].gather(1, d)).squeeze(1)
        stands = (torch.rand(n, generator=generator) < chance) & (s < lengths)
        accepted += stands & open_ if stop_at_first_fall else stands
        open_ = open_ & stands
    index = accepted.view(n, 1, 1).expand(n, 1, VOCAB)
    p_next, q_next = p.gather(1, index).squeeze(1), q.gather(1, index).squeeze(1)
    whole = (accepted == lengths).unsqueeze(1)
    weights = torch.where(whole, bonus(p_next, q_next), residual(p_next, q_next))
    following = sample(weights, torch.rand(n, generator=generator))
    columns = torch.arange(num_rows)
    padded = torch.cat([draft.tokens_BK, following.unsqueeze(1)], 1)
    tokens = torch.where(columns == accepted.unsqueeze(1), following.unsqueeze(1), padded)
    return Verdict(tokens_BS=tokens.masked_fill(columns > accepted.unsqueeze(1), -1), num_accepted_B=accepted)


TEXTBOOK_MUTANTS = {
    "residual omitted": {"residual": lambda p, q: p},
    "residual not renormalised": {"residual": lambda p, q: (p - q).clamp(min=0)},
    "residual of the wrong sign": {"residual": lambda p, q: normalised((q - p).clamp(min=0))},
    "residual not clamped": {"residual": lambda p, q: normalised((p - q).abs())},
    "bonus token from q": {"bonus": lambda p, q: q},
    "bonus token from the residual": {"bonus": lambda p, q: normalised((p - q).clamp(min=0))},
    "acceptance with q/p": {"ratio": lambda p, q: q / p},
    "acceptance with p": {"ratio": lambda p, q: p},
    "everything accepted": {"ratio": lambda p, q: torch.ones_like(p)},
    "off by one row": {"shift": 1},
    "tokens after a fall counted": {"stop_at_first_fall": False},
    "padding of short drafts judged": {"respect_lengths": False},
}
# With q = 1 these coincide with the correct rule: min(1, p) is p.
HARMLESS_WHEN_ONE_HOT = {"acceptance with p"}
# Samples drafts from q with the padding too, so judging it is correct there; only lookup padding would be wrong.
HARMLESS_WHEN_SAMPLED = {"padding of short drafts judged"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_textbook_passes(name: str) -> None:
    assert pvalue(decode(textbook, SCENARIOS[name])) > 1e-3
