"""Compares a running server, or its start-up log, with the order: release, config, drafts, outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

from draftwise.backends.backend import ProbedPair, ServerProbe
from draftwise.backends.vllm_log import StartupLog, find_root_cause
from draftwise.core import Divergence, Finding, Setup, Severity
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.validity.output_checks import is_tie
from draftwise.knowledge.messages import fault, note, warning
from draftwise.knowledge.methods import find_method
from draftwise.plan.check import check
from draftwise.setups.read import SourceText
from draftwise.statistics import find_rounding_scale


def _compare_release(setup: Setup, told: str | None, where: str) -> Iterator[Finding]:
    """Yield that another release runs than was ordered. A build's own suffix (`+cu129`) does not count."""
    if told is None:
        yield warning("not-told", case="release", where=where)
    elif told.partition("+")[0] != setup.engine_version:
        yield fault("runs-otherwise", case="release", told=told, version=setup.engine_version, where=where)


def _compare_resolved(
    setup: Setup, told: Mapping[str, Any] | None, where: str, *, fix: str, severity: Severity = Severity.INFO
) -> Iterator[Finding]:
    """Yield each key of the speculative config that a server resolved to something else."""
    if told is None:
        text = "Cannot tell how the speculative config resolved."
        yield Finding(code="not-told", severity=severity, message=text, where=where, fix=fix)
        return
    resolved = check(setup).resolved
    if bool(told) != (resolved is not None):
        if told:
            text = "The server was started with speculation, but the order is a plain server."
        else:
            text = "The server was started without speculation, but the order speculates."
        yield Finding.error("runs-otherwise", text, where=where)
    elif resolved is not None and setup.spec is not None:
        wanted = {
            "method": resolved.method,
            "num_speculative_tokens": resolved.num_speculative_tokens,
            "model": setup.spec.model,
        }
        for key, value in wanted.items():
            if value is not None and key in told and told[key] != value:
                text = f"The server resolved {key} to {told[key]!r}, but the order has {value!r}."
                yield Finding.error("runs-otherwise", text, where=where)


def verify_log(source: SourceText, setup: Setup) -> Iterator[Finding]:
    """Yield each difference that a log shows, why the start failed, and what the log does not show."""
    lines, log = source.text.splitlines(), StartupLog(0.0)
    log.take(lines, 0.0)
    yield from _compare_release(setup, log.values.get("engine_version"), source.name)
    told = log.values.get("speculative_config")
    fix = "Pass the log from its first line on."
    yield from _compare_resolved(setup, told, source.name, fix=fix, severity=Severity.ERROR)
    if (cause := find_root_cause(lines)) is not None:
        yield fault("start-failed", cause=cause, name=source.name)
    elif not log.is_ready:
        yield fault("not-told", case="ready", name=source.name)


_SPREAD = 0.16
"""Standard deviation over prompts of the relative change of tokens per step, after something changed: measured with the
bundled prompts and an EAGLE-3 head whose weights were disturbed."""
_SURE = 3.0
"""Standard errors (p = 0.001, one-sided) below the expected value that are a finding."""
_HARDLY = 1.05
"""Acceptance length under which drafts of a trained drafter hardly ever stand: no such drafter fits its target."""
_FEWEST_DRAFTS = 50
"""Minimum number of drafts whose mean is judged."""


def verify_server(setup: Setup, probed: ProbedPair, *, where: str, expected: float | None = None) -> Iterator[Finding]:
    """Yield each difference, what was seen, and what could not be seen.

    Args:
        setup: the ordered setup.
        probed: results of probing the servers.
        where: address of the server.
        expected: earlier tokens per step of the same prompts.
    """
    server = probed.server
    yield from _compare_release(setup, _get_text(server, "version"), where)
    yield from _check_model(setup, server, where)
    told = server.info.version.get("speculative_config")
    yield from _compare_resolved(
        setup, told, where, fix="Give the start-up log with --log: servers report it only in development mode."
    )
    yield from _check_drafting(setup, server, where, is_told=told is not None)
    yield from _check_steps(server, where, expected)
    if probed.plain is not None:
        yield from _check_outputs(setup, probed, where)
        if setup.spec is not None:
            yield note("logprobs-drift", where=where)


def _get_text(server: ServerProbe, key: str) -> str | None:
    value = server.info.version.get(key)
    return value if isinstance(value, str) else None


def _check_model(setup: Setup, server: ServerProbe, where: str) -> Iterator[Finding]:
    named = setup.args.get("served_model_name", setup.target)
    names = [named] if isinstance(named, str) else list(named)
    if server.info.model not in names:
        yield fault("runs-otherwise", case="model", model=server.info.model, name=names[0], where=where)
    wanted, found = setup.args.get("max_model_len"), server.info.max_model_len
    if isinstance(wanted, int) and wanted > 0 and found is not None and found != wanted:
        yield fault("runs-otherwise", case="context", found=found, wanted=wanted, where=where)


def _check_drafting(setup: Setup, server: ServerProbe, where: str, *, is_told: bool) -> Iterator[Finding]:
    stats = server.growth.spec
    if setup.spec is None:
        if stats.num_drafts or server.counts_drafts:
            text = "The server counts drafts, but the order is a plain server."
            yield Finding.error("runs-otherwise", text, where=where)
    elif server.growth.generation_tokens is None:
        text = "Cannot tell whether the server drafts: its /metrics is not readable."
        severity = Severity.WARNING if is_told else Severity.ERROR
        yield Finding(code="not-told", severity=severity, message=text, where=where)
    elif not stats.num_drafts:
        must = server.counts_drafts is False or _always_drafts(setup)
        text = f"The server counted no draft in {server.num_tokens} tokens."
        if must:
            yield Finding.error("drafts-missing", text, where=where)
        else:
            text = f"{text} Lookup drafts only where text repeats, so this is inconclusive."
            yield Finding.warning("drafts-missing", text, where=where)
    elif stats.num_drafts >= _FEWEST_DRAFTS and _always_drafts(setup) and (stats.acceptance_length or 0) < _HARDLY:
        text = (
            f"The target accepted {stats.num_accepted_tokens} of {stats.num_draft_tokens} draft tokens, as with a "
            "damaged drafter or one for another target."
        )
        yield Finding.error("drafter-does-not-fit", text, where=where)
    else:
        length = stats.acceptance_length or 1.0
        text = f"The server counted {stats.num_drafts} drafts, with {length:.2f} output tokens each."
        yield Finding.info("seen", text, where=where)


def _always_drafts(setup: Setup) -> bool:
    resolved = check(setup).resolved
    method = None if resolved is None else find_method(resolved.method)
    return method is not None and method.drafts_from not in ("none", "text")


def _check_steps(server: ServerProbe, where: str, expected: float | None) -> Iterator[Finding]:
    """Yield the tokens per step, held against those that were expected where nobody else was served meanwhile."""
    found, generated = server.growth.tokens_per_step, server.growth.generation_tokens
    severity = Severity.WARNING if expected is None else Severity.ERROR
    if found is None or generated is None:
        text = "Cannot tell how many tokens a step gives."
        yield Finding(code="not-told", severity=severity, message=text, where=where)
        return
    num_prompts = len(server.answers)
    if generated > server.num_tokens:
        others = generated - server.num_tokens
        text = f"Cannot tell the tokens per step of the probe: the counters include {others} tokens of other clients."
        yield Finding(code="not-told", severity=severity, message=text, where=where)
        return
    limit = None if expected is None else expected * (1 - _SURE * _SPREAD / sqrt(num_prompts))
    text = f"A step gave {found:.2f} tokens over {num_prompts} prompts"
    if limit is not None and found < limit:
        text = (
            f"{text}, but {expected:.2f} were expected. With that many prompts, chance does not explain the difference."
        )
        yield Finding.error("fewer-tokens-per-step", text, where=where)
    else:
        yield Finding.info("seen", f"{text}{'' if expected is None else f' ({expected:.2f} expected)'}.", where=where)


def _check_outputs(setup: Setup, probed: ProbedPair, where: str) -> Iterator[Finding]:
    """Yield whether the outputs are the plain server's. Parting at a tie within rounding is no difference."""
    rounding = Thresholds().rounding
    dtype = _get_text(probed.server, "dtype") or str(setup.args.get("dtype"))
    scale = find_rounding_scale([], *rounding.get(dtype, rounding["bfloat16"]))
    num_prompts, found = len(probed.server.answers), probed.divergences
    real = [each for each in found if not is_tie(each, scale)]
    if real:
        text = f"{len(real)} of {num_prompts} outputs differ from the plain server's: {_describe(real)}."
        fix = "Greedy speculation must not change the output. Check that both servers load the same weights."
        yield Finding.error("other-outputs", text, where=where, fix=fix)
    else:
        ties = f"; {len(found)} differ at ties within rounding" if found else ""
        text = f"{num_prompts} of {num_prompts} outputs match the plain server's{ties}."
        yield Finding.info("seen", text, where=where)


def _describe(real: Sequence[Divergence]) -> str:
    first = real[0]
    gap = "not examined" if first.gap is None else f"{first.gap:.2g} nats apart"
    return f"first {first.workload} {first.prompt_id} at output token {first.position} (the two tokens are {gap})"
