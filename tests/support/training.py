"""What the tests of trainable drafters share: texts, training on them, and what the engine drafts along them.

Shape letters: B sequences, T tokens, F width of the auxiliary hidden states, U tokens that the drafter can name.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.draft_head import ChainDrafter
from draftwise.engine.proposers.proposer import Proposer
from draftwise.training import get_training
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.method import DrafterTraining, DraftLoss, resolve_options
from tests.support.confirming import confirm, plan


def build(name: str, target: FrozenTarget, **options) -> DrafterTraining:
    """Return an untrained drafter, always the same."""
    torch.manual_seed(0)
    method = get_training(name)
    return method.build(target, resolve_options(method.OPTIONS, options, method=name))


def as_batch(tokens_BT: Tensor, *, prompt: int = 4) -> TokenBatch:
    valid_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    learned_BT = valid_BT.clone()
    learned_BT[:, :prompt] = False
    return TokenBatch(tokens_BT=tokens_BT, valid_BT=valid_BT, learned_BT=learned_BT)


def random_batch(target: FrozenTarget, *, sequences: int = 2, length: int = 18) -> TokenBatch:
    generator = torch.Generator().manual_seed(3)
    return as_batch(torch.randint(0, target.vocab_size, (sequences, length), generator=generator))


def greedy_batch(target: FrozenTarget, *, sequences: int = 2, length: int = 22) -> TokenBatch:
    """Return the target's own answers to random prompts of four tokens."""
    tokens_BT = random_batch(target, sequences=sequences, length=4).tokens_BT
    while tokens_BT.shape[1] < length:
        final_BTH = target.compute_states(as_batch(tokens_BT), ()).final_BTH
        tokens_BT = torch.cat((tokens_BT, (final_BTH[:, -1:] @ target.head_VH.T).argmax(-1)), dim=1)
    return as_batch(tokens_BT)


def target_of(training: DrafterTraining) -> FrozenTarget:
    """Return the target that a drafter is trained for; the protocol has no need of it."""
    target: FrozenTarget = vars(training)["_target"]
    return target


def train(method: DrafterTraining, batch: TokenBatch, states: States, *, steps: int, lr: float = 5e-3) -> DraftLoss:
    """Train on one batch again and again; return the loss without its gradient."""
    method.prepare(batch.tokens_BT[batch.learned_BT].bincount(minlength=target_of(method).vocab_size))
    parameters = [parameter for parameter in method.network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        method.compute_loss(batch, states).loss.backward()
        optimizer.step()
    return evaluate(method, batch, states)


@torch.no_grad()
def evaluate(method: DrafterTraining, batch: TokenBatch, states: States) -> DraftLoss:
    return method.compute_loss(batch, states)


def accepted(result: DraftLoss) -> Tensor:
    """Return how many leading tokens of each draft are right, int64 [B, T]."""
    return torch.stack(result.hits).long().cumprod(0).sum(0)


def features_of(states: States) -> Tensor:
    return torch.cat(states.aux_BTH, dim=-1) if states.aux_BTH else states.final_BTH


def engine_logits(drafter: ChainDrafter, tokens: list[int], features_TF: Tensor, last: int, steps: int) -> Tensor:
    """Return the logits [steps, U] of a draft behind token `last`, given the text's own tokens as its draft tokens."""
    kv = PagedKV(drafter.kv_shape, num_pages=16, block_size=4, dtype=drafter.dtype, device=drafter.device)
    carry: Tensor | None = drafter.enter(features_TF[:last])
    rows, logits = list(range(last)), []
    for step in range(steps):
        here = plan([rows[0]], [len(rows)], [range(16)], block_size=4, scratch=16)
        told = torch.tensor([tokens[row + 1] for row in rows])
        hidden, carry = drafter.forward(told, carry, here.positions_N, kv, here)
        logits.append(drafter.logits(hidden[-1:])[0])
        assert carry is not None
        carry, rows = carry[-1:], [last + step]
    return torch.stack(logits)


def engine_accepted(proposer: Proposer, batch: TokenBatch, states: States, k: int) -> Tensor:
    """Return how many leading tokens of the engine's draft behind each token are right, int64 [B, T]."""
    counts_BT = torch.zeros_like(batch.tokens_BT)
    for b, tokens in enumerate(batch.tokens_BT.tolist()):
        proposer.allocate(num_pages=16, block_size=4)
        for last in range(1, len(tokens) - 1):
            # The first call brings the prompt, each later one the token that became final.
            told = tokens[1:2] if last == 1 else tokens[last : last + 1]
            new = confirm(
                [told],
                starts=[last],
                limits=[min(k, len(tokens) - 1 - last)],
                num_prompt=[2],
                pages=[range(16)],
                scratch=16,
                features_NF=features_of(states)[b, last - 1 : last],
            )
            drafted = proposer.propose(new, k).tokens_BK[0].tolist()
            text = tokens[last + 1 : last + 1 + k]
            right = [draft == token for draft, token in zip(drafted, text, strict=False)]
            counts_BT[b, last] = [*right, False].index(False)
    return counts_BT
