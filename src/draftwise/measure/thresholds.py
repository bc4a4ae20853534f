"""The lines that verdicts and guards draw, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftwise.core import Run

__all__ = ["Thresholds", "thresholds_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """A run keeps the ones that its operator set, so that its report can be made again."""

    margin: float = 0.03
    """A change smaller than this is not worth a change of configuration. It also covers what pairing cannot see:
    two identical server processes differ by 1-2 % for their whole life (memory layout, placement)."""
    tail_damage: float = 0.10
    """Time per token of the slowest prompts this much worse makes a gain a mixed one."""
    ttft_damage: float = 0.20
    """First tokens this much later, at the lower end of the interval, take an adoption away."""
    prefix_hit_loss: float = 0.05
    """Share of prompt tokens that may lose their prefix-cache hit."""
    loop_share: float = 0.05
    """Share of outputs ending in a loop from which lookup methods look better than on real text."""
    memory: float = 0.05
    """Growth of tokens per step after the first pass from which a server is taken to remember its prompts."""
    client_share: float = 0.30
    """CPU seconds of the load generator per second of load from which it may slow what it measures."""
    noise: float = 0.5
    """Spread (largest minus smallest over median) of the plain server's seconds for the same prompt, typical over
    prompts, from which the machine is taken to be busy with something else."""
    foreign_tokens: float = 0.02
    """Share of a server's generated tokens that the run did not ask for."""
    slo_ttft_s: float | None = None
    """Time to first token that the operator has promised; with `slo_tpot_s` it defines goodput."""
    slo_tpot_s: float | None = None
    tie_gap: Mapping[str, float] = field(
        default_factory=lambda: {"bfloat16": 0.25, "float16": 0.04, "float32": 1e-3, "float64": 1e-9}
    )
    """Nats between the two best tokens up to which precision alone can swap them: bfloat16 logits near 16 are
    0.0625-0.125 apart, and both logits are rounded, after layers of rounded sums."""

    def tie_gap_of(self, dtype: str | None) -> float:
        """Return the gap for a precision; unknown precisions count as bfloat16."""
        return self.tie_gap.get(dtype or "", self.tie_gap["bfloat16"])


def thresholds_of(run: Run) -> Thresholds:
    """Return the thresholds that the operator of a run chose."""
    return Thresholds(**run.context.get("thresholds", {}))
