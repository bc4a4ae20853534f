"""Recommends methods for a target, hardware and traffic: ranked, checked for the release and sized, or refused."""

from draftwise.plan.pick.levers import Lever, Weight
from draftwise.plan.pick.proposals import Refusal
from draftwise.plan.pick.recommend import MethodRanking, RankedMethod, pick
from draftwise.plan.pick.requirements import STRUCTURED_OUTPUT, ExpectedTraffic, Requirements, describe_traffic

__all__ = [
    "STRUCTURED_OUTPUT", "ExpectedTraffic", "Lever", "MethodRanking", "RankedMethod", "Refusal", "Requirements",
    "Weight", "describe_traffic", "pick",
]  # fmt: skip
