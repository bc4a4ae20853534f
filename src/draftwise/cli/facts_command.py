"""`draftwise facts`: lists the known vLLM releases and their age, and adds one from its wheel or installation."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from draftwise.cli._console import open_bar
from draftwise.cli._options import options
from draftwise.cli._results import json_option, show
from draftwise.verbs.facts import (
    Answer,
    FactsRequest,
    FactsResult,
    KnownDefects,
    KnownRelease,
    KnownReleases,
    KnownValidators,
    RemovedReleases,
)
from draftwise.verbs.facts import facts as run_facts

_SHIPPED = "shipped"


@click.group(invoke_without_command=True)
@options("facts", of=FactsRequest, older_than_months=click.FloatRange(min=0))
@click.pass_context
def facts(context: click.Context, /, as_json: bool, **given: Any) -> None:
    """List the vLLM releases that draftwise knows: date, age, and source of the facts."""
    if context.invoked_subcommand is not None:
        return
    show(run_facts.run(FactsRequest(**given)), render, as_json=as_json)


@facts.command(short_help="Add a release: vllm==X, a wheel, a folder, or what is installed.")
@click.argument("what", required=False, metavar="[WHAT]")
@options("facts_add")
def add(what: str | None, python: str | None, as_json: bool) -> None:
    """Add a vLLM release to your facts, in addition to the shipped ones.

    WHAT is vllm==X (fetched with pip's index, mirror and credentials), a wheel, or a folder with sources. Without it,
    draftwise reads the vLLM installed for --python, otherwise for draftwise itself. vLLM is parsed and never imported.
    If the index allows it, only the sources of a wheel are transferred.

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
    """Remove a release that you added with `draftwise facts add`. Shipped releases stay."""
    show(run_facts.run(FactsRequest(remove=what)), render, as_json=as_json)


@facts.command(short_help="List known defects, by release and method.")
@options("facts_defects")
def defects(vllm: str | None, method: str | None, as_json: bool) -> None:
    """List the known defects of speculation in vLLM and its plugins, with releases, workarounds and reports.

    `check` names the defects that your setup meets. "Reported up to" a release means that no report covers later ones.

    \b
    Examples:
      draftwise facts defects --vllm 0.28.0 --method mtp
      draftwise facts defects --json
    """
    show(run_facts.run(FactsRequest(defects=True, vllm=vllm, method=method)), render, as_json=as_json)


@facts.command(short_help="Count the validators of vLLM's configs.")
@options("facts_validators")
def validators(vllm: str | None, as_json: bool) -> None:
    """Count the validators of vLLM's configs: code that rejects settings.

    `check` reads the condition of a refusal, or has a rule for it. A waiting one needs what no setup shows: `check`
    accepts no setup that may meet it. No command line meets an unreached one. The rest are unread, and may still stop
    vLLM.

    \b
    Examples:
      draftwise facts validators
      draftwise facts validators --vllm 0.33.0
    """
    show(run_facts.run(FactsRequest(validators=True, vllm=vllm)), render, as_json=as_json)


def render(console: Console, result: FactsResult) -> None:
    """Print the releases, what was added or removed, or known defects."""
    for line in _lines(result.answer):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(answer: Answer) -> list[str]:
    if isinstance(answer, KnownDefects):
        return _list_defects(answer)
    if isinstance(answer, KnownValidators):
        return _list_validators(answer)
    if isinstance(answer, RemovedReleases):
        return [f"Removed vLLM {version}: {file}." for version, file in answer.removed.items()]
    if isinstance(answer, KnownReleases):
        return _list(answer)
    return [
        f"vLLM {answer.version} ({answer.date}) is added from {answer.read_from} in {answer.seconds:.0f} s: "
        f"{len(answer.topics)} tables, in {answer.file}.",
        *(
            f"not read: {topic}. {why} Rules that need it are not judged for this release; all others are."
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


def _list_validators(known: KnownValidators) -> list[str]:
    lines = [
        f"{'vLLM':<10}{'validators':>11}{'refusals':>10}{'read':>7}{'by rules':>10}{'waiting':>9}"
        f"{'unreached':>11}{'unread':>8}"
    ]
    lines += [
        f"{row.version:<10}{row.known:>11}{row.refusals:>10}{row.read:>7}{row.by_rules:>10}{row.waiting:>9}"
        f"{row.unreached:>11}{len(row.unread):>8}"
        for row in known.validators
    ]
    return [*lines, *(["", *known.validators[0].unread] if len(known.validators) == 1 else [])]


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
