"""Reads operators' files (command lines, compose files, manifests, units, JSON) into setups."""

from draftwise.setups.read.input_texts import SourceKind, SourceText, find_kind, find_texts, read_stdin
from draftwise.setups.read.setup_reading import NoServer, SetupReading, read_words
from draftwise.setups.read.sources import read_setups

__all__ = [
    "NoServer", "SetupReading", "SourceKind", "SourceText", "find_kind", "find_texts", "read_setups", "read_stdin",
    "read_words",
]  # fmt: skip
