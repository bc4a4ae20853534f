"""Holds the options of `draftwise decide` as one value: the measurement and its conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from draftwise.checkpoints.gguf_files import is_gguf
from draftwise.core import Calibration, Condition, LaunchOptions, Profile, SpecConfig
from draftwise.knowledge.messages import text_of
from draftwise.measure.access import Header
from draftwise.workloads import BUNDLED

ENGINES = ("draftwise", "vllm")
"""Engines that draftwise can start."""
DEFAULT_MINUTES = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A speculative config to compare with the baseline; either field may be unknown."""

    name: str | None = None
    """The operator's name for the candidate."""
    spec: SpecConfig | None = None

    def at_length(self, k: int) -> Candidate:
        """Return the candidate with another `num_speculative_tokens`, and with k in its name."""
        return Candidate(
            name=None if self.name is None else f"{self.name} k={k}",
            spec=None if self.spec is None else replace(self.spec, num_speculative_tokens=k),
        )


DEFAULT_CANDIDATES = (
    Candidate(spec=SpecConfig(method="ngram", num_speculative_tokens=5)),
    Candidate(spec=SpecConfig(method="suffix")),
)
"""Methods that need only the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSpec:
    """A baseline and its candidates, the workloads and loads to compare them under, and the time budget.

    Give either `target`, which draftwise serves once per arm, or `url` with `candidate_urls` for running servers.
    """

    target: str | None = None
    """Directory of a checkpoint, or a name that vLLM resolves."""
    engine: str = "draftwise"
    """Engine that serves the target: `draftwise` or `vllm`."""
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    serve_args: tuple[str, ...] = ()
    """Extra arguments of `draftwise serve` or `vllm serve`, the same for every arm."""
    url: str | None = None
    """The baseline's address."""
    candidate_urls: tuple[str, ...] = ()
    metrics_urls: tuple[str, ...] = ()
    """Metrics URLs, where they are not at /metrics: one per server, in the same order, or `ARM=URL`."""
    headers: tuple[Header, ...] = ()
    """Headers for requests to running servers."""
    candidates: tuple[Candidate, ...] = ()
    """Candidates; for a target, `DEFAULT_CANDIDATES` if empty."""
    draft_lengths: tuple[int, ...] = ()
    """Draft lengths k to try with every candidate."""
    workloads: tuple[str, ...] = BUNDLED
    """Workloads in the form of `--workload`."""
    max_tokens: int | None = None
    """Cap on each prompt's `max_tokens`."""
    conditions: tuple[Condition, ...] = field(default_factory=lambda: (Condition(),))
    prompts: int | None = None
    """Prompts per workload. None: as many as fit into the time."""
    minutes: float | None = None
    """Time budget in minutes. None: `DEFAULT_MINUTES`, or unlimited if `prompts` is given."""
    repeats: int = 5
    warmup: int = 3
    seed: int = 0
    calibration: Calibration | Path | None = None
    """Calibration of these servers, from `draftwise calibrate`. Candidates that cannot win are left out."""
    profile: Profile | Path | None = None
    """Profile of this traffic, from `draftwise replay`. Candidates that cannot win are left out."""
    places_loads: bool = False
    """Whether to choose loads around the forecast crossover instead of `conditions`."""
    turn_s: float = 20.0
    adaptive: bool = True
    one_at_a_time: bool = False
    """Whether one server is up at a time: those that draftwise starts, or with `launch.switch` the one at `url`."""
    processes: int | None = None
    """Processes of the load generator. None: as many as the load needs."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Context that a client cannot see: `hardware` (or `hardware.ARM`), `precision`, `model`, `command.ARM`."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Thresholds that differ from the defaults, by their names in `deciding.thresholds`."""
    out: Path | None = None
    """Run directory. None: a new one under `runs`."""

    @property
    def planned_minutes(self) -> float | None:
        """Minutes for the whole run. None: only a number of prompts is given."""
        if self.minutes is None:
            return None if self.prompts else DEFAULT_MINUTES
        return self.minutes

    def find_conflict(self) -> str | None:
        """Return why the options contradict each other; None if they do not."""
        if self.target is not None and self.target.startswith(("http://", "https://")):
            return f"{self.target} is a server URL. Pass it as --url, and the speculative server as --candidate-url."
        if (self.target is None) == (self.url is None):
            return "Pass either TARGET or --url with --candidate-url."
        if self.target is not None and Path(self.target).is_file() and not is_gguf(Path(self.target)):
            return f"{self.target} is a file. Pass the model's folder, or --url and --candidate-url of running servers."
        if self.engine not in ENGINES:
            return f"--engine must be one of {', '.join(ENGINES)}, got {self.engine!r}."
        if self.target is not None:
            return self._find_conflict_with_target()
        return self._find_conflict_of_arms() or self._find_conflict_of_lengths()

    def _find_conflict_of_arms(self) -> str | None:
        if self.launch.switch is not None:
            return self._find_conflict_with_switch()
        if self.one_at_a_time:
            return "--one-at-a-time is for servers that draftwise starts. For a running server, use --switch."
        if not self.candidate_urls:
            return text_of("one-server-only")
        if len(self.candidates) not in (0, len(self.candidate_urls)):
            return "Pass one --candidate for each --candidate-url, in the same order, or none."
        return None

    def _find_conflict_of_lengths(self) -> str | None:
        if self.draft_lengths:
            return "--k is for servers that draftwise starts. Those at --candidate-url set their own k."
        return None

    def _find_conflict_with_switch(self) -> str | None:
        if self.candidate_urls:
            return "With --switch, all arms answer at --url, one after another. Leave out --candidate-url."
        if not self.candidates or any(each.name is None or each.spec is None for each in self.candidates):
            return "With --switch, name the arms that your command accepts: --candidate NAME=JSON for each."
        return None

    def _find_conflict_with_target(self) -> str | None:
        if self.candidate_urls:
            return "--candidate-url needs --url. With TARGET, use --candidate."
        if self.launch.switch is not None:
            return "--switch is for a running server and needs --url. For TARGET, use --one-at-a-time."
        if self.metrics_urls or self.headers:
            return "--metrics-url, --header and --api-key-env are for running servers and need --url."
        return None
