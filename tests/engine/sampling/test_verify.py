"""Speculation keeps the target's distribution exactly, and the test that says so sees every mistake we could think of.

The target is a Markov chain over a tiny vocabulary, so the distribution of its first tokens is known by enumeration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from draftwise.engine.kernels.sampling_constants import STEP, Lane
from draftwise.engine.sampling import tempering as sampling
from draftwise.engine.sampling import verify as module
from draftwise.engine.sampling.acceptance_rules import Acceptance, Standard, Synthetic, SyntheticRates, Typical, place
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.random import gumbel
from draftwise.engine.sampling.tempering import Tempering
from draftwise.engine.sampling.verify import AcceptedTokens, verify

VOCAB, K, LENGTH, SAMPLES = 3, 3, 4, 120_000
TARGET = torch.tensor([[0.0, 0.9, -0.5], [1.2, -0.3, 0.1], [-0.4, 0.2, 0.8]]).log_softmax(-1)
"""Log-probabilities of the next token, by the last one."""
DRAFTER = torch.tensor([[0.2, 0.7, -0.3], [0.1, -0.6, 0.6], [0.9, -0.8, 0.2]]).log_softmax(-1)
Verify = Callable[..., AcceptedTokens]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads, and lose much when other processes want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def at_temperature(temperature_B: Tensor, *, all_greedy: bool = False) -> Tempering:
    """Temperature and nothing else."""
    return Tempering(
        temperature_B=temperature_B,
        top_k_B=torch.zeros_like(temperature_B, dtype=torch.long),
        top_p_B=torch.ones_like(temperature_B),
        min_p_B=torch.zeros_like(temperature_B),
        all_greedy=all_greedy,
        truncates=False,
    )


def by_row(greedy: Tensor | None, n: int) -> Tempering:
    """Temperature 1 except for greedy rows; None: all are greedy, and that is known."""
    if greedy is None:
        return at_temperature(torch.zeros(n), all_greedy=True)
    return at_temperature(1 - greedy.float())


SINGLE, BLOCK = Standard(), Standard(by_block=True)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How drafts are made: by lookup (q = 1) or by sampling, for how many steps, and of equal length or not."""

    probabilistic: bool
    num_steps: int
    ragged: bool = True
    target: Tensor = TARGET
    drafter: Tensor = DRAFTER
    rule: Standard = SINGLE
    stride: int = STEP
    """Between the drafter's random numbers of one position and of the next."""


SCENARIOS = {
    "one-hot, one step": Scenario(probabilistic=False, num_steps=1),
    "one-hot, two steps": Scenario(probabilistic=False, num_steps=2),
    "probabilities, one step": Scenario(probabilistic=True, num_steps=1),
    "probabilities, two steps": Scenario(probabilistic=True, num_steps=2),
    "probabilities, equal lengths": Scenario(probabilistic=True, num_steps=2, ragged=False),
    "one-hot, block": Scenario(probabilistic=False, num_steps=2, rule=BLOCK),
    "probabilities, block": Scenario(probabilistic=True, num_steps=2, rule=BLOCK),
    "probabilities, block, equal lengths": Scenario(probabilistic=True, num_steps=2, ragged=False, rule=BLOCK),
}


def make_draft(last: Tensor, seeds: Tensor, positions: Tensor, scenario: Scenario) -> Draft:
    tokens, probs = [], []
    for j in range(K):
        logq = scenario.drafter[last]
        noise = (
            gumbel(seeds, positions * scenario.stride + j, torch.arange(VOCAB), Lane.DRAFT)
            if scenario.probabilistic
            else 0.0
        )
        last = (logq + noise).argmax(-1)
        tokens.append(last)
        probs.append(logq.exp())
    lengths = seeds % (K + 1) if scenario.ragged else torch.full_like(seeds, K)
    probs_BKV = torch.stack(probs, 1) if scenario.probabilistic else None
    return Draft(tokens_BK=torch.stack(tokens, 1), lengths_B=lengths, probs_BKV=probs_BKV)


def decode(verify_fn: Verify, scenario: Scenario, *, greedy: Tensor | None = None, n: int = SAMPLES) -> Tensor:
    """Return the first LENGTH tokens of n sequences: speculative steps, then plain ones (drafts of no tokens)."""
    seeds, sizes = torch.arange(n), torch.ones(n, dtype=torch.long)
    tempering = by_row(torch.zeros(n, dtype=torch.bool) if greedy is None else greedy, n)
    tokens = torch.zeros(n, 1 + LENGTH + scenario.num_steps * (K + 1), dtype=torch.long)
    steps_left = scenario.num_steps
    while sizes.min() <= LENGTH:
        last = tokens.gather(1, sizes.unsqueeze(1) - 1).squeeze(1)
        draft = make_draft(last, seeds, sizes, scenario) if steps_left > 0 else Draft.empty(n)
        contexts = torch.cat([last.unsqueeze(1), draft.tokens_BK], 1)
        # Rows past a draft's end repeat its last one, as those of a padded batch do.
        rows = torch.arange(contexts.shape[1]).minimum(draft.lengths_B.unsqueeze(1))
        logits = scenario.target[contexts.gather(1, rows)]
        accepted = verify_fn(
            logits, draft, tempering=tempering, seeds_B=seeds, positions_B=sizes, acceptance=scenario.rule
        )
        # The -1 after the emitted tokens is overwritten by the next step.
        columns = sizes.unsqueeze(1) + torch.arange(logits.shape[1])
        tokens.scatter_(1, columns, accepted.tokens_BS)
        sizes = sizes + accepted.num_accepted_B + 1
        steps_left -= 1
    return tokens[:, 1 : 1 + LENGTH]


def distribution(target: Tensor) -> Tensor:
    """Probability of every sequence of LENGTH tokens, from start token 0."""
    probs, total = target.double().softmax(-1), torch.ones(1, dtype=torch.float64)
    last = torch.tensor([0])
    for _ in range(LENGTH):
        total = (total.unsqueeze(1) * probs[last]).flatten()
        last = torch.arange(VOCAB).repeat(len(last))
    return total


def pvalue(tokens: Tensor, target: Tensor = TARGET) -> float:
    """Chi-square of the observed sequences against the target's distribution; 0 if an impossible one occurs."""
    weights = VOCAB ** torch.arange(LENGTH - 1, -1, -1)
    counts = torch.bincount((tokens * weights).sum(1), minlength=VOCAB**LENGTH).numpy()
    expected = len(tokens) * distribution(target).numpy()
    possible = expected > 0
    if counts[~possible].any():
        return 0.0
    assert expected[possible].min() > 5
    return float(stats.chisquare(counts[possible], expected[possible]).pvalue)


@pytest.mark.parametrize("name", SCENARIOS)
def test_output_has_the_targets_distribution(name: str) -> None:
    assert pvalue(decode(verify, SCENARIOS[name])) > 1e-3


@pytest.mark.parametrize(("probabilistic", "rule"), [(False, SINGLE), (True, SINGLE), (True, BLOCK)])
def test_distribution_where_the_target_forbids_tokens(probabilistic: bool, rule: Standard) -> None:
    """Top-k and the like leave -inf logits; a drafter that proposes such a token loses it every time."""
    target = TARGET.clone()
    target[0, 2], target[1, 0] = -torch.inf, -torch.inf
    scenario = Scenario(probabilistic=probabilistic, num_steps=2, target=target.log_softmax(-1), rule=rule)
    assert pvalue(decode(verify, scenario), scenario.target) > 1e-3


@pytest.mark.parametrize(("probabilistic", "rule"), [(False, SINGLE), (True, SINGLE), (True, BLOCK)])
def test_greedy_and_sampled_rows_share_a_batch(probabilistic: bool, rule: Standard) -> None:
    greedy = torch.arange(SAMPLES) % 3 == 0
    tokens = decode(verify, Scenario(probabilistic=probabilistic, num_steps=2, rule=rule), greedy=greedy)
    expected, last = [], 0
    for _ in range(LENGTH):
        last = int(TARGET[last].argmax())
        expected.append(last)
    assert (tokens[greedy] == torch.tensor(expected)).all()
    assert pvalue(tokens[~greedy]) > 1e-3


@st.composite
def chains(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Target and drafter of a tiny vocabulary, which may forbid tokens or agree, and a length of drafts."""
    size = draw(st.integers(2, 4))
    weights = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1)), min_size=size, max_size=size).filter(any)
    target, drafter = (
        torch.tensor(draw(st.lists(weights, min_size=size, max_size=size)), dtype=torch.float64) for _ in range(2)
    )
    drafter = target if draw(st.integers(0, 9)) == 0 else drafter
    return normalised(target), normalised(drafter), draw(st.integers(1, 3))


@settings(deadline=None, max_examples=60)
@given(chains())
def test_the_exact_law_of_block_verification(chain: tuple[Tensor, Tensor, int]) -> None:
    """Over all drafts, by the very chances and residuals that `verify` draws from: what is emitted, continued by the
    target, has the target's distribution, and no fewer draft tokens stand than one by one."""
    target, drafter, k = chain
    size = len(target)
    drafts = torch.cartesian_prod(*[torch.arange(size)] * k).view(-1, k)
    contexts = torch.cat([torch.zeros(len(drafts), 1, dtype=torch.long), drafts], 1)
    p_BSV, q_BKV = target[contexts], drafter[contexts[:, :-1]]
    weight_B = q_BKV.gather(2, drafts.unsqueeze(2)).squeeze(2).prod(1)
    draft = Draft(lengths_B=torch.full((len(drafts),), k), tokens_BK=drafts, probs_BKV=q_BKV)
    joint_BS = module._find_joint(p_BSV, q_BKV, draft)
    residual_BSV = module._find_residual(p_BSV * joint_BS.unsqueeze(2), q_BKV, draft)
    chance_BS = module._find_chances(joint_BS, residual_BSV).double()
    chance_BS[:, 0] = 1
    missed_BS = torch.cat([(1 - chance_BS[:, 1:]).flip(1).cumprod(1).flip(1), torch.ones(len(drafts), 1)], 1)
    stands_BS = chance_BS * missed_BS  # the longest start that stands has this length
    law = torch.zeros([size] * (k + 1), dtype=torch.float64)
    for b in range(len(drafts)):
        for s in range(k + 1):
            if weight_B[b] * stands_BS[b, s] < 1e-12:
                continue
            rest = weight_B[b] * stands_BS[b, s] * normalised(residual_BSV[b, s])
            for _ in range(k - s):
                rest = rest.unsqueeze(-1) * target
            law[tuple(drafts[b, :s])] += rest
    expected = target[0]
    for _ in range(k):
        expected = expected.unsqueeze(-1) * target
    assert torch.allclose(law, expected, atol=1e-5)
    ratio_BK = (p_BSV[:, :-1] / q_BKV).gather(2, drafts.unsqueeze(2)).squeeze(2).nan_to_num(0).clamp(max=1)
    one_by_one = (weight_B.unsqueeze(1) * ratio_BK.cumprod(1)).sum()
    together = (weight_B.unsqueeze(1) * stands_BS * torch.arange(k + 1)).sum()
    assert together >= one_by_one - 1e-5


def test_block_verification_accepts_more_of_a_chain() -> None:
    logits, draft = chain_batch(SAMPLES, probabilistic=True)
    greedy = torch.zeros(SAMPLES, dtype=torch.bool)
    single, block = (judge(logits, draft, rule, greedy).num_accepted_B.double() for rule in (SINGLE, BLOCK))
    assert block.mean() - single.mean() > 5 * (block - single).std() / SAMPLES**0.5


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
) -> AcceptedTokens:
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
    return AcceptedTokens(tokens_BS=tokens.masked_fill(columns > accepted.unsqueeze(1), -1), num_accepted_B=accepted)


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


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_textbook_passes(name: str) -> None:
    assert pvalue(decode(textbook, SCENARIOS[name])) > 1e-3


KINDS = ("one-hot, one step", "probabilities, two steps")
VISIBLE = [(mistake, kind) for mistake in TEXTBOOK_MUTANTS for kind in KINDS]
VISIBLE.remove(("acceptance with p", "one-hot, one step"))  # with q = 1 that is the rule


@pytest.mark.parametrize(("mistake", "kind"), VISIBLE)
def test_every_mistake_in_the_rule_is_seen(mistake: str, kind: str) -> None:
    mutant = partial(textbook, **TEXTBOOK_MUTANTS[mistake])
    assert pvalue(decode(mutant, SCENARIOS[kind])) < 1e-9


def with_arguments(**changes: Callable[[Tensor], Tensor]) -> Verify:
    """The real `verify`, called with some arguments wrong."""

    def mutant(logits_BSV: Tensor, draft: Draft, **arguments: Any) -> AcceptedTokens:
        return verify(logits_BSV, draft, **{name: changes.get(name, lambda x: x)(x) for name, x in arguments.items()})

    return mutant


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("argument", ["positions_B", "seeds_B"])
def test_noise_used_twice_is_seen(argument: str, kind: str) -> None:
    """Every step of a sequence, or every sequence, with the same noise."""
    mutant = with_arguments(**{argument: torch.zeros_like})
    assert pvalue(decode(mutant, SCENARIOS[kind])) < 1e-9


def test_noise_that_a_block_was_judged_by_and_that_is_drawn_again_is_seen() -> None:
    assert pvalue(decode(verify, Scenario(probabilistic=True, num_steps=2, ragged=False, rule=BLOCK, stride=1))) < 1e-9


@pytest.mark.parametrize("lane", [Lane.TOKEN, Lane.ACCEPT])
def test_verdict_sharing_noise_with_the_drafter_is_seen(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft sampled by rejection must meet fresh noise, both for its coin and for its replacement."""
    # Tokens that often lose narrowly in the draft make up much of the residual, where bias shows best.
    target, drafter = (torch.tensor([p] * VOCAB).log() for p in ([0.1, 0.55, 0.35], [0.5, 0.45, 0.05]))
    scenario = Scenario(probabilistic=True, num_steps=2, target=target, drafter=drafter, stride=1)
    assert pvalue(decode(verify, scenario), target) > 1e-3
    if lane is Lane.TOKEN:
        monkeypatch.setattr(
            sampling, "gumbel", lambda seeds, positions, ids, lane: gumbel(seeds, positions, ids, Lane.DRAFT)
        )
    else:
        # The coin is then a function of token 0's noise, which had its part in what was drafted.
        monkeypatch.setattr(
            module, "uniform", lambda *row_and_lane: gumbel_cdf(gumbel(*row_and_lane[:2], torch.arange(1), Lane.DRAFT))
        )
    assert pvalue(decode(verify, scenario), target) < 1e-9


def gumbel_cdf(noise_BS1: Tensor) -> Tensor:
    return (-(-noise_BS1.squeeze(-1)).exp()).exp()


# The other acceptance rules.


def chain_batch(n: int, *, probabilistic: bool = False) -> tuple[Tensor, Draft]:
    """Logits and drafts of one step of n sequences."""
    scenario = Scenario(probabilistic=probabilistic, num_steps=1, ragged=False)
    last = torch.zeros(n, dtype=torch.long)
    draft = make_draft(last, torch.arange(n), torch.ones_like(last), scenario)
    return TARGET[torch.cat([last.unsqueeze(1), draft.tokens_BK], 1)], draft


def judge(logits: Tensor, draft: Draft, acceptance: Acceptance, greedy: Tensor | None) -> AcceptedTokens:
    n = len(logits)
    seeds, positions = torch.arange(n), torch.ones(n, dtype=torch.long)
    rule = place(acceptance, logits.device)
    return verify(logits, draft, tempering=by_row(greedy, n), seeds_B=seeds, positions_B=positions, acceptance=rule)


@pytest.mark.parametrize("greedy", [None, False])
def test_synthetic_acceptance_has_the_rates_asked_for(greedy: bool | None) -> None:
    """Unconditional rates, as vLLM defines them, for greedy (None) and sampled rows alike."""
    n, rates = 100_000, (0.9, 0.6, 0.0)
    logits, draft = chain_batch(n)
    accepted = judge(logits, draft, Synthetic(rates=rates), None if greedy is None else torch.zeros(n).bool())
    for position, rate in enumerate(rates):
        share = (accepted.num_accepted_B > position).double().mean()
        assert abs(share - rate) < 5 * (rate * (1 - rate) / n) ** 0.5 + 1e-9


def test_conditional_rates() -> None:
    assert Synthetic(rates=(1.0, 0.5, 0.25, 0.0, 0.0)).conditional_rates == (1.0, 0.5, 0.5, 0.0, 0.0)


@pytest.mark.parametrize("rule", [Typical(threshold=0.3, alpha=0.9), Typical(threshold=0.6, alpha=0.5)], ids=repr)
@pytest.mark.parametrize("probabilistic", [False, True])
def test_typical_acceptance_follows_the_papers_rule(rule: Typical, probabilistic: bool) -> None:
    n = 300
    _, draft = chain_batch(n, probabilistic=probabilistic)
    logits = torch.randn(n, K + 1, VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    accepted = judge(logits, draft, rule, torch.zeros(n).bool())
    p = logits.double().softmax(-1).numpy()
    for b in range(n):
        count = 0
        for s, token in enumerate(draft.tokens_BK[b].tolist()):
            entropy = -(p[b, s] * np.log(p[b, s])).sum()
            if p[b, s, token] <= min(rule.threshold, rule.alpha * np.exp(-entropy)):
                break
            count += 1
        assert accepted.num_accepted_B[b] == count
    assert 0 < accepted.num_accepted_B.double().mean() < K


def test_typical_acceptance_is_exact_on_greedy_rows() -> None:
    logits, draft = chain_batch(500, probabilistic=True)
    exact = judge(logits, draft, Standard(), None)
    for greedy in (None, torch.ones(500).bool()):
        assert torch.equal(judge(logits, draft, Typical(), greedy).tokens_BS, exact.tokens_BS)


# Shape and bookkeeping, for anything that can be asked.


@st.composite
def requests(draw: st.DrawFn) -> tuple[Tensor, Draft, dict[str, Any]]:
    n, k, vocab = draw(st.integers(1, 4)), draw(st.integers(0, 4)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = torch.randn(n, k + 1, vocab, generator=generator) * draw(st.sampled_from([0.1, 3.0]))
    # Some tokens are forbidden, but never all of them.
    logits[..., 1:].masked_fill_(torch.rand(n, k + 1, vocab - 1, generator=generator) < 0.3, -torch.inf)
    tokens = torch.randint(0, vocab, (n, k), generator=generator)
    lengths = torch.randint(0, k + 1, (n,), generator=generator)
    probs = torch.rand(n, k, vocab, generator=generator).softmax(-1) if draw(st.booleans()) else None
    arguments = {
        "tempering": by_row(draw(st.sampled_from([None, torch.rand(n, generator=generator) < 0.5])), n),
        "seeds_B": torch.randint(0, 2**62, (n,), generator=generator),
        "positions_B": torch.randint(0, 2**20, (n,), generator=generator),
        "acceptance": place(
            draw(st.sampled_from([Standard(), Typical(), Synthetic(rates=(0.9, 0.7, 0.5, 0.2))])), "cpu"
        ),
    }
    return logits, Draft(tokens_BK=tokens, lengths_B=lengths, probs_BKV=probs), arguments


@settings(max_examples=200, deadline=None)
@given(requests())
def test_bookkeeping(request_: tuple[Tensor, Draft, dict[str, Any]]) -> None:
    logits, draft, arguments = request_
    accepted = verify(logits, draft, **arguments)
    assert accepted.tokens_BS.dtype == accepted.num_accepted_B.dtype == torch.long
    assert accepted.tokens_BS.shape == logits.shape[:2]
    synthetic = isinstance(arguments["acceptance"], SyntheticRates)
    for b, (row, count) in enumerate(zip(accepted.tokens_BS.tolist(), accepted.num_accepted_B.tolist(), strict=True)):
        assert 0 <= count <= draft.lengths_B[b]
        assert row[:count] == draft.tokens_BK[b, :count].tolist()
        assert row[count + 1 :] == [-1] * (len(row) - count - 1)
        assert logits[b, count, row[count]] > -torch.inf
        if not synthetic:
            assert all(logits[b, s, token] > -torch.inf for s, token in enumerate(row[:count]))


def of_row(value: Any, b: int) -> Any:
    """The b-th row's part of an argument."""
    if isinstance(value, Tempering):
        return at_temperature(value.temperature_B[b : b + 1], all_greedy=value.all_greedy)
    return value[b : b + 1] if isinstance(value, Tensor) else value


@settings(max_examples=100, deadline=None)
@given(requests())
def test_a_row_does_not_depend_on_the_batch_nor_on_padding(request_: tuple[Tensor, Draft, dict[str, Any]]) -> None:
    logits, draft, arguments = request_
    together = verify(logits, draft, **arguments)
    for b in range(len(logits)):
        k = int(draft.lengths_B[b])
        alone = verify(
            logits[b : b + 1, : k + 1],
            Draft(
                tokens_BK=draft.tokens_BK[b : b + 1, :k],
                lengths_B=draft.lengths_B[b : b + 1],
                probs_BKV=None if draft.probs_BKV is None else draft.probs_BKV[b : b + 1, :k],
            ),
            **{name: of_row(value, b) for name, value in arguments.items()},
        )
        assert torch.equal(together.tokens_BS[b, : k + 1], alone.tokens_BS[0])


def test_a_drafter_identical_to_the_target_loses_nothing() -> None:
    """p = q leaves no residual; rounding must neither reject nor divide by zero."""
    n = 20_000
    logits = torch.randn(1, VOCAB).expand(n, 2, VOCAB)
    q = logits[:, :1].softmax(-1)
    noise = gumbel(torch.arange(n), torch.ones(n).long(), torch.arange(VOCAB), Lane.DRAFT)
    tokens = (logits[:, 0] + noise).argmax(-1, keepdim=True)
    draft = Draft(tokens_BK=tokens, lengths_B=torch.ones(n).long(), probs_BKV=q)
    assert (judge(logits, draft, Standard(), torch.zeros(n).bool()).num_accepted_B == 1).all()


def test_a_token_that_falls_without_a_residual_is_replaced_by_a_draw_from_p() -> None:
    """Rounding can make q a little larger than p everywhere; half as large again makes it happen often."""
    n, p = 20_000, torch.tensor([0.2, 0.3, 0.5])
    draft = Draft(
        tokens_BK=torch.ones(n, 1).long(), lengths_B=torch.ones(n).long(), probs_BKV=(1.5 * p).expand(n, 1, VOCAB)
    )
    accepted = judge(p.log().expand(n, 2, VOCAB), draft, Standard(), torch.zeros(n).bool())
    fallen = accepted.tokens_BS[accepted.num_accepted_B == 0, 0]
    assert len(fallen) > n / 4
    assert stats.chisquare(torch.bincount(fallen).numpy(), len(fallen) * np.array([0.2, 0.3, 0.5])).pvalue > 1e-3
