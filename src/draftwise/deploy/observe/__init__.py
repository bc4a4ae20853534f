"""What watches a deployed service: rules, scraping, notifications, a dashboard, and the analysis of a canary."""

from draftwise.deploy.observe.naming import VLLM
from draftwise.deploy.observe.observation import ANALYSIS, FLAGGER, Observation, observe

__all__ = ["ANALYSIS", "FLAGGER", "VLLM", "Observation", "observe"]
