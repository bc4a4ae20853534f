"""Reads the texts of sources, with limits on their size: a file, a folder, a pattern, standard input."""

from __future__ import annotations

import os
import re
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from glob import iglob
from itertools import islice
from pathlib import Path

from draftwise.core import Finding, InvalidSetup, UnreadableSource, cause_of
from draftwise.knowledge.messages import refusal, unreadable
from draftwise.knowledge.models import find_model, suggest_models
from draftwise.setups.read import windows_scripts

_MAX_BYTES = 1_000_000


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises:
        InvalidSetup: it cannot be read, is neither UTF-8 nor UTF-16 with a byte order mark, or exceeds a megabyte.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise refusal("too-long", case="file", path=path, max_bytes=_MAX_BYTES)
        data = path.read_bytes()
        is_wide = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))  # of PowerShell's `>`
        return data.decode("utf-16" if is_wide else "utf-8-sig")  # line ends as they are: a shell minds
    except InvalidSetup:
        raise
    except (OSError, ValueError) as error:
        name = str(path) if str(path).isprintable() else repr(str(path))
        fix = "Save it as UTF-8." if isinstance(error, UnicodeDecodeError) else ""
        raise refusal("unreadable-file", case="text", name=name, cause=cause_of(error), fix=fix) from None


_BUILD_FILE = re.compile(r"(?:docker|container)file(?:\..+)?|.+\.(?:docker|container)file", re.IGNORECASE)
"""Names of files that images are built from."""
_SUFFIXES = frozenset({".yaml", ".yml", ".json", ".service", ".container", ".sh", ".env", ".py"})
"""Suffixes of the other files that are looked at in a folder."""
_NOT_OURS = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Folders of other people's code."""
_OF_FILES = _SUFFIXES | windows_scripts.SUFFIXES | {
    ".bash", ".cfg", ".conf", ".gguf", ".ini", ".j2", ".jsonl", ".md", ".tf", ".toml", ".tpl", ".txt", ".zsh",
}  # fmt: skip
"""Suffixes of files; no model's name ends in one."""
_LETTERED_SUFFIX = re.compile(r"\.[a-z]{2,9}")
"""Suffixes that may be a misspelled one of files; that of a model's version (`-2.5`, `.1-8B`) has digits."""
_SERVICE_FILE = re.compile(r"(?:docker-|podman-)?compose(?:[._].*)?|(?:Make|Proc|Helm|Tilt)file", re.IGNORECASE)
"""Names without a suffix, or with any, of files that start services."""
_OUR_FOLDERS = frozenset({
    "base", "chart", "charts", "compose", "conf", "config", "configs", "deploy", "deployment", "deployments", "docker",
    "environments", "envs", "examples", "helm", "infra", "k8s", "kubernetes", "kustomize", "manifest", "manifests",
    "overlays", "recipes", "scripts", "src", "values",
})  # fmt: skip
"""Folders that repositories keep such files in: what lies in one is a path, and no organization's model."""
_LONGEST_LOOK = 16_000_000
_PATTERN = re.compile(r"[*?\[]")
_PATH = re.compile(r"(?:/|~|\.{1,2}(?:/|$)).*|.*/|[^/]+(?:/[^/]+){2,}", re.DOTALL)
_COMMAND = re.compile(
    r"(?:^|\s)-|[=;|&$\"'`]|vllm|^(?:\w*sh|python\S*|docker|podman|kubectl|helm|uv|\.)\s", re.IGNORECASE
)
"""What a command line has, and the name of a file with spaces hardly ever."""
_LISTED = 2_000
"""Names of a folder that are compared with one that is not there."""
_LONGEST_PATH = 1000
_NOTHING = re.compile(r"(?:\s|#.*|---|\.{3}|null\b|~|\[\s*\])*+")
"""What a text holds that starts nothing in any format."""


class SourceKind(Enum):
    """The kind of a source, by its spelling and the files on disk."""

    FILE = auto()
    """A readable file or pipe."""
    FOLDER = auto()
    PATTERN = auto()
    """A pattern of file names."""
    NO_FILE = auto()
    """Spelled as a file name (a model id, `org/name`, is not), but it does not exist."""
    NAME = auto()
    """Any other word."""
    TEXT = auto()
    """More than one word: a command line, JSON, a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """One text to read."""

    text: str
    name: str = ""
    """Name of the file, with which its places begin; empty for a text given directly."""
    folder: Path = Path()
    """Folder for relative paths in it."""
    is_chosen: bool = True
    """Whether it was named directly. One of many files may start no server, and is read only for certain ones."""
    faults: tuple[Finding, ...] = ()
    """Why it is not read: one of many files that is too long, is not text, or cannot be opened."""

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to judge: no text, or only comments and empty documents."""
        return _NOTHING.fullmatch(self.text) is not None

    @property
    def may_start_vllm(self) -> bool:
        """Whether it could start vLLM: the text names vLLM, or was not read."""
        return not self.text or "vllm" in self.text.lower()


def find_texts(source: str | Path) -> Iterator[SourceText]:
    """Yield the texts of a source, each read once.

    Args:
        source: a file, a folder, a pattern with `*`, `?` or `[`, or the text itself.

    Raises:
        UnreadableSource: a named file does not exist or cannot be read, or a pattern matches none.
    """
    kind = SourceKind.FILE if isinstance(source, Path) else find_kind(source)
    if kind is SourceKind.FILE:
        yield _read(Path(source))
    elif kind is SourceKind.FOLDER:
        yield from _read_folder(Path(source))
    elif kind is SourceKind.PATTERN:
        yield from _read_pattern(str(source))
    elif kind is SourceKind.NO_FILE:
        raise unreadable("no-such-file", case="source", source=source, near=suggest_sources(str(source)))
    else:
        yield SourceText(text=str(source))


def find_kind(source: str) -> SourceKind:
    """Return the kind of a source."""
    if len(source) >= _LONGEST_PATH or set("\n\0") & set(source):
        return SourceKind.TEXT
    if os.path.exists(source):
        return SourceKind.FOLDER if os.path.isdir(source) else SourceKind.FILE
    if source.startswith(("{", "[", "-")) or any(map(str.isspace, source)):
        is_command = Path(source).suffix.lower() not in _OF_FILES or _COMMAND.search(source) is not None
        return SourceKind.TEXT if is_command else SourceKind.NO_FILE
    if _PATTERN.search(source):
        return SourceKind.PATTERN
    is_path = "://" not in source and (_PATH.fullmatch(source) or _names_file(source))
    return SourceKind.NO_FILE if is_path else SourceKind.NAME


def suggest_sources(source: str) -> str:
    """Return a question that suggests similar files or models, with a space at its end; may be empty."""
    from difflib import get_close_matches  # read only when something is misspelled

    path = Path(source[:_LONGEST_PATH])
    names: list[str] = []
    first = next((each for each in (*reversed(path.parents), path) if not os.path.exists(each)), path)
    with suppress(OSError, ValueError), os.scandir(first.parent) as entries:
        names = [entry.name for entry in islice(entries, _LISTED) if not entry.name.startswith(".")]
    close = get_close_matches(first.name, names, n=2, cutoff=0.7)
    near = [str(first.parent / name / path.relative_to(first)) for name in close] or suggest_models(
        source[:_LONGEST_PATH]
    )
    return f"Did you mean {' or '.join(near)}? " if near else ""


def _names_file(source: str) -> bool:
    """Say whether a word of at most one slash, of which nothing is on disk, is spelled as a file of a repository."""
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix in _OF_FILES or _BUILD_FILE.fullmatch(path.name) or _SERVICE_FILE.fullmatch(path.name):
        return True
    if "/" in source and (path.parent.name.lower() in _OUR_FOLDERS or path.parent.is_dir()):
        return find_model(source) is None
    return _LETTERED_SUFFIX.fullmatch(suffix) is not None and any(_is_near(suffix, each) for each in _OF_FILES)


def _is_near(word: str, other: str) -> bool:
    """Say whether two words have the same letters, or differ by at most one letter that one of them lacks."""
    if sorted(word) == sorted(other):
        return True
    short, long = sorted((word, other), key=len)
    return len(long) == len(short) + 1 > 4 and any(short == long[:i] + long[i + 1 :] for i in range(len(long)))


def read_stdin() -> SourceText:
    """Return the text on standard input.

    Raises:
        UnreadableSource: it is closed or not text.
    """
    try:
        return SourceText(text=windows_scripts.to_shell(sys.stdin.read(), ""), name="stdin")
    except (OSError, ValueError) as error:
        message = f"Standard input cannot be read ({cause_of(error)})."
        raise UnreadableSource.because("unreadable-file", message, where="stdin") from None


def _read(path: Path) -> SourceText:
    try:
        text = windows_scripts.to_shell(read_text(path), path.suffix or f".{path.name}")
        return SourceText(text=text, name=str(path), folder=path.parent)
    except InvalidSetup as error:
        raise UnreadableSource(error.findings) from None


def _read_one_of_many(path: Path) -> SourceText:
    try:
        return replace(_read(path), is_chosen=False)
    except UnreadableSource as error:
        return SourceText(text=_peek(path), name=str(path), is_chosen=False, faults=error.findings)


def _peek(path: Path) -> str:
    """Return the text of a file that is not read otherwise. Empty where nobody can say what all of it is."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_LOOK).decode("utf-8", "replace")
            return "" if file.read(1) else text
    except OSError:
        return ""


def _read_folder(folder: Path) -> Iterator[SourceText]:
    paths = list(_list_files(folder))
    if not paths:
        raise unreadable("nothing-to-read", case="folder", folder=folder, names=", ".join(sorted(_SUFFIXES)))
    yield from map(_read_one_of_many, paths)


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the folders in it, without hidden ones and other people's code."""
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_OURS)
        for name in sorted(names):
            is_looked_at = Path(name).suffix.lower() in _SUFFIXES or _BUILD_FILE.fullmatch(name)
            if is_looked_at and not name.startswith("."):
                yield Path(parent, name)


def _refuse(error: OSError) -> None:
    raise unreadable("unreadable-file", case="listed", filename=error.filename, cause=cause_of(error))


def _read_pattern(pattern: str) -> Iterator[SourceText]:
    found = sorted(iglob(os.path.expanduser(pattern), recursive=True))
    if not found:
        raise unreadable("nothing-to-read", case="pattern", pattern=pattern)
    for name in found:
        if os.path.isdir(name):
            yield from _read_folder(Path(name))
        else:
            yield _read_one_of_many(Path(name))
