"""Which states of the target a drafter reads, and which token it takes for a mask."""

from __future__ import annotations

from draftwise.core import InvalidSetup
from draftwise.train.target import Target

__all__ = ["check_taps", "choose_mask_token"]


def check_taps(wanted: tuple[int, ...], target: Target) -> tuple[int, ...]:
    """Return taps in ascending order without doubles, as vLLM hands their states over.

    Args:
        wanted: numbered as `Proposer.taps`, up to the target's L layers.
        target: whose states are tapped.

    Raises:
        InvalidSetup: the target has no such state.
    """
    last = target.num_layers
    if max(wanted) > last:
        raise InvalidSetup.because(
            "taps-beyond-target",
            f"{max(wanted)} is beyond the target, which has states 0 to {last}.",
            where="target_layers",
            fix=f"Name layers up to {last}.",
        )
    return tuple(sorted(set(wanted)))


def choose_mask_token(wanted: int, target: Target) -> int:
    """Return the token that stands for one still to be guessed.

    Args:
        wanted: -1: the target's padding token, or its last token if it has none.
        target: whose vocabulary it is from.

    Raises:
        InvalidSetup: there is no such token.
    """
    if wanted >= target.vocab_size:
        raise InvalidSetup.because(
            "no-such-token",
            f"{wanted} is no token of the target, which has {target.vocab_size}.",
            where="mask_token_id",
            fix="Name one that texts do not contain.",
        )
    padding = target.config.get("pad_token_id")
    return wanted if wanted >= 0 else int(padding) if padding is not None else target.vocab_size - 1
