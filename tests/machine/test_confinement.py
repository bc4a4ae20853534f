"""A confined process opens, lists, makes and starts only what it may, whatever library does it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import draftwise
from draftwise.machine.confinement import Confinement

SCRIPT = """
import os, shutil, subprocess, sys, tempfile
from pathlib import Path
sys.path.insert(0, {source!r})
from draftwise.machine.confinement import Confinement
Confinement.of(read=[Path({read!r})], write=[{write}]).enforce()
at, out, writable = Path({read!r}), Path({outside!r}), Path({writable!r})
try:
    print({act})
except PermissionError as error:
    print("refused")
"""


def act(tmp_path: Path, action: str, *, writes: bool = False) -> str:
    folders = {name: tmp_path / name for name in ("read", "outside", "writable")}
    for each in folders.values():
        each.mkdir(exist_ok=True)
        (each / "file").write_text("content")
    link = folders["read"] / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(folders["outside"] / "file")
    script = SCRIPT.format(
        source=str(Path(draftwise.__file__).parents[1]),
        act=action,
        write=f"Path({str(folders['writable'])!r})" if writes else "",
        **{name: str(each) for name, each in folders.items()},
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    return done.stdout.strip()


@pytest.mark.parametrize("action", [
    "(at / 'file').read_text()", "sorted(os.listdir(at)) and 'content'",
    "os.open(at / 'file', os.O_RDONLY) and 'content'",
    "__import__('json') and 'content'", "tempfile.TemporaryFile().write(b'x') and 'content'",
    "(writable / 'file').write_text('x') and 'content'", "(writable / 'new').mkdir() or 'content'",
    "shutil.rmtree(writable) or 'content'",
])  # fmt: skip
def test_what_is_allowed_works(tmp_path: Path, action: str) -> None:
    assert act(tmp_path, action, writes="writable" in action) == "content"


@pytest.mark.parametrize("action", [
    "(out / 'file').read_text()", "os.listdir(out)", "list(os.scandir(out))", "(at / 'link').read_text()",
    "(at / '..' / 'outside' / 'file').read_text()", "open('/proc/self/environ').read()", "os.chdir(out)",
    "(at / 'file').write_text('x')", "open(at / 'file', 'a')", "os.open(at / 'new', os.O_CREAT | os.O_WRONLY)",
    "(at / 'new').mkdir()", "(at / 'file').unlink()", "(at / 'file').rename(at / 'other')",
    "os.symlink(out / 'file', at / 'other')", "shutil.copy(at / 'file', out / 'copy')",
    "(writable / 'file').read_text()", "subprocess.run(['true'])", "os.system('true')",
])  # fmt: skip
def test_what_is_not_allowed_is_refused(tmp_path: Path, action: str) -> None:
    assert act(tmp_path, action) == "refused"


@pytest.mark.parametrize("action", ["(out / 'file').write_text('x')", "(at / 'file').rename(writable / 'file')"])
def test_a_folder_to_write_opens_no_other(tmp_path: Path, action: str) -> None:
    assert act(tmp_path, action, writes=True) == "refused"


def test_a_folder_is_not_its_neighbor(tmp_path: Path) -> None:
    files = Confinement.of(read=[tmp_path / "a"])
    assert files.may_read(tmp_path / "a" / "b" / "c")
    assert not files.may_read(tmp_path / "ab")
    assert not files.may_read(tmp_path)
