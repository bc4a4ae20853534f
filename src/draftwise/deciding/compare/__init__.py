"""Compares two measurements: how their conditions differ, and whether the verdicts still hold."""

from draftwise.deciding.compare.run_pair import PairSide, RunPair, compare_sides, read_side

__all__ = ["PairSide", "RunPair", "compare_sides", "read_side"]
