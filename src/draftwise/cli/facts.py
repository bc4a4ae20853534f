"""`draftwise facts`: which vLLM releases are known, how old that is, and one more from its wheel or installation."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from packaging.version import InvalidVersion, Version

from draftwise.core import InvalidSetup
from draftwise.knowledge.vllm import Release, releases

if TYPE_CHECKING:
    from draftwise.extract.wheel_sources import Progress, VllmSources

__all__ = ["facts"]

_DAYS_A_MONTH = 30.44
_SHIPPED = "shipped"


@click.group(short_help="List the vLLM releases that are known, and add one.", invoke_without_command=True)
@click.option("--older-than", "months", type=click.FloatRange(min=0), default=6.0, show_default=True, metavar="MONTHS",
              help="Age from which a release is marked as old.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def facts(context: click.Context, months: float, as_json: bool) -> None:
    """List the vLLM releases that every verb can judge by: date, age, and where the facts come from.

    The date is that of the newest file in the release's wheel. `add` reads one more release into the user's folder:
    $DRAFTWISE_DATA_DIR, else `draftwise` in $XDG_DATA_HOME or ~/.local/share.
    """
    if context.invoked_subcommand is not None:
        return
    listed = [_describe(release, months) for release in releases()]
    if as_json:
        newest = {"version": listed[-1]["version"], "date": listed[-1]["date"]}
        click.echo(json.dumps({"newest": newest, "older_than_months": months, "releases": listed}, indent=1))
    else:
        _show(listed, months)


@facts.command(short_help="Add a release: vllm==X, a wheel, a folder, or what is installed.")
@click.argument("what", required=False, metavar="[WHAT]")
@click.option("--python", help="Interpreter whose installed vLLM is read, such as /opt/venv/bin/python.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    from draftwise.extract.release import add_release
    from draftwise.knowledge.rules import find_doubts
    from draftwise.knowledge.vllm import get_release

    if what is not None and python is not None:
        raise click.UsageError("Give WHAT or --python, not both.")
    start = time.monotonic()
    with _open(what, python) as sources:
        added = add_release(sources)
    doubts = list(find_doubts(get_release(added.version)))
    if as_json:
        seconds = round(time.monotonic() - start, 1)
        said = {"version": added.version, "date": added.built, "read_from": added.read_from, "file": str(added.file)}
        known = {"topics": added.topics, "missing": added.missing, "rules": [each.message for each in doubts]}
        click.echo(json.dumps({**said, **known, "seconds": seconds}, indent=1))
        return
    click.echo(
        f"vLLM {added.version} ({added.built}) is added from {added.read_from} in {time.monotonic() - start:.0f} s: "
        f"{len(added.topics)} tables, in {added.file}."
    )
    for topic, why in added.missing.items():
        click.echo(f"not read: {topic}. {why} What depends on it is not judged for this release; all else is.")
    for finding in doubts:
        click.echo(finding.message)


@facts.command(short_help="Remove a release that was added.")
@click.argument("what", metavar="vllm==X")
def remove(what: str) -> None:
    """Remove a release that was added with `draftwise facts add`; those that are shipped stay."""
    from draftwise.knowledge.added import read_added, remove_release

    version = _read_version(what)
    found = [each for each in read_added() if Version(each.version) == version]
    if not found:
        raise InvalidSetup.because(
            "facts-not-added",
            f"vLLM {version or what} is not among the releases that were added here.",
            fix="See `draftwise facts` for those that were.",
        )
    for release in found:
        remove_release(release)
        click.echo(f"vLLM {release.version} is removed: {release.file}.")


def _open(what: str | None, python: str | None) -> AbstractContextManager[VllmSources]:
    from draftwise.extract import wheel_sources as sources
    from draftwise.extract.release import refuse_known

    if what is None:
        return nullcontext(sources.open_installed(python or sys.executable))
    if (version := _read_version(what)) is not None:
        refuse_known(version)
        return _with_progress(version)
    if what.endswith(".whl"):
        return sources.open_wheel(Path(what))
    return nullcontext(sources.open_folder(Path(what)))


def _read_version(what: str) -> Version | None:
    """Return the version in `vllm==X`, or in X alone; None for other text."""
    name, _, version = what.rpartition("==")
    try:
        return Version(version.strip()) if name.strip().lower() in ("", "vllm") else None
    except InvalidVersion:
        return None


@contextmanager
def _with_progress(version: Version) -> Iterator[VllmSources]:
    """Fetch a release with a bar on stderr, which only a terminal shows."""
    from draftwise.extract.wheel_sources import open_released

    click.echo(f"Looking for vLLM {version} on pip's index ...", err=True)
    with ExitStack() as until_read:
        with click.progressbar(length=1, label="Fetching the sources", file=sys.stderr) as bar:
            sources = until_read.enter_context(open_released(version, _follow(bar)))
        yield sources


def _follow(bar: Any) -> Progress:
    def follow(done: int, total: int) -> None:
        bar.length = total
        bar.update(done - bar.pos)

    return follow


def _describe(release: Release, months: float) -> dict[str, Any]:
    """Return a release as JSON."""
    age = (datetime.now(UTC).date() - date.fromisoformat(release.built)).days
    described = {"version": str(release), "date": release.built, "age_days": age, "old": age > months * _DAYS_A_MONTH}
    if (added := release.added) is None:
        return {**described, "from": _SHIPPED}
    return {
        **described,
        "from": added.read_from,
        "added": added.added,
        "draftwise": added.draftwise,
        "file": str(added.file),
        "missing": dict(added.missing),
    }


def _show(listed: list[dict[str, Any]], months: float) -> None:
    for row in listed:
        click.echo(_line(row))
    newest, old = listed[-1], [row["version"] for row in listed if row["old"]]
    click.echo(f"\n{len(listed)} releases; the newest is {newest['version']} of {newest['date']}.")
    if old:
        span = old[0] if len(old) == 1 else f"{old[0]} to {old[-1]}"
        click.echo(f"Older than {months:g} months: {len(old)} ({span}).")
    click.echo("A release that is not listed is added with `draftwise facts add vllm==X`.")


def _line(row: Mapping[str, Any]) -> str:
    origin = row["from"] if row["from"] == _SHIPPED else f"added {row['added']} from {row['from']}"
    lacking = f"; lacks {', '.join(row['missing'])}" if row.get("missing") else ""
    age = f"{row['age_days']:>5} days{' (old)' if row['old'] else '':6}"
    return f"{row['version']:<12}{row['date']}  {age}  {origin}{lacking}"
