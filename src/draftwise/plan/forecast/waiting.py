"""How long requests wait at a calibrated server before a step computes their prompt."""

from __future__ import annotations

from statistics import fmean

from draftwise.core import FirstPoint
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.forecast.server import Server
from draftwise.plan.service.little import Service, Traffic, Waiting, serve_concurrency

__all__ = ["find_waiting"]

_MOST_STEPS = 4.0
"""That a request waits for: more is a queue, which a closed loop within the server's limits has not."""


def find_waiting(costs: CalibratedCosts, setting: str) -> Waiting:
    """Return what first tokens took beyond the steps that computed their prompts; nothing where that was not measured.

    With one request in flight it is the front end's time, with several also steps that were under way.

    Args:
        costs: of the calibration.
        setting: name of the server.
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
    return Waiting(seconds=seconds, steps=min(_MOST_STEPS, max(0.0, fmean(together))) if together else 0.0)


def _serve(costs: CalibratedCosts, k: int, first: FirstPoint) -> Service:
    """Return the service of the load under which first tokens were measured, as if none of them waited."""
    context = first.prompt_tokens + first.output_tokens / 2
    server = Server(costs, first.setting, k, context=context, drafted=first.drafted if k else None)
    traffic = Traffic(prompt_tokens=first.prompt_tokens, output_tokens=first.output_tokens)
    return serve_concurrency(server, traffic, first.tokens_per_step, first.in_flight)
