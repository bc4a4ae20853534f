"""Results of other load generators as draftwise sees them, and draftwise's own in their formats."""

from draftwise.deciding.interchange.export import FORMATS, export_run
from draftwise.deciding.interchange.formats import read_results
from draftwise.deciding.interchange.results import Aggregate, ArmResults, Results

__all__ = ["FORMATS", "Aggregate", "ArmResults", "Results", "export_run", "read_results"]
