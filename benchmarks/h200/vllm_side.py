"""vLLM's side of versus_vllm.py: one engine in this process, driven by the common clock.

Runs under any Python that has vLLM (0.26.0 and 0.33.0 were used) and is started by that script, not by hand. The
target's weights are dummies; a drafter whose folder holds a checkpoint is read from it. vLLM 0.26's V2 runner loads
an EAGLE-3 head in the target's load format whatever `draft_load_config` says, and a dummy head is lent the target's
output matrix, four times as large as its own. So the format is one of this file's, registered with vLLM's own means
(`register_model_loader`): a checkpoint where there is one, dummies elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import spec_config
from clock import News
from peer import PeerSide
from vllm.model_executor.model_loader import get_model_loader, register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

LOAD_FORMAT = "dummy_without_files"


@register_model_loader(LOAD_FORMAT)  # at import: vLLM's engine process is forked from this one or imports this file
class DummyWithoutFiles(BaseModelLoader):
    """Reads safetensors where the folder has some, else fills in dummies; notes which, and which head results."""

    def download_model(self, model_config: Any) -> None:
        """Do nothing: folders are local."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Load with the loader of vLLM's that fits the folder."""
        files = any(Path(model_config.model).glob("*.safetensors"))
        kind = "safetensors" if files else "dummy"
        get_model_loader(replace(self.load_config, load_format=kind)).load_weights(model, model_config)
        if not files and (noise := float(os.environ["TARGET_NOISE"])):
            for name, weight in model.named_parameters():
                if weight.dim() > 1:
                    weight.data.normal_(0, 1 if "embed_tokens" in name else noise)
        head = getattr(model, "lm_head", None)
        note = {"folder": Path(model_config.model).name, "weights": kind, "class": type(model).__name__}
        note |= {"own_head": getattr(model, "has_own_lm_head", None)}
        note |= {"head_rows": head.weight.shape[0] if hasattr(head, "weight") else None}
        with open(os.environ["LOADED_MODELS"], "a") as file:
            file.write(json.dumps(note) + "\n")


class VllmFrontend:
    """vLLM's engine, stepped by hand; its core runs in a process of its own, as by default."""

    def __init__(self, llm: Any) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._engine, self._params = llm.llm_engine, SamplingParams
        self._fixed = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
        self._fixed["output_kind"] = RequestOutputKind.DELTA

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        params = self._params(max_tokens=max_tokens, **self._fixed)
        self._engine.add_request(request_id, {"prompt_token_ids": prompt}, params)

    def step(self) -> list[News]:
        return [(out.request_id, len(out.outputs[0].token_ids), out.finished) for out in self._engine.step()]


class Side(PeerSide):
    """The commands."""

    def open(self, *, max_num_seqs: int, kv_bytes: int) -> dict[str, Any]:
        """Start the engine and return what it decided."""
        start = time.perf_counter()
        os.environ |= {"LOADED_MODELS": str(self.loaded), "TARGET_NOISE": str(self.scale.noise)}
        import vllm

        llm = vllm.LLM(
            model=str(self.folders.target),
            load_format=LOAD_FORMAT,
            skip_tokenizer_init=True,
            max_model_len=self.scale.max_model_len,
            max_num_seqs=max_num_seqs,
            dtype="bfloat16",
            enable_prefix_caching=False,
            disable_log_stats=False,
            generation_config="vllm",
            speculative_config=spec_config(self.case, self.folders, synthetic=self.synthetic),
            kv_cache_memory_bytes=kv_bytes,
            gpu_memory_utilization=0.1,  # not used for the cache; checked against what is free
            seed=0,
            **self.scale.engine,
        )
        self.frontend = VllmFrontend(llm)
        config = llm.llm_engine.vllm_config
        loaded = [json.loads(line) for line in Path(os.environ["LOADED_MODELS"]).read_text().splitlines()]
        return {
            "version": vllm.__version__,
            "ready_s": round(time.perf_counter() - start, 1),
            "loaded": loaded,
            "v2_runner": getattr(config, "use_v2_model_runner", None),
            "async_scheduling": config.scheduler_config.async_scheduling,
            "quantization": config.model_config.quantization,
            "kv_cache_dtype": config.cache_config.cache_dtype,
            "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
            "largest_captured": max(config.compilation_config.cudagraph_capture_sizes or [0]),
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "kv_tokens": (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size,
        }


if __name__ == "__main__":
    Side.obey(__doc__)
