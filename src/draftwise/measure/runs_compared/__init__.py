"""Two measurements beside each other: what differs in how they came about, and whether the answer is still true."""

from draftwise.measure.runs_compared.compared import Compared, Side, compare_sides, read_side
from draftwise.measure.runs_compared.text import to_dict, to_markdown

__all__ = ["Compared", "Side", "compare_sides", "read_side", "to_dict", "to_markdown"]
