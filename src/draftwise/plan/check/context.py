"""What every rule of `check` may look at: the setup, the release, the engine's flags, and the two models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from draftwise.checkpoints.model_config import ModelConfig, find_model_config
from draftwise.core import Finding, InvalidSetup, Ruling, Setup
from draftwise.facts.rules import Rule, get_rule
from draftwise.facts.vllm import Release, get_release
from draftwise.plan.check.flags import read_flags
from draftwise.plan.check.speculators import SpeculatorsFault, read_served

__all__ = ["SPEC_FLAGS", "Context", "get_context"]

SPEC_FLAGS: Mapping[str, str] = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
"""Engine flags that stand for a key of the speculative JSON."""

_ALL_PACKAGES = frozenset({"arctic_inference"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One setup, looked up once for one release."""

    setup: Setup
    release: Release
    flags: Mapping[str, Any]
    """Engine arguments by field name: those given, over the release's defaults."""
    given: Mapping[str, Any]
    """Only the engine arguments that were given, typed as the parser hands them on; faulty ones are left out."""
    spec: Mapping[str, Any] | None
    """The speculative JSON as written, with the `--spec-*` flags merged in; None without speculation."""
    target: ModelConfig | None
    """The served model; None for one that is neither on disk nor in the table."""
    drafter: ModelConfig | None
    """None without `model`, and for one that is neither on disk nor in the table."""
    faults: tuple[Finding, ...] = ()
    """Directories that are there and hold no readable config.json: `where` names them."""
    verifier: str | None = None
    """Name of the served model where the model that was given is a speculators checkpoint, which names it."""
    doubled: tuple[str, ...] = ()
    """Flags of `SPEC_FLAGS` whose key the JSON holds too."""
    rulings: tuple[Ruling, ...] = ()
    """What was found while the models were looked up."""
    platform: Literal["cuda", "cpu"] = "cuda"
    env: Mapping[str, str] = field(default_factory=dict)
    installed: frozenset[str] = _ALL_PACKAGES
    """Optional Python packages that the server has; nobody can see another machine's, so all are assumed."""

    @property
    def keys(self) -> Mapping[str, Any]:
        """The speculative JSON with its keys as vLLM reads dashed ones; empty without speculation."""
        return {key.replace("-", "_"): value for key, value in (self.spec or {}).items()}

    def flag(self, name: str, default: Any = None) -> Any:
        """Return an engine argument, or `default` where the release has no such argument."""
        return self.flags.get(name, default)

    def rule(self, code: str) -> Rule | None:
        """Return a rule if it holds in this release."""
        rule = get_rule(code)
        return rule if rule.holds(self.release.version) else None

    def holds(self, code: str) -> bool:
        """Say whether a rule holds in this release."""
        return get_rule(code).holds(self.release.version)


def get_context(setup: Setup, *, installed: frozenset[str] = _ALL_PACKAGES) -> Context:
    """Look up what a setup names.

    Args:
        setup: what the operator wrote.
        installed: optional Python packages that the server has.

    Raises:
        InvalidSetup: the version is unknown.
    """
    release = get_release(setup.engine_version or "newest")
    faults: list[Finding] = []
    given = _find_model(setup.target, faults)
    args, flag_rulings = read_flags(release, setup.args)
    rulings = list(flag_rulings)
    spec: Mapping[str, Any] | None = None if setup.spec is None else setup.spec.to_dict()
    verifier = None
    if given is not None:
        try:
            served = read_served(release, setup.target, given.config, spec)
        except SpeculatorsFault as fault:
            rulings.append(fault.ruling)
        else:
            if served is not None:
                spec, verifier = served.spec, served.verifier
                rulings += served.rulings
    by_flag = {key: args[flag] for flag, key in SPEC_FLAGS.items() if flag in args}
    doubled = tuple(flag for flag, key in SPEC_FLAGS.items() if flag in args and key in (spec or {}))
    if by_flag:
        spec = {**(spec or {}), **by_flag}  # a flag wins over a key that is spelled with dashes
    draft = None if spec is None else spec.get("model")
    return Context(
        setup=setup,
        release=release,
        flags={**release.table("engine_defaults"), **args},
        given=args,
        spec=spec,
        target=given if verifier is None else _find_model(verifier, faults),
        drafter=_find_model(draft, faults) if isinstance(draft, str) and draft else None,
        faults=tuple(faults),
        verifier=verifier,
        doubled=doubled,
        rulings=tuple(rulings),
        platform="cpu" if setup.device is not None and setup.device.kind == "cpu" else "cuda",
        env=setup.env,
        installed=installed,
    )


def _find_model(name: str, faults: list[Finding]) -> ModelConfig | None:
    try:
        return find_model_config(name)
    except InvalidSetup as fault:
        faults.extend(fault.findings)
        return None
