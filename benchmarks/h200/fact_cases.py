"""Cases of vllm_facts.py: settings in which vLLM 0.26.0 does what a rule of `draftwise check` says."""

from __future__ import annotations

from typing import Any

from cases import Case

__all__ = ["DRAFTER_LENGTH", "FACT_CASES"]

DRAFTER_LENGTH = 1024
"""The longest sequence that the drafter of the context cases takes."""

_LOGGED: dict[str, Any] = {"enable_logging_iteration_details": True}
_PIECEWISE = _LOGGED | {"compilation_config": {"cudagraph_mode": "PIECEWISE"}}
_V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
_LOOKUP = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 5}
_SCHEDULE = "num_speculative_tokens_per_batch_size"


def _eagle3(k: int, *, wave: int, vllm: dict[str, Any] = _LOGGED, v1: bool = False, **spec: Any) -> Case:
    spec = {"method": "eagle3", "num_speculative_tokens": k} | spec
    return Case(spec=spec, drafter="eagle3", wave=wave, vllm=vllm, env=_V1 if v1 else {})


FACT_CASES = {
    "plain": Case(wave=1, vllm=_LOGGED),
    "k5": _eagle3(5, wave=1),
    "lookup": Case(spec=_LOOKUP, repeats_prompt=True, wave=1, vllm=_LOGGED | {"cudagraph_metrics": True}),
    "k3-short-drafter": _eagle3(3, wave=1, max_model_len=DRAFTER_LENGTH),
    "k3-short-drafter-v1": _eagle3(3, wave=1, v1=True, max_model_len=DRAFTER_LENGTH),
    "k7-verify-1": _eagle3(7, wave=2, **{_SCHEDULE: [[1, 64, 1]]}),
    "k7-verify-1-piecewise": _eagle3(7, wave=2, vllm=_PIECEWISE, **{_SCHEDULE: [[1, 64, 1]]}),
    "k7-piecewise": _eagle3(7, wave=2, vllm=_PIECEWISE),
    "k1-piecewise": _eagle3(1, wave=2, vllm=_PIECEWISE),
    "plain-piecewise": Case(wave=3, vllm=_PIECEWISE),
    "k3-piecewise": _eagle3(3, wave=3, vllm=_PIECEWISE),
    "k3-off-piecewise": _eagle3(3, wave=3, vllm=_PIECEWISE, **{_SCHEDULE: [[1, 4, 3], [5, 64, 0]]}),
}
"""Schedules run with piecewise graphs, since with full ones such an engine does not start."""
