"""EngineArgs: the flags, the two models, and the speculative JSON that flags and a served checkpoint add to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.checkpoints.model_config import ModelConfig, find_model_config
from draftwise.core import Finding, InvalidSetup, Setup
from draftwise.facts.rules import Rulebook
from draftwise.facts.vllm import get_release
from draftwise.plan.check.cli.flags import read_flags
from draftwise.plan.check.context import ALL_PACKAGES, SPEC_FLAGS, Context
from draftwise.plan.check.model.served import read_served
from draftwise.plan.check.steps import collect

__all__ = ["get_context"]


def get_context(setup: Setup, *, installed: frozenset[str] = ALL_PACKAGES) -> Context:
    """Look up what a setup names.

    Args:
        setup: what the operator wrote.
        installed: optional Python packages that the server has.

    Raises:
        InvalidSetup: the version is unknown.
    """
    release = get_release(setup.engine_version or "newest")
    faults: list[Finding] = []
    model = _find_model(setup.target, faults)
    about_flags, given = collect(read_flags(release, setup.args))
    written = None if setup.spec is None else setup.spec.to_dict()
    served = read_served(Rulebook(release.version), release, setup.target, model, written)
    about_served, (verifier, spec) = collect(served)
    by_flag = {key: given[flag] for flag, key in SPEC_FLAGS.items() if flag in given}
    doubled = tuple(flag for flag, key in SPEC_FLAGS.items() if flag in given and key in (spec or {}))
    if by_flag:
        spec = {**(spec or {}), **by_flag}  # a flag wins over a key that is spelled with dashes
    return Context(
        setup=setup,
        release=release,
        flags={**release.table("engine_defaults"), **given},
        given=given,
        spec=spec,
        target=model if verifier is None else _find_model(verifier, faults),
        drafter=_find_drafter(spec, faults),
        faults=tuple(faults),
        verifier=verifier,
        doubled=doubled,
        rulings=(*about_flags, *about_served),
        platform="cpu" if setup.device is not None and setup.device.kind == "cpu" else "cuda",
        env=setup.env,
        installed=installed,
    )


def _find_drafter(spec: Mapping[str, Any] | None, faults: list[Finding]) -> ModelConfig | None:
    name = None if spec is None else spec.get("model")
    return _find_model(name, faults) if isinstance(name, str) and name else None


def _find_model(name: str, faults: list[Finding]) -> ModelConfig | None:
    try:
        return find_model_config(name)
    except InvalidSetup as fault:
        faults.extend(fault.findings)
        return None
