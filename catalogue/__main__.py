"""`python -m catalogue build` takes in new vLLM releases; `probe` and `defects` look for rotten rows.

`law --help` explains how the sizes of caches are compared with a release.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from catalogue.build import DATA, WHEELS, build, differences, extend, find_wheels, known_releases, write, write_topic


def main(arguments: list[str]) -> int:
    """Run a command; 1 when a probe disagrees with its rule."""
    if arguments[:1] == ["law"]:
        from catalogue.kv_law.law import main as run_law

        return run_law(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m catalogue", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("build", "read the wheels and write the data files"),
        ("probe", "check every rule's probe, and write the topics `probes` and `judged`"),
        ("defects", "check the probes of known defects"),
        ("page", "print what the newest release changes, as Markdown"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "--wheels", type=Path, default=WHEELS, help="folder of unpacked wheels (default: %(default)s)"
        )
        command.add_argument("--offline", action="store_true", help="use the wheels that are there and fetch none")
        command.add_argument("--new", action="store_true", help="build: read only releases that the data has not")
        command.add_argument("--data", type=Path, default=DATA, help="folder of data files (default: the package's)")
    given = parser.parse_args(arguments)
    if given.command == "page":
        from catalogue.release_page import write_page

        print(write_page(given.data))
        return 0
    if not given.offline:
        from catalogue.wheels import main as fetch

        fetch([str(given.wheels)])
    if given.command == "build":
        return _build(given.wheels, given.data, new=given.new)
    return {"probe": _probe, "defects": _defects}[given.command](given.wheels)


def _build(folder: Path, data: Path = DATA, *, new: bool = False) -> int:
    wheels = find_wheels(folder)
    if not wheels:
        print(f"There is no wheel in {folder}: name a folder with --wheels, or leave --offline out.", file=sys.stderr)
        return 2
    if gone := _missing(wheels, data):
        print(f"{folder} lacks {', '.join(gone)}, which the data has: leave --offline out to fetch.", file=sys.stderr)
        return 2
    rows = extend(folder, data) if new else build(folder)
    write(data, rows, wheels)
    newest = wheels[-1]["version"]
    before = wheels[-2]["version"] if len(wheels) > 1 else None
    print(*differences(rows, newest, before), sep="\n")
    print(f"\nvLLM {newest}: {sum(map(len, rows.values()))} rows in {len(rows)} topics over {len(wheels)} releases.")
    return 0


def _missing(wheels: Sequence[Mapping[str, str]], data: Path = DATA) -> list[str]:
    """Return the releases that the present data has and a folder has not: a build would drop them."""
    found = {about["version"] for about in wheels}
    return [about["version"] for about in known_releases(data) if about["version"] not in found]


def _probe(folder: Path) -> int:
    from catalogue.probes import report
    from draftwise.extract.judged_functions import judged, probes

    rotten = report(folder)
    if not _missing(find_wheels(folder)):
        for name, rows in build(folder, {each.__name__: each for each in (probes, judged)}).items():
            write_topic(DATA, name, rows)
    return rotten


def _defects(folder: Path) -> int:
    from catalogue.probes import report_defects

    return report_defects(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
