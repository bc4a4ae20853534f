"""`draftwise check`: what a vLLM release makes of a speculative config, before it runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

import click

from draftwise.cli._console import open_console
from draftwise.cli._findings import report_to_dict, show_report
from draftwise.cli._setups import read_sources, setup_arguments
from draftwise.core import Severity
from draftwise.facts.vllm import releases
from draftwise.plan.check import Report, judge
from draftwise.setups.read import Reading

__all__ = ["check"]

_LEVELS = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}


@click.command(short_help="Predict what a vLLM release makes of a speculative config.")
@setup_arguments
@click.option("--vllm", "versions", multiple=True, metavar="VERSION",
              help="Release to judge by; repeatable; or `all`  [default: the file's, else the newest]")  # fmt: skip
@click.option("--format", "shape", type=click.Choice(["table", "json", "sarif"]), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option("--installed", "packages", metavar="PACKAGE,...",
              help="Optional packages that the server has: arctic-inference  [default: not known]")  # fmt: skip
@click.option("--fail-on", type=click.Choice(list(_LEVELS)), default="error", show_default=True,
              help="Least severity that makes the exit code 1.")  # fmt: skip
def check(
    source: str | None,
    target: str | None,
    spec: str | None,
    engine_flags: Sequence[str],
    versions: Sequence[str],
    shape: str,
    as_json: bool,
    packages: str | None,
    fail_on: str,
) -> None:
    """Say what vLLM makes of a setup: accepted, rejected, silently changed, or failing later, with a fix for each.

    SOURCE is a model (a directory with config.json, or a well-known id), a compose file, Kubernetes or KServe YAML, a
    JSON or JSONL file of configs, or a whole command line in quotes. Nothing is loaded and nothing is downloaded.

    \b
    Examples:
      draftwise check meta-llama/Llama-3.1-8B-Instruct --vllm 0.19.1 \\
          -sc '{"method": "ngram", "num_speculative_tokens": 5}' -- --tensor-parallel-size 2
      draftwise check compose.yaml --vllm 0.33.0 --format sarif > check.sarif
      draftwise check 'vllm serve Qwen/Qwen3-8B --speculative-config {...}'
    """
    wanted = [str(release) for release in releases()] if "all" in versions else versions
    installed = None if packages is None else _read_packages(packages)
    judged = [
        (reading, judge(reading, installed=installed))
        for version in wanted or (None,)
        for reading in read_sources(source, spec, engine_flags, version=version, target=target)
    ]
    _show(judged, "json" if as_json else shape)
    if any(finding.severity in _LEVELS[fail_on] for _, report in judged for finding in report.findings):
        sys.exit(1)


def _read_packages(given: str) -> frozenset[str]:
    """Return names of packages as the index writes them."""
    return frozenset(re.sub(r"[-_.]+", "-", name.strip()).lower() for name in given.split(",") if name.strip())


def _show(judged: Sequence[tuple[Reading, Report]], shape: str) -> None:
    if shape == "json":
        click.echo(json.dumps([report_to_dict(report, where=reading.where) for reading, report in judged], indent=1))
    elif shape == "sarif":
        from draftwise.plan.sarif import to_sarif

        reports, places = [report for _, report in judged], [reading.where for reading, _ in judged]
        click.echo(json.dumps(to_sarif(reports, places=places), indent=1))
    else:
        console = open_console(stderr=False)
        for reading, report in judged:
            show_report(console, report, where=reading.where)
