"""Reads what operators already have (command lines, compose files, manifests, units, JSON) into setups."""

from draftwise.setups.read.reading import Reading
from draftwise.setups.read.sources import read_setups, read_words

__all__ = ["Reading", "read_setups", "read_words"]
