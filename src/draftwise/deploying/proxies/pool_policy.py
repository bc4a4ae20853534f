"""Chooses the pool of each request: by the release's facts, by `check`'s findings, by a run's measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from draftwise.core import Finding, Setup
from draftwise.deploying.deployment_folder import StepFile
from draftwise.knowledge.defects import Defect
from draftwise.knowledge.messages import note
from draftwise.knowledge.vllm import Release, get_release
from draftwise.plan.check import check

ProxyKind = Literal["haproxy", "envoy", "httproute", "epp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Addresses of both pools, and how they share requests that either can serve."""

    name: str
    """Name of the service."""
    spec: str
    """HOST:PORT of the speculative pool."""
    plain: str
    """HOST:PORT of the plain pool."""
    share: int
    """Percent of the requests that go to the speculative pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """The proxy that an operator chose."""

    kind: ProxyKind
    share: int = 10
    """Percent of the requests that go to the speculative pool."""
    spec: str = ""
    """HOST:PORT where the proxy reaches that pool; empty for the platform's name."""
    plain: str = ""
    """HOST:PORT of the plain pool, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The proxy in front of both twins."""

    steps: Mapping[str, StepFile] = field(default_factory=dict)
    """Its files by name."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands that change it while it runs, by description."""
    limits: tuple[Finding, ...] = ()
    """What it does not support."""


POOL_HEADER = "x-draftwise-pool"
"""Header that sends a request to the plain pool with the value `plain`, for clients and gateways."""
_FATES: Mapping[str, str] = {"rejected": "refuses", "ignored": "ignores"}
"""What a release makes of a parameter while it speculates, where that is another answer than the plain pool's."""
_BYTES_PER_TOKEN = 3
"""Estimated bytes of a request's body per token, as proxies do not count tokens: English text has more than four, and
the JSON around it adds to that."""
_CLASSES = ("structured", "tools")
"""Names that stand for a class of requests in a known defect; all others are fields of a body."""
_TOOLS = "short-lookup-with-tools"
_STRUCTURED = ("structured-outputs-backend", "structured-outputs-misaligned", "requests-refused-async")
_STRUCTURED_FIELDS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
"""Fields in addition to `response_format`, which may also ask for plain text."""
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words")
"""Refused with structured outputs under --async-scheduling by some releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which requests go to the plain pool."""

    parameters: Mapping[str, str]
    """Fields of a request's body -> the reason, as a sentence."""
    structured: str = ""
    """Why requests with structured outputs go there; empty if they need not."""
    tools: str = ""
    """Why requests with tools go there; empty if they need not."""
    context: int | None = None
    """Maximum tokens of prompt and answer for the speculative pool; None for no limit."""
    models: tuple[str, ...] = ()
    """Model names that the speculative pool serves; empty if every name is the same model."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a body that send a request to the plain pool, with any value."""
        structured, tools = _STRUCTURED_FIELDS if self.structured else (), ("tools",) if self.tools else ()
        return (*self.parameters, *structured, *tools)

    @property
    def longest_body(self) -> int | None:
        """Maximum bytes of a request: its prompt takes half of the context; None for no limit."""
        return None if self.context is None else _BYTES_PER_TOKEN * (self.context // 2)

    @property
    def longest_answer(self) -> int | None:
        """Maximum tokens of an answer: the other half; None for no limit."""
        return None if self.context is None else self.context // 2

    @property
    def needs_body(self) -> bool:
        """Whether the decision needs a request's body."""
        return bool(self.parameters or self.structured or self.tools or self.context or self.models)

    def describe(self) -> Iterator[str]:
        """Yield a sentence for each class of requests that goes to the plain pool, with the reason."""
        yield f"Requests with the header `{POOL_HEADER}: plain`."
        yield from self.describe_classes()

    def describe_classes(self) -> Iterator[str]:
        """Yield the classes that depend on a request's parameters."""
        yield from (f"Requests with {name}: {why}" for name, why in self.parameters.items())
        if self.structured:
            yield f"Requests with structured outputs: {self.structured}"
        if self.tools:
            yield f"Requests with tools: {self.tools}"
        if self.context is not None:
            yield (
                f"Requests of more than {self.longest_body} bytes or {self.longest_answer} output tokens: beyond "
                f"{self.context} tokens, one such request stops drafting for its whole batch. Bytes are an estimate "
                f"({_BYTES_PER_TOKEN} per token), and a request without a limit may still grow longer."
            )
        if self.models:
            yield f"Requests for models other than {', '.join(self.models)}: the drafter does not support adapters."


def find_policy(setup: Setup) -> Policy:
    """Return which requests the speculative pool of a setup must not get."""
    report = check(setup)
    found = {finding.code: finding for finding in reversed(report.findings)}
    release = get_release(setup.engine_version)
    parameters = dict(_find_parameters(release))
    broken = dict(_find_broken(report.defects, release))
    parameters |= {name: why for name, why in broken.items() if name not in _CLASSES}
    if "requests-refused-async" in found:
        parameters |= dict.fromkeys(_PENALTIES, _say(found["requests-refused-async"]))
    draft_length = None if report.resolved is None else report.resolved.draft_max_model_len
    k = 0 if setup.spec is None else setup.spec.num_speculative_tokens or 0
    return Policy(
        parameters=parameters,
        structured=next((_say(found[code]) for code in _STRUCTURED if code in found), broken.get("structured", "")),
        tools=_say(found[_TOOLS]) if _TOOLS in found else broken.get("tools", ""),
        context=draft_length - k if "context-gate" in found and draft_length is not None else None,
        models=tuple(_list_names(setup)) if setup.args.get("enable_lora") is True else (),
    )


def _find_broken(met: Iterable[Defect], release: Release) -> Iterator[tuple[str, str]]:
    """Yield fields of a body, or classes of requests, that a known defect of the release breaks, and what it does."""
    for row in met:
        if row.state_in(release.version) == "present":
            yield from ((name, row.ruling(release).message) for name in row.keep_from)


def _find_parameters(release: Release) -> Iterator[tuple[str, str]]:
    for name, fate in sorted(release.table("sampling_params").items()):
        if fate in _FATES:
            yield name, f"vLLM {release} {_FATES[fate]} it while speculating."


def _list_names(setup: Setup) -> list[str]:
    names = setup.args.get("served_model_name", [setup.target])
    return [names] if isinstance(names, str) else list(map(str, names))


def _say(finding: Finding) -> str:
    return finding.message


_WORTH = 0.05
"""Gain from which a split is worth measuring. It is a bound that no split reaches: simulated splits gained 5 to 6.5 %
where the classes' shares were those of the pools' servers, lost 11 to 19 % where they were not, and made the slowest
requests 17 to 28 % slower."""


def bound_gain(speed_ups: Mapping[str, float]) -> float:
    """Return the maximum gain of a split in tokens per second over the better of two equal pools, as a share.

    Assumes that every class has the same share of the work and that every server is always busy, so losses from idle
    pools are left out.

    Args:
        speed_ups: ratio of tokens per second with and without speculation, by class.
    """
    spec = len(speed_ups) / sum(1 / ratio for ratio in speed_ups.values())
    split = len(speed_ups) / sum(1 / max(1.0, ratio) for ratio in speed_ups.values())
    return split / max(1.0, spec) - 1


def judge_split(speed_ups: Mapping[str, float]) -> Iterator[Finding]:
    """Yield the possible gain of a split by class; nothing for a run of a single class."""
    if len(speed_ups) < 2:
        return
    gain, slower = bound_gain(speed_ups), sorted(name for name, ratio in speed_ups.items() if ratio < 1)
    bound = f"One pool per class gives at most {gain:.1%} more tokens per second than the better of two equal pools"
    if not slower or gain < _WORTH:
        yield Finding.info("split-by-class", f"{bound}, which is not worth it.", fix="Send every class to both pools.")
        return
    yield note("split-by-class", bound=bound, slower=" and ".join(slower), pool_header=POOL_HEADER)
