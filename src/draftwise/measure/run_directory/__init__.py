"""What a run leaves on disk, and how it is read again."""

from draftwise.measure.run_directory.directory import RunDirectory

__all__ = ["RunDirectory"]
