"""The nouns: frozen values and errors that every other module speaks in."""

from draftwise.core.budget import Budget
from draftwise.core.config import SpecConfig
from draftwise.core.decision import Comparison, Decision, Interval, Verdict
from draftwise.core.finding import BackendError, DraftwiseError, Finding, InvalidSetup, Severity
from draftwise.core.ruling import Effect, Ruling, Stage
from draftwise.core.run import Answer, Arm, Counters, Divergence, Run, RunPlan, Window
from draftwise.core.setup import Device, Setup
from draftwise.core.shape import ModelShape
from draftwise.core.stats import SpecStats
from draftwise.core.timing import Timing
from draftwise.core.workload import Prompt, Workload

__all__ = [
    "Answer",
    "Arm",
    "BackendError",
    "Budget",
    "Comparison",
    "Counters",
    "Decision",
    "Device",
    "Divergence",
    "DraftwiseError",
    "Effect",
    "Finding",
    "Interval",
    "InvalidSetup",
    "ModelShape",
    "Prompt",
    "Ruling",
    "Run",
    "RunPlan",
    "Setup",
    "Severity",
    "SpecConfig",
    "SpecStats",
    "Stage",
    "Timing",
    "Verdict",
    "Window",
    "Workload",
]
