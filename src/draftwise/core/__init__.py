"""The nouns: frozen values and errors that every other module uses.

A noun's module is imported on first use: building the classes of a whole measurement takes longer than a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.core.lazy import import_on_use

if TYPE_CHECKING:
    from draftwise.core.baseline import NO_LIMITS, NO_PROBE, Baseline, Expected, ProbeAnswer
    from draftwise.core.budget import Budget
    from draftwise.core.calibration import CalibratedSetting, Calibration, FirstPoint, StepPoint
    from draftwise.core.comparison import Comparison, DecidingMeasure, Interval, Reason, ReasonCode, Verdict
    from draftwise.core.context import Hardware, LaunchOptions, RunContext, ServerRecord, Software, TargetModel
    from draftwise.core.counters import Counters, ServerLoad, SpecStats
    from draftwise.core.decision import (
        Band,
        Crossover,
        Decision,
        Recommendation,
        Schedule,
        Scope,
        SingleSetting,
        UnmeasuredCell,
    )
    from draftwise.core.finding import (
        BackendError,
        DraftwiseError,
        Finding,
        InvalidRequest,
        InvalidSetup,
        Severity,
        StorageError,
        UnreadableSource,
        cause_of,
    )
    from draftwise.core.forecast import (
        Forecast,
        ForecastCell,
        ForecastCrossover,
        HeldAgainst,
        Outlook,
        SimulatedService,
    )
    from draftwise.core.load import Arrivals, ClosedLoop, Condition, Load, OpenLoop, Phase, Replay
    from draftwise.core.profile import Acceptance, AcceptanceAtK, Exactness, Profile, ReplayedLog, ReplayedTarget
    from draftwise.core.progress import Progress, Silent, Stopped
    from draftwise.core.rollback_rule import Relation, Rollback, RollbackBasis
    from draftwise.core.ruling import CheckOutcome, Diagnosis, Effect, Ruling, Stage
    from draftwise.core.run import (
        Answer,
        Arm,
        CellLook,
        ClientHealth,
        Disturbance,
        Divergence,
        Estimate,
        Expectation,
        Omission,
        OutputProbe,
        Run,
        RunPlan,
        Settled,
        Timing,
        TurnRecord,
        WarmPace,
    )
    from draftwise.core.setup import Device, Setup, SpecConfig
    from draftwise.core.shape import ModelShape
    from draftwise.core.window import Sums, Window
    from draftwise.core.workload import Origin, Prompt, RecordedAnswer, Workload

__all__ = [
    "NO_LIMITS", "NO_PROBE", "Acceptance", "AcceptanceAtK", "Answer", "Arm", "Arrivals", "BackendError", "Band",
    "Baseline", "Budget", "CalibratedSetting", "Calibration", "CellLook", "CheckOutcome", "ClientHealth", "ClosedLoop",
    "Comparison", "Condition", "Counters", "Crossover", "DecidingMeasure", "Decision", "Device", "Diagnosis",
    "Disturbance", "Divergence", "DraftwiseError", "Effect", "Estimate", "Exactness", "Expectation", "Expected",
    "Finding", "FirstPoint", "Forecast", "ForecastCell", "ForecastCrossover", "Hardware", "HeldAgainst", "Interval",
    "InvalidRequest", "InvalidSetup", "LaunchOptions", "Load", "ModelShape", "Omission", "OpenLoop", "Origin",
    "Outlook", "OutputProbe", "Phase", "ProbeAnswer", "Profile", "Progress", "Prompt", "Reason", "ReasonCode",
    "Recommendation", "RecordedAnswer", "Relation", "Replay", "ReplayedLog", "ReplayedTarget", "Rollback",
    "RollbackBasis", "Ruling", "Run", "RunContext", "RunPlan", "Schedule", "Scope", "ServerLoad", "ServerRecord",
    "Settled", "Setup", "Severity", "Silent", "SimulatedService", "SingleSetting", "Software", "SpecConfig",
    "SpecStats", "Stage", "StepPoint", "Stopped", "StorageError", "Sums", "TargetModel", "Timing", "TurnRecord",
    "UnmeasuredCell", "UnreadableSource", "Verdict", "WarmPace", "Window", "Workload", "cause_of",
]  # fmt: skip

_MODULES = {
    "baseline": "NO_LIMITS NO_PROBE Baseline Expected ProbeAnswer",
    "budget": "Budget",
    "calibration": "CalibratedSetting Calibration FirstPoint StepPoint",
    "comparison": "Comparison DecidingMeasure Interval Reason ReasonCode Verdict",
    "context": "Hardware LaunchOptions RunContext ServerRecord Software TargetModel",
    "counters": "Counters ServerLoad SpecStats",
    "decision": "Band Crossover Decision Recommendation Schedule Scope SingleSetting UnmeasuredCell",
    "finding": "BackendError DraftwiseError Finding InvalidRequest InvalidSetup Severity StorageError UnreadableSource "
    "cause_of",
    "forecast": "Forecast ForecastCell ForecastCrossover HeldAgainst Outlook SimulatedService",
    "load": "Arrivals ClosedLoop Condition Load OpenLoop Phase Replay",
    "profile": "Acceptance AcceptanceAtK Exactness Profile ReplayedLog ReplayedTarget",
    "progress": "Progress Silent Stopped",
    "rollback_rule": "Relation Rollback RollbackBasis",
    "ruling": "CheckOutcome Diagnosis Effect Ruling Stage",
    "run": "Answer Arm CellLook ClientHealth Disturbance Divergence Estimate Expectation Omission OutputProbe Run "
    "RunPlan Settled Timing TurnRecord WarmPace",
    "setup": "Device Setup SpecConfig",
    "shape": "ModelShape",
    "window": "Sums Window",
    "workload": "Origin Prompt RecordedAnswer Workload",
}
__getattr__ = import_on_use(__name__, _MODULES)
