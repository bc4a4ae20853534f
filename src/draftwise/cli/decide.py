"""`draftwise decide`: measure whether speculation pays, and say so."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from draftwise.backends.url import check_url
from draftwise.cli._console import open_console
from draftwise.cli._decision import ConsoleProgress, estimate, show_decision
from draftwise.cli._loads import Finite, conditions, load_options, spread_lengths
from draftwise.core import Arm, BackendError, InvalidSetup, Replay, RunPlan, Severity, StorageError
from draftwise.measure.device_state import DeviceWatch
from draftwise.measure.launch import (
    DEFAULT_CANDIDATES,
    PLAIN,
    Candidate,
    Wish,
    build_backends,
    build_context,
    name_arms,
    parse_candidate,
)
from draftwise.measure.load.loop import precise_loop
from draftwise.measure.session import Session
from draftwise.measure.warm_up import Pace
from draftwise.report.page import write_report
from draftwise.runs import RunDirectory
from draftwise.workloads import BUNDLED, check_workloads, find_tokens, load_workloads, profile_workload

__all__ = ["decide"]

_INTERRUPTED = 130


@click.command()
@click.argument("target", required=False)
@click.option(
    "--candidate", "candidates", multiple=True, metavar="[NAME=]JSON", help="A speculative config; repeat for more."
)
@click.option("--workload", "workloads", multiple=True, metavar="SOURCE",
              help="code, prose, rewrite, a log or trace, synthetic:...; see docs/measuring.md.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory  [default: runs/TIME]")
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Go on with an unfinished run.")
@click.option("--prompts", type=click.IntRange(1), metavar="N", help="Per workload; overrides --minutes.")
@click.option("--minutes", type=Finite(0, min_open=True), default=10, show_default=True,
              help="As many prompts as fit in about this time; after it, no load is added to the sweep.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Passes over the prompts.")
@click.option("--warmup", type=click.IntRange(1), default=3, show_default=True, help="Discarded requests per arm.")
@click.option("--seed", type=int, default=0, show_default=True)
@load_options
@click.option("--adaptive/--no-adaptive", default=True, show_default=True,
              help="Leave out what is settled, and search where speculation stops paying.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Cap on every prompt's own.")
@click.option("--url", metavar="URL", help="The plain server, if it runs already (instead of TARGET).")
@click.option("--candidate-url", "candidate_urls", multiple=True, metavar="URL", help="A speculating server.")
@click.option("--api-key-env", metavar="NAME", help="Variable that holds the key of the URLs.")
@click.option("--context", "notes", multiple=True, metavar="KEY=VALUE",
              help="What cannot be seen from here: hardware, precision, model, command.ARM.")  # fmt: skip
@click.option("--engine", type=click.Choice(["draftwise", "vllm"]), default="draftwise", show_default=True,
              help="What serves TARGET.")  # fmt: skip
@click.option("--vllm", default="vllm", show_default=True, metavar="COMMAND",
              help="What starts vLLM: a path, `python -m vllm...`, `docker run ...`.")  # fmt: skip
@click.option("--gpus", metavar="ID[,ID...]", help="GPUs for vLLM's servers  [default: all]")
@click.option("--serve-args", default="", metavar="ARGS", help="For the engine's `serve`, e.g. '--dtype float32'.")
@click.option("--processes", type=click.IntRange(1), metavar="N",
              help="Of the load generator  [default: as many as the load needs]")  # fmt: skip
@click.option("--margin", type=Finite(0, 1, max_open=True), help="Smallest change worth making  [default: 0.03]")
@click.option("--slo-ttft-ms", type=Finite(0, min_open=True), help="Promised time to first token, for goodput.")
@click.option("--slo-tpot-ms", type=Finite(0, min_open=True), help="Promised time per output token, for goodput.")
@click.option("--slo-e2e-ms", type=Finite(0, min_open=True), help="Promised time to the last token, for goodput.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.pass_context
def decide(ctx: click.Context, /, resume: Path | None, api_key_env: str | None, as_json: bool, **asked: Any) -> None:
    """Measure whether speculation pays for TARGET, the directory of a checkpoint, and say so.

    Serves TARGET plainly and once per candidate, sends the same prompts to all of them in turns, and writes a
    report. With --url and --candidate-url it compares servers that run already.
    """
    console = open_console(stderr=True)
    if resume is not None:
        _refuse_others(ctx)
        directory = RunDirectory(resume)
        run = directory.read()
        plan, wish, budget_s = run.plan, Wish.of_run(run.context), None
    else:
        plan, wish = _plan(asked, console), _wish(asked)
        budget_s = None if asked["prompts"] else 60 * asked["minutes"]
    context, key = build_context(plan.arms, wish), _api_key(api_key_env)
    if resume is None:
        directory = RunDirectory.claim(asked["out"] or Path("runs", datetime.now().strftime("%Y%m%d-%H%M%S")))
    with ConsoleProgress(console) as progress, console.status("starting the servers") as status:

        def wait(line: str) -> None:
            progress.doing = line
            status.update(line[:100])

        backends = build_backends(plan.arms, wish, directory, api_key=key, on_wait=wait)

        def announce(final: RunPlan, pace: Pace, seconds: float) -> None:
            status.stop()
            console.print(estimate(final, pace, seconds), soft_wrap=True)

        session = Session(
            plan=plan,
            backends=backends,
            directory=directory,
            context=context,
            progress=progress,
            read_device=DeviceWatch(gpus=all(arm.is_here for arm in plan.arms)).read,
            announce=announce,
            processes=asked["processes"],
            resume=resume is not None,
            budget_s=budget_s,
            search_s=60 * asked["minutes"],
        )
        failure = _measure(session, progress)
    _finish(directory, as_json=as_json, failure=failure)


def _refuse_others(ctx: click.Context) -> None:
    """Refuse options that would change a run that is under way."""
    given = [each for each in ctx.command.params if _is_given(ctx, each)]
    stay = {"resume", "api_key_env", "processes", "as_json"}
    if others := sorted(
        each.opts[0] if each.opts[0].startswith("-") else "TARGET" for each in given if each.name not in stay
    ):
        raise click.UsageError(f"--resume goes on with the run as it was planned; leave out {', '.join(others)}.")


def _is_given(ctx: click.Context, param: click.Parameter) -> bool:
    return param.name is not None and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE


def _measure(session: Session, progress: ConsoleProgress) -> BaseException | None:
    """Run a session; return what ended it early."""

    async def run() -> None:
        # SIGTERM takes the way that Ctrl-C takes: the servers go down, the readings stay.
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        reminder = asyncio.create_task(progress.remind())
        try:
            await session.run()
        finally:
            reminder.cancel()

    try:
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            runner.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError, BackendError, StorageError) as error:
        return error
    return None


def _finish(directory: RunDirectory, *, as_json: bool, failure: BaseException | None = None) -> None:
    """Report on what a directory holds, then end as `failure` or the findings demand."""
    if not (directory.path / "manifest.json").exists():
        directory.leave()
        if isinstance(failure, BackendError | StorageError):
            raise failure
        click.echo("interrupted before anything was measured", err=True)
        raise SystemExit(_INTERRUPTED)
    decision, summary = write_report(directory)
    show_decision(open_console(stderr=as_json), decision)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    click.echo(f"\nReport: {directory.path / 'report.html'}", err=True)
    if failure is not None:
        click.echo(f"Unfinished: everything measured is kept. Go on with: draftwise decide --resume {directory.path}",
                   err=True)  # fmt: skip
        if isinstance(failure, BackendError | StorageError):
            raise failure
        raise SystemExit(_INTERRUPTED)
    raise SystemExit(1 if decision.has_error else 0)


def _plan(asked: dict[str, Any], console: Console) -> RunPlan:
    tokenizer = None if asked["target"] is None else Path(asked["target"])
    workloads = [
        workload.first(asked["prompts"])
        for text in asked["workloads"] or BUNDLED
        for workload in load_workloads(text, max_tokens=asked["max_tokens"], tokenizer=tokenizer)
    ]
    names = [workload.name for workload in workloads]
    if len(set(names)) < len(names):
        raise InvalidSetup.because("duplicate-workload", f"names repeat: {', '.join(names)}.", where="--workload")
    settings = {name: asked[name] for name in ("repeats", "warmup", "seed", "adaptive")}
    plan = RunPlan(
        arms=tuple(_arms(asked, console)),
        workloads=tuple(workloads),
        conditions=conditions(asked),
        turn_s=asked["turn_seconds"],
        **settings,
    )
    _check_workloads(plan, console)
    for workload in workloads:
        if workload.source != "bundled":
            profile = profile_workload(workload, find_tokens(None, hint=tokenizer))
            console.print(f"{workload.name}: {profile}", soft_wrap=True, markup=False, highlight=False)
    return plan


def _check_workloads(plan: RunPlan, console: Console) -> None:
    """Refuse prompts that cannot carry the conclusion, and warn of those that weaken it."""
    drawn = [arm.draws_acceptance for arm in plan.arms[1:]]
    replays = any(isinstance(condition.load, Replay) for condition in plan.conditions)
    findings = check_workloads(plan.workloads, measures_acceptance=not all(drawn), needs_arrivals=replays)
    if faults := [finding for finding in findings if finding.severity is Severity.ERROR]:
        raise InvalidSetup(faults)
    for finding in findings:
        console.print(f"{finding.severity}: {finding}", soft_wrap=True, markup=False)


def _arms(asked: dict[str, Any], console: Console) -> list[Arm]:
    """Return the plain arm and the candidates' ones."""
    url, urls = asked["url"], asked["candidate_urls"]
    if (asked["target"] is None) == (url is None):
        raise click.UsageError("Give either TARGET or --url with --candidate-url.")
    if url is not None:
        if not urls:
            raise click.UsageError("--url needs at least one --candidate-url to compare with.")
        if len(asked["candidates"]) not in (0, len(urls)):
            raise click.UsageError("Give one --candidate per --candidate-url, in the same order, or none.")
        given: list[Candidate] = [parse_candidate(text) for text in asked["candidates"]]
        if asked["lengths"]:
            raise click.UsageError("--k is for servers that draftwise starts; those at --candidate-url have theirs.")
        given = given or [(None, None)] * len(urls)
        for option, each in (("--url", url), *(("--candidate-url", each) for each in urls)):
            check_url(each, where=option)
        return [Arm(name=PLAIN, url=url), *name_arms(given, urls)]
    if urls:
        raise click.UsageError("--candidate-url goes with --url; with TARGET, give --candidate.")
    texts: Sequence[str] = asked["candidates"] or DEFAULT_CANDIDATES
    if not asked["candidates"]:
        console.print("No --candidate given; taking those that need nothing but the target:", *texts, soft_wrap=True)
    spread = spread_lengths([parse_candidate(text) for text in texts], asked["lengths"])
    return [Arm(name=PLAIN), *name_arms(spread, [None] * len(spread))]


def _wish(asked: dict[str, Any]) -> Wish:
    notes = {}
    for note in asked["notes"]:
        key, separator, value = note.partition("=")
        if not separator:
            raise click.UsageError(f"--context takes KEY=VALUE, got {note!r}.")
        notes[key.strip()] = value.strip()
    thresholds = {
        "margin": asked["margin"],
        "slo_ttft_s": asked["slo_ttft_ms"] and asked["slo_ttft_ms"] / 1e3,
        "slo_tpot_s": asked["slo_tpot_ms"] and asked["slo_tpot_ms"] / 1e3,
        "slo_e2e_s": asked["slo_e2e_ms"] and asked["slo_e2e_ms"] / 1e3,
    }
    return Wish(
        target=asked["target"],
        engine=asked["engine"],
        vllm=asked["vllm"],
        gpus=None if asked["gpus"] is None else tuple(each for each in asked["gpus"].split(",") if each),
        serve_args=_split_arguments(asked["serve_args"]),
        notes=notes,
        thresholds={name: value for name, value in thresholds.items() if value is not None},
    )


def _split_arguments(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise click.UsageError(f"--serve-args {text!r} is no shell command line ({error}).") from None


def _api_key(variable: str | None) -> str | None:
    if variable is not None and not os.environ.get(variable):
        raise InvalidSetup.because("no-api-key", f"{variable} is not set.", where="--api-key-env")
    return None if variable is None else os.environ[variable]
