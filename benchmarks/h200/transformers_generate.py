"""What transformers' `generate()` takes for the same shape at batch 1, on random weights."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from shapes import Scale

__all__ = ["generate_ms"]


@torch.inference_mode()
def generate_ms(folder: Path, scale: Scale, output_tokens: int, *, device: str, static: bool) -> dict[str, Any]:
    """Return milliseconds a token with the dynamic cache and, if asked for, with the static one (compiled)."""
    import transformers

    model = _random_model(folder, device)
    ids = torch.randint(3, scale.target["vocab_size"] - 3, (1, scale.prompt_tokens), device=device)
    found: dict[str, Any] = {"version": transformers.__version__, "attention": model.config._attn_implementation}
    kinds: dict[str, dict[str, Any]] = {"dynamic": {}}
    if static:
        kinds["static"] = {"cache_implementation": "static"}
    for kind, settings in kinds.items():
        start = time.perf_counter()
        _generate_s(model, ids, 8, settings)
        if kind == "static":
            _generate_s(model, ids, output_tokens, settings)
        warm_s = time.perf_counter() - start
        first = statistics.median(_generate_s(model, ids, 1, settings) for _ in range(3))
        whole = statistics.median(_generate_s(model, ids, output_tokens, settings) for _ in range(2))
        ms = 1e3 * (whole - first) / (output_tokens - 1)
        found[kind] = {"ms_step": round(ms, 4), "first_ms": round(1e3 * first, 3), "warm_s": round(warm_s, 1)}
    return found


def _random_model(folder: Path, device: str) -> Any:
    """Return a model whose weights were never on the CPU."""
    from transformers import AutoConfig, LlamaForCausalLM

    config = AutoConfig.from_pretrained(folder)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        model = model.to_empty(device=device).eval()
    finally:
        torch.set_default_dtype(before)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.02)
        else:
            parameter.fill_(1)
    exponents = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32) / config.head_dim
    rotary = model.model.rotary_emb  # its buffer was made on the meta device, too
    rotary.inv_freq = rotary.original_inv_freq = 1.0 / (config.rope_parameters["rope_theta"] ** exponents)
    return model


def _generate_s(model: Any, ids: torch.Tensor, count: int, settings: dict[str, Any]) -> float:
    """Return the seconds for `count` tokens."""
    on_gpu = ids.is_cuda
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        **settings,
    )
    if on_gpu:
        torch.cuda.synchronize()
    assert out.shape[1] == ids.shape[1] + count
    return time.perf_counter() - start
