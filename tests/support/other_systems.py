"""Runs the command line as on Windows or macOS, as far as that can be told from Python.

Run `python FILE SYSTEM` with one command a line on stdin.

On Windows modules and attributes of POSIX do not exist, loops add no signal handlers, text is in code page 1252, and
output ends lines with CR LF. On macOS there is no /proc and no processor affinity.
"""

import asyncio
import builtins
import importlib.abc
import io
import os
import shlex
import signal
import socket
import sys
from typing import Any

NO_MODULES = {"resource", "fcntl", "termios", "tty", "pty", "pwd", "grp", "syslog", "readline", "_posixsubprocess"}
NO_OS = (
    *(
        "fork",
        "forkpty",
        "sysconf",
        "sysconf_names",
        "confstr",
        "getuid",
        "geteuid",
        "getgid",
        "getegid",
        "killpg",
        "getpgid",
    ),
    *("setsid", "setpgid", "sched_getaffinity", "sched_setaffinity", "sched_yield", "uname", "getloadavg", "statvfs"),
    *("mkfifo", "nice", "wait3", "wait4", "WNOHANG", "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY", "chown"),
    *("preadv", "pwritev", "pread", "pwrite", "posix_spawn", "fchmod", "fchown", "getpriority", "setpriority"),
)
NO_SIGNAL = (
    *("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGCONT"),
    *("pthread_sigmask", "pthread_kill", "alarm", "setitimer", "sigwait", "SIG_BLOCK", "SIG_SETMASK"),
)
NO_SOCKET = ("AF_UNIX", "CMSG_LEN", "SCM_RIGHTS", "SO_REUSEPORT", "TCP_DEFER_ACCEPT")


class Refusing(importlib.abc.MetaPathFinder):
    """Finds none of the modules that the system lacks."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname in NO_MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def remove(module: object, names: tuple[str, ...]) -> None:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def connected_pair(*_: object, **__: object) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, which Python makes over TCP where there are none of the system's own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


class ProactorLike(asyncio.SelectorEventLoop):
    """Like Windows's usual loop, it watches no sockets."""

    def add_reader(self, *_: object) -> None:
        raise NotImplementedError

    def add_writer(self, *_: object) -> None:
        raise NotImplementedError


class WindowsPolicy(asyncio.DefaultEventLoopPolicy):
    """Makes loops as Windows does."""

    _loop_factory = ProactorLike


def become_windows() -> None:
    """Take away what Windows lacks. Modules that Python itself has loaded keep what they found."""
    import numpy.random  # it asks for the kernel where `sys.platform` says Linux, and what follows cannot change that

    del numpy
    for name in NO_MODULES & sys.modules.keys():
        del sys.modules[name]
    sys.meta_path.insert(0, Refusing())
    remove(os, NO_OS)
    remove(signal, NO_SIGNAL)
    remove(socket, NO_SOCKET)
    socket.socketpair = connected_pair

    def add_signal_handler(*_: object) -> None:
        raise NotImplementedError

    asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = add_signal_handler  # type: ignore[assignment]
    asyncio.set_event_loop_policy(WindowsPolicy())
    hide_proc()
    take_code_page("cp1252", "\r\n")


def take_code_page(encoding: str, newline: str) -> None:
    """Let text be in a code page wherever nobody says which encoding it has."""
    real = io.open

    def opened(
        file: Any, mode: str = "r", buffering: int = -1, encoding_: str | None = None, *rest: Any, **more: Any
    ) -> Any:
        given = more.pop("encoding", encoding_)
        if "b" not in mode and (given is None or given == "locale"):
            given = encoding
        return real(file, mode, buffering, given, *rest, **more)

    builtins.open = io.open = opened  # type: ignore[assignment]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding=encoding, newline=newline)  # type: ignore[union-attr]


def become_macos() -> None:
    """Take away /proc and what else Linux alone has."""
    remove(os, ("sched_getaffinity", "sched_setaffinity"))
    hide_proc()


def hide_proc() -> None:
    """Let there be no file below /proc and /sys."""
    missing = FileNotFoundError(2, "No such file or directory")

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc", "/sys/")):
            raise missing

    sys.addaudithook(refuse)


if __name__ == "__main__":
    {"windows": become_windows, "macos": become_macos}[sys.argv[1]]()
    from draftwise.cli import main

    for line in sys.stdin.read().splitlines():
        try:
            main(shlex.split(line))
        except SystemExit as end:
            print(f"ENDED {end.code} {line}", file=sys.stderr, flush=True)
