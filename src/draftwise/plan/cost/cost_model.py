"""The time of any step from a few measured ones: fitted physics, and a Gaussian process over its residuals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from draftwise.plan.cost.machine import Constants, DecodeStep, Graph, Machine, Prior

_Misses = Callable[[NDArray[np.float64]], NDArray[np.float64]]
_TOLERANCE_WITH_PROMPTS = 0.10
"""Relative: what the physics may miss of a step that also computes prompts: it is no measure of what steps that only
decode are made of."""
_MOMENT_SD = 0.04
"""How far a machine's pace is off its own mean for some seconds."""
_ALWAYS = ("step_s", "row_s", "bytes_per_s", "flops_per_s", "kv_bytes_per_s", "sharpness")
_SPREADS = ("batch_spread", "draft_spread")
_MOST_ROUNDS = 60
_SETTLED = 1e-6
_DIFFERENCE = 1e-4
_LEAST_DAMPING, _FIRST_DAMPING, _MOST_DAMPING = 1e-9, 1e-3, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A kind of step and its measured time."""

    step: DecodeStep
    seconds: float
    noise: float = 0.012
    """Standard deviation of the logarithm between repetitions."""
    moment: str = ""
    """Label of the moment; steps measured at the same moment share the machine's state."""


def covary_noise(measured: Sequence[MeasuredStep], noises: Sequence[float]) -> NDArray[np.float64]:
    """Return the covariance of the errors of measured steps: each one's own, and that of a shared moment."""
    moments = np.array([each.moment for each in measured], dtype=object)
    shared = (moments[:, None] == moments[None, :]) & (moments != "")[:, None]
    found: NDArray[np.float64] = np.diag(np.square(noises)) + _MOMENT_SD**2 * shared
    return found


def log_seconds(machine: Machine, steps: Sequence[DecodeStep]) -> NDArray[np.float64]:
    """Return the logarithm of each step's seconds by the physics."""
    return np.log([machine.seconds(step) for step in steps])


def fit_machine(
    machine: Machine, prior: Prior, measured: Sequence[MeasuredStep], near: Constants | None = None
) -> Machine:
    """Return the machine with the constants that fit its measured steps and the prior best.

    Constants that no measured step depends on keep their prior value.
    """
    names = _find_free(machine, measured)
    misses = _make_misses(machine, prior, measured, names)
    found = _minimize(misses, np.array([(near or prior.constants).log(name) for name in names]))
    return replace(machine, constants=prior.constants.with_logs(names, list(found)))


def find_expert_doubt(
    fitted: Machine, prior: Prior, measured: Sequence[MeasuredStep], steps: Sequence[DecodeStep]
) -> NDArray[np.float64]:
    """Return the covariance of the logarithms of steps from not knowing how far tokens share experts: steps that read
    all experts do not show the time of steps that read few."""
    names = _find_free(fitted, measured)
    if not set(_SPREADS) <= set(names):
        return np.zeros((len(steps), len(steps)))
    point = np.array([fitted.constants.log(name) for name in names])
    misses = _make_misses(fitted, prior, measured, names)
    slopes = _differentiate(misses, point, misses(point))
    places = [names.index(name) for name in _SPREADS]
    doubt = np.linalg.inv(slopes.T @ slopes)[np.ix_(places, places)]

    def at(spreads: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = fitted.constants.with_logs(_SPREADS, list(spreads))
        return log_seconds(replace(fitted, constants=moved), steps)

    effects = _differentiate(at, point[places], log_seconds(fitted, steps))
    return np.asarray(effects @ doubt @ effects.T, dtype=np.float64)


def _make_misses(machine: Machine, prior: Prior, measured: Sequence[MeasuredStep], names: Sequence[str]) -> _Misses:
    """Return what is to be small: errors of the steps and distances from the prior, in standard deviations."""
    center = np.array([prior.constants.log(name) for name in names])
    spread = np.array([prior.spread_of(name) for name in names])
    steps = [each.step for each in measured]
    logs = np.log([each.seconds for each in measured])
    tolerance = [_TOLERANCE_WITH_PROMPTS if each.step.prefill_tokens else prior.tolerance for each in measured]
    noises = np.hypot(tolerance, [each.noise for each in measured])
    whiten = np.linalg.inv(np.linalg.cholesky(covary_noise(measured, list(noises))))

    def misses(point: NDArray[np.float64]) -> NDArray[np.float64]:
        there = replace(machine, constants=prior.constants.with_logs(names, list(point)))
        return np.concatenate([whiten @ (log_seconds(there, steps) - logs), (point - center) / spread])

    return misses


def _find_free(machine: Machine, measured: Sequence[MeasuredStep]) -> tuple[str, ...]:
    """Return the constants that the measured steps depend on."""
    drafting = {each.step.drafting.kind: each.step.drafting for each in measured if each.step.drafting is not None}
    graphs = {each.step.graph for each in measured}
    uncaptured_prompts = any(each.step.graph is Graph.NONE and each.step.prefill_tokens for each in measured)
    synchronous = any(not each.asynchronous for each in drafting.values())
    return (
        *_ALWAYS,
        *(_SPREADS if machine.work.expert_bytes else ()),
        *(("sync_s", "sync_per_sequence_s") if synchronous else ()),
        *(("piecewise_s",) if Graph.PIECEWISE in graphs or uncaptured_prompts else ()),
        *(("uncaptured_s",) if Graph.NONE in graphs else ()),
        *(f"drafting.{kind}" for kind in sorted(drafting)),
    )


def _minimize(misses: _Misses, start: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return where the sum of squares is least, by damped Gauss-Newton steps (Levenberg-Marquardt)."""
    point, damping = start, _FIRST_DAMPING
    residuals = misses(point)
    for _ in range(_MOST_ROUNDS):
        slopes = _differentiate(misses, point, residuals)
        normal, gradient = slopes.T @ slopes, slopes.T @ residuals
        before = float(residuals @ residuals)
        while damping < _MOST_DAMPING:
            moved = point - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            tried = misses(moved)
            if (now := float(tried @ tried)) <= before:
                point, residuals, damping = moved, tried, max(damping / 3, _LEAST_DAMPING)
                break
            damping *= 4
        else:
            return point
        if before - now < _SETTLED * max(1.0, before):
            return point
    return point


def _differentiate(misses: _Misses, point: NDArray[np.float64], residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    columns = [(misses(point + _DIFFERENCE * row) - residuals) / _DIFFERENCE for row in np.eye(len(point))]
    return np.stack(columns, axis=1)


_METHOD_SD = 0.05
"""What it misses of a method at every load."""
_METHOD_BATCH_SD, _BATCH_REACH = 0.05, 1.2
"""What it misses of a method at one batch size, and over which ratio of batch sizes that changes."""
_PROMPTS_SD, _METHOD_PROMPTS_SD = 0.08, 0.12
"""What it misses of steps that also compute prompts, whatever drafts, and of one method's: how they are launched, and
what its drafter does with a prompt. With rows as far as the prior says."""
_PLAIN = "plain"
_Value = Callable[[DecodeStep], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Logarithms of the seconds of several steps, with their joint uncertainty."""

    logs: NDArray[np.float64]
    covariance: NDArray[np.float64]
    """Covariance of the logarithms: errors of similar steps correlate, and cancel in their ratio."""

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds of each step."""
        seconds: NDArray[np.float64] = np.exp(self.logs)
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """A fitted machine, and the residuals of the measured steps."""

    machine: Machine
    prior: Prior
    measured: tuple[MeasuredStep, ...]
    _weights: NDArray[np.float64]
    """Weight of each measured step in the mean of the process."""
    _inverse: NDArray[np.float64]
    """Inverse of the covariance of the measured steps."""

    def predict(self, steps: Sequence[DecodeStep]) -> Prediction:
        """Return the times of steps."""
        near = _covary(self.prior, steps, [each.step for each in self.measured])
        experts = find_expert_doubt(self.machine, self.prior, self.measured, steps)
        return Prediction(
            logs=log_seconds(self.machine, steps) + near @ self._weights,
            covariance=_covary(self.prior, steps, steps) - near @ self._inverse @ near.T + experts,
        )

    def seconds(self, step: DecodeStep) -> float:
        """Return the seconds of one step."""
        return float(self.predict([step]).seconds[0])


def fit_cost_model(
    machine: Machine, prior: Prior, measured: Sequence[MeasuredStep], near: Constants | None = None
) -> CostModel:
    """Return the model of measured steps; without any, the prior's."""
    fitted = fit_machine(machine, prior, measured, near) if measured else replace(machine, constants=prior.constants)
    steps = [each.step for each in measured]
    noise = covary_noise(measured, [each.noise for each in measured])
    inverse = np.asarray(np.linalg.inv(_covary(prior, steps, steps) + noise), dtype=np.float64)
    missed = np.log([each.seconds for each in measured]) - log_seconds(fitted, steps)
    return CostModel(machine=fitted, prior=prior, measured=tuple(measured), _weights=inverse @ missed, _inverse=inverse)


def _covary(prior: Prior, some: Sequence[DecodeStep], others: Sequence[DecodeStep]) -> NDArray[np.float64]:
    """Return how what the physics misses of some steps goes with what it misses of others."""
    rows = _outer(some, others, lambda step: np.log(step.rows))
    batch = _outer(some, others, lambda step: np.log(step.batch.sequences))
    names, other_names = (np.array([_kind(step) for step in each], dtype=object) for each in (some, others))
    same = names[:, None] == other_names[None, :]
    drafts = same & (names != _PLAIN)[:, None]
    of_method = _METHOD_SD**2 + _METHOD_BATCH_SD**2 * np.exp(-((batch / _BATCH_REACH) ** 2) / 2)
    prompts, other_prompts = (np.array([each.prefill_tokens > 0 for each in steps]) for steps in (some, others))
    of_prompts = np.outer(prompts, other_prompts) * (_PROMPTS_SD**2 + same * _METHOD_PROMPTS_SD**2)
    near = np.exp(-((rows / prior.rows_reach) ** 2) / 2)
    found: NDArray[np.float64] = (prior.rows_sd**2 + of_prompts) * near + drafts * of_method
    return found


def _outer(some: Sequence[DecodeStep], others: Sequence[DecodeStep], value: _Value) -> NDArray[np.float64]:
    """Return the difference of a number between each pair of steps."""
    found: NDArray[np.float64] = np.subtract.outer([value(step) for step in some], [value(step) for step in others])
    return found


def _kind(step: DecodeStep) -> str:
    """Return the method and how it is scheduled: hosts differ in synchronous steps."""
    if step.drafting is None or not step.drafted:
        return _PLAIN
    return f"{step.drafting.kind} {step.drafting.asynchronous}"
