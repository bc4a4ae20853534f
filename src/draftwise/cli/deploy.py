"""`draftwise deploy`: the files that put a setup into production, and its twin without speculation to go back to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from draftwise.cli._setups import find_sources, nearest_option, open_release, setup_command
from draftwise.core import Baseline, Device, InvalidSetup, Setup, Severity
from draftwise.deploying import TARGETS, Mode, Platform, RunEvidence, make_order, read_layout
from draftwise.deploying import deploy as write_files
from draftwise.deploying.deployment_folder import Folder
from draftwise.deploying.order import Scale
from draftwise.deploying.proxies import ProxyKind, ProxyOptions
from draftwise.deploying.targets import name_targets
from draftwise.knowledge.gpus import get_gpu

if TYPE_CHECKING:
    from draftwise.core import Decision, Run

__all__ = ["deploy"]


@setup_command(short_help="Write the files that put a setup into production, and those that undo it.")
@click.option("--to", type=click.Choice(list(TARGETS)), help="The platform.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="A new folder.")
@click.option("--edit", "edited", type=click.Path(path_type=Path), metavar="FILE",
              help="Instead of --to and --out: a file whose server is to speculate as SOURCE does.")  # fmt: skip
@click.option("--write", "writes", is_flag=True, help="With --edit: change the file, after showing how.")
@click.option("--candidate", metavar="NAME", help="Of a run: which candidate  [default: the one that was adopted]")
@click.option("--vllm", "version", metavar="VERSION", help="Release to run  [default: the source's]")
@nearest_option
@click.option("--name", default="", metavar="NAME", help="Of the service  [default: after the model]")
@click.option("--owner", default="", metavar="NAME", help="Who answers for it, for the memo and the objects.")
@click.option("--image", default="", metavar="IMAGE", help="[default: vllm/vllm-openai of the release]")
@click.option("--gpu", metavar="NAME", help="Such as H200  [default: the source's]")
@click.option("--cold-start-s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="What a start from nothing was seen to take; 1.5 times that is allowed for.")  # fmt: skip
@click.option("--start-log", type=click.Path(path_type=Path), metavar="FILE",
              help="Instead: what vLLM logged in such a start, until it answered.")  # fmt: skip
@click.option(
    "--kserve", "kserve_release", default="", metavar="VERSION", help="Release of KServe  [default: the newest known]"
)
@click.option("--mode", default="Standard", show_default=True, type=click.Choice(get_args(Mode), case_sensitive=False),
              help="As what KServe deploys the service.")  # fmt: skip
@click.option("--layout", metavar="LAYOUT", help="Of the weights on KServe: one, storage-uris, modelcar:IMAGE, "
              "pvc:CLAIM or mixed:CLAIM  [default: by what is loaded]")  # fmt: skip
@click.option(
    "--service-account", default="", metavar="NAME", help="On KServe, whose secrets open the places of the weights."
)
@click.option("--max-replicas", type=click.IntRange(min=2), metavar="N",
              help="Write what scales both twins up to N replicas, by requests in flight (KEDA, Knative).")  # fmt: skip
@click.option("--requests-per-replica", type=click.IntRange(min=1), metavar="N",
              help="In flight, for which there is one  [default: as far as the run saw that it pays]")  # fmt: skip
@click.option("--observe/--no-observe", default=True, show_default=True,
              help="Write what watches it: rules, alerts, a dashboard, the analysis of a canary.")  # fmt: skip
@click.option("--metrics-prefix", default="", metavar="PREFIX",
              help="How its metrics' names begin  [default: vllm:, or as on the platform]")  # fmt: skip
@click.option("--verifier", default="", metavar="IMAGE",
              help="With draftwise in it: the analysis of a canary runs `draftwise verify` there.")  # fmt: skip
@click.option("--proxy", "kind", type=click.Choice(get_args(ProxyKind)),
              help="Write a proxy in front of both twins, which keeps from each what it must not get.")  # fmt: skip
@click.option("--share", type=click.IntRange(0, 100), default=10, show_default=True, metavar="PERCENT",
              help="Of the proxy's requests, for the pool that speculates.")  # fmt: skip
@click.option("--spec-address", default="", metavar="HOST:PORT", help="Where the proxy reaches that pool.")
@click.option("--plain-address", default="", metavar="HOST:PORT", help="And its twin  [default: the platform's names]")
@click.option("--probe", "canary", metavar="URL",
              help="A server of this setup that runs: its answers to a few prompts go into baseline.json.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
              help="Sent to that URL; ${VARIABLE} is replaced.")  # fmt: skip
@click.option("--api-key-env", "key_variables", multiple=True, metavar="NAME",
              help="Variable that holds the key of that URL.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def deploy(
    sources: Sequence[str],
    target: str | None,
    spec: str | None,
    env_files: Sequence[Path],
    engine_flags: Sequence[str],
    skip: bool,  # noqa: ARG001  (of the verbs that judge many files)
    to: str | None,
    out: Path | None,
    edited: Path | None,
    writes: bool,
    candidate: str | None,
    version: str | None,
    nearest: bool,
    name: str,
    owner: str,
    image: str,
    gpu: str | None,
    cold_start_s: float | None,
    start_log: Path | None,
    kserve_release: str,
    mode: Mode,
    layout: str | None,
    service_account: str,
    max_replicas: int | None,
    requests_per_replica: int | None,
    observe: bool,
    metrics_prefix: str,
    verifier: str,
    kind: ProxyKind | None,
    share: int,
    spec_address: str,
    plain_address: str,
    canary: str | None,
    as_json: bool,
    **access: Any,
) -> None:
    """Write the files that serve SOURCE on a platform, and its twin without speculation.

    SOURCE is the directory of a run of `draftwise decide`, whose adopted candidate is deployed, or a setup as `check`
    reads it: a model, a manifest, a command line. What vLLM would refuse is not written. Nothing is applied: MEMO.md in
    the folder has the commands.

    \b
    Examples:
      draftwise deploy decide-runs/2026-11-22 --to kserve --kserve 0.20 --layout pvc:models --out deploy/
      draftwise deploy decide-runs/2026-11-22 --to kubernetes --out deploy/ --vllm 0.26.0
      draftwise deploy meta-llama/Llama-3.1-8B-Instruct --vllm 0.26.0 --gpu H200 --to compose --out deploy/ \\
          -sc '{"method": "ngram", "num_speculative_tokens": 5}'
      draftwise deploy decide-runs/2026-11-22 --edit my-deployment.yaml --write
    """
    if version is not None:
        version = str(open_release(version, nearest=nearest))
    if len(sources) == 1 and (Path(sources[0]) / "manifest.json").is_file():
        if spec is not None or engine_flags or env_files:
            raise click.UsageError("A run says what was measured: -sc, --env-file and flags behind -- go with a setup.")
        setup, evidence = _read_run(Path(sources[0]), candidate, version, target, gpu)
    else:
        setup = _with_gpu(_read_setup(sources, spec, engine_flags, target, version, env_files), gpu)
        evidence = RunEvidence()
    if edited is not None:
        if to is not None or out is not None:
            raise click.UsageError("--edit changes a file that is there; --to and --out write new ones.")
        _edit(edited, setup, version, gpu, writes=writes, as_json=as_json)
        return
    if to is None or out is None:
        raise click.UsageError("Name the platform and a new folder (--to, --out), or a file to change (--edit).")
    start_s = _find_start(cold_start_s, start_log)
    order = make_order(setup, name=name, image=image, cold_start_s=start_s, evidence=evidence)
    platform = Platform(
        release=kserve_release,
        mode=mode,
        service_account=service_account,
        layout=None if layout is None else read_layout(layout),
    )
    if not TARGETS[to].options and platform != Platform():
        taking = name_targets("options")
        raise click.UsageError(f"--kserve, --mode, --layout and --service-account go with --to {taking}.")
    platform = replace(platform, verifier=verifier, scale=_read_scale(max_replicas, requests_per_replica))
    prefix = metrics_prefix if observe else None
    proxy = None if kind is None else ProxyOptions(kind=kind, share=share, spec=spec_address, plain=plain_address)
    folder = write_files(replace(order, platform=platform, owner=owner), to, metrics_prefix=prefix, proxy=proxy)
    if canary is not None:
        folder = _add_probe(folder, setup, canary, access)
    folder.write(out)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "out": str(out),
                    "files": list(folder.files),
                    "limits": [each.to_dict() for each in folder.limits],
                    "not_measured": order.evidence.unmeasured,
                }
            )
        )
        return
    click.echo(f"Written: {out} ({', '.join(folder.files)})")
    for limit in folder.limits:
        click.echo(f"{limit.severity} {limit.code}: {limit}")
    for gap in order.evidence.unmeasured:
        click.echo(f"not measured: {gap}")


def _add_probe(folder: Folder, setup: Setup, url: str, access: Mapping[str, Any]) -> Folder:
    """Return the folder with what a server that runs the setup answers to the probe in its baseline."""
    import asyncio

    from draftwise.backends.probed import ProbedPair
    from draftwise.cli._access import read_headers
    from draftwise.cli._probing import ask_again, load_prompts
    from draftwise.deploying.deployment_folder import BASELINE
    from draftwise.deploying.verify.running_server import verify_server
    from draftwise.watching.fingerprint import record_baseline, take_answers

    headers = {each.name: each.value for each in read_headers(access)}
    repeats = asyncio.run(ask_again(url, load_prompts(None), headers))
    found = verify_server(setup, ProbedPair(server=repeats[0]), where=url)
    if errors := [each for each in found if each.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    known = Baseline.from_json(folder.files[BASELINE], where=BASELINE)
    baseline = record_baseline(None, list(map(take_answers, repeats)), known)
    return replace(folder, files={**folder.files, BASELINE: baseline.to_json()})


def _read_scale(most: int | None, per_replica: int | None) -> Scale | None:
    if most is None:
        if per_replica is not None:
            raise click.UsageError("--requests-per-replica says when to scale: give --max-replicas, too.")
        return None
    return Scale(most=most, per_replica=per_replica)


def _find_start(given_s: float | None, path: Path | None) -> float | None:
    """Return the seconds that a cold start takes: as given, or by the log of one; None where nobody says."""
    if path is None:
        return given_s
    if given_s is not None:
        raise click.UsageError("--cold-start-s and --start-log say the same: give one of them.")
    from draftwise.backends.vllm_log import find_start_s
    from draftwise.setups.read import find_texts

    (source,) = find_texts(path)
    seconds = find_start_s(source.text.splitlines())
    if not seconds:
        raise InvalidSetup.because(
            "start-not-told",
            f"{path} does not tell how long the start took: it lacks times, or the line that the server answers.",
            where="--start-log",
            fix="Give the log of vllm serve from its first line to `Application startup complete`, or --cold-start-s.",
        )
    return seconds


def _edit(path: Path, setup: Setup, version: str | None, gpu: str | None, *, writes: bool, as_json: bool) -> None:
    """Show how a file changes so that its server speculates as a setup does, and change it on request."""
    from draftwise.deploying.deployment_folder import replace_text
    from draftwise.deploying.edit import edit_as
    from draftwise.setups.read import find_texts

    (source,) = find_texts(path)
    wanted = setup if version is None else replace(setup, engine_version=version)
    changed = edit_as(source, _with_gpu(wanted, gpu))
    if writes and changed.difference:
        replace_text(path, changed.text)
    if as_json:
        row = {"file": str(path), "difference": changed.difference, "written": writes and bool(changed.difference)}
        click.echo(json.dumps(row | {"findings": [each.to_dict() for each in changed.findings]}))
        return
    click.echo(changed.difference or f"{path} starts that already.", nl=not changed.difference)
    for finding in changed.findings:
        click.echo(f"{finding.severity} {finding.code}: {finding}")
    if changed.difference:
        click.echo(f"Written: {path}" if writes else "Nothing is written yet: --write does it.")


def _read_setup(
    sources: Sequence[str],
    spec: str | None,
    engine_flags: Sequence[str],
    target: str | None,
    version: str | None,
    env_files: Sequence[Path],
) -> Setup:
    found = find_sources(sources, spec, engine_flags, target=target, env_files=env_files).read(version)
    if len(found.unread) == 1 and not found.readings:
        raise InvalidSetup(found.unread[0][1].findings)
    if len(found.readings) != 1:
        raise InvalidSetup.because(
            "several-servers",
            f"The source starts {len(found.readings)} servers, and one is deployed at a time.",
            fix="Give the file or the command line of one server.",
        )
    return found.readings[0].require()


def _read_run(
    path: Path, candidate: str | None, version: str | None, target: str | None, gpu: str | None
) -> tuple[Setup, RunEvidence]:
    """Return what a run adopted, with what it found."""
    from draftwise.deciding.comparison.step_times import trace_step_times
    from draftwise.deciding.conclusions import conclude_run
    from draftwise.deploying.observe.promise import find_expected
    from draftwise.reporting.sentences import describe_decision
    from draftwise.runs import RunDirectory

    found = conclude_run(RunDirectory(path).read())
    decision = found.decision
    name = candidate or _find_adopted(decision, path)
    arm = next((arm for arm in found.run.plan.arms if arm.name == name and arm.name != decision.baseline), None)
    if arm is None:
        names = ", ".join(each.name for each in found.run.plan.arms if each.name != decision.baseline)
        raise InvalidSetup.because(
            "no-such-candidate", f"The run has no candidate {name!r}.", where="--candidate", fix=f"It has {names}."
        )
    version, target = version or arm.setup.engine_version, target or arm.setup.target
    setup = _with_gpu(replace(arm.setup, engine="vllm", engine_version=version, target=target), gpu)
    rules = tuple(rule for rule in decision.rollback if rule.arm == name)
    evidence = RunEvidence(
        run=path.resolve().name,
        headline=describe_decision(decision),
        rollback=rules,
        wanted_gain=found.thresholds.margin,
        not_adopted=tuple(_list_not_adopted(decision, name)),
        speed_ups=_find_speed_ups(decision, name),
        arm=name,
        plain_arm=decision.baseline,
        expected=find_expected(decision, name),
        curve_ms=trace_step_times(found.run),
        unmeasured=tuple(_list_gaps(found.run, adopted=bool(rules))),
    )
    return setup, evidence.carry_over(arm.setup, setup, hardware=decision.scope.hardware)


def _find_speed_ups(decision: Decision, candidate: str) -> dict[str, float]:
    """Return what was measured of each workload alone, under its heaviest load."""
    from draftwise.core.comparison import ALL

    found = [each for each in decision.comparisons if each.candidate == candidate and each.workload != ALL]
    found.sort(key=lambda each: each.condition.place or ("", 0.0))
    return {each.workload: each.speedup.value for each in found if each.condition.temperature == 0}


def _list_not_adopted(decision: Decision, candidate: str) -> Iterator[str]:
    """Yield where the run does not say that a candidate pays."""
    from draftwise.core import Verdict
    from draftwise.core.comparison import ALL
    from draftwise.reporting.units import describe_load

    for each in decision.comparisons:
        if each.candidate == candidate and each.workload != ALL and each.verdict is not Verdict.ADOPT:
            at = f" at temperature {each.condition.temperature:g}" if each.condition.temperature else ""
            yield (
                f"Traffic like {each.workload}{at}, {describe_load(each.condition)}: the run says {each.verdict} "
                f"({each.speedup.value:.2f}x)."
            )


def _find_adopted(decision: Decision, path: Path) -> str:
    names = {each.candidate for found in decision.recommendations for each in found.adopted}
    if len(names) == 1:
        return names.pop()
    text = f"adopted {len(names)} candidates ({', '.join(sorted(names))})" if names else "adopted no candidate"
    raise InvalidSetup.because(
        "nothing-to-deploy",
        f"The run {path} {text}.",
        where=str(path),
        fix="Name the one to deploy with --candidate; the files say what was measured of it.",
    )


def _list_gaps(run: Run, *, adopted: bool) -> list[str]:
    gaps = [] if adopted else ["That it pays: the run did not adopt it."]
    if any(arm.url for arm in run.plan.arms):
        gaps.append("The flags of the servers behind the URLs that were measured, as far as they are not written here.")
    return gaps


def _with_gpu(setup: Setup, name: str | None) -> Setup:
    if name is None:
        return setup
    count = setup.device.count if setup.device is not None else 1
    gpu = get_gpu(name)
    return replace(setup, device=Device(name=gpu.name, kind="cuda", count=count, memory_bytes=gpu.memory_bytes))
