"""VllmConfig: how the server creates its configuration, with runner, scheduler and budgets."""

from draftwise.plan.check.engine.model_runner import Runner, choose_runner, find_runner, schedules_async
from draftwise.plan.check.engine.vllm_config import configure, fill_in_batch, find_early, find_v0, judge_engine

__all__ = [
    "Runner", "choose_runner", "configure", "fill_in_batch", "find_early", "find_runner", "find_v0", "judge_engine",
    "schedules_async",
]  # fmt: skip
