"""Reads results of other load generators, and writes draftwise's in their formats."""

from draftwise.deciding.interchange.result_files import read_results
from draftwise.deciding.interchange.results import Aggregate, ArmResults, Results
from draftwise.deciding.interchange.run_export import FORMATS, export_run

__all__ = ["FORMATS", "Aggregate", "ArmResults", "Results", "export_run", "read_results"]
