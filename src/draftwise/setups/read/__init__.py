"""Reads what operators already have (command lines, compose files, manifests, units, JSON) into setups."""

from draftwise.setups.read.setup_reading import NoServer, Reading, read_words
from draftwise.setups.read.sources import read_setups
from draftwise.setups.read.text_files import (
    SourceKind,
    SourceText,
    find_kind,
    find_texts,
    read_stdin,
)

__all__ = [
    "NoServer",
    "Reading",
    "SourceKind",
    "SourceText",
    "find_kind",
    "find_texts",
    "read_setups",
    "read_stdin",
    "read_words",
]
