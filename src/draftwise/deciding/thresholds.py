"""The limits of verdicts and validity checks, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from draftwise.knowledge.messages import refusal

if TYPE_CHECKING:
    from draftwise.core import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """A run keeps the ones that its operator set, so that its report can be made again."""

    margin: float = 0.03
    """A change smaller than this is not worth a change of configuration. It also covers what pairing cannot see:
    two identical server processes differ by 1-2 % for their whole life (memory layout, placement)."""
    ttft_loss: float = 0.10
    """First tokens this much later, by the estimate, are worth saying."""
    ttft_damage: float = 0.20
    """First tokens this much later make a gain a mixed one where that is shown (one-sided, 5 %)."""
    prefix_hit_loss: float = 0.05
    """Share of prompt tokens that may lose their prefix-cache hit."""
    loop_share: float = 0.05
    """Share of outputs ending in a loop from which lookup methods look better than on real text."""
    memory: float = 0.05
    """Growth of tokens per step after the first repetition from which a cross-request cache is taken to be at work. A
    server that could have one is taken to have it until growth is shown to be smaller than this, in tokens per step
    and in speed."""
    memory_alpha: float = 0.05
    """Error that is allowed in showing it (two one-sided tests)."""
    warmed: float = 0.10
    """The same growth, from which an adoption is blocked if every measured answer was to a prompt answered before."""
    client_share: float = 0.20
    """Share of a machine's cores that the load generator may take from servers on the same machine."""
    client_busy: float = 0.70
    """CPU seconds per second and process of the load generator from which bursts wait in it."""
    client_saturated: float = 0.95
    """The same from which its own pace is what is measured."""
    client_late: float = 0.20
    """P99 of its delay over the shortest time that is measured with it (between chunks, to the first token)."""
    noise: float = 0.5
    """Spread over the turns (largest minus smallest over median) of the baseline server's seconds for the same prompt,
    typical over prompts, from which the machine is taken to be busy with something else."""
    foreign_tokens: float = 0.02
    """Share of a server's generated tokens that the run did not ask for."""
    busy_turns: float = 0.05
    """Share of turns before which a server may have requests that are not of this run: gauges lag a little."""
    drafting_left: float = 0.7
    """Share of the draft tokens per step of the smallest load that must be left under larger ones."""
    load_reached: float = 0.9
    """Share of a closed loop's streams that must be in flight while it is measured."""
    failed_requests: float = 0.05
    """Share of an arm's requests that may fail."""
    queue_growth: float = 0.3
    """Growth of requests in flight, and of their latency, from the middle third of an open loop's turn to the last,
    from which the queue is taken to grow for ever: a backlog that grows evenly gains two thirds."""
    cold_start: float = 0.15
    """Warm-up was too short if the first turns are slower than the rest of the first repetition by this ratio."""
    cold_far: float = 0.5
    """The same slowness, from which nothing can be told: a quarter of the turns that are half as fast again move the
    ratio of a single repetition by 10 %."""
    held_up: float = 0.01
    """Share of the time for which quotas, hypervisors or heat may hold processes up."""
    other_processes: float = 0.10
    """Share of a machine's cores that others may use."""
    turn_held_up: float = 0.10
    """Share of a turn's time, or of the CPU time wanted in it, from which quotas and hypervisors disturb the turn."""
    turn_waited: float = 0.10
    """Share of a turn's time in which something waited for a core, from which other processes disturb the turn."""
    turn_pace: float = 0.25
    """A turn is disturbed if its decoding step's time, or the clock, differs from nearby turns by this share."""
    turn_first: float = 1.0
    """The same of the time to the first token, which varies more."""
    blocks_left: float = 0.5
    """Share of the pairs of turns that disturbances must leave of a comparison for a verdict."""
    slow_server: float = 0.5
    """Slowness of a candidate's decoding step, where its first token is late as well, from which its server is taken to
    be slow, and not its drafting."""
    slow_server_s: float = 300.0
    """Seconds of its turns after which such slowness is taken to be there to stay."""
    slow_server_blocks: int = 4
    """Paired blocks from which on it says nothing under a load, where the first token waits for the steps of others: so
    many turns are not all in one spell."""
    power_capped: float = 0.05
    """Share of the time at the power limit that is worth saying."""
    clock_fall: float = 0.10
    """Fall of a clock from the first to the last third of a run."""
    cut_outputs: float = 0.95
    """Share of outputs that end at max_tokens from which their ends remain unknown."""
    slo_ttft_s: float | None = None
    """Time to first token that the operator has promised; the promises together define goodput."""
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    """End-to-end latency that the operator has promised."""
    rounding: Mapping[str, tuple[float, float]] = field(
        default_factory=lambda: {
            "bfloat16": (0.2, 1 / 16),
            "float16": (0.03, 1 / 128),
            "float32": (3e-4, 1e-6),
            "float64": (1e-9, 1e-12),
        }
    )
    """Before anything is measured, how far rounding is expected to move logits (nats, standard deviation), and the step
    of logits near 16 in this precision; precisions that are not listed count as bfloat16. A run measures the former:
    plain decoding against itself in batches of other shapes. bfloat16 was seen on a CPU and an H200; float16 and
    float32 are guesses."""

    @property
    def has_slo(self) -> bool:
        """Whether the operator has promised any latency."""
        return (self.slo_ttft_s, self.slo_tpot_s, self.slo_e2e_s) != (None, None, None)


def get_thresholds(run: Run) -> Thresholds:
    """Return the thresholds that the operator of a run chose.

    Raises:
        InvalidSetup: the run does not hold what an operator can choose.
    """
    given = run.context.thresholds
    known = {each.name for each in fields(Thresholds)}
    if not (isinstance(given, Mapping) and given.keys() <= known and all(map(_is_number, given.values()))):
        raise refusal("damaged-run", given=given)
    return Thresholds(**given)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
