"""What every rule of `check` may look at: the setup, the release, the engine's flags, and the two models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from draftwise.checkpoints.model_config import ModelConfig
from draftwise.core import Finding, Ruling, Setup
from draftwise.facts.rules import Rulebook
from draftwise.facts.vllm import Release

__all__ = ["SPEC", "SPEC_FLAGS", "Context", "Platform"]

Platform = Literal["cuda", "cpu"]
SPEC = "--speculative-config"
SPEC_FLAGS: Mapping[str, str] = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
"""Engine flags that stand for a key of the speculative JSON."""
_OFF: tuple[Any, ...] = (None, False, "", [], {}, "false", "False")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One setup, looked up once for one release."""

    setup: Setup
    release: Release
    rules: Rulebook
    """The rules as the release has them."""
    flags: Mapping[str, Any]
    """Engine arguments by field name: those given, over the release's defaults."""
    given: Mapping[str, Any]
    """Only the engine arguments that were given, typed as the parser hands them on; faulty ones are left out."""
    spec: Mapping[str, Any] | None
    """The speculative JSON as written, with the `--spec-*` flags merged in; None without speculation."""
    keys: Mapping[str, Any]
    """The speculative JSON with its keys as vLLM reads dashed ones; empty without speculation."""
    target: ModelConfig | None
    """The served model; None for one that is neither on disk nor in the table."""
    drafter: ModelConfig | None
    """None without `model`, and for one that is neither on disk nor in the table."""
    draft_config: Mapping[str, Any]
    """The drafter's config.json; empty where there is none or it is not known here."""
    faults: tuple[Finding, ...] = ()
    """Directories that are there and hold no readable config.json: `where` names them."""
    verifier: str | None = None
    """Name of the served model where the model that was given is a speculators checkpoint, which names it."""
    doubled: tuple[str, ...] = ()
    """Flags of `SPEC_FLAGS` whose key the JSON holds too."""
    rulings: tuple[Ruling, ...] = ()
    """What was found while flags and models were read."""
    platform: Platform = "cuda"
    env: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    """Directories of the server that hold a model of the hub: path -> the model's name."""
    installed: frozenset[str] | None = None
    """Optional Python packages that the server has, by their names on the index; None: they are not known here."""

    def is_on(self, flag: str) -> bool:
        """Say whether a flag is given and neither false nor empty; the defaults of these flags are all off."""
        return self.given.get(flag) not in _OFF

    def size(self, flag: str) -> int | None:
        """Return an engine flag that holds a number; None where the default depends on the GPU."""
        value: Any = self.flags.get(flag)
        if isinstance(value, bool):
            return None
        try:
            return int(value)
        except (TypeError, ValueError, OverflowError):
            return None

    @property
    def stages(self) -> int:
        """Pipeline stages, 1 where the flag is no number."""
        return self.size("pipeline_parallel_size") or 1

    def json_object(self, flag: str) -> Mapping[str, Any]:
        """Return a flag that holds JSON, as text or typed; empty for one that is not given or holds no object."""
        value = self.given.get(flag)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return {}
        return value if isinstance(value, Mapping) else {}

    @property
    def cudagraph_mode(self) -> str:
        """The mode of CUDA graphs that is asked for, in capitals; empty where none is."""
        mode = self.json_object("compilation_config").get("cudagraph_mode")
        if mode is None:
            return "NONE" if str(self.given.get("optimization_level")).upper() in ("0", "O0") else ""
        numbered = self.release.table("config_fields").get("CompilationConfig.cudagraph_mode", {}).get("enum", {})
        return next((name for name, number in numbered.items() if number == mode), str(mode)).upper()

    @property
    def runs_eagerly(self) -> bool:
        """Whether the operator has turned CUDA graphs off."""
        return self.is_on("enforce_eager") or self.cudagraph_mode == "NONE"

    @property
    def lacks_full_graphs(self) -> bool:
        """Whether the mode asked for has no graphs of whole steps."""
        return self.cudagraph_mode in ("NONE", "PIECEWISE")

    @property
    def insists_on_v1(self) -> bool:
        """Whether the environment forbids the V0 engine."""
        return self.env.get("VLLM_USE_V1") == "1"

    @property
    def is_known_to_v1(self) -> bool:
        """Whether the first V1 engine knows the method by the name that is written."""
        return self.spec is None or self.rules.applies(
            "v1-knows-method", self.spec.get("method") or self.spec.get("model")
        )

    @property
    def runs_on_v0(self) -> bool:
        """Whether the V0 engine serves the setup: the rules about V1's runners then do not apply."""
        return not (self.is_known_to_v1 or self.insists_on_v1) and self.rules.holds("v0-engine-taken")

    @property
    def chunks_prefill(self) -> bool:
        """Whether prompts may be split over steps; V0 does not do it by default while it speculates."""
        given = self.flags.get("enable_chunked_prefill")
        if self.runs_on_v0:
            return given is True
        return given is not False or self.rules.holds("v1-always-chunks")
