"""Workloads: what `--workload` takes, from bundled texts to an operator's own log, and what can be said of them."""

from draftwise.measure.prompts.checks import check_workloads
from draftwise.measure.prompts.lengths import EstimatedTokens, Tokens, find_tokens
from draftwise.measure.prompts.loading import load_workloads, read_prompts
from draftwise.measure.prompts.profile import WorkloadProfile, profile_workload
from draftwise.measure.prompts.spec import BUNDLED

__all__ = [
    "BUNDLED",
    "EstimatedTokens",
    "Tokens",
    "WorkloadProfile",
    "check_workloads",
    "find_tokens",
    "load_workloads",
    "profile_workload",
    "read_prompts",
]
