"""Plans a run from the requested measurement: arms, workloads and loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from draftwise.backends.address import check_url
from draftwise.backends.vllm_server import check_arguments, find_version, split_command
from draftwise.core import Arm, Finding, InvalidSetup, Progress, Replay, RunPlan, Setup, Severity, Workload
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.spec_keys import find_remembering
from draftwise.knowledge.vllm import get_release
from draftwise.measure.access import with_access
from draftwise.measure.measurement_spec import DEFAULT_CANDIDATES, Candidate, MeasurementSpec
from draftwise.setups.read import read_setups, read_words
from draftwise.version import __version__
from draftwise.workloads import check_workloads, draw, find_tokens, list_texts, load_workloads, profile_workload


def make_plan(spec: MeasurementSpec, progress: Progress) -> RunPlan:
    """Return the plan of a new run.

    Args:
        spec: the measurement that was asked for.
        progress: receives what was chosen, one line per workload, and what weakens the plan.

    Raises:
        InvalidSetup: options contradict each other, name something that does not exist, or cannot give a verdict.
    """
    if conflict := spec.find_conflict():
        raise InvalidSetup.because("options-conflict", conflict, where="decide")
    if spec.target is not None and not spec.candidates:
        texts = (each.spec.to_json() for each in DEFAULT_CANDIDATES if each.spec is not None)
        text = " ".join(("No --candidate given. Measuring those that need only the target:", *texts))
        progress.notice(Finding.info("measurement-planned", text))
    workloads = _load_all(spec)
    arms = make_arms(spec)
    plan = RunPlan(
        arms=arms,
        workloads=workloads,
        remembering=find_remembering(arms),
        conditions=spec.conditions,
        repeats=spec.repeats,
        minutes=spec.planned_minutes,
        warmup=spec.warmup,
        seed=spec.seed,
        turn_s=spec.turn_s,
        adaptive=spec.adaptive,
        one_at_a_time=spec.one_at_a_time or spec.launch.switch is not None,
    )
    for finding in _check_prompts(plan):
        progress.notice(finding)
    for line in _profile(workloads, spec.target):
        progress.notice(Finding.info("measurement-planned", line))
    return plan


def _load_all(spec: MeasurementSpec) -> tuple[Workload, ...]:
    tokenizer = None if spec.target is None else Path(spec.target)
    replays = any(isinstance(condition.load, Replay) for condition in spec.conditions)
    loaded = (
        workload
        for text in spec.workloads
        for workload in load_workloads(
            text, max_tokens=spec.max_tokens, tokenizer=tokenizer, keeps_times=replays, seed=spec.seed
        )
    )
    workloads = tuple(
        replace(each, prompts=draw(each.prompts, spec.seed, each.name)).first(spec.prompts).without_answers()
        for each in loaded
    )
    names = [workload.name for workload in workloads]
    if len(set(names)) < len(names):
        raise refusal("duplicate-workload", names=", ".join(names))
    return workloads


def _check_prompts(plan: RunPlan) -> list[Finding]:
    """Return what weakens a conclusion from the prompts; refuse those that cannot carry one."""
    replays = any(isinstance(condition.load, Replay) for condition in plan.conditions)
    measured = any(arm.name not in plan.synthetic for arm in plan.arms[1:])
    findings = check_workloads(plan.workloads, measures_acceptance=measured, needs_arrivals=replays)
    if faults := [finding for finding in findings if finding.severity is Severity.ERROR]:
        raise InvalidSetup(faults)
    return list(findings)


def _profile(workloads: tuple[Workload, ...], target: str | None) -> Iterator[str]:
    """Yield a line on each workload that is not the package's own."""
    if own := [workload for workload in workloads if workload.source != "bundled"]:
        chars = sum(len(text) for workload in own for prompt in workload.prompts for text in list_texts(prompt))
        tokens = find_tokens(None, hint=None if target is None or chars > _MOST_COUNTED else Path(target))
        yield from (f"{workload.name}: {profile_workload(workload, tokens)}" for workload in own)


_MOST_COUNTED = 10_000_000
"""Characters of all workloads whose tokens are counted, in about 15 s; of more they are estimated."""
_BASELINE = "plain"
"""Name of the arm without speculation, on disk and in reports."""

_READ_OTHERWISE = frozenset({"flag-given-twice", "abbreviated-flag"})
"""Findings on words that `draftwise serve` reads otherwise than vLLM: repeated flags add up, none is abbreviated."""


def make_arms(spec: MeasurementSpec) -> tuple[Arm, ...]:
    """Return the arms, the baseline first. A candidate without a name is named by method and k.

    Raises:
        InvalidSetup: a name is taken, a URL is invalid, or the engine rejects the arguments.
    """
    if spec.target is None:
        return _running_arms(spec)
    setup = _with_places(_read_serve_args(spec), spec)
    candidates = spec.candidates or DEFAULT_CANDIDATES
    if spec.draft_lengths:
        candidates = tuple(each.at_length(k) for each in candidates for k in spec.draft_lengths)
    names = _name_all(candidates)
    baseline = Arm(name=_BASELINE, setup=replace(setup, spec=None))
    arms = (replace(baseline, name=name) for name in names)
    return (baseline, *(arm.with_spec(each.spec) for arm, each in zip(arms, candidates, strict=True)))


def _running_arms(spec: MeasurementSpec) -> tuple[Arm, ...]:
    """Return the arms of servers that run already; of their setups is known what the operator tells."""
    candidates = spec.candidates or (Candidate(),) * len(spec.candidate_urls)
    names, configs = [_BASELINE, *_name_all(candidates)], [None, *(each.spec for each in candidates)]
    urls = [spec.url or "", *(spec.candidate_urls or [spec.url or ""] * len(candidates))]
    for name, url in zip(names, urls, strict=True):
        check_url(url, where="--url" if name == _BASELINE else "--candidate-url")
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
    names = [_BASELINE]
    for each in candidates:
        base = each.name or (each.spec.label if each.spec is not None else f"candidate {len(names)}")
        if each.name in names:
            raise refusal("duplicate-name", name=each.name)
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


_PLACES = 16
"""Sequences that an embedded server decodes together on every device (`engine_config.Limits`)."""


def _with_places(setup: Setup, spec: MeasurementSpec) -> Setup:
    """Return an embedded server's setup with a place for each request of the largest load, unless places are given."""
    most = max((each.concurrency or 0 for each in spec.conditions), default=0)
    given = any(word.partition("=")[0].replace("_", "-") == "--max-num-seqs" for word in spec.serve_args)
    if spec.engine == "vllm" or given or most <= _PLACES:
        return setup
    return replace(setup, args={**setup.args, "max_num_seqs": most})


def is_covered(version: str) -> bool:
    """Return whether the catalog holds exactly this vLLM release, for any platform."""
    try:
        get_release(version)
    except InvalidSetup:
        return False
    return True
