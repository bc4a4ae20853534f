"""Workloads: what `--workload` takes, from bundled texts to an operator's own log, and what can be said of them."""

from draftwise.workloads.checks import check_workloads
from draftwise.workloads.lengths import EstimatedTokens, Tokens, find_tokens
from draftwise.workloads.loading import load_workloads, read_prompts
from draftwise.workloads.profile import WorkloadProfile, profile_workload
from draftwise.workloads.spec import BUNDLED

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
