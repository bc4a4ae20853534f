"""The exit codes of the command, which all verbs keep: the table that `--help` and the documentation show."""

from __future__ import annotations

from enum import IntEnum

from draftwise.core.finding import BackendError, InvalidSetup, StorageError
from draftwise.core.ruling import Ruling


class ExitCode(IntEnum):
    """How a command ended."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """Return a code with what it means."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    GOOD = 0, "The verb did what you asked and found no error."
    FINDINGS = 1, "The answer is bad news: an error in the setup, a verdict that no longer holds, nothing to recommend."
    USAGE = 2, "There is no answer: the command is wrong, or names something missing, unreadable or unknown."
    FAILED = 3, "A server, a process, the network or a disk failed. What was measured is kept."
    INTERNAL = 70, "A bug in draftwise. Please report it with the traceback on stderr."
    INTERRUPTED = 130, "You stopped it: Ctrl-C, SIGTERM, or no to a question. What was measured is kept."


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of a command that an error ended.

    An invalid setup is a mistake in the command, unless a vLLM release is the one to reject it: that is an answer, and
    bad news.
    """
    if isinstance(error, InvalidSetup):
        is_answer = any(isinstance(each, Ruling) for each in error.findings)
        return ExitCode.FINDINGS if is_answer else ExitCode.USAGE
    if isinstance(error, BackendError | StorageError):
        return ExitCode.FAILED
    return ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else ExitCode.INTERNAL
