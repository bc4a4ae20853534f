"""`draftwise check`: what a vLLM release makes of a speculative config, before it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import click

from draftwise.cli._findings import Judged, fail_option, has_failed, quiet_line, shape_options, show_as
from draftwise.cli._setups import Found, find_sources, nearest_option, open_release, setup_command, tell_skipped
from draftwise.core import Finding, InvalidSetup, Severity
from draftwise.knowledge.vllm import releases
from draftwise.plan.check import Report, judge
from draftwise.setups.read import SetupReading, SourceText

__all__ = ["check"]

_PACKAGE = re.compile(r"([a-z0-9][\w.-]*)\s*([\[=<>!~;@].*)?", re.IGNORECASE)


@setup_command(short_help="Predict what a vLLM release makes of a speculative config.")
@click.option("--vllm", "versions", multiple=True, metavar="VERSION",
              help="Release to judge by; repeatable; or `all`  [default: the file's, else the newest]")  # fmt: skip
@nearest_option
@shape_options
@click.option("--quiet", "-q", is_flag=True, help="One line a server.")
@click.option("--verbose", "-v", is_flag=True, help="Name the files that start no server.")
@click.option("--installed", "packages", metavar="PACKAGE,...",
              help="Optional packages that the server has: arctic-inference  [default: not known]")  # fmt: skip
@fail_option
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
    found = [named.read(version) for version in wanted or (None,)]
    tell_skipped(found[0], verbose=verbose)
    judged = _judge(found, named.texts, partial(judge, installed=installed, nearest=nearest))
    if quiet:
        click.echo("\n".join(quiet_line(each) for each in judged))
    else:
        show_as("json" if as_json else shape, judged)
    if has_failed(judged, fail_on):
        sys.exit(1)


def _read_packages(given: str) -> frozenset[str]:
    """Return names of packages as the index writes them, without versions."""
    named = {each: _PACKAGE.fullmatch(each) for each in map(str.strip, given.split(",")) if each}
    if wrong := next((each for each, found in named.items() if found is None), None):
        raise click.BadParameter(f"{wrong!r} is no package; write name or name==version.", param_hint="--installed")
    return frozenset(re.sub(r"[-_.]+", "-", found[1]).lower() for found in named.values() if found)


def _judge(
    found: Sequence[Found], texts: Sequence[SourceText], judge: Callable[[SetupReading], Report]
) -> list[Judged]:
    """Return the judgements of what was read for each release; what does not depend on it is told with the first."""
    first, *others = ([Judged(where=each.where, report=judge(each)) for each in one.readings] for one in found)
    first += (Judged(where=name, report=report) for name, report in found[0].unread)
    first += _judge_objects(texts, first)
    return [*first, *chain.from_iterable(others)]


def _judge_objects(texts: Sequence[SourceText], judged: Sequence[Judged]) -> Iterator[Judged]:
    """Yield what an API server would refuse or drop of objects, where nothing was said of it yet.

    All of it is a warning: which release of Kubernetes or of a project takes the objects is not known here.
    """
    said = " ".join(finding.where or "" for each in judged for finding in each.report.findings)
    for text in texts:
        if "apiVersion" in text.text and (text.is_chosen or text.may_start_vllm):
            found = [each for each in _find_refused(text) if (each.where or "").rpartition(" ")[2] not in said]
            if found:
                from draftwise.deploying.verify.manifests import report_of

                yield Judged(where=text.name, report=report_of(*found), verdict="may not be taken whole")


def _find_refused(text: SourceText) -> Iterator[Finding]:
    from draftwise.deploying.validate import validate_text

    with suppress(InvalidSetup):  # no YAML: that is said by whoever reads it
        for finding in validate_text(text.text, name=text.name):
            yield replace(finding, severity=Severity.WARNING)
