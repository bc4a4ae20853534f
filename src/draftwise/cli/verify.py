"""`draftwise verify`: whether files, or a server that runs, are what was decided and ordered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from draftwise.cli._findings import Judged, fail_option, has_failed, shape_options, show_as
from draftwise.core import InvalidSetup, Severity
from draftwise.deploy.verify.manifests import find_ordered, read_setup, report_of, verify_folder, verify_text
from draftwise.plan.check import Report
from draftwise.setups.read import SourceText, find_texts, read_stdin

__all__ = ["verify"]


@click.command(short_help="Prove that files, or a server that runs, are what was decided.")
@click.argument("source")
@click.option("--setup", "setup_file", type=click.Path(path_type=Path), metavar="FILE",
              help="What was ordered  [default: setup.json in the folder of SOURCE]")  # fmt: skip
@click.option("--returned", metavar="FILE|-",
              help="What `kubectl apply --dry-run=server -o json` printed of SOURCE: what was dropped?")  # fmt: skip
@click.option("--gpu", metavar="NAME", help="Such as H200, where SOURCE does not name it: does it fit?")
@shape_options
@fail_option
def verify(
    source: str,
    setup_file: Path | None,
    returned: str | None,
    gpu: str | None,
    shape: str,
    as_json: bool,
    fail_on: str,
) -> None:
    """Say every difference between SOURCE and what was ordered.

    SOURCE is a folder that `draftwise deploy` wrote (its sums, both twins read back, judged and sized), or any manifest
    beside the setup that it is to start.

    The exit code is 0 if nothing of the severity --fail-on was found, 1 if something was, 2 if a source is not there or
    cannot be opened, and 3 if a server does not answer.

    \b
    Examples:
      draftwise verify deploy/
      draftwise verify my-manifest.yaml --setup deploy/setup.json --format sarif > verify.sarif
      kubectl apply --dry-run=server -o json -f deploy/spec.yaml | draftwise verify deploy/spec.yaml --returned -
    """
    judged = list(_judge(source, setup_file, returned, gpu))
    show_as("json" if as_json else shape, judged)
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


def _say(where: str, report: Report, good: str) -> Judged:
    found = {finding.severity for finding in report.findings}
    return Judged(where=where, report=report, verdict=f"not {good}" if Severity.ERROR in found else good)


def _open(source: str) -> SourceText:
    if source == "-":
        return read_stdin()
    (text,) = find_texts(Path(source))
    return text


def _compare(sent: SourceText, returned: str) -> Report:
    from draftwise.deploy.verify.returned import compare_returned

    try:
        return report_of(*compare_returned(sent, _open(returned)))
    except InvalidSetup as error:
        if type(error) is not InvalidSetup:
            raise
        return report_of(*error.findings)
