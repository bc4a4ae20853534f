"""The acceptance rules for draft tokens: a small closed set, one of them lossless.

Shape letters: K draft tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Standard:
    """Rejection sampling: the output has exactly the target's distribution.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
    """

    by_block: bool = False
    """Whether to judge the tokens of a draft together, which accepts more on average. Source: Sun et al. 2024 (arXiv
    2403.10444), algorithm 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """Lossy: accept a draft token x when p(x) > min(threshold, alpha * exp(-entropy of p)); greedy rows stay exact.

    Source: Medusa (arXiv 2401.10774, section 2.3.1); defaults of vLLM's V0 engine.
    """

    threshold: float = 0.09
    alpha: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Synthetic acceptance, for measuring cost at a given rate. Random numbers decide, so the text means nothing.

    `rates[i]` is the share of drafts of which at least the first i+1 tokens are accepted (vLLM's
    synthetic_acceptance_rates: unconditional, within 0..1, never increasing).
    """

    rates: tuple[float, ...]

    @property
    def conditional_rates(self) -> tuple[float, ...]:
        """Probability of accepting position i once all before it are accepted."""
        before = (1.0, *self.rates[:-1])
        return tuple(rate / reached if reached > 0 else 0.0 for rate, reached in zip(self.rates, before, strict=True))


Acceptance = Standard | Typical | Synthetic


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SyntheticRates:
    """`Synthetic` on a device: steps read this tensor instead of copying the rates each time."""

    conditional_K: Tensor
    """float64, `Synthetic.conditional_rates`."""


Rule = Standard | Typical | SyntheticRates
"""The rule that `verify` applies."""


def place(acceptance: Acceptance, device: torch.device | str) -> Rule:
    """Return the rule for steps on a device. Call it once, because it copies from the host."""
    if isinstance(acceptance, Synthetic):
        import torch  # the rules themselves are used without it

        return SyntheticRates(conditional_K=torch.tensor(acceptance.conditional_rates, dtype=torch.float64).to(device))
    return acceptance
