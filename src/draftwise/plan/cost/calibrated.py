"""The time of any step of a calibration's servers, and the CUDA graph that the step runs on."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from draftwise.core import CalibratedSetting, Calibration, Device, FirstPoint, Setup, StepPoint
from draftwise.knowledge.gpus import get_gpu
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import get_method
from draftwise.knowledge.vllm import get_release
from draftwise.plan.check import check_context, get_context
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.engine.step_budget import get_limits
from draftwise.plan.check.serving.cuda_graphs import find_holes, list_captured
from draftwise.plan.cost.cost_model import CostModel, MeasuredStep, Prediction, fit_cost_model
from draftwise.plan.cost.machine import (
    Constants,
    DecodeBatch,
    DecodeStep,
    Drafting,
    Graph,
    Machine,
    Prior,
    cpu_prior,
    gpu_prior,
)
from draftwise.plan.cost.work import count_drafter_kv, find_drafter_work, find_work
from draftwise.plan.size.shapes import read_shape
from draftwise.plan.size.weight_parts import Precision, get_precision, precision_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPlan:
    """The graphs that a server captures."""

    sizes: tuple[int, ...] = ()
    """Captured tokens per step, ascending; empty if steps need no graphs, or if unknown."""
    holes: tuple[range, ...] = ()
    """Numbers of sequences that find no full graph although a larger one exists."""
    mixed_lengths: bool = False
    """Whether steps run without a full graph if their sequences verify different numbers of tokens."""
    full: bool = True
    """Whether steps are captured as a whole."""

    def place(
        self, sequences: float, tokens: float, *, prefill_tokens: float = 0.0, uneven: bool = False
    ) -> tuple[Graph, float | None]:
        """Return how a step is launched, and the tokens that it is padded to; None without padding.

        Args:
            sequences: number of decoding sequences.
            tokens: tokens computed for them.
            prefill_tokens: prompt tokens in the same step, which full graphs do not support.
            uneven: whether sequences verify different numbers of tokens.
        """
        if not self.sizes:
            return Graph.FULL, None
        if tokens + prefill_tokens > self.sizes[-1]:
            return Graph.NONE, None
        if prefill_tokens:
            return Graph.PIECEWISE, None
        padded = float(self.sizes[bisect_left(self.sizes, tokens)])
        falls = any(round(sequences) in each for each in self.holes) or (uneven and self.mixed_lengths)
        whole = self.full and not falls
        return (Graph.FULL if whole else Graph.PIECEWISE), padded


def plan_graphs(setup: Setup) -> tuple[GraphPlan, Resolved | None]:
    """Return the graphs of a vLLM setup and its speculative config as the release resolves it.

    Raises:
        InvalidSetup: the release is unknown.
    """
    context = get_context(setup)
    resolved = check_context(context).resolved
    if context.platform == "cpu" or context.runs_eagerly:
        return GraphPlan(), resolved
    k = (resolved.num_speculative_tokens if resolved is not None else None) or 0
    limits = get_limits(context)
    sizes = list_captured(context, k, limits)
    if not sizes:
        return GraphPlan(), resolved
    runner = resolved.runner if resolved is not None else None
    reach = limits.requests or sizes[-1] // (k + 1)
    has_holes = k and runner == "V2" and context.rules.holds("graph-holes")
    plan = GraphPlan(
        sizes=sizes,
        holes=find_holes(sizes, max_num_seqs=reach, num_speculative_tokens=k) if has_holes else (),
        mixed_lengths=runner == "V1",
        full=not context.lacks_full_graphs,
    )
    return plan, resolved


_HOST_BOUND_NOISE = 0.06
"""Relative noise of steps without asynchronous scheduling, between two starts of one server on one host."""
_LEAST_NOISE = 0.012
_TO_SD = 2 * 1.96
"""Width of a 95 % interval in standard deviations."""
_FIRST_SPREAD = 0.1
"""Half of the 95 % interval of the time to a first token, relative: a front end's share of it is in there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A measured point, and its prediction by a model of all other points."""

    point: StepPoint
    predicted_ms: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted_ms / self.point.step_ms - 1


class CalibratedCosts:
    """The cost model of a calibration, fitted when it is made.

    Raises:
        InvalidSetup: its config.json does not describe a decoder, or its release is unknown.
    """

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._servers = {each.name: _Server(calibration, each) for each in calibration.settings}
        self._machine, self._prior = _read_machine(calibration, self._servers[calibration.plain.name])
        self._prompts: tuple[StepPoint, ...] = ()
        self.model = self._fit(calibration.points)
        self._prompts = self._find_prompts()
        if self._prompts:
            self.model = self._fit(calibration.points)

    def step(
        self,
        setting: str,
        k: int,
        *,
        sequences: float,
        context: float,
        drafted: float | None = None,
        prefill_tokens: float = 0.0,
    ) -> DecodeStep:
        """Return a step of one of the servers.

        Args:
            setting: name of the server.
            k: maximum draft tokens per sequence; 0 for the baseline.
            sequences: number of decoding sequences.
            context: their mean length in tokens.
            drafted: mean draft tokens per sequence; None for k.
            prefill_tokens: prompt tokens in the same step.
        """
        server = self._servers[setting]
        drafting = server.drafting(k) if k else None
        verified = float(k) if drafted is None else drafted
        uneven = drafting is not None and drafting.is_lookup and verified < k
        graph, padded = server.graphs(k).place(
            sequences, sequences * (verified + 1), prefill_tokens=prefill_tokens, uneven=uneven
        )
        return DecodeStep(
            batch=DecodeBatch(sequences=sequences, context=context),
            drafting=drafting,
            drafted=verified,
            verified=verified,
            prefill_tokens=prefill_tokens,
            graph=graph,
            padded_rows=padded,
        )

    def predict(self, steps: Sequence[DecodeStep]) -> Prediction:
        """Return the times of steps, with their uncertainty."""
        return self.model.predict(steps)

    def reach(self, setting: str) -> float:
        """Return the largest batch measured on a server, or on any server if that one has no points."""
        own = [point.batch for point in self.calibration.points_of(setting)]
        return max(own or [point.batch for point in self.calibration.points], default=0.0)

    @cached_property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Each point, with its prediction by a model fitted to all others."""
        points, near = self.calibration.points, self.model.machine.constants
        return tuple(
            LeftOut(
                point=point,
                predicted_ms=1e3 * self._fit(_without(points, place), near).seconds(self._measured(point).step),
            )
            for place, point in enumerate(points)
        )

    def left_out_error(self, quantile: float = 0.5) -> float:
        """Return a quantile of the absolute leave-one-out errors."""
        return float(np.quantile([abs(each.error) for each in self.left_out], quantile)) if self.left_out else math.nan

    def _fit(self, points: Sequence[StepPoint], near: Constants | None = None) -> CostModel:
        measured = [self._measured(point) for point in (*points, *self._prompts)]
        return fit_cost_model(self._machine, self._prior, measured, near)

    def _find_prompts(self) -> tuple[StepPoint, ...]:
        """Return the steps that computed prompts of servers whose first tokens came before the model says that such a
        step ends: what they took is known then, but for the front end's time."""
        found: list[StepPoint] = []
        for name in self._servers:
            alone = [first for first in self.calibration.firsts if first.setting == name and first.in_flight == 1]
            points = [_as_step(first) for first in alone if first.prompt_tokens]
            foreseen_ms = sum(1e3 * self.model.seconds(self._measured(each).step) for each in points)
            if foreseen_ms > (1 + _FIRST_SPREAD / 2) * sum(each.step_ms for each in points):
                found += points
        return tuple(found)

    def _measured(self, point: StepPoint) -> MeasuredStep:
        server = self._servers[point.setting]
        spread = math.log(point.high / point.low) / _TO_SD if point.low > 0 else 1.0
        least = _HOST_BOUND_NOISE if server.is_host_bound else _LEAST_NOISE
        step = self.step(
            point.setting,
            server.k,
            sequences=point.batch,
            context=point.context,
            drafted=point.drafted if server.k else None,
            prefill_tokens=point.prefill_tokens,
        )
        # A GPU keeps its pace; a processor's changes with what else the machine does.
        moment = "" if self.calibration.gpu else f"{point.load} {point.workload}"
        return MeasuredStep(step=step, seconds=point.step_ms / 1e3, noise=max(least, spread), moment=moment)


class _Server:
    """One server of a calibration: what it drafts with, and its graphs by k."""

    def __init__(self, calibration: Calibration, setting: CalibratedSetting) -> None:
        self._calibration, self._setting = calibration, setting
        self.k = setting.k
        self._plans: dict[int, GraphPlan] = {}
        self._drafting: dict[int, Drafting] = {}

    @property
    def is_vllm(self) -> bool:
        return self._calibration.engine == "vllm" and bool(self._calibration.engine_version)

    @property
    def is_host_bound(self) -> bool:
        """Whether its steps wait for Python: they differ between hosts by more than a card does."""
        return self.is_vllm and self.k > 0 and not self.drafting(self.k).asynchronous

    def graphs(self, k: int) -> GraphPlan:
        """Return the graphs that it would capture for another k."""
        self._look_up(k)
        return self._plans[k]

    def drafting(self, k: int) -> Drafting:
        """Return what it drafts with."""
        self._look_up(k)
        return self._drafting[k]

    def _look_up(self, k: int) -> None:
        if k in self._plans:
            return
        plan, resolved = plan_graphs(self._setup(k)) if self.is_vllm else (GraphPlan(), None)
        self._plans[k] = plan
        if self._setting.spec is not None:
            method = resolved.method if resolved is not None else self._setting.spec.method or ""
            asynchronous = resolved.async_scheduling is not False if resolved is not None else True
            self._drafting[k] = _read_drafting(self._calibration, self._setting, method, k, asynchronous)

    def _setup(self, k: int) -> Setup:
        calibration, spec = self._calibration, self._setting.spec
        gpu = calibration.gpu
        return Setup(
            target=calibration.target,
            engine="vllm",
            engine_version=calibration.engine_version,
            device=Device(name=gpu, kind="cuda") if gpu else Device(name=calibration.hardware, kind="cpu"),
            spec=None if spec is None else replace(spec, num_speculative_tokens=k),
            args=calibration.args,
        )


def _read_machine(calibration: Calibration, plain: _Server) -> tuple[Machine, Prior]:
    precision, ranks = _find_precision(calibration), _find_ranks(calibration)
    work = find_work(calibration.config, precision, ranks)
    if work is None:
        raise refusal("target-unknown", target=calibration.target)
    fast = precision.name.startswith("fp8")
    prior = gpu_prior(get_gpu(calibration.gpu), fast_arithmetic=fast) if calibration.gpu else cpu_prior()
    asynchronous = calibration.args.get("async_scheduling")
    if not isinstance(asynchronous, bool):
        table = get_release(calibration.engine_version).table("async_scheduling") if plain.is_vllm else {}
        asynchronous = bool(table.get("default", True))
    machine = Machine(
        constants=prior.constants,
        work=work,
        shape=read_shape(calibration.config),
        tensor_parallel_size=ranks,
        kv_bytes_per_value=1 if str(calibration.args.get("kv_cache_dtype", "")).startswith("fp8") else 2,
        asynchronous=asynchronous,
    )
    return machine, prior


def _read_drafting(
    calibration: Calibration, setting: CalibratedSetting, method: str, k: int, asynchronous: bool
) -> Drafting:
    """Return what a setting drafts with. Of a drafter whose config is not known, the usual layout of its method."""
    precision, ranks, facts = _find_precision(calibration), _find_ranks(calibration), get_method(method)
    if not facts.has_weights:
        return Drafting(method=facts.name, work=None, asynchronous=asynchronous)
    if facts.drafts_from == "own_model":
        work = None if setting.drafter is None else find_work(setting.drafter, precision_of(setting.drafter), ranks)
    else:
        work = find_drafter_work(method, k, calibration.config, setting.drafter, precision, ranks)
    return Drafting(
        method=facts.name,
        work=work,
        asynchronous=asynchronous,
        kv_bytes_per_token=count_drafter_kv(method, k, calibration.config, setting.drafter, ranks),
        parallel=setting.spec is not None and bool(setting.spec.options.get("parallel_drafting")),
    )


def _find_precision(calibration: Calibration) -> Precision:
    given = calibration.args.get("quantization")
    return get_precision(given) if isinstance(given, str) else precision_of(calibration.config)


def _find_ranks(calibration: Calibration) -> int:
    given = calibration.args.get("tensor_parallel_size")
    return given if isinstance(given, int) and given > 0 else 1


def _as_step(first: FirstPoint) -> StepPoint:
    """Return the step that computed a lone request's prompt as long as its first token took."""
    return StepPoint(
        setting=first.setting,
        load=first.load,
        workload=first.workload,
        batch=1,
        context=first.prompt_tokens + first.output_tokens / 2,
        prefill_tokens=first.prompt_tokens,
        drafted=first.drafted,
        step_ms=first.first_ms,
        low=(1 - _FIRST_SPREAD) * first.first_ms,
        high=(1 + _FIRST_SPREAD) * first.first_ms,
        steps=first.requests,
    )


def _without(points: Sequence[StepPoint], place: int) -> list[StepPoint]:
    return [point for at, point in enumerate(points) if at != place]
