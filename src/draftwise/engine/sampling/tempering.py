"""Picks tokens from logits: temperature, truncation, argmax and sampling, on tensors only.

Everything here has static shapes and never waits for the device, so steps can be captured. On CUDA, the Triton kernels
of `kernels.cuda.sampling` work in one pass over the logits. The plain torch below is their reference, and runs
elsewhere.

Shape letters: B sequences, S rows of logits a sequence, V vocabulary, U tokens that a drafter can name, M = B * S,
G groups of N neighboring tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from draftwise.engine.kernels.sampling_constants import ATTEMPT, ATTEMPTS, GROUP, GROUPS, MIN_TEMPERATURE
from draftwise.engine.memory.transfer import upload
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.random import gumbel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tempering:
    """How each sequence's logits become its sampling distribution, independent of history."""

    temperature_B: Tensor
    """float32; 0 is greedy, and the other three are then ignored."""
    top_k_B: Tensor
    """int64; 0 or less: off."""
    top_p_B: Tensor
    """float32; 1: off."""
    min_p_B: Tensor
    """float32; 0: off."""
    all_greedy: bool
    """Every row is greedy, and nothing is drawn. Like `truncates`, it selects code, so it is part of a graph's key."""
    truncates: bool
    """Some sampled row may have top_k, top_p or min_p. If no row has, True gives the same tokens, but slower."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device | str) -> Tempering:
        """Return the settings of these requests. Copies them to the device, so do not call it in a captured step."""
        return cls(
            temperature_B=upload([p.temperature for p in params], device, np.float32),
            top_k_B=upload([max(p.top_k, 0) for p in params], device),
            top_p_B=upload([p.top_p for p in params], device, np.float32),
            min_p_B=upload([p.min_p for p in params], device, np.float32),
            all_greedy=all(p.greedy for p in params),
            truncates=any(p.truncates for p in params),
        )


def argmax(logits_BV: Tensor, ids_U: Tensor | None = None) -> Tensor:
    """Return the likeliest token of each row, the lowest id among equals, as int64.

    Args:
        logits_BV: any float type, any number of leading dimensions.
        ids_U: id of each column, if columns are not ids themselves.
    """
    if kernels := kernels_for(logits_BV):
        return kernels.argmax_rows(logits_BV, ids_U)
    # On a CPU argmax is 15 times as fast over float32 as over half precision.
    best_B = (logits_BV.float() if logits_BV.dtype.itemsize == 2 else logits_BV).argmax(-1)
    return best_B if ids_U is None else ids_U[best_B]


def draw(
    logits_BSV: Tensor,
    temperature_B: Tensor | None,
    *,
    seeds_B: Tensor,
    positions_B: Tensor,
    lane: int,
    floor_BS: Tensor | None = None,
) -> Tensor:
    """Return a token of each row drawn from softmax(logits / temperature), by the Gumbel-max trick.

    Draws twice: first a group of `GROUP` neighboring tokens by their total probability, then a token within it. The
    distribution is the same, but noise is needed for one group instead of a whole vocabulary: making noise takes far
    longer than reading logits.

    Args:
        logits_BSV: any float type; computed in float32 at least.
        temperature_B: float32; rows at 0 take their likeliest token. None: the logits are used as they are.
        seeds_B: int64, seed of each sequence's random stream.
        positions_B: int64, position in that stream of the token that row 0 decides; row s decides the s-th after it.
        lane: which independent stream, see `random.Lane`.
        floor_BS: from `find_floors`; tokens whose logit over temperature lies below it are not drawn.

    Returns:
        int64 [B, S].
    """
    if kernels := kernels_for(logits_BSV):
        counters = {"seeds_B": seeds_B, "positions_B": positions_B, "lane": lane}
        return kernels.draw_rows(logits_BSV, temperature_B, floor_BS=floor_BS, **counters)
    is_greedy_B = torch.zeros_like(seeds_B, dtype=torch.bool)
    if temperature_B is not None:
        logits_BSV, is_greedy_B = temper(logits_BSV, temperature_B), temperature_B == 0
    noise = _noise_of(seeds_B, positions_B, lane, logits_BSV.shape[1])
    return _draw(_cut(logits_BSV, floor_BS), is_greedy_B, noise)


def sample(logits_BSV: Tensor, tempering: Tempering, *, seeds_B: Tensor, positions_B: Tensor, lane: int) -> Tensor:
    """Return a token of each row, int64 [B, S], drawn from the distribution that its request asked for.

    Sampling from a nucleus (top-p) works by rejection: a token drawn after top-k and min_p is in the nucleus if
    likelier tokens weigh less than p. That takes one pass over the logits; finding the nucleus takes many. After
    `ATTEMPTS` rejected tokens, the nucleus is computed, and the next token drawn from it.

    Args:
        logits_BSV: any float type.
        tempering: settings; not all rows may be greedy.
        seeds_B: as for `draw`, like the next two.
    """
    t, counters = tempering, {"seeds_B": seeds_B, "positions_B": positions_B, "lane": lane}
    if kernels := kernels_for(logits_BSV):
        if not t.truncates:
            return kernels.draw_rows(logits_BSV, t.temperature_B, **counters)
        return kernels.sample_rows(logits_BSV, t.temperature_B, t.top_k_B, t.top_p_B, t.min_p_B, **counters)
    logits_BSV, is_greedy_B = temper(logits_BSV, t.temperature_B), t.temperature_B == 0
    noise = _noise_of(seeds_B, positions_B, lane, logits_BSV.shape[1])
    if not t.truncates:
        return _draw(logits_BSV, is_greedy_B, noise)
    bounded_BSV = _cut(logits_BSV, _find_bound(logits_BSV, t))
    weights_BSV = (bounded_BSV - bounded_BSV.amax(2, keepdim=True)).exp()
    mass_BS = _nucleus_of(t, logits_BSV.dtype).unsqueeze(1) * weights_BSV.sum(2)
    tokens_BS = _draw(bounded_BSV, is_greedy_B, noise)
    for attempt in range(1, ATTEMPTS + 1):
        drawn_BS1 = bounded_BSV.gather(2, tokens_BS.unsqueeze(2))
        is_out_BS = weights_BSV.masked_fill(bounded_BSV <= drawn_BS1, 0).sum(2) >= mass_BS
        if _is_known_to_be_none(is_out_BS):
            break
        last_BSV = _cut(bounded_BSV, _find_nucleus(bounded_BSV, t)) if attempt == ATTEMPTS else bounded_BSV
        tokens_BS = torch.where(is_out_BS, _draw(last_BSV, is_greedy_B, noise, attempt), tokens_BS)
    return tokens_BS


def _is_known_to_be_none(is_out_BS: Tensor) -> bool:
    """Return whether no row is out; False where asking would wait for the device."""
    return is_out_BS.device.type == "cpu" and not is_out_BS.any()


def _draw(logits_BSV: Tensor, is_greedy_B: Tensor, noise: Callable[[Tensor], Tensor], attempt: int = 0) -> Tensor:
    """Return a token of each row drawn from the softmax of its logits; attempts share no noise."""
    groups_BSGN, is_greedy_B11 = _group(logits_BSV), is_greedy_B.view(-1, 1, 1)
    num_groups, size = groups_BSGN.shape[2:]
    id_G = torch.arange(num_groups, device=logits_BSV.device) + (GROUPS + attempt * ATTEMPT)
    noisy_BSG = groups_BSGN.logsumexp(-1) + noise(id_G)
    group_BS1 = torch.where(is_greedy_B11, groups_BSGN.amax(-1), noisy_BSG).argmax(-1, keepdim=True)
    ids_BSN = group_BS1 * size + torch.arange(size, device=logits_BSV.device)
    logits_BSN = groups_BSGN.take_along_dim(group_BS1.unsqueeze(3), 2).squeeze(2)
    noisy_BSN = logits_BSN + noise(ids_BSN + attempt * ATTEMPT)
    best_BS1 = torch.where(is_greedy_B11, logits_BSN, noisy_BSN).argmax(-1, keepdim=True)
    return ids_BSN.gather(2, best_BS1).squeeze(2)


def _noise_of(seeds_B: Tensor, positions_B: Tensor, lane: int, num_rows: int) -> Callable[[Tensor], Tensor]:
    """Return the noise of ids [B, S, N], row s one position after row s - 1."""
    row_S = torch.arange(num_rows, device=seeds_B.device)
    return partial(gumbel, seeds_B.unsqueeze(1), positions_B.unsqueeze(1) + row_S, lane=lane)


def _group(logits_BSV: Tensor) -> Tensor:
    """Return the logits in groups of neighbors [B, S, G, N], N the whole vocabulary where that is less."""
    size = min(GROUP, logits_BSV.shape[-1])
    padded_BSX = pad(logits_BSV, (0, -logits_BSV.shape[-1] % size), value=-torch.inf)
    return padded_BSX.unflatten(2, (-1, size))


def temper_and_truncate(logits_BSV: Tensor, tempering: Tempering) -> Tensor:
    """Return logits over temperature, -inf where min_p, top-k or top-p exclude a token. Greedy rows are unchanged.

    The softmax of a sampled row is the requested distribution. Half precision is widened unless all rows are greedy.
    The order is that of vLLM 0.32's sampler: temperature, min_p, top-k, top-p.
    """
    if tempering.all_greedy:
        return logits_BSV
    tempered_BSV = temper(logits_BSV, tempering.temperature_B)
    return _cut(tempered_BSV, find_floors(logits_BSV, tempering)) if tempering.truncates else tempered_BSV


def temper(logits_BSV: Tensor, temperature_B: Tensor) -> Tensor:
    """Return logits over temperature, in float32 at least. Rows at temperature 0 are unchanged."""
    scale_B = temperature_B.clamp(min=MIN_TEMPERATURE).masked_fill(temperature_B == 0, 1)
    wide = torch.promote_types(logits_BSV.dtype, torch.float32)
    return logits_BSV.to(wide) / scale_B.view(-1, 1, 1)


def sharpen(logits_BSV: Tensor, greedy_B: Tensor) -> Tensor:
    """Return the logits with all probability of greedy rows on their argmax, so one rule serves both kinds.

    A draft token then has p = 1 or 0, so each rule below accepts it exactly if it is the argmax.
    """
    certain_BSV = torch.full_like(logits_BSV, -torch.inf).scatter_(2, argmax(logits_BSV).unsqueeze(2), 0)
    return torch.where(greedy_B.view(-1, 1, 1), certain_BSV, logits_BSV)


def find_floors(logits_BSV: Tensor, tempering: Tempering) -> Tensor:
    """Return [B, S] the smallest logit over temperature that min_p, top-k and top-p keep; -inf: all kept.

    Equally likely tokens are kept, too, so the result does not depend on the sort order of ties.
    """
    if kernels := kernels_for(logits_BSV):
        t = tempering
        return kernels.find_floors(logits_BSV, t.temperature_B, t.top_k_B, t.top_p_B, t.min_p_B)
    tempered_BSV = temper(logits_BSV, tempering.temperature_B)
    bound_BS = _find_bound(tempered_BSV, tempering)
    return torch.maximum(bound_BS, _find_nucleus(_cut(tempered_BSV, bound_BS), tempering))


def _find_bound(tempered_BSV: Tensor, tempering: Tempering) -> Tensor:
    """Return [B, S] the least logits that min_p and top-k leave."""
    greedy_B, vocab_size = tempering.temperature_B == 0, tempered_BSV.shape[2]
    min_p_B = tempering.min_p_B.masked_fill(greedy_B, 0).to(tempered_BSV.dtype)
    least_BS = tempered_BSV.amax(2) + min_p_B.log().unsqueeze(1)
    off_B = greedy_B | (tempering.top_k_B <= 0) | (tempering.top_k_B >= vocab_size)
    kth_BS = _kth_largest(tempered_BSV, tempering.top_k_B.masked_fill(off_B, 0))
    return torch.maximum(least_BS, kth_BS)


def _find_nucleus(bounded_BSV: Tensor, tempering: Tempering) -> Tensor:
    """Return [B, S] the least logits that top-p leaves."""
    sorted_BSV = _sort_descending(bounded_BSV)
    probs_BSV = sorted_BSV.softmax(2)
    before_BSV = probs_BSV.cumsum(2) - probs_BSV
    mass_B11 = _nucleus_of(tempering, bounded_BSV.dtype).view(-1, 1, 1)
    count_BS1 = (before_BSV < mass_B11).sum(2, keepdim=True).clamp_(min=1)
    return sorted_BSV.gather(2, count_BS1 - 1).squeeze(2)


def _nucleus_of(tempering: Tempering, dtype: torch.dtype) -> Tensor:
    """Return top_p [B], 2 where it is off: even tokens that rounding pushes past a cumulated probability of 1 stay."""
    off_B = (tempering.temperature_B == 0) | (tempering.top_p_B >= 1)
    return tempering.top_p_B.masked_fill(off_B, 2).to(dtype)


def kernels_for(logits: Tensor) -> ModuleType | None:
    """Return the Triton kernels if they can run on these logits: on CUDA, not float64, with Triton installed."""
    if logits.device.type != "cuda" or logits.dtype == torch.float64 or not _has_triton():
        return None
    from draftwise.engine.kernels.cuda import sampling

    return sampling


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _cut(tempered_BSV: Tensor, floor_BS: Tensor | None) -> Tensor:
    if floor_BS is None:
        return tempered_BSV
    return tempered_BSV.masked_fill(tempered_BSV < floor_BS.unsqueeze(2), -torch.inf)


def _kth_largest(logits_BSV: Tensor, k_B: Tensor) -> Tensor:
    """Return [B, S] the k-th largest logit of each row, -inf for k = 0."""
    return (_partition if logits_BSV.device.type == "cpu" else _sort)(logits_BSV, k_B)


def _sort(logits_BSV: Tensor, k_B: Tensor) -> Tensor:
    place_BS1 = (k_B.clamp(min=1) - 1).view(-1, 1, 1).expand(-1, logits_BSV.shape[1], 1)
    kth_BS = _sort_descending(logits_BSV).gather(2, place_BS1).squeeze(2)
    return kth_BS.masked_fill(k_B.unsqueeze(1) == 0, -torch.inf)


def _partition(logits_BSV: Tensor, k_B: Tensor) -> Tensor:
    kth_BS = logits_BSV.new_full(logits_BSV.shape[:2], -torch.inf)
    for k in set(k_B.tolist()) - {0}:
        chosen_B, place = k_B == k, logits_BSV.shape[2] - k
        kth_BS[chosen_B] = torch.from_numpy(np.partition(logits_BSV[chosen_B].numpy(), place)[..., place])
    return kth_BS


def _sort_descending(logits_BSV: Tensor) -> Tensor:
    """Return each row sorted; on a CPU by numpy, whose vector sort is ten times as fast as torch's (at 16 x 4,096)."""
    if logits_BSV.device.type == "cpu":
        return torch.from_numpy(np.sort(logits_BSV.numpy())).flip(2)
    return logits_BSV.sort(2, descending=True).values
