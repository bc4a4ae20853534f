"""VllmConfig: the runner, the scheduler and the budgets around a speculative config."""

from draftwise.plan.check.engine.batch import fill_in_batch, find_batch
from draftwise.plan.check.engine.config import complete, judge_engine
from draftwise.plan.check.engine.early import find_early
from draftwise.plan.check.engine.runner import Runner, choose_runner
from draftwise.plan.check.engine.scheduling import schedules_async
from draftwise.plan.check.engine.v0 import find_v0

__all__ = [
    "Runner",
    "choose_runner",
    "complete",
    "fill_in_batch",
    "find_batch",
    "find_early",
    "find_v0",
    "judge_engine",
    "schedules_async",
]
