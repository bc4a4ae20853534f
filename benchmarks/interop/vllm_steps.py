"""Real vLLM's half of schedule_vllm.py: one engine in this process, stepped by hand.

Obeys JSON lines and imports nothing but vLLM, which lives in an environment of its own.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "h200"))

from peer import obey

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
_COUNTERS = {name: f"vllm:spec_decode_{name}" for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")}
_SETTLING_STEPS = 2
"""Left out after the last request's first token: vLLM drafts one step ahead."""


class Side:
    """The commands."""

    def open(self, *, settings: dict[str, Any]) -> dict[str, Any]:
        """Start the engine and return what it is."""
        import torch
        import vllm

        began = time.perf_counter()
        self._llm = vllm.LLM(disable_log_stats=False, generation_config="vllm", **settings)
        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "ready_s": round(time.perf_counter() - began, 1),
        }

    def answer(self, *, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Return the answers at temperature 0."""
        from vllm import SamplingParams

        given = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = self._llm.generate(given, SamplingParams(temperature=0, max_tokens=max_tokens), use_tqdm=False)
        first = [output.outputs[0] for output in outputs]
        return {"answers": [{"text": each.text, "token_ids": list(each.token_ids)} for each in first]}

    def run(self, *, prompts: list[list[int]], steps: int) -> dict[str, Any]:
        """Decode all prompts together; return the CPU time of so many steps of the full batch, and what they counted.

        Args:
            prompts: token ids; the batch.
            steps: to time; then the requests are aborted.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self._llm.llm_engine
        kind = RequestOutputKind.DELTA
        params = SamplingParams(temperature=0, max_tokens=512, ignore_eos=True, detokenize=False, output_kind=kind)
        names = [f"{time.monotonic_ns()}-{number}" for number in range(len(prompts))]
        for name, ids in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": ids}, params)
        started: set[str] = set()
        while len(started) < len(names):
            started |= {each.request_id for each in engine.step() if each.outputs[0].token_ids}
        for _ in range(_SETTLING_STEPS):
            engine.step()
        before, took, tokens = self._count(), [], 0
        for _ in range(steps):
            began = time.process_time()
            outputs = engine.step()
            took.append(time.process_time() - began)
            tokens += sum(len(each.outputs[0].token_ids) for each in outputs)
        after = self._count()
        engine.abort_request(names)
        while engine.has_unfinished_requests():
            engine.step()
        return {"seconds": took, "tokens": tokens} | {name: after[name] - before[name] for name in after}

    def _count(self) -> dict[str, float]:
        metrics = {each.name: each for each in self._llm.get_metrics()}
        return {name: getattr(metrics.get(long), "value", 0) for name, long in _COUNTERS.items()}


if __name__ == "__main__":
    side = Side()
    obey({name: getattr(side, name) for name in ("open", "answer", "run")})
