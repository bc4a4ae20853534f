"""Services in virtual time for the guard: replicas that emit what they are told to, and a proxy that obeys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from draftwise.core import Counters, ServerLoad, SpecStats, Sums, Window
from draftwise.core.action import OUT, Action, Step
from draftwise.guarding.service_reading import Rules, ServiceReading

EVERY_S = 2.0
RULES = Rules(
    break_even=1.35,
    k=3,
    pays=1.42,
    hold_s=30.0,
    stale_s=9.0,
    can=frozenset({Step.SHIFT, Step.DRAIN, Step.RELEASE, Step.TRICKLE, Step.ROLL_BACK}),
)


def window(
    tokens_per_step: float | None,
    *,
    at_s: float,
    every_s: float = EVERY_S,
    running: float = 30,
    pool: str = "spec",
    restarted: bool = False,
    finished: float | None = 1,
) -> Window:
    """Return a window that ends at `at_s`; without tokens per step it is idle."""
    steps = 0 if tokens_per_step is None else 1000
    accepted = 0 if tokens_per_step is None else round(steps * (tokens_per_step - 1))
    stats = SpecStats(num_drafts=steps, num_draft_tokens=3 * steps, num_accepted_tokens=accepted)
    return Window(
        pool=pool,
        instance="",
        start_s=at_s - every_s,
        duration_s=every_s,
        counters=Counters(spec=stats, generation_tokens=steps + accepted),
        load=ServerLoad(running=running if steps else 0),
        sums=Sums(finished=finished),
        restarted=restarted,
    )


def reading(
    at_s: float, spec: Mapping[str, float | str | None], *, plain: Iterable[str] = ("plain",), **given: object
) -> ServiceReading:
    """Return readings of replicas, each given as its tokens per step, or as `dead`, `restarted` or `hung`.

    A plain server of the name `dead` does not answer.
    """

    def see(value: float | str | None) -> Window | None:
        if value == "dead":
            return None
        if value == "restarted":
            return window(1.0, at_s=at_s, restarted=True)
        if value == "hung":
            return replace(window(None, at_s=at_s, finished=0), load=ServerLoad(running=6, waiting=2))
        assert not isinstance(value, str)
        return window(value, at_s=at_s)

    return ServiceReading(
        at_s=at_s,
        spec={name: see(value) for name, value in spec.items()},
        stands=frozenset(name for name, value in spec.items() if value == "hung"),
        plain={name: None if name == "dead" else window(1.0, at_s=at_s, pool="plain") for name in plain},
        **given,  # type: ignore[arg-type]
    )


@dataclass
class Proxy:
    """An executor that keeps who is out of the traffic."""

    name: str = "haproxy=fake"
    steps: frozenset[Step] = RULES.can
    out: set[str] = field(default_factory=set)
    done: list[Action] = field(default_factory=list)
    broken: Exception | None = None
    sees: bool = True

    def prove(self, replicas: object) -> None:
        """Know all replicas."""

    def carry_out(self, action: Action) -> None:
        """Do it, unless broken."""
        if self.broken is not None:
            raise self.broken
        self.done.append(action)
        if action.step in OUT:
            self.out |= set(action.replicas)
        else:
            self.out -= set(action.replicas)

    def is_out(self, replica: str) -> bool | None:
        """Return what is so, if it sees that."""
        return replica in self.out if self.sees else None
