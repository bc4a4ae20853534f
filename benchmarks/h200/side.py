"""Our engine as the benchmarks drive it: one at a time, opened for a case, stepped by hand in this process."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import replace
from typing import Any

import torch
from cases import CASES, PER_TOKEN_ACCEPTANCE, Case, settings_for, spec_config
from clock import News, Timed
from shapes import Folders, Scale

from draftwise import SamplingParams, __version__
from draftwise.core import SpecConfig
from draftwise.engine.core import Engine, EngineRequest, Pending
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM

__all__ = ["OurFrontend", "Side", "fill_with_noise"]


@torch.inference_mode()
def fill_with_noise(model: CausalLM, spread: float) -> None:
    """Give a mixture's matrices on a GPU random values in place, the same ones each time.

    The embedding gets large ones: what attention adds is much the same for all tokens of a text, and would otherwise
    send them to the same experts.
    """
    generator = torch.Generator(model.device).manual_seed(0)
    model.weights.embedding_VH.normal_(generator=generator)
    found: list[Any] = [model.weights.head]
    for layer in model.weights.layers:
        mixture: Any = layer.mlp
        found += [layer.qkv, layer.o, mixture.router, mixture.experts.gate_up, mixture.experts.down]
    for each in found:
        getattr(each, "weight", each).normal_(0, spread, generator=generator)


class OurFrontend:
    """The engine, stepped by hand in this process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.params = [SamplingParams(temperature=0, ignore_eos=True)]
        """Of the requests that come, in turn, but for their length."""
        self._pending: Pending = ()
        self._added = 0

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        params = replace(self.params[self._added % len(self.params)], max_tokens=max_tokens)
        self._added += 1
        self.engine.add(EngineRequest(request_id=request_id, prompt_token_ids=prompt, params=params))

    def step(self) -> list[News]:
        self._pending, deltas = self.engine.step(self._pending)
        return [(d.request_id, len(d.token_ids), d.finish_reason is not None) for d in deltas]


class Side(Timed):
    """One engine at a time, opened for a case and asked for rows."""

    frontend: OurFrontend | None

    def __init__(
        self,
        scale: Scale,
        folders: Folders,
        *,
        device: str,
        synthetic: bool = True,
        acceptance: float = PER_TOKEN_ACCEPTANCE,
    ) -> None:
        super().__init__(scale)
        self._folders, self._device = folders, device
        self._drawn: dict[str, Any] = {"synthetic": synthetic, "acceptance": acceptance}

    def open(self, *, case: str | Case, max_num_seqs: int, kv_bytes: int | None = None, **other: Any) -> dict[str, Any]:
        """Start an engine in place of the last one and return what it decided; without kv_bytes it takes its share."""
        self.close()
        start, left_bytes = time.perf_counter(), torch.cuda.memory_reserved() if self._device == "cuda" else 0
        self.case = CASES[case] if isinstance(case, str) else case
        settings = settings_for(self.scale, self._folders, self._device, max_num_seqs=max_num_seqs, **other)
        config = EngineConfig.from_settings(kv_cache_memory_bytes=kv_bytes, **settings)
        spec = spec_config(self.case, self._folders, **self._drawn)
        engine = Engine(config, None if spec is None else SpecConfig.parse(json.dumps(spec)))
        if self.scale.noise:
            fill_with_noise(engine.runner.model, self.scale.noise)
        self.frontend = OurFrontend(engine)
        gc.collect()
        gc.freeze()  # as the process of a server does: collecting objects of the start-up again pauses steps
        return {
            "version": __version__,
            "ready_s": round(time.perf_counter() - start, 2),
            "left_by_the_last_bytes": left_bytes,
            "max_num_batched_tokens": engine.config.max_num_batched_tokens,
            "kv_tokens": engine.num_pages * engine.config.block_size,
            "findings": [str(each) for each in engine.findings],
        }

    def close(self) -> dict[str, Any]:
        """Let go of the engine and its memory."""
        self.frontend = None
        gc.unfreeze()
        gc.collect()
        if self._device == "cuda":
            torch.cuda.empty_cache()
        return {}

    def floor(self, *, batches: dict[str, list[int]]) -> dict[str, Any]:
        """Return the copy bandwidth and the time of each step's matrix products."""
        from floor_times import copy_bytes_per_s, product_chains_ms

        self.close()
        found = {"copy_bytes_per_s": round(copy_bytes_per_s()), "device": torch.cuda.get_device_name()}
        found |= {"chains": list(product_chains_ms(self.scale, batches))}
        self.close()
        return found

    def transformers(self, *, output_tokens: int, static: bool) -> dict[str, Any]:
        """Return what transformers' `generate()` takes at batch 1."""
        from transformers_generate import generate_ms

        self.close()
        found = generate_ms(self._folders.target, self.scale, output_tokens, device=self._device, static=static)
        self.close()
        return found

    def about(self) -> dict[str, Any]:
        """Return versions."""
        import triton

        return {"torch": torch.__version__, "triton": triton.__version__, "draftwise": __version__}
