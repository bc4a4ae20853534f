"""Reads what operators already have (command lines, compose files, manifests, units, JSON) into setups."""

from draftwise.setups.read.reading import Reading, read_words
from draftwise.setups.read.sources import read_setups

__all__ = ["Reading", "read_setups", "read_words"]
