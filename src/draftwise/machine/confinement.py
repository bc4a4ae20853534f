"""Confines a process to folders, for servers that process foreign input.

Python calls an audit hook for every file that it opens, lists, creates, moves or removes, in any library. The hook
rejects paths outside the allowed folders with PermissionError, as the operating system would. It covers this process's
Python code, but not child processes or compiled code.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.machine.folders import cache_folder, data_folder

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MAKING = frozenset({
    "os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.setxattr", "os.removexattr",
})  # fmt: skip
_WITH_FOLDER = frozenset({"os.mkdir", "os.rmdir", "os.remove"})
"""Events whose last argument is the open folder to which a path is relative."""
_LISTING = frozenset({"os.listdir", "os.scandir", "os.chdir"})
_STARTING = frozenset({"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork"})
_MACHINE = re.compile(
    r"/sys/.*|/dev/(null|zero|u?random|shm(/.*)?|std(in|out|err)|tty)"
    r"|/proc/(cpuinfo|meminfo|stat|loadavg|uptime|version)|/proc/(self|\d+)/(cgroup|stat|status|mountinfo|maps)"
    r"|/etc/(ssl|pki|ca-certificates)/.*|/usr/share/(ca-certificates|zoneinfo)/.*|/etc/(mime\.types|os-release)"
)
"""Files that describe the machine, and files that Python libraries read on their own. They hold no secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """Folders that may be read, and folders that may also be written."""

    read: tuple[Path, ...]
    write: tuple[Path, ...] = ()

    @classmethod
    def of(cls, *, read: Iterable[Path], write: Iterable[Path] = ()) -> Confinement:
        """Return the confinement to folders. Resolves their links once."""
        return cls(read=tuple(map(_resolve, read)), write=tuple(map(_resolve, write)))

    def may_read(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a path, with links resolved, lies in a readable folder."""
        return _lies_in(_resolve(path), (*self.read, *self.write))

    def may_write(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a path, with links resolved, lies in a writable folder."""
        return _lies_in(_resolve(path), self.write)

    def enforce(self) -> None:
        """Reject everything else in this process from now on. You cannot undo this.

        Python's own folders and the machine's description stay readable. Temporary files go to a separate folder.
        Without writable folders, starting processes is forbidden.
        """
        sys.dont_write_bytecode = True
        tempfile.tempdir = tempfile.mkdtemp(prefix="draftwise-")
        os.environ["TMPDIR"] = tempfile.tempdir
        own = (_resolve(tempfile.tempdir), _resolve(cache_folder()))
        write = (*self.write, *own)
        read = (*self.read, *write, *_libraries())

        def judge(event: str, arguments: tuple[Any, ...]) -> None:
            for path, is_written in _touched(event, arguments):
                found = _resolve(path)
                if not _lies_in(found, write if is_written else read) and not _MACHINE.fullmatch(str(found)):
                    raise PermissionError(13, "lies outside the folders that this server may use", str(path))
            if event in _STARTING and not self.write:
                raise PermissionError(13, "is a program, and this server starts none", str(arguments[0])[:60])

        sys.addaudithook(judge)


def _touched(event: str, arguments: tuple[Any, ...]) -> Iterator[tuple[Any, bool]]:
    """Yield the paths that an event is about, and whether they are changed; descriptors were opened before."""
    if event == "open":
        path, mode, flags = arguments
        named = [(path, bool(flags & _WRITING) or (isinstance(mode, str) and not set("wax+").isdisjoint(mode)))]
    elif event in ("os.rename", "os.link"):
        named = [(_below(*each), True) for each in zip(arguments[:2], arguments[2:], strict=False)]
    elif event == "os.symlink":
        named = [(arguments[0], True), (_below(*arguments[1:]), True)]
    elif event in _MAKING:
        named = [(_below(arguments[0], arguments[-1] if event in _WITH_FOLDER else -1), True)]
    elif event in _LISTING:
        named = [("." if arguments[0] is None else arguments[0], False)]
    else:
        return
    yield from ((path, written) for path, written in named if isinstance(path, str | bytes | os.PathLike))


def _below(path: Any, folder: Any = -1) -> Any:
    """Return a path that may be relative to an open folder; -1 stands for the current one."""
    if not isinstance(folder, int) or folder < 0 or not isinstance(path, str | bytes | os.PathLike):
        return path
    return os.path.join(os.path.realpath(f"/proc/self/fd/{folder}"), os.fsdecode(path))


def _libraries() -> tuple[Path, ...]:
    """Return the folders of Python, of installed packages, of this package and of releases that the user added."""
    found = sysconfig.get_paths()
    names = {found[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {sys.prefix, sys.base_prefix}
    return tuple(_resolve(each) for each in (*names, str(Path(__file__).parents[1]), str(data_folder())))


def _resolve(path: str | bytes | os.PathLike[Any]) -> Path:
    return Path(os.path.realpath(os.fsdecode(path)))


def _lies_in(path: Path, folders: Iterable[Path]) -> bool:
    return any(path == each or each in path.parents for each in folders)
