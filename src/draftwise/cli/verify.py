"""`draftwise verify`: whether files, or a server that runs, are what was decided and ordered."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from draftwise.cli._findings import Judged, fail_option, has_failed, shape_options, show_as
from draftwise.core import InvalidSetup, Setup, Severity
from draftwise.deploying.verify.manifest_files import find_ordered, read_setup, report_of, verify_folder, verify_text
from draftwise.plan.check import Report
from draftwise.setups.read import SourceText, find_texts, read_stdin

__all__ = ["verify"]


@click.command(short_help="Prove that files, or a server that runs, are what was decided.")
@click.argument("source", required=False)
@click.option("--setup", "setup_file", type=click.Path(path_type=Path), metavar="FILE",
              help="What was ordered  [default: setup.json in the folder of SOURCE]")  # fmt: skip
@click.option("--returned", metavar="FILE|-",
              help="What `kubectl apply --dry-run=server -o json` printed of SOURCE: what was dropped?")  # fmt: skip
@click.option("--against", metavar="URL", help="A server without speculation: are the outputs of SOURCE its own?")
@click.option("--expected", type=click.FloatRange(min=1), metavar="TOKENS",
              help="Tokens per step that this very probe saw before; fewer are an error.")  # fmt: skip
@click.option("--baseline", "baseline_file", type=click.Path(path_type=Path), metavar="FILE",
              help="With what it answered to this probe before: are engine and drafter the same?")  # fmt: skip
@click.option("--prompts", "num_prompts", type=click.IntRange(3, 60), default=24, show_default=True, metavar="N",
              help="Of the probe, 64 output tokens each, at temperature 0.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
              help="Sent to the URLs; ${VARIABLE} is replaced.")  # fmt: skip
@click.option("--api-key-env", "key_variables", multiple=True, metavar="NAME",
              help="Variable that holds the key of the URLs.")  # fmt: skip
@click.option("--log", "log_file", metavar="FILE|-", help="The start-up log of vLLM, instead of SOURCE or beside it.")
@click.option("--kubectl", "objects_file", metavar="FILE|-",
              help="What `kubectl get pod NAME -o yaml` printed of it: is it that, and ready?")  # fmt: skip
@click.option("--gpu", metavar="NAME", help="Such as H200, where SOURCE does not name it: does it fit?")
@shape_options
@fail_option
def verify(
    source: str | None,
    setup_file: Path | None,
    returned: str | None,
    gpu: str | None,
    log_file: str | None,
    objects_file: str | None,
    shape: str,
    as_json: bool,
    fail_on: str,
    **of_server: Any,
) -> None:
    """Say every difference between SOURCE and what was ordered.

    SOURCE is a folder that `draftwise deploy` wrote (its sums, both twins read back, judged and sized), or any manifest
    beside the setup that it is to start, or the URL of a server, which is asked a few prompts. What could not be seen
    is said to be unknown.

    The exit code is 0 if nothing of the severity --fail-on was found, 1 if something was, 2 if a source is not there or
    cannot be opened, and 3 if a server does not answer.

    \b
    Examples:
      draftwise verify deploy/
      draftwise verify my-manifest.yaml --setup deploy/setup.json --format sarif > verify.sarif
      draftwise verify http://llama-canary:8000 --setup deploy/setup.json --against http://llama-plain:8000
      draftwise verify http://llama:8000 --setup deploy/setup.json --baseline deploy/baseline.json
      kubectl logs deployment/llama | draftwise verify --log - --setup deploy/setup.json
      kubectl get pods -l app.kubernetes.io/name=llama -o yaml | draftwise verify --kubectl - --setup deploy/setup.json
      kubectl apply --dry-run=server -o json -f deploy/spec.yaml | draftwise verify deploy/spec.yaml --returned -
    """
    if source is None and log_file is None and objects_file is None:
        raise click.UsageError("Give a folder, a manifest, the URL of a server, --log or --kubectl.")
    judged: list[Judged] = []
    if source is not None and source.startswith(("http://", "https://")):
        judged.append(_probe(source, _get_setup(setup_file), of_server))
    elif source is not None:
        judged += _judge(source, setup_file, returned, gpu)
    if log_file is not None:
        judged.append(_read_log(log_file, _get_setup(setup_file)))
    commands: list[tuple[str, str]] = []
    if objects_file is not None:
        found, commands = _read_objects(objects_file, _get_setup(setup_file))
        judged += found
    show_as("json" if as_json else shape, judged)
    if shape == "table" and not as_json:
        for text, command in commands:
            click.echo(f"# {text}\n{command}")
    if has_failed(judged, fail_on):
        sys.exit(1)


def _judge(source: str, setup_file: Path | None, returned: str | None, gpu: str | None) -> Iterator[Judged]:
    if Path(source).is_dir():
        if returned is not None or setup_file is not None:
            raise click.UsageError("A folder has its own setup, and --returned goes with one file of it.")
        for where, report in verify_folder(Path(source), gpu=gpu):
            yield _say(where, report, "as it was written")
        return
    text = _open(source)
    setup = find_ordered(Path(source)) if setup_file is None else read_setup(setup_file)
    if setup is None and returned is None:
        raise click.UsageError(f"No setup.json lies beside {source}: name what was ordered with --setup.")
    if setup is not None:
        yield _say(text.name, verify_text(text, setup, gpu=gpu), "as it was ordered")
    if returned is not None:
        yield _say(text.name, _compare(text, returned), "came back whole")


def _get_setup(path: Path | None) -> Setup:
    if path is None:
        raise click.UsageError("Name what was ordered with --setup.")
    return read_setup(path)


def _probe(url: str, setup: Setup, given: Mapping[str, Any]) -> Judged:
    """Return what a server was seen to be and do."""
    import asyncio
    import secrets

    from draftwise.backends.url import UrlBackend
    from draftwise.cli._access import read_headers
    from draftwise.cli._baseline import read_baseline
    from draftwise.deploying.verify.running_server import verify_server
    from draftwise.measure.probe import load_probe, probe
    from draftwise.watching.fingerprint import judge_probe

    known = None if given["baseline_file"] is None else read_baseline(given["baseline_file"])
    if known is not None and not known.probe:
        raise click.UsageError(
            "--baseline has no probe: `draftwise deploy --probe` or `watch --record-baseline` adds it."
        )
    headers = {each.name: each.value for each in read_headers(given)}
    server = UrlBackend("server", url, headers=headers)
    plain = None if given["against"] is None else UrlBackend("plain", given["against"], headers=headers)
    probed = asyncio.run(probe(server, plain, load_probe(given["num_prompts"]), salt=secrets.token_hex(4)))
    findings = [*verify_server(setup, probed, where=url, expected=given["expected"])]
    if known is not None:
        findings.append(judge_probe(probed.server, known, where=url)[0])
    return _say(url, report_of(*findings, setup=setup), "as it was ordered, as far as it can be seen")


def _read_log(name: str, setup: Setup) -> Judged:
    from draftwise.deploying.verify.running_server import verify_log

    text = _open(name)
    return _say(text.name, report_of(*verify_log(text, setup), setup=setup), "started as it was ordered")


def _read_objects(name: str, setup: Setup) -> tuple[list[Judged], list[tuple[str, str]]]:
    from draftwise.deploying.verify.cluster_objects import list_commands, read_objects, verify_object

    text = _open(name)
    objects = read_objects(text)
    reports = [report_of(*verify_object(each, setup), setup=setup) for each in objects]
    judged = [_say(text.name, each, "what was ordered, as far as the cluster tells") for each in reports]
    return judged, list(list_commands(objects))


def _say(where: str, report: Report, good: str) -> Judged:
    found = {finding.severity for finding in report.findings}
    return Judged(where=where, report=report, verdict=f"not {good}" if Severity.ERROR in found else good)


def _open(source: str) -> SourceText:
    if source == "-":
        return read_stdin()
    (text,) = find_texts(Path(source))
    return text


def _compare(sent: SourceText, returned: str) -> Report:
    from draftwise.deploying.api_server import compare_returned

    try:
        return report_of(*compare_returned(sent, _open(returned)))
    except InvalidSetup as error:
        if type(error) is not InvalidSetup:
            raise
        return report_of(*error.findings)
