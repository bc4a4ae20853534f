"""Builds the playground, a static folder: `python -m docs.playground OUT --pyodide node_modules/pyodide`.

It needs node, and pyodide from npm (`npm install pyodide`); nothing is fetched. `site.zip` holds the rooms of the
package that the verbs of the forms import, with PyYAML and packaging as they are installed here. Pyodide compiles it,
and leaves of its standard library what these modules import.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import draftwise
from draftwise.verbs import VERBS
from draftwise.verbs.pages.answers import ANSWERED

HERE = Path(__file__).parent
ROOMS = ("checkpoints", "core", "deploying", "knowledge", "machine", "plan", "setups", "verbs")
"""Rooms of draftwise that the verbs of the forms reach, as folders: some are only imported for some inputs."""
PACKAGES = ("packaging", "yaml")
PAGE = ("index.html", "page.js", "worker.js")
SHARED = ("cards.js", "draftwise.css", "forms.js")
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json")
_EARLIEST = (1980, 1, 1, 0, 0, 0)


def main() -> None:
    """Build the folder that the command line names, and print its files with what a browser is sent of each."""
    options = argparse.ArgumentParser(description="Build the playground.")
    options.add_argument("out", type=Path)
    options.add_argument("--pyodide", type=Path, required=True, help="folder of the npm package")
    asked = options.parse_args()
    build(asked.out, asked.pyodide)
    sizes = measure(asked.out)
    for name, size in sizes.items():
        print(f"{name:20} {size:>10,} bytes sent")
    print(f"{'in all':20} {sum(sizes.values()):>10,}")


def build(out: Path, pyodide: Path) -> None:
    """Write the folder; what it held before is removed.

    Raises:
        OSError: a file of pyodide is missing, or node is.
        subprocess.CalledProcessError: pyodide cannot compile the archive, or answer a request with it.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name in PAGE:
        shutil.copy(HERE / name, out)
    for name in SHARED:
        shutil.copy(Path(draftwise.__file__).parent / "verbs" / "pages" / "static" / name, out)
    for name in PYODIDE:
        shutil.copy(pyodide / name, out)
    (out / "site.zip").write_bytes(pack(dict(list_files())))
    subprocess.run(["node", HERE / "compile.mjs", pyodide.resolve(), out.resolve()], check=True)


def list_files() -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of the archive, before it is compiled."""
    package = Path(draftwise.__file__).parent
    others = {package / "verbs" / f"{row.module}.py" for row in VERBS.values() if row.name not in (*ANSWERED, "facts")}
    others |= {
        package / "verbs" / "listed_runs.py",
        *(package / "verbs" / "pages").glob("[!_a]*"),
    }
    rooms = {file for room in ROOMS for file in (package / room).rglob("*")}
    for file in (*package.glob("*.py"), *sorted(rooms - others)):
        if file.is_file() and "__pycache__" not in file.parts and file.parent.name not in ("static", "templates"):
            yield f"draftwise/{file.relative_to(package).as_posix()}", file.read_bytes()
    for name in PACKAGES:
        folder = Path(str(import_module(name).__file__)).parent
        for file in folder.rglob("*.py"):
            yield f"{name}/{file.relative_to(folder).as_posix()}", file.read_bytes()


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a ZIP archive of files, the same for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, _EARLIEST), content, zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


def measure(out: Path) -> dict[str, int]:
    """Return the bytes that a server which compresses sends of each file."""
    import gzip

    whole = {file.name: file.read_bytes() for file in sorted(out.iterdir())}
    return {
        name: len(content) if name.endswith(".zip") else len(gzip.compress(content, 9))
        for name, content in whole.items()
        if name != "pyodide-lock.json"  # pyodide reads it only to install packages
    }


if __name__ == "__main__":
    main()
