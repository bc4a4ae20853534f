"""Monitors a deployed service: rules, scraping, notifications, a dashboard, and the analysis of a canary."""

from draftwise.deploying.observe.observation import ANALYSIS, FLAGGER, Observation, observe
from draftwise.deploying.observe.promise import VLLM

__all__ = ["ANALYSIS", "FLAGGER", "VLLM", "Observation", "observe"]
