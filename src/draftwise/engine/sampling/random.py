"""Counter-based noise: a pure function of (seed, position, lane, id), without generator state.

A token's noise does not depend on its batch, on preemption, or on how many tokens were verified together. The hash is
SplitMix64's finaliser (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"): rows are SplitMix64
streams whose start is hashed from seed, position and lane.

Shape letters: R rows (several dimensions may stand for R; seeds and positions broadcast), N ids.
"""

from __future__ import annotations

from hashlib import blake2b

from torch import Tensor

from draftwise.engine.kernels.sampling_constants import GOLDEN, LANE, MIX_1, MIX_2, POSITION, Lane


def _int64(unsigned: int) -> int:
    """Return the int64 with the same 64 bits: torch multiplies and adds modulo 2^64, but has no uint64 arithmetic."""
    unsigned &= 2**64 - 1
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Return the logical shift; `>>` on int64 would copy the sign bit."""
    return (bits >> count).bitwise_and_(2 ** (64 - count) - 1)


def _mix(bits: Tensor) -> Tensor:
    """Return 64 well-mixed bits for each int64: a bijection in which every input bit reaches every output bit."""
    bits = (bits ^ _shift_right(bits, 30)).mul_(_int64(MIX_1))
    bits ^= _shift_right(bits, 27)
    bits *= _int64(MIX_2)
    bits ^= _shift_right(bits, 31)
    return bits


def _row_bits(seeds_R: Tensor, positions_R: Tensor, lane: int) -> Tensor:
    """Return 64 random bits a row. Seeds are hashed before positions are added, so that nearby seeds share nothing."""
    return _mix(_mix(seeds_R + _int64(GOLDEN)) + positions_R * _int64(POSITION) + _int64(lane * LANE))


def uniform(seeds_R: Tensor, positions_R: Tensor, lane: int) -> Tensor:
    """Return one uniform number per row, strictly between 0 and 1.

    Args:
        seeds_R: int64, seed of the row's sequence.
        positions_R: int64, index in that sequence of the token to decide.
        lane: independent stream, see `Lane`.

    Returns:
        float64 [R], a multiple of 2^-53.
    """
    bits_R = _shift_right(_row_bits(seeds_R, positions_R, lane), 12)
    return bits_R.double().add_(0.5).mul_(2.0**-52)


def gumbel(seeds_R: Tensor, positions_R: Tensor, ids_RN: Tensor, lane: int = Lane.TOKEN) -> Tensor:
    """Return standard Gumbel noise for each id: argmax(logits + noise) samples from softmax(logits).

    The noise is -log(-log1p(-u)): the tokens that win have u near 0, where a float32 is fine-grained, so the upper tail
    is exact down to probability 2^-32.

    Args:
        seeds_R: as for `uniform`, like the next and `lane`.
        ids_RN: int64, not negative; token ids or other choices. [N]: the same for all rows.

    Returns:
        float32 [R, N], finite.
    """
    bits_RN = _mix(_row_bits(seeds_R, positions_R, lane).unsqueeze(-1) + (ids_RN + 1) * _int64(GOLDEN))
    u_RN = _shift_right(bits_RN, 33).float().add_(0.5).mul_(2.0**-31)
    u_RN.clamp_(max=1 - 2.0**-24)  # rounding to float32 can reach 1, whose logarithm is infinite
    return u_RN.neg_().log1p_().neg_().log_().neg_()


def request_seed(engine_seed: int, request_id: str, index: int) -> int:
    """Return the seed (0..2^63-1) of completion `index` of a request without a seed."""
    digest = blake2b(f"{engine_seed}/{index}/{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def completion_seed(seed: int, index: int) -> int:
    """Return the seed of completion `index` of a request with `seed`. The first completion uses `seed` itself."""
    return seed if index == 0 else request_seed(seed, "", index)
