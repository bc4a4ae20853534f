"""`draftwise check`: what a vLLM release makes of a speculative config, before it runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from draftwise.cli._console import open_console
from draftwise.cli._findings import Judged, quiet_line, report_to_dict, show_reports
from draftwise.cli._setups import Sources, find_sources, nearest_option, open_release, setup_command, tell_skipped
from draftwise.core import Severity
from draftwise.facts.vllm import releases
from draftwise.plan.check import Report, judge
from draftwise.setups.read import Reading

__all__ = ["check"]

_LEVELS = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}


@setup_command(short_help="Predict what a vLLM release makes of a speculative config.")
@click.option("--vllm", "versions", multiple=True, metavar="VERSION",
              help="Release to judge by; repeatable; or `all`  [default: the file's, else the newest]")  # fmt: skip
@nearest_option
@click.option("--format", "shape", type=click.Choice(["table", "json", "sarif", "github", "gitlab"]), default="table",
              show_default=True, help="SARIF 2.1.0, GitHub's annotations, GitLab's code quality report.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option("--quiet", "-q", is_flag=True, help="One line a server.")
@click.option("--verbose", "-v", is_flag=True, help="Name the files that start no server.")
@click.option("--installed", "packages", metavar="PACKAGE,...",
              help="Optional packages that the server has: arctic-inference  [default: not known]")  # fmt: skip
@click.option("--fail-on", type=click.Choice(list(_LEVELS)), default="error", show_default=True,
              help="Least severity that makes the exit code 1.")  # fmt: skip
def check(
    sources: Sequence[str],
    target: str | None,
    spec: str | None,
    env_files: Sequence[Path],
    engine_flags: Sequence[str],
    skip: bool,
    versions: Sequence[str],
    nearest: bool,
    shape: str,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    packages: str | None,
    fail_on: str,
) -> None:
    """Say what vLLM makes of a setup: accepted, rejected, silently changed, or failing later, with a fix for each.

    SOURCE is a model (a directory with config.json, or a well-known id), a compose file, Kubernetes or KServe YAML, a
    JSON or JSONL file of configs, a folder or pattern of such files, `-` for standard input, or a whole command line in
    quotes. Nothing is loaded and nothing is downloaded.

    The exit code is 0 if nothing of the severity --fail-on was found, 1 if something was, and 2 if a source is not
    there or cannot be opened.

    \b
    Examples:
      draftwise check meta-llama/Llama-3.1-8B-Instruct --vllm 0.19.1 \\
          -sc '{"method": "ngram", "num_speculative_tokens": 5}' -- --tensor-parallel-size 2
      draftwise check compose.yaml --vllm 0.33.0 --format sarif > check.sarif
      draftwise check 'vllm serve Qwen/Qwen3-8B --speculative-config {...}'
      helm template my-release my-chart | draftwise check - --quiet
    """
    named = find_sources(sources, spec, engine_flags, target=target, env_files=env_files, skip=skip)
    wanted = [str(release) for release in releases()] if "all" in versions else versions
    installed = None if packages is None else _read_packages(packages)
    for version in wanted:
        open_release(version, nearest=nearest)
    judged = _judge(named, wanted, partial(judge, installed=installed, nearest=nearest), verbose=verbose)
    if quiet:
        click.echo("\n".join(quiet_line(each) for each in judged))
    else:
        _show(judged, "json" if as_json else shape)
    if any(finding.severity in _LEVELS[fail_on] for each in judged for finding in each.report.findings):
        sys.exit(1)


def _read_packages(given: str) -> frozenset[str]:
    """Return names of packages as the index writes them."""
    return frozenset(re.sub(r"[-_.]+", "-", name.strip()).lower() for name in given.split(",") if name.strip())


def _judge(
    sources: Sources, versions: Sequence[str], judge: Callable[[Reading], Report], *, verbose: bool
) -> list[Judged]:
    judged: list[Judged] = []
    for number, version in enumerate(versions or (None,)):
        found = sources.read(version)
        judged += (Judged(where=each.where, report=judge(each)) for each in found.readings)
        if number == 0:
            judged += (Judged(where=name, report=report) for name, report in found.unread)
            tell_skipped(found, verbose=verbose)
    return judged


def _show(judged: Sequence[Judged], shape: str) -> None:
    reports, places = [each.report for each in judged], [each.where for each in judged]
    if shape == "json":
        click.echo(json.dumps([report_to_dict(each.report, where=each.where) for each in judged], indent=1))
    elif shape == "sarif":
        from draftwise.plan.sarif import to_sarif

        click.echo(json.dumps(to_sarif(reports, places=places), indent=1))
    elif shape == "github":
        from draftwise.plan.annotations import to_github

        click.echo("".join(f"{line}\n" for line in to_github(reports, places=places)), nl=False)
    elif shape == "gitlab":
        from draftwise.plan.annotations import to_gitlab

        click.echo(json.dumps(to_gitlab(reports, places=places), indent=1))
    else:
        show_reports(open_console(stderr=False), judged)
