"""VllmConfig: the making of the server's configuration, with the runner, the scheduler and the budgets around it."""

from draftwise.plan.check.engine.config import configure, fill_in_batch, find_early, find_v0, judge_engine
from draftwise.plan.check.engine.runner import Runner, choose_runner, find_runner, schedules_async

__all__ = [
    "Runner",
    "choose_runner",
    "configure",
    "fill_in_batch",
    "find_early",
    "find_runner",
    "find_v0",
    "judge_engine",
    "schedules_async",
]
