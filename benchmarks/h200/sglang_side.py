"""SGLang's side of versus_vllm.py: one engine in this process, driven by the common clock.

Runs under any Python that has SGLang (0.5.17) and is started by that script, not by hand. A step is one message of the
scheduler's process, taken where the caller's process receives it. The target's weights are dummies; an EAGLE-3 head is
read from its folder. The variable SGLANG_MORE holds further arguments of the engine as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from cases import nominal_acceptance_length
from clock import News
from floors import kv_bytes_per_token
from peer import PeerSide

_SPEC = {
    "eagle3": lambda k: {"speculative_num_steps": k, "speculative_eagle_topk": 1},
    "ngram": lambda _: {"speculative_ngram_max_bfs_breadth": 1},
}
"""SGLang's arguments for a chain of k draft tokens."""


class SglangFrontend:
    """SGLang's engine as its caller sees it: a stream for each request, all in this process's event loop."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._counts = engine, dict[str, int]()
        self._news, self._tasks = asyncio.Queue[list[News] | BaseException](), set[asyncio.Task[None]]()
        manager = engine.tokenizer_manager
        handle = manager._handle_batch_output

        async def noting(message: Any) -> None:
            each = zip(message.rids, message.completion_tokens, message.finished_reasons, strict=True)
            try:
                self._news.put_nowait([self._one(*one) for one in each])
            except RuntimeError as error:
                self._news.put_nowait(error)
            await handle(message)

        manager._handle_batch_output = noting

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        task = self._engine.loop.create_task(self._answer(request_id, prompt, max_tokens))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def step(self) -> list[News]:
        news = self._engine.loop.run_until_complete(self._news.get())
        if isinstance(news, BaseException):
            raise news
        return news

    def _one(self, request: str, count: int, reason: dict[str, Any] | None) -> News:
        """Return what is new of a request of which `count` tokens are there."""
        if reason and reason["type"] == "abort":
            raise RuntimeError(f"SGLang aborted {request}: {reason}")
        before, self._counts[request] = self._counts.get(request, 0), count
        return request, count - before, reason is not None

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if error := task.exception():
            self._news.put_nowait(error)

    async def _answer(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": max_tokens}
        stream = await self._engine.async_generate(
            input_ids=prompt, sampling_params=params, stream=True, rid=request_id
        )
        async for _ in stream:
            pass


class Side(PeerSide):
    """The commands."""

    def open(self, *, max_num_seqs: int, kv_bytes: int) -> dict[str, Any]:
        """Start the engine and return what it decided."""
        start, case, scale = time.perf_counter(), self.case, self.scale
        spec: dict[str, Any] = {}
        if case.spec:
            method = case.spec["method"]
            spec = _SPEC[method](case.k) | {"speculative_num_draft_tokens": case.k + 1}
            spec["speculative_algorithm"] = method.upper()
            if self.synthetic:
                os.environ["SGLANG_SIMULATE_ACC_LEN"] = f"{nominal_acceptance_length(case.k):.6f}"
        if case.drafter:
            spec["speculative_draft_model_path"] = str(getattr(self.folders, case.drafter))
            spec["speculative_draft_load_format"] = "safetensors"
        import sglang  # after the acceptance is set: it is read at import

        engine = sglang.Engine(
            model_path=str(self.folders.target),
            load_format="dummy",
            skip_tokenizer_init=True,
            context_length=scale.max_model_len,
            max_running_requests=max_num_seqs,
            max_total_tokens=kv_bytes // kv_bytes_per_token(scale.target, scale.kv_bytes),
            cuda_graph_max_bs_decode=max_num_seqs,
            cuda_graph_bs_prefill=sorted({scale.prompt_tokens * each for each in (1, 8, 16)}),
            dtype="bfloat16",
            disable_radix_cache=True,
            random_seed=0,
            log_level="info",
            **spec | json.loads(os.environ.get("SGLANG_MORE", "{}")),
        )
        self.frontend = SglangFrontend(engine)
        decided = ("attention_backend", "disable_overlap_schedule", "max_total_tokens", "cuda_graph_config")
        return {
            "version": sglang.__version__,
            "ready_s": round(time.perf_counter() - start, 1),
            "simulated_acceptance_length": os.environ.get("SGLANG_SIMULATE_ACC_LEN"),
        } | {name: str(getattr(engine.server_args, name)) for name in decided}


if __name__ == "__main__":
    Side.obey(__doc__)
