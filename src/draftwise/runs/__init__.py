"""What a run leaves on disk, and how it is read again."""

from draftwise.runs.directory import RunDirectory

__all__ = ["RunDirectory"]
