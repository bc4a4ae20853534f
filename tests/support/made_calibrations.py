"""A calibration of steps whose truth is known, and a profile to go with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    CalibratedSetting,
    Calibration,
    Exactness,
    Interval,
    Profile,
    ReplayedLog,
    ReplayedTarget,
    SpecConfig,
    StepPoint,
)
from draftwise.knowledge.models import find_model

__all__ = ["EAGLE", "NGRAM", "TRUTH", "make_calibration", "make_profile"]

EAGLE = SpecConfig(method="eagle3", model="HEAD", num_speculative_tokens=7)
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=5, options={"prompt_lookup_max": 4})
TRUTH: Mapping[str, Callable[[float, float], float]] = {
    "plain": lambda batch, _: 0.0045 + 3.5e-5 * batch,
    "eagle3": lambda batch, k: 0.005 + 0.0003 * k + max(3.5e-5 * batch, 2.4e-5 * batch * (k + 1)),
    "ngram": lambda batch, k: 0.0062 + max(5e-5 * batch, 2.6e-5 * batch * (k + 1)),
}
"""Seconds of a step of so many sequences and draft tokens, as on an H200."""
_BATCHES = (1, 8, 64)


def make_calibration() -> Calibration:
    """Return plain, eagle3 and ngram at 1, 8 and 64 sequences on one H200 under vLLM 0.32.0."""
    target = "meta-llama/Llama-3.1-8B-Instruct"
    known = find_model(target)
    assert known is not None
    settings = (
        CalibratedSetting(name="plain"),
        CalibratedSetting(name="eagle3", spec=EAGLE),
        CalibratedSetting(name="ngram", spec=NGRAM),
    )
    return Calibration(
        gpu="H200",
        hardware="one H200",
        engine="vllm",
        engine_version="0.32.0",
        args={"max_num_seqs": 128},
        target=target,
        config=known.config,
        settings=settings,
        points=tuple(_make_point(each, batch) for each in settings for batch in _BATCHES),
    )


def _make_point(setting: CalibratedSetting, batch: int) -> StepPoint:
    ms = 1e3 * TRUTH[setting.name](batch, setting.k)
    return StepPoint(
        setting=setting.name,
        load=f"c={batch}",
        batch=batch,
        context=640,
        drafted=setting.k,
        step_ms=ms,
        low=0.99 * ms,
        high=1.01 * ms,
        steps=500,
    )


def make_profile(*candidates: SpecConfig, length: float = 2.5) -> Profile:
    """Return what a replay of 100 requests would say: so many tokens a step at k = 3, more at a larger k."""
    entries = tuple(
        Acceptance(
            candidate=each,
            temperature=0.0,
            exactness=Exactness.EXACT,
            requests=100,
            by_k={k: _make_acceptance(k, length) for k in range(1, (each.num_speculative_tokens or 5) + 1)},
        )
        for each in candidates or (EAGLE, NGRAM)
    )
    log = ReplayedLog(rows=100, used=100, tokens_out=12_800, prompt_tokens=(200, 400, 900))
    return Profile(target=ReplayedTarget(name="meta-llama/Llama-3.1-8B-Instruct"), log=log, entries=entries)


def _make_acceptance(k: int, length: float) -> AcceptanceAtK:
    """Return k draft tokens of which each stands with the same chance once those before it do."""
    chance = _find_chance(length)
    value = sum(chance**place for place in range(k + 1))
    return AcceptanceAtK(
        steps=1000,
        emitted=1000 * value,
        drafts=1000,
        drafted=1000 * k,
        accepted=1000 * (value - 1),
        tokens_per_step=Interval(value=value, low=0.97 * value, high=1.03 * value),
        per_request=(0.8 * value, value, 1.2 * value),
    )


def _find_chance(length: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if 1 + middle + middle**2 + middle**3 >= length else (middle, high)
    return low
