"""From what an operator asked for to arms, backends and the context of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from draftwise.backends import Backend, EmbeddedBackend, UrlBackend, VllmBackend
from draftwise.backends.gpus import Placement, find_gpus, place_arms
from draftwise.core import Arm, InvalidSetup, SpecConfig
from draftwise.measure.context import describe_hardware, describe_model, describe_software
from draftwise.runs import RunDirectory

__all__ = [
    "DEFAULT_CANDIDATES",
    "PLAIN",
    "Candidate",
    "Wish",
    "build_backends",
    "build_context",
    "name_arms",
    "parse_candidate",
]

PLAIN = "plain"
DEFAULT_CANDIDATES = (
    '{"method": "ngram", "num_speculative_tokens": 5}',
    '{"method": "suffix"}',
)
"""Methods that need nothing but the target."""
_CACHE_SIZES = ("--kv-cache-memory-bytes", "--num-gpu-blocks-override")
"""Flags with which vLLM does not look at the GPU's free memory to size its KV cache."""
_NOTES = ("hardware", "precision", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to compare: a target that draftwise serves itself, or servers that run already."""

    target: str | None = None
    engine: str = "draftwise"
    """What serves the target: `draftwise`, or `vllm`."""
    vllm: str = "vllm"
    """Command that starts vLLM, up to `serve`."""
    gpus: tuple[str, ...] | None = None
    """GPUs for vLLM's servers, as CUDA_VISIBLE_DEVICES names them; None for all that there are."""
    serve_args: tuple[str, ...] = ()
    """Further arguments of `draftwise serve` or `vllm serve`, the same for every arm."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Context that cannot be found out from here: `hardware`, `precision`, `model`, `command.ARM`."""
    thresholds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_run(cls, context: Mapping[str, Any]) -> Wish:
        """Return what a run was started with."""
        wish = context["wish"]
        gpus = wish["gpus"]
        given = {"serve_args": tuple(wish["serve_args"]), "gpus": None if gpus is None else tuple(gpus)}
        return cls(**{**wish, **given})


Candidate = tuple[str | None, SpecConfig | None]
"""The name that the operator gave, and the config; either may be unknown."""


def parse_candidate(text: str) -> Candidate:
    """Return the name, if given, and the config of `JSON` or `NAME=JSON`.

    Raises:
        InvalidSetup: what should be JSON is not, or is no speculative config.
    """
    name, separator, rest = text.partition("=")
    named = separator and not text.lstrip().startswith(("{", "["))
    try:
        return (name.strip(), SpecConfig.parse(rest)) if named else (None, SpecConfig.parse(text))
    except InvalidSetup as error:
        raise InvalidSetup(replace(finding, where="--candidate") for finding in error.findings) from None


def name_arms(configs: Sequence[Candidate], urls: Sequence[str | None]) -> list[Arm]:
    """Return the candidates' arms, each under a name of its own: the given one, or method and k."""
    arms: list[Arm] = []
    for (given, spec), url in zip(configs, urls, strict=True):
        base = given or (spec.label if spec is not None else f"candidate {len(arms) + 1}")
        taken = {PLAIN, *(arm.name for arm in arms)}
        if given in taken:
            raise InvalidSetup.because(
                "duplicate-name", f"{given!r} is taken.", where="--candidate", fix="Give every candidate its own name."
            )
        name = next(each for each in chain([base], (f"{base} #{n}" for n in count(2))) if each not in taken)
        arms.append(Arm(name=name, spec=spec, url=url))
    return arms


def build_backends(
    arms: Sequence[Arm],
    wish: Wish,
    directory: RunDirectory,
    *,
    api_key: str | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> list[Backend]:
    """Return the server of every arm, not started yet.

    Raises:
        InvalidSetup: a server takes more GPUs than there are.
    """
    if wish.target is None:
        notes = wish.notes
        return [
            UrlBackend(arm.name, arm.url or "", api_key=api_key, command=notes.get(f"command.{arm.name}"))
            for arm in arms
        ]
    gpus = (find_gpus() if wish.gpus is None else wish.gpus) if wish.engine == "vllm" else ()
    placements: Sequence[Placement | None] = (
        place_arms(len(arms), gpus, wish.serve_args) if gpus else (None,) * len(arms)
    )
    in_turn = asyncio.Lock() if _must_start_in_turn(wish, placements) else None
    backends: list[Backend] = []
    for arm, placement in zip(arms, placements, strict=True):
        given: dict[str, Any] = {
            "spec": arm.spec,
            "log": directory.log_of(arm.name),
            "args": wish.serve_args,
            "on_wait": partial(_tell, on_wait, arm.name),
        }
        if wish.engine == "vllm":
            backends.append(
                VllmBackend(arm.name, wish.target, **given, vllm=wish.vllm, placement=placement, in_turn=in_turn)
            )
        else:
            backends.append(EmbeddedBackend(arm.name, wish.target, **given))
    return backends


def _tell(on_wait: Callable[[str], None] | None, arm: str, line: str) -> None:
    if on_wait is not None:
        on_wait(f"{arm}: {line}")


def _must_start_in_turn(wish: Wish, placements: Sequence[Placement | None]) -> bool:
    """Return whether servers would disturb each other's start: they share cores, or measure a shared GPU's memory."""
    if any(placement is None for placement in placements):
        return True
    fixed = any(arg.partition("=")[0] in _CACHE_SIZES for arg in wish.serve_args)
    return not fixed and any(placement is not None and placement.sharing > 1 for placement in placements)


def build_context(arms: Sequence[Arm], wish: Wish) -> dict[str, Any]:
    """Return what is known before the servers are up.

    Raises:
        InvalidSetup: a note has an unknown name, or the target is not a checkpoint.
    """
    _check_notes(wish.notes, [arm.name for arm in arms])
    here = all(arm.is_here for arm in arms)
    hardware: dict[str, Any] = {"as told": wish.notes["hardware"]} if "hardware" in wish.notes else {}
    return {
        "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "hardware": hardware or (describe_hardware() if here else {}),
        "software": describe_software(with_engine=wish.target is not None and wish.engine == "draftwise"),
        "model": _model(wish),
        "thresholds": dict(wish.thresholds),
        "wish": {**asdict(wish), "notes": dict(wish.notes), "thresholds": dict(wish.thresholds)},
    }


def _model(wish: Wish) -> dict[str, Any]:
    described = {} if wish.target is None else _describe_target(wish.target, wish.engine)
    if "--dtype" in wish.serve_args[:-1]:
        described["dtype"] = wish.serve_args[wish.serve_args.index("--dtype") + 1]
    told = {"name": wish.notes.get("model"), "dtype": wish.notes.get("precision")}
    return described | {key: value for key, value in told.items() if value is not None}


def _describe_target(target: str, engine: str) -> dict[str, Any]:
    path = Path(target)
    # vLLM finds models by name, too.
    return {"name": target} if engine == "vllm" and not path.exists() else _checkpoint(path)


def _checkpoint(target: Path) -> dict[str, Any]:
    if not (target / "config.json").is_file():
        raise InvalidSetup.because(
            "not-a-checkpoint",
            "is not the directory of a Hugging Face checkpoint (no config.json).",
            where=str(target),
            fix="Give the folder that holds config.json, *.safetensors and tokenizer.json.",
        )
    try:
        return describe_model(target)
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise InvalidSetup.because("broken-checkpoint", f"cannot be read ({error}).", where=str(target)) from None


def _check_notes(notes: Mapping[str, str], arms: Sequence[str]) -> None:
    known = [*_NOTES, *(f"command.{arm}" for arm in arms)]
    for name in notes:
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise InvalidSetup.because(
                "unknown-context",
                f"there is no context {name!r}.",
                where="--context",
                fix=f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}.",
            )
