"""A setup for the rules of `engine` and `serving`: a context and what its speculative config becomes, both by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from draftwise.checkpoints.config_json import ModelConfig
from draftwise.core import Device, Finding, Ruling, Setup, SpecConfig
from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.vllm import Release, get_release, releases
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.engine import choose_runner, find_early, find_runner, find_v0, judge_engine
from draftwise.plan.check.serving import find_serving
from draftwise.plan.check.stages import Context, collect

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 8192}
H200 = Device(name="H200", kind="cuda")
EPYC = Device(name="EPYC", kind="cpu")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setup, to be seen in several releases."""

    method: str = "eagle3"
    k: int = 3
    spec: Mapping[str, Any] = field(default_factory=dict)
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, Any] | None = field(default_factory=lambda: LLAMA)
    drafter: Mapping[str, Any] | None = None
    device: Device = H200
    resolved: Mapping[str, Any] = field(default_factory=dict)

    def seen_in(self, version: str) -> tuple[Context, Resolved]:
        """Return what the rules get to see in a release."""
        release = get_release(version)
        spec = {"method": self.method, "num_speculative_tokens": self.k, **self.spec}
        setup = Setup(
            target="target", engine="vllm", engine_version=version, device=self.device,
            spec=SpecConfig.keep(spec), args=self.args, env=self.env,
        )  # fmt: skip
        context = Context(
            setup=setup,
            release=release,
            rules=Rulebook(release.version),
            flags={**release.table("engine_defaults"), **self.args},
            given=self.args,
            spec=spec,
            keys=spec,
            target=None if self.target is None else ModelConfig(name="target", config=self.target, origin="json"),
            drafter=None if self.drafter is None else ModelConfig(name="draft", config=self.drafter, origin="json"),
            draft_config=self.drafter or {},
            platform="cpu" if self.device.kind == "cpu" else "cuda",
            env=self.env,
        )
        usual: dict[str, Any] = {"model": None, "runner": "V1", "num_speculative_tokens": self.k}
        return context, Resolved(method=self.method, **{**usual, **self.resolved})

    def but(self, **changed: Any) -> Case:
        """Return the case with some fields changed."""
        return replace(self, **changed)


def judge(context: Context, resolved: Resolved) -> tuple[Sequence[Ruling], Resolved]:
    """Return what the engine's config says of a resolved config, and what is left of it."""
    early = [*find_early(context), *find_v0(context, resolved)]
    if context.runs_on_v0:
        return early, resolved
    early += find_runner(context, resolved, choose_runner(context, resolved))
    rulings, kept = collect(judge_engine(context, resolved))
    return [*early, *rulings], kept


def find_engine(context: Context, resolved: Resolved) -> Sequence[Ruling]:
    """Return what the engine's config says."""
    return judge(context, resolved)[0]


def find_later(context: Context, resolved: Resolved) -> Sequence[Finding]:
    """Return what a server says of what the engine's config leaves."""
    return find_serving(context, judge(context, resolved)[1])


def codes(findings: Iterable[Finding]) -> list[str]:
    """Return the codes of findings, in order."""
    return [each.code for each in findings]


Find = Callable[[Context, Resolved], Iterable[Finding]]


def spans_of(find: Find, case: Case, code: str) -> list[tuple[str, str]]:
    """Return the first and last release of each run of releases in which a case meets a rule."""
    met = [release for release in releases() if code in codes(find(*case.seen_in(str(release))))]
    runs: list[list[Release]] = []
    known = releases()
    after = dict(pairwise(known))
    for release in met:
        if runs and after.get(runs[-1][-1]) == release:
            runs[-1].append(release)
        else:
            runs.append([release])
    return [(str(run[0]), str(run[-1])) for run in runs]
