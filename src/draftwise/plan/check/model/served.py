"""A speculators checkpoint given as the model to serve: it names the real target and the speculation itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from draftwise.checkpoints.model_config import ModelConfig
from draftwise.core import Ruling, Stage
from draftwise.facts.methods import methods_where
from draftwise.facts.rules import Rulebook
from draftwise.facts.vllm import Release
from draftwise.plan.check.model.speculators import Config, find_faults, find_incomplete
from draftwise.plan.check.steps import Step

__all__ = ["read_served"]

_PARALLEL = ("peagle",)
"""Speculators types whose heads draft in parallel."""
_HUB_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")

Served = tuple[str | None, Config | None]
"""Name of the model that is served in the checkpoint's stead (None: no other), and the speculative JSON."""


def read_served(
    rules: Rulebook, release: Release, name: str, model: ModelConfig | None, spec: Config | None
) -> Step[Served]:
    """Return what vLLM serves, and with which speculation, for a model that may be a speculators checkpoint.

    Such a checkpoint names the real target and the speculation itself. Any other model, one that cannot be read, and
    every model in releases without the format is served as it is, with the JSON as written.

    Args:
        rules: of the release.
        release: which reads the checkpoint.
        name: how the model was given; it becomes the drafter.
        model: its config.json.
        spec: the operator's own speculative JSON.
    """
    as_written: Served = (None, spec)
    if model is None or model.config.get("speculators_config") is None or not rules.holds("speculators-format"):
        return as_written
    config = model.config
    faults = [*find_incomplete(rules, config, name)] or [*_find_local_verifier(rules, config, name)]
    if not faults and _reads_layers(rules, spec):
        faults = [*islice(find_faults(rules, release, config, name), 1)]
    if faults:
        # Nothing wraps the ValueError here, before any config object is made.
        yield replace(faults[0], stage=Stage.ENGINE, exception="ValueError")
        return as_written
    verifier = _verifier(config)
    if spec is not None and rules.holds("speculators-user-json-wins"):
        return verifier, spec
    if spec is None and rules.holds("speculators-settings-lost"):
        yield from _find_lost(rules)
        return verifier, None
    own = _own_settings(release, config)
    if spec is None:
        return verifier, {**own, "model": name}
    yield from _find_replaced(rules, own, name, spec)
    kept = spec if rules.holds("speculators-json-merged") else {}
    return verifier, {**own, **kept, "method": own["method"], "model": name}


def _reads_layers(rules: Rulebook, spec: Config | None) -> bool:
    """Say whether the release converts the layers while it looks for the served model."""
    if not rules.holds("speculators-structure"):
        return False
    return not rules.holds("speculators-user-json-wins" if spec is not None else "speculators-settings-lost")


def _own_settings(release: Release, config: Config) -> Config:
    """Return the speculative JSON that the checkpoint stands for: a type may run under another method's name."""
    kind = config["speculators_model_type"]
    tokens = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    if not isinstance(kind, str) or kind not in release.table("speculators_types"):
        return {"method": kind, "num_speculative_tokens": tokens}
    method = next((name for name, method in methods_where().items() if kind in method.speculators), kind)
    parallel = {"parallel_drafting": True} if kind in _PARALLEL else {}
    return {"method": method, **parallel, "num_speculative_tokens": tokens}


def _verifier(config: Config) -> str:
    return str(config["speculators_config"]["verifier"]["name_or_path"])


def _find_local_verifier(rules: Rulebook, config: Config, name: str) -> Iterator[Ruling]:
    """Yield the refusal of a verifier on disk: some releases take only names of the hub."""
    verifier = _verifier(config)
    if not _HUB_NAME.fullmatch(verifier) or Path(verifier).exists():
        yield from rules.ruling(
            "speculators-local-verifier",
            f"The speculators checkpoint names a local directory, {verifier!r}, as its verifier.",
            where=name,
            fix="Name the verifier as the model and this checkpoint in the JSON.",
        )


def _find_lost(rules: Rulebook) -> Iterator[Ruling]:
    yield from rules.ruling(
        "speculators-settings-lost",
        "The target is a speculators checkpoint; this release serves its verifier without any speculation.",
        where="target",
        fix="Name the verifier as the model and this checkpoint in the JSON.",
        becomes="no speculation",
    )


def _find_replaced(rules: Rulebook, own: Config, name: str, spec: Config) -> Iterator[Ruling]:
    locked = {"method": own["method"], "model": name}
    lost = [key for key, value in locked.items() if key in spec and spec[key] != value]
    if lost:
        yield from rules.ruling(
            "speculators-json-merged",
            f"The target is a speculators checkpoint, which fixes {' and '.join(lost)}: the JSON's are dropped.",
            where="target",
            fix=f"Leave {' and '.join(lost)} out of the JSON.",
            becomes=str(locked),
        )
    if any(own.get(key, locked.get(key)) != value for key, value in spec.items()):
        yield from rules.ruling(
            "speculators-json-replaced",
            "The target is a speculators checkpoint; its own settings replace the whole speculative JSON.",
            where="target",
            fix="Serve the verifier as the model, and name this checkpoint as `model` in the JSON.",
            becomes=str({**own, "model": name}),
        )
