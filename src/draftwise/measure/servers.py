"""The servers of the arms: on which GPUs, started one after another or together, and judged before they start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from draftwise.backends import Backend, EmbeddedBackend, LineUp, OneAtATime, SwitchCommand, UrlBackend, VllmBackend
from draftwise.backends.gpu_placement import GpuPlacement, find_gpus, place_arms
from draftwise.core import Arm, Finding, InvalidSetup, LaunchOptions, RunContext, Setup, Severity
from draftwise.measure.access import Header, find_headers
from draftwise.measure.arms import is_covered
from draftwise.runs import RunDirectory

__all__ = ["build_backends", "judge_backends", "line_up"]

_CACHE_SIZES = frozenset({"kv_cache_memory_bytes", "num_gpu_blocks_override"})
"""Arguments with which vLLM does not look at the GPU's free memory to size its KV cache."""


def build_backends(
    arms: Sequence[Arm],
    context: RunContext,
    directory: RunDirectory,
    *,
    headers: Sequence[Header] = (),
    on_wait: Callable[[str], None],
    one_at_a_time: bool = False,
) -> list[Backend]:
    """Return the server of every arm, not started yet.

    Args:
        on_wait: called with what a server does while it starts.
        headers: of the requests to servers that run already.
        one_at_a_time: whether each has all the GPUs, as the others are down then.

    Raises:
        InvalidSetup: a server takes more GPUs than there are, or its command is none.
    """
    if arms[0].url is not None:
        return [
            UrlBackend(
                arm.name,
                arm.url or "",
                headers=find_headers(headers, arm.name),
                metrics_url=arm.metrics_url,
                metrics_headers=find_headers(headers, arm.name, of_metrics=True),
                command=context.notes.get(f"command.{arm.name}"),
            )
            for arm in arms
        ]
    reports = {arm.name: partial(_report, on_wait, arm.name) for arm in arms}
    placements = _place(arms, context) if not one_at_a_time else _place(arms[:1], context) * len(arms)
    if arms[0].setup.engine != "vllm":
        return [
            EmbeddedBackend(
                arm.name,
                arm.setup,
                log=directory.log_of(arm.name),
                placement=placement,
                on_wait=reports[arm.name],
            )
            for arm, placement in zip(arms, placements, strict=True)
        ]
    in_turn = asyncio.Lock() if _must_start_in_turn(arms[0].setup, placements) else None
    return [
        VllmBackend(
            arm.name,
            arm.setup,
            log=directory.log_of(arm.name),
            vllm=context.launch.vllm,
            placement=placement,
            on_wait=reports[arm.name],
            in_turn=in_turn,
        )
        for arm, placement in zip(arms, placements, strict=True)
    ]


def line_up(backends: Sequence[Backend], arms: Sequence[Arm], launch: LaunchOptions) -> tuple[list[Backend], LineUp]:
    """Return the servers as backends of which one is up at a time, and their line-up.

    Raises:
        InvalidSetup: the command that replaces one by another is none.
    """
    replacing = None
    if launch.switch is not None:
        stay = launch.leave or arms[0].name
        if stay not in [arm.name for arm in arms]:
            text = f"there is no arm {stay!r}."
            fix = f"There are: {', '.join(arm.name for arm in arms)}."
            raise InvalidSetup.because("unknown-arm", text, where="--leave", fix=fix)
        replacing = SwitchCommand(command=launch.switch, baseline=arms[0].name, stay=stay)
    joined = LineUp(replacing)
    return [OneAtATime(each, joined) for each in backends if isinstance(each, UrlBackend)], joined


def _place(arms: Sequence[Arm], context: RunContext) -> list[GpuPlacement | None]:
    gpus = find_gpus() if context.launch.gpus is None else context.launch.gpus
    return list(place_arms(len(arms), gpus, arms[0].setup.args)) if gpus else [None] * len(arms)


def _report(on_wait: Callable[[str], None], arm: str, line: str) -> None:
    on_wait(f"{arm}: {line}")


def _must_start_in_turn(setup: Setup, placements: Sequence[GpuPlacement | None]) -> bool:
    """Return whether servers would disturb each other's start: they share cores, or measure a shared GPU's memory."""
    if any(placement is None for placement in placements):
        return True
    fixed = not _CACHE_SIZES.isdisjoint(setup.args)
    return not fixed and any(placement is not None and placement.sharing > 1 for placement in placements)


def judge_backends(backends: Sequence[Backend]) -> list[Finding]:
    """Return what `check` warns of in the setups that are about to start, each finding once.

    Only vLLM's are judged; the embedded server judges its own. A release that is not known ends no measurement.

    Raises:
        InvalidSetup: a release would refuse one of them, or fail with it.
    """
    found: dict[tuple[str, str], Finding] = {}
    for arm, finding in _judge_all(backends):
        found.setdefault((finding.code, finding.message), replace(finding, where=f"{arm} {finding.where}".strip()))
    if errors := [each for each in found.values() if each.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    return [each for each in found.values() if each.severity is Severity.WARNING]


def _judge_all(backends: Sequence[Backend]) -> Iterator[tuple[str, Finding]]:
    from draftwise.plan.check import check  # takes longer to import than all else here

    for backend in backends:
        if not isinstance(backend, VllmBackend) or not backend.setup.engine_version:
            continue
        if is_covered(backend.setup.engine_version):
            yield from ((backend.name, finding) for finding in check(backend.setup).findings)
        else:
            yield backend.name, _unjudged(backend.setup.engine_version)


def _unjudged(version: str) -> Finding:
    return Finding.warning(
        "setup-unjudged",
        f"vLLM {version} is not known here, so that nothing was looked for in this setup before its start.",
        fix=f"Add it with `draftwise facts add vllm=={version}`.",
    )
