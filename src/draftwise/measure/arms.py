"""The arms of a measurement: a baseline and its candidates, setups that differ in their speculative config only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count

from draftwise.backends.address import check_url
from draftwise.backends.vllm_command import check_arguments, find_version, split_command
from draftwise.core import Arm, InvalidSetup, Setup, Severity
from draftwise.knowledge.vllm import get_release
from draftwise.measure.access import with_access
from draftwise.measure.spec import DEFAULT_CANDIDATES, Candidate, MeasurementSpec
from draftwise.setups.read import read_setups, read_words
from draftwise.version import __version__

__all__ = ["BASELINE", "is_covered", "make_arms"]

BASELINE = "plain"
"""Name of the arm without speculation, on disk and in reports."""

_READ_OTHERWISE = frozenset({"flag-given-twice", "abbreviated-flag"})
"""Findings on words that `draftwise serve` reads otherwise than vLLM: repeated flags add up, none is abbreviated."""


def make_arms(spec: MeasurementSpec) -> tuple[Arm, ...]:
    """Return the arms, the baseline first; each candidate's name is the one it was given, or method and k.

    Raises:
        InvalidSetup: a name is taken, a URL is none, or the engine refuses the arguments.
    """
    if spec.target is None:
        return _running_arms(spec)
    setup = _read_serve_args(spec)
    candidates = spec.candidates or DEFAULT_CANDIDATES
    if spec.draft_lengths:
        candidates = tuple(each.at_length(k) for each in candidates for k in spec.draft_lengths)
    names = _name_all(candidates)
    baseline = Arm(name=BASELINE, setup=replace(setup, spec=None))
    arms = (replace(baseline, name=name) for name in names)
    return (baseline, *(arm.with_spec(each.spec) for arm, each in zip(arms, candidates, strict=True)))


def _running_arms(spec: MeasurementSpec) -> tuple[Arm, ...]:
    """Return the arms of servers that run already; of their setups is known what the operator tells."""
    candidates = spec.candidates or (Candidate(),) * len(spec.candidate_urls)
    names, configs = [BASELINE, *_name_all(candidates)], [None, *(each.spec for each in candidates)]
    urls = [spec.url or "", *(spec.candidate_urls or [spec.url or ""] * len(candidates))]
    for name, url in zip(names, urls, strict=True):
        check_url(url, where="--url" if name == BASELINE else "--candidate-url")
    arms = [
        Arm(name=name, setup=_told_setup(name, spec.notes), url=url).with_spec(config)
        for name, config, url in zip(names, configs, urls, strict=True)
    ]
    pages = spec.metrics_urls
    if spec.launch.switch is not None and len(pages) == 1:
        pages *= len(arms)  # the one server's
    return with_access(arms, spec.headers, pages)


def _told_setup(arm: str, notes: Mapping[str, str]) -> Setup:
    """Return the setup of the command that the operator says a server was started with."""
    with suppress(InvalidSetup):
        return read_setups(notes.get(f"command.{arm}", ""))[0].setup
    return Setup(target=notes.get("model", ""), engine="")


def _name_all(candidates: Sequence[Candidate]) -> list[str]:
    names = [BASELINE]
    for each in candidates:
        base = each.name or (each.spec.label if each.spec is not None else f"candidate {len(names)}")
        if each.name in names:
            raise InvalidSetup.because(
                "duplicate-name",
                f"{each.name!r} is taken.",
                where="--candidate",
                fix="Give every candidate its own name.",
            )
        numbered = chain([base], (f"{base} #{number}" for number in count(2)))
        names.append(next(name for name in numbered if name not in names))
    return names[1:]


def _read_serve_args(spec: MeasurementSpec) -> Setup:
    """Return the setup of the baseline.

    Raises:
        InvalidSetup: a release whose flags are known refuses the arguments, or draftwise decides one of them.
    """
    check_arguments(spec.serve_args)
    target, engine = spec.target or "", spec.engine
    version = __version__ if engine == "draftwise" else find_version(split_command(spec.launch.vllm)) or ""
    covered = engine == "vllm" and is_covered(version)
    # The embedded engine has vLLM's names; of other releases the newest one's table says most.
    reading = read_words(["vllm", "serve", target, *spec.serve_args], engine_version=version if covered else None)
    if covered and (errors := [each for each in reading.findings if each.severity is Severity.ERROR]):
        raise InvalidSetup(errors)
    if engine == "draftwise" and any(finding.code in _READ_OTHERWISE for finding in reading.findings):
        return Setup(target=target, engine_version=version, extra_args=spec.serve_args)
    return replace(reading.setup, target=target, engine=engine, engine_version=version)


def is_covered(version: str) -> bool:
    """Return whether the catalogue holds just this release of vLLM, whatever it was built for."""
    try:
        get_release(version)
    except InvalidSetup:
        return False
    return True
