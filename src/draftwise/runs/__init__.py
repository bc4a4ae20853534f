"""Writes a run to disk, and reads it again."""

from draftwise.runs.directory import RunDirectory

__all__ = ["RunDirectory"]
