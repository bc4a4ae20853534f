"""The time of any step from few measured ones: physics, and a Gaussian process over what the physics misses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from draftwise.plan.cost.constants import Constants, Prior
from draftwise.plan.cost.fit import MeasuredStep, covary_noise, find_expert_doubt, fit_machine, log_seconds
from draftwise.plan.cost.machine import Machine, Step

__all__ = ["CostModel", "Prediction", "fit_cost_model"]

_METHOD_SD = 0.05
"""What it misses of a method at every load."""
_METHOD_BATCH_SD, _BATCH_REACH = 0.05, 1.2
"""What it misses of a method at one batch size, and over which ratio of batch sizes that changes."""
_PROMPTS_SD, _METHOD_PROMPTS_SD = 0.08, 0.12
"""What it misses of steps that also compute prompts, whatever drafts, and of one method's: how they are launched, and
what its drafter does with a prompt. With rows as far as the prior says."""
_PLAIN = "plain"
_Value = Callable[[Step], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Logarithms of the seconds of several steps, and how sure they are together."""

    logs: NDArray[np.float64]
    covariance: NDArray[np.float64]
    """Of the logarithms: steps of one kind are wrong together, which cancels in their ratio."""

    @property
    def seconds(self) -> NDArray[np.float64]:
        """How long each step lasts."""
        seconds: NDArray[np.float64] = np.exp(self.logs)
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """A fitted machine, and what its physics missed of the measured steps."""

    machine: Machine
    prior: Prior
    measured: tuple[MeasuredStep, ...]
    _weights: NDArray[np.float64]
    """Of each measured step in the mean of the process."""
    _inverse: NDArray[np.float64]
    """Of the covariance of the measured steps."""

    def predict(self, steps: Sequence[Step]) -> Prediction:
        """Return how long steps last."""
        near = _covary(self.prior, steps, [each.step for each in self.measured])
        experts = find_expert_doubt(self.machine, self.prior, self.measured, steps)
        return Prediction(
            logs=log_seconds(self.machine, steps) + near @ self._weights,
            covariance=_covary(self.prior, steps, steps) - near @ self._inverse @ near.T + experts,
        )

    def seconds(self, step: Step) -> float:
        """Return how long one step lasts."""
        return float(self.predict([step]).seconds[0])


def fit_cost_model(
    machine: Machine, prior: Prior, measured: Sequence[MeasuredStep], near: Constants | None = None
) -> CostModel:
    """Return the model of measured steps; without any, that of the prior.

    Args:
        machine: its constants count for nothing.
        prior: of its constants.
        measured: steps.
        near: constants that fit almost the same steps, to begin from.
    """
    fitted = fit_machine(machine, prior, measured, near) if measured else replace(machine, constants=prior.constants)
    steps = [each.step for each in measured]
    noise = covary_noise(measured, [each.noise for each in measured])
    inverse = np.asarray(np.linalg.inv(_covary(prior, steps, steps) + noise), dtype=np.float64)
    missed = np.log([each.seconds for each in measured]) - log_seconds(fitted, steps)
    return CostModel(machine=fitted, prior=prior, measured=tuple(measured), _weights=inverse @ missed, _inverse=inverse)


def _covary(prior: Prior, some: Sequence[Step], others: Sequence[Step]) -> NDArray[np.float64]:
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


def _outer(some: Sequence[Step], others: Sequence[Step], value: _Value) -> NDArray[np.float64]:
    """Return the difference of a number between each pair of steps."""
    found: NDArray[np.float64] = np.subtract.outer([value(step) for step in some], [value(step) for step in others])
    return found


def _kind(step: Step) -> str:
    """Return the method and how it is scheduled: hosts differ in synchronous steps."""
    if step.drafting is None or not step.drafted:
        return _PLAIN
    return f"{step.drafting.kind} {step.drafting.asynchronous}"
