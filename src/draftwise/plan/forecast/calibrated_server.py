"""Calibrated servers on one kind of traffic: step times, waiting times, and which of them were replayed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING

from draftwise.core import Acceptance, CalibratedSetting, Calibration, FirstPoint, Profile
from draftwise.plan.cost.machine import DecodeBatch, DecodeStep, Drafting, Machine
from draftwise.plan.service import RequestLengths, Service, Waiting, serve_concurrency

if TYPE_CHECKING:  # `pick` needs no numpy
    from draftwise.plan.cost.calibrated import CalibratedCosts

_CLOSE_ENOUGH = 1e-4


def compute_acceptance_length(acceptance: float, k: int) -> float:
    """Return the tokens per step if each draft token is accepted with this probability, given that those before it
    were."""
    return sum(acceptance**place for place in range(k + 1))


def find_acceptance(length: float, k: int) -> float:
    """Return the probability at which a step emits `length` tokens; if there is no such probability, 0 or 1."""
    low, high = 0.0, 1.0
    while high - low > _CLOSE_ENOUGH:
        middle = (low + high) / 2
        low, high = (low, middle) if compute_acceptance_length(middle, k) >= length else (middle, high)
    return high


def choose_best_k(
    machine: Machine, batch: DecodeBatch, drafting: Drafting, acceptance: float, among: Iterable[int]
) -> int:
    """Return the k with the most tokens per second; the smallest of equals."""
    return max(
        sorted(among), key=lambda k: compute_acceptance_length(acceptance, k) / machine.drafting_s(batch, drafting, k)
    )


class CalibratedServer:
    """The steps of a calibrated server at one draft length, on one kind of traffic.

    Args:
        costs: cost model of its steps.
        setting: name of the server.
        k: maximum draft tokens; 0 for the baseline.
        context: mean length of the sequences in tokens.
        drafted: mean draft tokens per sequence; None for k.
    """

    def __init__(
        self, costs: CalibratedCosts, setting: str, k: int, *, context: float, drafted: float | None = None
    ) -> None:
        self._costs, self.setting, self.k, self._context, self._drafted = costs, setting, k, context, drafted
        self._seconds = cache(self._compute)

    def step_s(self, sequences: float, prefill_tokens: float = 0.0) -> float:
        """Return the seconds of a step."""
        return self._seconds(float(f"{sequences:.3g}"), prefill_tokens)

    def step(self, sequences: float) -> DecodeStep:
        """Return a step that only decodes."""
        return self._costs.step(self.setting, self.k, sequences=sequences, context=self._context, drafted=self._drafted)

    def _compute(self, sequences: float, prefill_tokens: float) -> float:
        step = self._costs.step(
            self.setting,
            self.k,
            sequences=sequences,
            context=self._context,
            drafted=self._drafted,
            prefill_tokens=prefill_tokens,
        )
        return self._costs.model.seconds(step)


def match_settings(profile: Profile, calibration: Calibration) -> list[tuple[CalibratedSetting, Acceptance]]:
    """Return the calibrated servers with their replayed acceptance, by temperature and group.

    A server that reports its resolved config may have more keys than the replayed one. If a method is calibrated once
    and replayed in one form, they count as the same.
    """
    found = []
    for setting in calibration.candidates:
        assert setting.spec is not None
        method = setting.spec.method
        same = [each for each in profile.entries if _without_k(each) == _strip(setting.spec.to_dict())]
        if not same and sum(each.spec is not None and each.spec.method == method for each in calibration.settings) == 1:
            alike = [each for each in profile.entries if each.method == method]
            same = alike if len({str(sorted(_without_k(each).items())) for each in alike}) == 1 else []
        found += [(setting, each) for each in same]
    return found


def _without_k(entry: Acceptance) -> dict[str, object]:
    return _strip(entry.candidate.to_dict())


def _strip(spec: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in spec.items() if key != "num_speculative_tokens"}


_MAX_WAIT_STEPS = 4.0
"""Cap on the steps a request waits; beyond it the server is queueing."""


def find_waiting(costs: CalibratedCosts, setting: str) -> Waiting:
    """Return the wait for first tokens beyond the steps that compute their prompts; zero if not measured.

    With one request in flight, it is the front end's time; with several, also steps under way.
    """
    k = next(each.k for each in costs.calibration.settings if each.name == setting)
    firsts = [each for each in costs.calibration.firsts if each.setting == setting]
    found = [(each, 1e-3 * each.first_ms, _serve(costs, k, each)) for each in firsts]
    alone = [first_s - service.ttft_s for each, first_s, service in found if each.in_flight == 1]
    seconds = max(0.0, fmean(alone)) if alone else 0.0
    together = [
        (first_s - seconds - service.ttft_s) / (service.tpot_s * each.tokens_per_step)
        for each, first_s, service in found
        if each.in_flight > 1 and service.tpot_s
    ]
    return Waiting(seconds=seconds, steps=min(_MAX_WAIT_STEPS, max(0.0, fmean(together))) if together else 0.0)


def _serve(costs: CalibratedCosts, k: int, first: FirstPoint) -> Service:
    """Return the service of the load under which first tokens were measured, as if none of them waited."""
    context = first.prompt_tokens + first.output_tokens / 2
    server = CalibratedServer(costs, first.setting, k, context=context, drafted=first.drafted if k else None)
    traffic = RequestLengths(prompt_tokens=first.prompt_tokens, output_tokens=first.output_tokens)
    return serve_concurrency(server, traffic, first.tokens_per_step, first.in_flight)
