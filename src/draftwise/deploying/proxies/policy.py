"""Which requests the speculative pool must not get: by the release's facts, and by what `check` says of the setup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from draftwise.core import Finding, Setup
from draftwise.knowledge.vllm import Release, get_release
from draftwise.plan.check import check

__all__ = ["POOL_HEADER", "Policy", "find_policy"]

POOL_HEADER = "x-draftwise-pool"
"""A request that carries it with the value `plain` goes there: clients and gateways may know more of it."""
_FATES: Mapping[str, str] = {"rejected": "refuses", "ignored": "ignores"}
"""What a release makes of a parameter while it speculates, where that is another answer than the plain pool's."""
_BYTES_PER_TOKEN = 3
"""Of a request's body: English text has more than four, and JSON around it more; an estimate, as proxies do not count
tokens."""
_TOOLS = "short-lookup-with-tools"
_STRUCTURED = ("structured-outputs-backend", "structured-outputs-misaligned", "requests-refused-async")
_STRUCTURED_FIELDS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
"""Beside `response_format`, which may also ask for plain text."""
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words")
"""Refused with structured outputs under --async-scheduling by some releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What goes to the plain pool."""

    parameters: Mapping[str, str]
    """Fields of a request's body -> why, a sentence."""
    structured: str = ""
    """Why requests with structured outputs do; empty where they need not."""
    tools: str = ""
    """Why requests with tools do; empty where they need not."""
    context: int | None = None
    """Tokens of prompt and answer beyond which a request does; None for no bound."""
    models: tuple[str, ...] = ()
    """Names that do not; empty where every name is the same model."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a body that send a request to the plain pool by being there, whatever their value."""
        structured, tools = _STRUCTURED_FIELDS if self.structured else (), ("tools",) if self.tools else ()
        return (*self.parameters, *structured, *tools)

    @property
    def longest_body(self) -> int | None:
        """Bytes of a request whose prompt takes half of the context; None for no bound."""
        return None if self.context is None else _BYTES_PER_TOKEN * (self.context // 2)

    @property
    def longest_answer(self) -> int | None:
        """Tokens of an answer that takes the other half; None for no bound."""
        return None if self.context is None else self.context // 2

    @property
    def needs_body(self) -> bool:
        """Whether a request's body tells where it goes."""
        return bool(self.parameters or self.structured or self.tools or self.context or self.models)

    def describe(self) -> Iterator[str]:
        """Yield each class of requests that goes to the plain pool, and why, a sentence each."""
        yield f"Requests with the header `{POOL_HEADER}: plain`."
        yield from self.describe_classes()

    def describe_classes(self) -> Iterator[str]:
        """Yield the classes that a request is in by what it asks for."""
        yield from (f"Requests with {name}: {why}" for name, why in self.parameters.items())
        if self.structured:
            yield f"Requests with structured outputs: {self.structured}"
        if self.tools:
            yield f"Requests with tools: {self.tools}"
        if self.context is not None:
            yield (
                f"Requests of more than {self.longest_body} bytes or {self.longest_answer} output tokens: beyond "
                f"{self.context} tokens one of them stops drafting for all that run beside it. Bytes are an estimate "
                f"({_BYTES_PER_TOKEN} a token), and a request that names no limit may still grow longer."
            )
        if self.models:
            yield f"Requests for other models than {', '.join(self.models)}: the drafter knows no adapter."


def find_policy(setup: Setup) -> Policy:
    """Return what the speculative pool of a setup must not get."""
    report = check(setup)
    found = {finding.code: finding for finding in reversed(report.findings)}
    release = get_release(setup.engine_version)
    parameters = dict(_find_parameters(release))
    if "requests-refused-async" in found:
        parameters |= dict.fromkeys(_PENALTIES, _say(found["requests-refused-async"]))
    draft_length = None if report.resolved is None else report.resolved.draft_max_model_len
    k = 0 if setup.spec is None else setup.spec.num_speculative_tokens or 0
    return Policy(
        parameters=parameters,
        structured=next((_say(found[code]) for code in _STRUCTURED if code in found), ""),
        tools=_say(found[_TOOLS]) if _TOOLS in found else "",
        context=draft_length - k if "context-gate" in found and draft_length is not None else None,
        models=tuple(_list_names(setup)) if setup.args.get("enable_lora") is True else (),
    )


def _find_parameters(release: Release) -> Iterator[tuple[str, str]]:
    for name, fate in sorted(release.table("sampling_params").items()):
        if fate in _FATES:
            yield name, f"vLLM {release} {_FATES[fate]} it while speculating."


def _list_names(setup: Setup) -> list[str]:
    names = setup.args.get("served_model_name", [setup.target])
    return [names] if isinstance(names, str) else list(map(str, names))


def _say(finding: Finding) -> str:
    return finding.message
