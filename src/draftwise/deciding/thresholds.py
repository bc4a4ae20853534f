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
    """A run stores the thresholds that its operator set, so its report can be rebuilt."""

    margin: float = 0.03
    """Smaller gains do not justify a change of configuration. The margin also covers what pairing cannot cancel: two
    identical server processes differ by 1-2 % for their whole life (memory layout, placement)."""
    ttft_loss: float = 0.10
    """Report a time to first token whose estimate grows by this share."""
    ttft_damage: float = 0.20
    """A shown growth of the time to first token by this share makes a gain mixed (one-sided, 5 %)."""
    prefix_hit_loss: float = 0.05
    """Largest share of prompt tokens that may lose their prefix-cache hit."""
    loop_share: float = 0.05
    """Share of outputs ending in a loop above which lookup methods look better than on real text."""
    memory: float = 0.05
    """Growth of tokens per step after the first repetition that indicates a cross-request cache. A server that may have
    such a cache is assumed to have one until growth is shown to be smaller, in tokens per step and in speed."""
    memory_alpha: float = 0.05
    """Error level for showing that (two one-sided tests)."""
    warmed: float = 0.10
    """The same growth that blocks an adoption if every measured prompt was answered before."""
    client_share: float = 0.20
    """Largest share of a machine's cores that the load generator may take from servers on it."""
    client_busy: float = 0.70
    """CPU seconds per second and load-generator process above which bursts queue in it."""
    client_saturated: float = 0.95
    """The same, above which the run measures the load generator's own pace."""
    client_late: float = 0.20
    """Largest P99 of its delay over the shortest time measured with it (between chunks, to the first token)."""
    noise: float = 0.5
    """Spread over turns (largest minus smallest, over median) of the baseline's seconds for one prompt, typical over
    prompts, above which the machine counts as busy with other work."""
    foreign_tokens: float = 0.02
    """Largest share of a server's generated tokens that the run did not ask for."""
    busy_turns: float = 0.05
    """Largest share of turns before which a server may show requests from elsewhere: gauges lag a little."""
    drafting_left: float = 0.7
    """Share of the smallest load's draft tokens per step that must remain under larger loads."""
    load_reached: float = 0.9
    """Share of a closed loop's streams that must be in flight during the measurement."""
    failed_requests: float = 0.05
    """Largest share of an arm's requests that may fail."""
    queue_growth: float = 0.3
    """Growth of requests in flight and of their latency, from the middle to the last third of an open loop's turn,
    above which the queue counts as growing without bound. A backlog that grows evenly gains two thirds."""
    cold_start: float = 0.15
    """The warm-up was too short if the first turns are slower by this share than the rest of the first repetition."""
    cold_far: float = 0.5
    """The same slowness above which there is no verdict: a quarter of the turns at this slowness moves a repetition's
    ratio by 10 %."""
    held_up: float = 0.01
    """Largest share of the time for which quotas, hypervisors or heat may stop processes."""
    other_processes: float = 0.10
    """Largest share of a machine's cores that other processes may use."""
    turn_held_up: float = 0.10
    """Share of a turn's time, or of its demand for CPU time, above which quotas and hypervisors disturb it."""
    turn_waited: float = 0.10
    """Share of a turn's time with a wait for a core above which other processes disturb it."""
    turn_pace: float = 0.25
    """A turn is disturbed if its decoding step's time, or the clock, differs from nearby turns by this share."""
    turn_first: float = 1.0
    """The same for the time to first token, which varies more."""
    blocks_left: float = 0.5
    """Share of a comparison's pairs that must remain undisturbed for a verdict."""
    slow_server: float = 0.5
    """Slowness of a candidate's decoding step, together with a late first token, above which its server counts as slow,
    not its drafting."""
    slow_server_s: float = 300.0
    """Seconds of its turns after which such slowness counts as permanent."""
    slow_server_blocks: int = 4
    """Number of paired blocks above which it does not count under load, where first tokens wait for other requests'
    steps: that many turns do not fit into one slow spell."""
    power_capped: float = 0.05
    """Report this share of the time at the power limit."""
    clock_fall: float = 0.10
    """Largest fall of a clock from the first to the last third of a run."""
    cut_outputs: float = 0.95
    """Share of outputs ending at max_tokens above which their natural ends remain unknown."""
    slo_ttft_s: float | None = None
    """Promised time to first token in seconds. All promises together define goodput."""
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    """Promised end-to-end latency in seconds."""
    rounding: Mapping[str, tuple[float, float]] = field(
        default_factory=lambda: {
            "bfloat16": (0.2, 1 / 16),
            "float16": (0.03, 1 / 128),
            "float32": (3e-4, 1e-6),
            "float64": (1e-9, 1e-12),
        }
    )
    """Expected effect of rounding on logits (nats, standard deviation), and the spacing of logits near 16, by
    precision. Other precisions count as bfloat16. A run measures the effect itself, with plain decoding in other batch
    shapes. bfloat16 was measured on a CPU and an H200; float16 and float32 are guesses."""

    @property
    def has_slo(self) -> bool:
        """Whether the operator promised any latency."""
        return (self.slo_ttft_s, self.slo_tpot_s, self.slo_e2e_s) != (None, None, None)


def get_thresholds(run: Run) -> Thresholds:
    """Return the thresholds of a run, as its operator set them.

    Raises:
        InvalidSetup: the run holds unknown or invalid thresholds.
    """
    given = run.context.thresholds
    known = {each.name for each in fields(Thresholds)}
    if not (isinstance(given, Mapping) and given.keys() <= known and all(map(_is_number, given.values()))):
        raise refusal("damaged-run", given=given)
    return Thresholds(**given)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
