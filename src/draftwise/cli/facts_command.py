"""`draftwise facts`: which vLLM releases are known, how old that is, and one more from its wheel or installation."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from draftwise.cli._bars import open_bar
from draftwise.cli._results import json_option, show
from draftwise.verbs.facts import (
    AddedRelease,
    FactsRequest,
    FactsResult,
    KnownDefects,
    KnownRelease,
    KnownReleases,
    RemovedReleases,
)
from draftwise.verbs.facts import facts as run_facts

__all__ = ["facts", "render"]

_SHIPPED = "shipped"


@click.group(short_help="List the vLLM releases that are known, and add one.", invoke_without_command=True)
@click.option("--older-than", "older_than_months", type=click.FloatRange(min=0), default=6.0, show_default=True,
              metavar="MONTHS", help="Age from which a release is marked as old.")  # fmt: skip
@json_option
@click.pass_context
def facts(context: click.Context, /, as_json: bool, **given: Any) -> None:
    """List the vLLM releases that every verb can judge by: date, age, and where the facts come from.

    The date is that of the newest file in the release's wheel. `add` reads one more release into the user's folder:
    $DRAFTWISE_DATA_DIR, else `draftwise` in $XDG_DATA_HOME or ~/.local/share.
    """
    if context.invoked_subcommand is not None:
        return
    show(run_facts.run(FactsRequest(**given)), render, as_json=as_json)


@facts.command(short_help="Add a release: vllm==X, a wheel, a folder, or what is installed.")
@click.argument("what", required=False, metavar="[WHAT]")
@click.option("--python", help="Interpreter whose installed vLLM is read, such as /opt/venv/bin/python.")
@json_option
def add(what: str | None, python: str | None, as_json: bool) -> None:
    """Read a vLLM release into the facts of this user, beside those that are shipped.

    WHAT is vllm==X (fetched as pip is configured to: index, mirror, credentials), a wheel, or a folder with sources.
    Without it, the vLLM that is installed for --python, else for draftwise itself. vLLM is parsed and never imported;
    of a wheel on an index only the sources are transferred where the index allows it.

    \b
    Examples:
      draftwise facts add vllm==0.34.0
      draftwise facts add vllm-0.34.0-cp38-abi3-manylinux_2_28_x86_64.whl
      draftwise facts add --python /opt/vllm/bin/python
    """
    request = FactsRequest(add=what, python=python, add_installed=what is None)
    with open_bar("Fetching the sources") as bar:
        result = run_facts.run(request, bar)
    show(result, render, as_json=as_json)


@facts.command(short_help="Remove a release that was added.")
@click.argument("what", metavar="vllm==X")
@json_option
def remove(what: str, as_json: bool) -> None:
    """Remove a release that was added with `draftwise facts add`; those that are shipped stay."""
    show(run_facts.run(FactsRequest(remove=what)), render, as_json=as_json)


@facts.command(short_help="List known defects, by release and method.")
@click.option("--vllm", metavar="VERSION", help="List those of this release only.")
@click.option("--method", metavar="METHOD", help="List those of this method only.")
@json_option
def defects(vllm: str | None, method: str | None, as_json: bool) -> None:
    """List the known defects of speculation in vLLM and its plugins, with releases, workarounds and reports.

    `check` names those that your setup meets. A defect is "reported up to" a release where nobody has said whether
    later ones still have it.

    \b
    Examples:
      draftwise facts defects --vllm 0.28.0 --method mtp
      draftwise facts defects --json
    """
    show(run_facts.run(FactsRequest(defects=True, vllm=vllm, method=method)), render, as_json=as_json)


def render(console: Console, result: FactsResult) -> None:
    """Print the releases, what was added or removed, or known defects."""
    for line in _lines(result.answer):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(answer: KnownReleases | AddedRelease | RemovedReleases | KnownDefects) -> list[str]:
    if isinstance(answer, KnownDefects):
        return _list_defects(answer)
    if isinstance(answer, RemovedReleases):
        return [f"vLLM {version} is removed: {file}." for version, file in answer.removed.items()]
    if isinstance(answer, KnownReleases):
        return _list(answer)
    return [
        f"vLLM {answer.version} ({answer.date}) is added from {answer.read_from} in {answer.seconds:.0f} s: "
        f"{len(answer.topics)} tables, in {answer.file}.",
        *(
            f"not read: {topic}. {why} What depends on it is not judged for this release; all else is."
            for topic, why in answer.missing.items()
        ),
        *answer.rules,
    ]


def _list_defects(known: KnownDefects) -> list[str]:
    lines = []
    for row in known.defects:
        lines += [
            f"{row.code}  {row.kind}, {row.span}  {', '.join(row.methods) or 'any method'}",
            f"    {row.what} {row.fix}",
            f"    {row.basis}",
        ]
    where = "".join(f" of {each}" for each in (known.method, known.vllm and f"vLLM {known.vllm}") if each)
    return [*lines, "", f"{len(known.defects)} known defects{where}."]


def _list(known: KnownReleases) -> list[str]:
    newest, old = known.newest, [each.version for each in known.releases if each.old]
    lines = [
        *map(_line, known.releases),
        "",
        f"{len(known.releases)} releases; the newest is {newest.version} of {newest.date}.",
    ]
    if old:
        span = old[0] if len(old) == 1 else f"{old[0]} to {old[-1]}"
        lines.append(f"Older than {known.older_than_months:g} months: {len(old)} ({span}).")
    return [*lines, "A release that is not listed is added with `draftwise facts add vllm==X`."]


def _line(row: KnownRelease) -> str:
    origin = row.source if row.source == _SHIPPED else f"added {row.added} from {row.source}"
    lacking = f"; lacks {', '.join(row.missing)}" if row.missing else ""
    age = f"{row.age_days:>5} days{' (old)' if row.old else '':6}"
    return f"{row.version:<12}{row.date}  {age}  {origin}{lacking}"
