"""The input of every stage of `check`, and the form of a stage: a generator of findings that returns a result.

spec = yield from infer_method(context, spec)

reads like vLLM's own code, keeps the findings in its order, and changes no value. Rules that produce no new value are
plain iterators of rulings, named `find_*`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from draftwise.checkpoints.config_json import ModelConfig
from draftwise.core import Finding, Ruling, Setup
from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.vllm import Release

Platform = Literal["cuda", "cpu"]
WHOLE_LIST = frozenset({"vllm", "torch"})
"""Packages by which a list is one of all that a server has."""
SPEC = "--speculative-config"
_OFF: tuple[Any, ...] = (None, False, "", [], {}, "false", "False")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One setup, looked up once for one release."""

    setup: Setup
    release: Release
    rules: Rulebook
    """The rules of the release."""
    flags: Mapping[str, Any]
    """Engine arguments by field name: given values over the release's defaults."""
    given: Mapping[str, Any]
    """Only the given engine arguments, typed as the parser passes them on; without faulty ones."""
    spec: Mapping[str, Any] | None
    """The speculative JSON as written, with the `--spec-*` flags merged in; None without speculation."""
    keys: Mapping[str, Any]
    """The speculative JSON with dashed keys as vLLM reads them; empty without speculation."""
    target: ModelConfig | None
    """The served model; None if it is neither on disk nor in the table."""
    drafter: ModelConfig | None
    """None without `model`, or if it is neither on disk nor in the table."""
    draft_config: Mapping[str, Any]
    """The drafter's config.json; empty if missing or unknown."""
    faults: tuple[Finding, ...] = ()
    """Findings about sources that cannot be a model: directories without a readable config.json, and URLs."""
    verifier: str | None = None
    """Name of the served model, if the given model is a speculators checkpoint that names it."""
    doubled: tuple[str, ...] = ()
    """Flags of `SPEC_FLAGS` whose key is also in the JSON."""
    rulings: tuple[Ruling, ...] = ()
    """Rulings from reading flags and models."""
    platform: Platform = "cuda"
    env: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    """Directories of the server with a model of the hub: path -> the model's name."""
    installed: frozenset[str] | None = None
    """Optional Python packages that the server has, by their names on the index; None if unknown."""
    shown: frozenset[str] = frozenset()
    """Those that the text of the setup shows."""

    on: frozenset[str] = field(init=False)
    """Given flags that are neither false nor empty; all flags looked up here are off by default."""
    sizes: Mapping[str, int] = field(init=False)
    """Flags that hold a number, except those whose default depends on the GPU."""
    objects: Mapping[str, Mapping[str, Any]] = field(init=False)
    """Flags that are given as a JSON object, as text or typed."""
    stages: int = field(init=False)
    """Number of pipeline stages; 1 if the flag is not a number."""
    cudagraph_mode: str = field(init=False)
    """Requested mode of CUDA graphs, in capitals; empty without one."""
    runs_eagerly: bool = field(init=False)
    """Whether the operator has turned CUDA graphs off."""
    lacks_full_graphs: bool = field(init=False)
    """Whether the requested mode has no graphs of whole steps."""
    insists_on_v1: bool = field(init=False)
    """Whether the environment forbids the V0 engine."""
    is_known_to_v1: bool = field(init=False)
    """Whether the first V1 engine knows the method by its given name."""
    runs_on_v0: bool = field(init=False)
    """Whether the V0 engine serves the setup; rules about V1's runners then do not apply."""
    chunks_prefill: bool = field(init=False)
    """Whether prompts may be split over steps; V0 does not split them by default while it speculates."""

    def __post_init__(self) -> None:
        fill = partial(object.__setattr__, self)
        fill("on", frozenset(flag for flag, value in self.given.items() if value not in _OFF))
        whole = {flag: value for flag, value in self.flags.items() if type(value) is int}
        sizes = ((flag, _read_size(value)) for flag, value in self.given.items())
        fill("sizes", whole | {flag: size for flag, size in sizes if size is not None})
        objects = ((flag, _read_object(value)) for flag, value in self.given.items())
        fill("objects", {flag: found for flag, found in objects if found is not None})
        fill("stages", self.sizes.get("pipeline_parallel_size") or 1)
        fill("cudagraph_mode", self._find_cudagraph_mode())
        fill("runs_eagerly", "enforce_eager" in self.on or self.cudagraph_mode == "NONE")
        fill("lacks_full_graphs", self.cudagraph_mode in ("NONE", "PIECEWISE"))
        method = None if self.spec is None else self.spec.get("method") or self.spec.get("model")
        fill("insists_on_v1", self.env.get("VLLM_USE_V1") == "1")
        fill("is_known_to_v1", self.spec is None or self.rules.applies("v1-knows-method", method))
        takes_v0 = not (self.is_known_to_v1 or self.insists_on_v1) and self.rules.holds("v0-engine-taken")
        fill("runs_on_v0", takes_v0)
        asked = self.flags.get("enable_chunked_prefill")
        always = asked is not False or self.rules.holds("v1-always-chunks")
        fill("chunks_prefill", asked is True if takes_v0 else always)

    @property
    def is_listed(self) -> bool:
        """Whether all packages that the server has were said."""
        return self.installed is not None and not (self.installed and self.installed.isdisjoint(WHOLE_LIST))

    @property
    def packages(self) -> frozenset[str]:
        """Packages that the server has, as far as known; a whole list leaves no room for those that the text shows."""
        return (self.installed or frozenset()) | (frozenset() if self.is_listed else self.shown)

    def _find_cudagraph_mode(self) -> str:
        mode = self.objects.get("compilation_config", {}).get("cudagraph_mode")
        if mode is None:
            return "NONE" if str(self.given.get("optimization_level")).upper() in ("0", "O0") else ""
        numbered = self.release.table("config_fields").get("CompilationConfig.cudagraph_mode", {}).get("enum", {})
        return next((name for name, number in numbered.items() if number == mode), str(mode)).upper()


def _read_size(value: Any) -> int | None:
    """Return the number that a flag holds. None for another value, true and false among them."""
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _read_object(value: Any) -> Mapping[str, Any] | None:
    """Return the object that a flag holds as JSON, as text or typed. None for another value."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, Mapping) else None


_T = TypeVar("_T")
Step = Generator[Ruling, None, _T]


def collect(step: Step[_T]) -> tuple[tuple[Ruling, ...], _T]:
    """Run a step to its end; return its findings and its result."""
    found: list[Ruling] = []
    value = run(step, found.append)
    return tuple(found), value


def run(step: Step[_T], tell: Callable[[Ruling], None]) -> _T:
    """Run a step to its end, pass on findings as they occur, and return its result."""
    while True:
        try:
            tell(next(step))
        except StopIteration as end:
            value: _T = end.value
            return value
