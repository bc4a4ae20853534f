"""Reads what operators already have (command lines, compose files, manifests, units, JSON) into setups."""

from draftwise.setups.read.reading import NoServer, Reading, read_words
from draftwise.setups.read.sources import read_setups
from draftwise.setups.read.texts import (
    SourceText,
    find_texts,
    is_file,
    is_folder,
    is_pattern,
    looks_like_path,
    read_stdin,
)

__all__ = [
    "NoServer",
    "Reading",
    "SourceText",
    "find_texts",
    "is_file",
    "is_folder",
    "is_pattern",
    "looks_like_path",
    "read_setups",
    "read_stdin",
    "read_words",
]
