"""A setup's memory with and without its drafter, and what is worth saying about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftwise.core import Finding, Setup
from draftwise.core.budget import Budget
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.rules import find_doubts, of_release
from draftwise.plan.check.context import SPEC_FLAGS
from draftwise.plan.size.budget import measure
from draftwise.plan.size.findings import find_faults
from draftwise.plan.size.request import NO_DRAFTER, Request, read_request

__all__ = ["Sizing", "size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A setup's memory, and the same without its drafter."""

    request: Request
    budget: Budget
    """Of the GPU that has least left for keys and values; all of a tensor-parallel group are alike."""
    plain: Budget
    """Without speculation; equal to `budget` where there is none."""
    findings: tuple[Finding, ...]


def size(setup: Setup, *, gpu: Gpu | str | None = None, cold_start: bool = True, stored: str | None = None) -> Sizing:
    """Return what a setup takes of each GPU.

    Args:
        setup: target, speculation, flags and vLLM version.
        gpu: on which it runs; by default the setup's device.
        cold_start: whether vLLM compiles the model first, as it does in a fresh container.
        stored: precision of a quantized copy of the target that is served instead; None for the target as it is.

    Raises:
        InvalidSetup: target, version, GPU or a number cannot be read.
    """
    request = read_request(setup, gpu=gpu, cold_start=cold_start, stored=stored)
    budget = measure(request)
    plain = budget
    if request.drafter is not NO_DRAFTER:
        alone = _without_speculation(setup, request)
        plain = measure(read_request(alone, gpu=request.gpu, cold_start=cold_start, stored=stored))
    faults = (of_release(each, request.release) for each in find_faults(request, budget, plain))
    findings = (*find_doubts(request.release), *faults)
    return Sizing(request=request, budget=budget, plain=plain, findings=findings)


def _without_speculation(setup: Setup, request: Request) -> Setup:
    """Return the same server without speculation, which may run on another model runner."""
    args = {name: value for name, value in setup.args.items() if name not in SPEC_FLAGS}
    return replace(setup, target=request.served, spec=None, args=args)
