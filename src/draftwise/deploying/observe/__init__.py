"""Monitors a deployed service: rules, scraping, notifications, a dashboard, and the analysis of a canary."""

from draftwise.deploying.observe.naming import VLLM
from draftwise.deploying.observe.observation import ANALYSIS, FLAGGER, Observation, observe

__all__ = ["ANALYSIS", "FLAGGER", "VLLM", "Observation", "observe"]
