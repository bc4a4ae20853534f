"""Recommends methods for a target, hardware and traffic: ranked, checked for the release and sized, or refused."""

from draftwise.plan.pick.advise import Advice, pick
from draftwise.plan.pick.judge import Candidate
from draftwise.plan.pick.levers import Lever, Weight
from draftwise.plan.pick.proposal import Refusal
from draftwise.plan.pick.requirements import STRUCTURED_OUTPUT, Requirements, Traffic, describe_traffic

__all__ = [
    "STRUCTURED_OUTPUT",
    "Advice",
    "Candidate",
    "Lever",
    "Refusal",
    "Requirements",
    "Traffic",
    "Weight",
    "describe_traffic",
    "pick",
]
