"""Folders of model configurations with real shapes and no real weights, as both engines load them.

Only EAGLE-3 and DFlash drafters get weights on disk, and random ones. From a checkpoint's tensor names vLLM learns that
an EAGLE-3 head has an output matrix of its own (it would otherwise be lent the target's, four times as large), and on
reading one it fuses DFlash's projections of the context.
"""

from __future__ import annotations

import json
import string
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

__all__ = ["SCALES", "Folders", "Scale", "write_folders", "write_tokenizer"]

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

_LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "use_cache": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A target's shape, its drafters', and the traffic that suits them."""

    target: Config
    draft_model: Config
    draft_vocab_size: int
    """Rows of the EAGLE-3 head's output matrix."""
    dflash_aux_layers: tuple[int, ...]
    """Target layers that DFlash reads; it has as many layers itself."""
    prompt_tokens: int
    output_tokens: int
    batches: tuple[int, ...]
    large_batches: tuple[int, ...]
    """For the cases that are followed to where batches stop paying."""
    max_model_len: int
    prompt_tokens_at: dict[int, int] = field(default_factory=dict)
    """Batch size -> length of its prompts where that is another."""
    many_prompts: int = 16
    """Prompts whose first tokens are timed together; 0: of one only."""
    first_repeats: int = 7
    """How often the first token of one prompt is timed."""
    noise: float = 0.0
    """Standard deviation of the target's matrices in place of dummies, which are alike in all layers and experts, so
    that every token of a text would choose the same few experts; 0: dummies."""
    engine: dict[str, str] = field(default_factory=dict)
    """Further arguments, which both engines take as they are."""
    goal: float | None = None
    """Tokens/s over vLLM's, in place of the goals of cases."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of an element of the matrices in the target's layers."""
        return 1 if self.engine.get("quantization") == "fp8" else 2

    @property
    def kv_bytes(self) -> int:
        """Bytes of an element of the target's keys and values."""
        return 1 if self.engine.get("kv_cache_dtype") == "fp8" else 2

    def length_of_prompts(self, batch: int) -> int:
        """Return how many tokens the prompts of a batch have."""
        return self.prompt_tokens_at.get(batch, self.prompt_tokens)

    @property
    def eagle3(self) -> Config:
        """Config of the EAGLE-3 head: one dense layer of the target's shape over three auxiliary hidden states."""
        own = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": self.draft_vocab_size}
        return _dense(self.target) | own | {"num_hidden_layers": 1}

    @property
    def dflash(self) -> Config:
        """Config of the DFlash drafter: layers of the target's width, the target's embedding and head."""
        layers = len(self.dflash_aux_layers)
        own = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 8}
        own |= {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
        mask = self.target["vocab_size"] - 2
        return (
            _dense(self.target)
            | own
            | {"dflash_config": {"target_layer_ids": [*self.dflash_aux_layers], "mask_token_id": mask}}
        )


def _llama(
    hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, inner: int, vocab: int, **other: Any
) -> Config:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": head_dim}
    sizes |= {"num_key_value_heads": kv_heads, "intermediate_size": inner, "vocab_size": vocab}
    return _LLAMA | sizes | {"bos_token_id": 1, "eos_token_id": 2} | other


def _dense(config: Config) -> Config:
    """Return a config without experts."""
    keys = set(_EXPERTS) - set(_LLAMA) if config["model_type"] == _EXPERTS["model_type"] else set()
    return {key: value for key, value in config.items() if key not in keys} | {"model_type": _LLAMA["model_type"]}


_EXPERTS: Config = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
}
"""Qwen3-30B-A3B's."""

_QWEN3: Config = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
}

_GRANITE: Config = {
    "architectures": ["GraniteForCausalLM"],
    "model_type": "granite",
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125,
    "logits_scaling": 16.0,
    "rope_theta": 10000000.0,
    "tie_word_embeddings": True,
}
"""Granite-3.3-8B's."""

_GEMMA: Config = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "tie_word_embeddings": True,
}
"""Gemma-3-12B's."""

_8B = Scale(
    target=_llama(4096, 32, 32, 8, 128, 14336, 128256),
    draft_model=_llama(2048, 16, 32, 8, 64, 8192, 128256, tie_word_embeddings=True),
    draft_vocab_size=32000,
    dflash_aux_layers=(1, 8, 15, 22, 29),
    prompt_tokens=512,
    output_tokens=256,
    batches=(1, 8, 32, 64),
    large_batches=(256, 128, 192, 96),
    max_model_len=4096,
)

_TINY = Scale(
    target=_llama(256, 8, 4, 2, 64, 512, 4096),
    draft_model=_llama(128, 2, 2, 1, 64, 256, 4096, tie_word_embeddings=True),
    draft_vocab_size=512,
    dflash_aux_layers=(1, 3, 5),
    prompt_tokens=64,
    output_tokens=48,
    batches=(1, 4),
    large_batches=(8,),
    max_model_len=512,
)

_FP8_WEIGHTS = {"quantization": "fp8"}
"""Quantized while loading; the head and the drafters stay in bfloat16."""
_FP8 = _FP8_WEIGHTS | {"kv_cache_dtype": "fp8"}

SCALES = {
    "8b": _8B,
    "8b-fp8": replace(_8B, batches=(1, 8, 64), large_batches=(), engine=_FP8, goal=1.0),
    "8b-fp8w": replace(_8B, batches=(1, 8, 64), large_batches=(), engine=_FP8_WEIGHTS, goal=1.0),
    "8b-long": replace(
        _8B,
        prompt_tokens=24000,
        prompt_tokens_at={32: 8192},
        output_tokens=128,
        batches=(1, 8, 32),
        large_batches=(),
        max_model_len=24576,
        many_prompts=0,
    ),
    "8b-8k": replace(
        _8B, prompt_tokens=8192, output_tokens=32, batches=(1,), large_batches=(), max_model_len=8704, many_prompts=0
    ),
    "8b-64k": replace(
        _8B,
        prompt_tokens=64000,
        output_tokens=32,
        batches=(1,),
        large_batches=(),
        max_model_len=65536,
        many_prompts=0,
        first_repeats=2,
    ),
    "14b": replace(  # Qwen2.5-14B's sizes
        _8B,
        target=_llama(5120, 48, 40, 8, 128, 13824, 152064),
        dflash_aux_layers=(1, 12, 23, 34, 45),
        output_tokens=128,
        batches=(1, 13, 50, 64),
        large_batches=(128,),
    ),
    "7b-mha": replace(  # Llama-2-7B's sizes
        _8B, target=_llama(4096, 32, 32, 32, 128, 11008, 32000), output_tokens=128, batches=(1, 64), large_batches=()
    ),
    "1.5b": Scale(  # Qwen2.5-1.5B's sizes
        target=_llama(1536, 28, 12, 2, 128, 8960, 151936, tie_word_embeddings=True),
        draft_model=_llama(896, 24, 14, 2, 64, 4864, 151936, tie_word_embeddings=True),
        draft_vocab_size=32000,
        dflash_aux_layers=(1, 7, 13, 19, 25),
        prompt_tokens=512,
        output_tokens=256,
        batches=(1, 8, 64),
        large_batches=(128,),
        max_model_len=4096,
    ),
    "moe": Scale(  # Qwen3-30B-A3B, a third of its layers, so that several engines fit on a card
        target=_llama(2048, 16, 32, 4, 128, 6144, 151936, **_EXPERTS),
        draft_model=_llama(1024, 28, 16, 8, 128, 3072, 151936, tie_word_embeddings=True),
        draft_vocab_size=32000,
        dflash_aux_layers=(1, 5, 9, 13),
        prompt_tokens=512,
        output_tokens=256,
        batches=(1, 8, 64),
        large_batches=(128,),
        max_model_len=4096,
        noise=0.02,
    ),
    "qwen3-14b": replace(
        _8B,
        target=_llama(5120, 40, 40, 8, 128, 17408, 151936, **_QWEN3),
        dflash_aux_layers=(1, 10, 19, 28, 37),
        output_tokens=128,
        batches=(1, 8, 64),
        large_batches=(),
    ),
    "qwen3-32b": replace(  # half of its layers, so that several engines fit on a card
        _8B,
        target=_llama(5120, 32, 64, 8, 128, 25600, 151936, **_QWEN3),
        output_tokens=128,
        batches=(1, 8, 64),
        large_batches=(),
    ),
    "granite-8b": replace(  # the drafter has Granite-3.3-2B's sizes
        _8B,
        target=_llama(4096, 40, 32, 8, 128, 12800, 49159, **_GRANITE),
        draft_model=_llama(2048, 40, 32, 8, 64, 8192, 49159, **_GRANITE | {"attention_multiplier": 0.015625}),
        batches=(1, 8, 64),
        large_batches=(),
    ),
    "gemma3-12b": replace(  # prompts of two windows; the drafter has Gemma-3-1B's sizes
        _8B,
        target=_llama(3840, 48, 16, 8, 256, 15360, 262208, **_GEMMA),
        draft_model=_llama(1152, 26, 4, 1, 256, 6912, 262208, **_GEMMA | {"sliding_window": 512}),
        prompt_tokens=2048,
        output_tokens=128,
        batches=(1, 8, 32),
        large_batches=(),
    ),
    "falcon3-10b": replace(
        _8B, target=_llama(3072, 40, 12, 4, 256, 23040, 131072), output_tokens=128, batches=(1, 8, 64), large_batches=()
    ),
    "tiny": _TINY,
    "tiny-fp8": replace(_TINY, engine=_FP8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where the models of a scale are."""

    target: Path
    draft_model: Path
    eagle3: Path
    dflash: Path


def write_folders(root: Path, scale: Scale, drafters: Collection[str | None] = ("eagle3", "dflash")) -> Folders:
    """Write what is missing under `root` and return where everything is; weights of these drafters only."""
    return Folders(
        target=_folder(root / "target", scale.target),
        draft_model=_folder(root / "draft-1b", scale.draft_model),
        eagle3=_folder(root / "eagle3-head", scale.eagle3, "eagle3" in drafters and _eagle3_shapes(scale), scale),
        dflash=_folder(root / "dflash-head", scale.dflash, "dflash" in drafters and _dflash_shapes(scale), scale),
    )


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a byte-level tokenizer in which every id has a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if (folder / "tokenizer.json").exists():
        return
    words = ("\u0120" + "".join(letters) for letters in product(string.ascii_lowercase, repeat=4))
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(next(words) for _ in range(vocab_size - 256))]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def _folder(path: Path, config: Config, shapes: Shapes | Literal[False] = False, scale: Scale | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    if shapes and scale and not (path / "model.safetensors").exists():
        _write_weights(path / "model.safetensors", shapes, scale)
    if not (path / "config.json").exists():
        (path / "config.json").write_text(json.dumps(config, indent=1))
    return path


def _layer_shapes(config: Config, prefix: str, *, num_in: int | None = None) -> Shapes:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    shapes: Shapes = {
        "self_attn.q_proj": (q, num_in or hidden),
        "self_attn.k_proj": (kv, num_in or hidden),
        "self_attn.v_proj": (kv, num_in or hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def _eagle3_shapes(scale: Scale) -> Shapes:
    """Return the tensors of public EAGLE-3 heads."""
    hidden, draft_vocab = scale.target["hidden_size"], scale.draft_vocab_size
    shapes: Shapes = {"fc.weight": (hidden, 3 * hidden), "lm_head.weight": (draft_vocab, hidden)}
    shapes |= {"norm.weight": (hidden,), "midlayer.hidden_norm.weight": (hidden,), "d2t": (draft_vocab,)}
    return shapes | _layer_shapes(scale.eagle3, "midlayer.", num_in=2 * hidden)


def _dflash_shapes(scale: Scale) -> Shapes:
    """Return the tensors of public DFlash drafters."""
    config, hidden = scale.dflash, scale.target["hidden_size"]
    shapes: Shapes = {"fc.weight": (hidden, len(scale.dflash_aux_layers) * hidden)}
    shapes |= {"norm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        shapes |= _layer_shapes(config, f"layers.{i}.")
        shapes |= {f"layers.{i}.self_attn.{name}_norm.weight": (config["head_dim"],) for name in "qk"}
    return shapes


def _write_weights(file: Path, shapes: Shapes, scale: Scale) -> None:
    """Write matrices of noise (one block over and over is quick), norms of ones, and an even choice of ids."""
    import torch
    from safetensors.torch import save_file

    noise = (torch.randn(1 << 22, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    tensors = {}
    for name, shape in shapes.items():
        if name == "d2t":  # how far the target's id lies beyond the head's
            tensors[name] = torch.arange(*shape) * (scale.target["vocab_size"] // scale.draft_vocab_size - 1)
        elif len(shape) == 1:
            tensors[name] = torch.ones(shape, dtype=torch.bfloat16)
        else:
            count = shape[0] * shape[1]
            tensors[name] = noise.repeat(-(-count // len(noise)))[:count].view(shape)
    save_file(tensors, file, metadata={"format": "pt"})
