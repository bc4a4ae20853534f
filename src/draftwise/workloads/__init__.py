"""Loads and assesses the workloads that `--workload` takes, from bundled texts to an operator's own log."""

from draftwise.workloads.assessment import (
    WorkloadProfile,
    check_workloads,
    keep_fitting,
    profile_workload,
    report_left_out,
)
from draftwise.workloads.loading import load_workloads, read_prompts
from draftwise.workloads.reshape import draw, list_texts
from draftwise.workloads.text_lengths import EstimatedTokens, Tokens, find_tokens
from draftwise.workloads.workload_spec import BUNDLED

__all__ = [
    "BUNDLED", "EstimatedTokens", "Tokens", "WorkloadProfile", "check_workloads", "draw", "find_tokens",
    "keep_fitting", "list_texts", "load_workloads", "profile_workload", "read_prompts", "report_left_out",
]  # fmt: skip
