"""Finds the texts of a source: a file, the files of a folder or of a pattern, standard input, or the text itself."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import iglob
from pathlib import Path

from draftwise.core import Finding, InvalidSetup, UnreadableSource
from draftwise.setups.read.text_file import read_text

__all__ = ["SourceText", "find_texts", "is_file", "is_folder", "is_pattern", "looks_like_path", "read_stdin"]

_SUFFIXES = frozenset({".yaml", ".yml", ".json", ".service", ".container", ".sh", ".env"})
"""Of files that are looked at in a folder."""
_OF_FILES = _SUFFIXES | {
    ".bash", ".cfg", ".conf", ".gguf", ".ini", ".j2", ".jsonl", ".py", ".toml", ".tpl", ".txt",
}  # fmt: skip
"""By which a name is a file's, and no model's."""
_LONGEST_LOOK = 16_000_000
_PATTERN = re.compile(r"[*?\[]")
_PATH = re.compile(r"(?:/|~|\.{1,2}(?:/|$)).*|.*/|[^/]+(?:/[^/]+){2,}|(?:.*/)?(?:Docker|Container)file", re.DOTALL)
_LONGEST_PATH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """One text to be read."""

    text: str
    name: str = ""
    """What places in it begin with: the file's name; empty for a text that was given itself."""
    folder: Path = Path()
    """Where files that it names are looked for."""
    is_chosen: bool = True
    """Whether it was named itself; one of many files may start no server, and is read only for what surely is one."""
    faults: tuple[Finding, ...] = ()
    """Why it is not read: one of many files that is too long, no text, or not ours to open."""

    @property
    def may_start_vllm(self) -> bool:
        """Whether nothing speaks against it: the text names vLLM, or nobody could look."""
        return not self.text or "vllm" in self.text.lower()


def find_texts(source: str | Path) -> Iterator[SourceText]:
    """Yield the texts of a source, each read once.

    Args:
        source: a file, a folder, a pattern with `*`, `?` or `[`, or the text itself.

    Raises:
        UnreadableSource: the source names a file that is not there or cannot be read, or a pattern that fits none.
    """
    if isinstance(source, Path) or is_file(source):
        yield _read(Path(source))
    elif is_folder(source):
        yield from _read_folder(Path(source))
    elif is_pattern(source):
        yield from _read_pattern(source)
    elif looks_like_path(source):
        raise UnreadableSource.because(
            "no-such-file",
            f"There is no file or folder {source}.",
            where=source,
            fix="Check the path. A model of another machine is written as a command: 'vllm serve PATH'.",
        )
    else:
        yield SourceText(text=source)


def is_file(source: str) -> bool:
    """Return whether a source is something that can be opened and read, a pipe included."""
    return _may_be_path(source) and os.path.exists(source) and not os.path.isdir(source)


def is_folder(source: str) -> bool:
    """Return whether a source is a folder."""
    return _may_be_path(source) and os.path.isdir(source)


def is_pattern(source: str) -> bool:
    """Return whether a source is a pattern of file names."""
    return _is_word(source) and _PATTERN.search(source) is not None


def looks_like_path(source: str) -> bool:
    """Return whether a source is spelled as the name of a file: a model id (`org/name`) is not."""
    return _is_word(source) and (Path(source).suffix.lower() in _OF_FILES or _PATH.fullmatch(source) is not None)


def _may_be_path(source: str) -> bool:
    return len(source) < _LONGEST_PATH and not set("\n\0") & set(source)


def _is_word(source: str) -> bool:
    return _may_be_path(source) and not source.startswith(("{", "[")) and not any(map(str.isspace, source))


def read_stdin() -> SourceText:
    """Return the text on standard input.

    Raises:
        UnreadableSource: it is closed or not text.
    """
    try:
        return SourceText(text=sys.stdin.read(), name="stdin")
    except (OSError, ValueError) as error:
        raise UnreadableSource.because(
            "unreadable-file", f"Standard input cannot be read ({error}).", where="stdin"
        ) from None


def _read(path: Path) -> SourceText:
    try:
        return SourceText(text=read_text(path), name=str(path), folder=path.parent)
    except InvalidSetup as error:
        raise UnreadableSource(error.findings) from None


def _read_one_of_many(path: Path) -> SourceText:
    try:
        return replace(_read(path), is_chosen=False)
    except UnreadableSource as error:
        return SourceText(text=_peek(path), name=str(path), is_chosen=False, faults=error.findings)


def _peek(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_LOOK).decode("utf-8", "replace")
    except OSError:
        return ""


def _read_folder(folder: Path) -> Iterator[SourceText]:
    paths = list(_list_files(folder))
    if not paths:
        raise UnreadableSource.because(
            "nothing-to-read",
            f"The folder {folder} holds no file that could start a server ({', '.join(sorted(_SUFFIXES))}).",
            where=str(folder),
            fix="Name the file itself.",
        )
    yield from map(_read_one_of_many, paths)


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the folders in it, hidden ones left out."""
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if Path(name).suffix.lower() in _SUFFIXES and not name.startswith("."):
                yield Path(parent, name)


def _refuse(error: OSError) -> None:
    raise UnreadableSource.because(
        "unreadable-file", f"{error.filename} cannot be read ({error.strerror}).", where=str(error.filename)
    )


def _read_pattern(pattern: str) -> Iterator[SourceText]:
    found = sorted(iglob(os.path.expanduser(pattern), recursive=True))
    if not found:
        raise UnreadableSource.because(
            "nothing-to-read", f"No file fits the pattern {pattern!r}.", where=pattern, fix="Check the pattern."
        )
    for name in found:
        if is_folder(name):
            yield from _read_folder(Path(name))
        else:
            yield _read_one_of_many(Path(name))
