"""Drafters that nobody would publish: random names, classes, model types and numbers, against random methods.

The directories of models.py each show one rule. These show what happens where rules meet, e.g. a Medusa head whose
directory is named like an EAGLE head and whose config.json lists no architecture.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from catalogue.oracle.cases import add_extras, add_faults
from catalogue.oracle.models import DECODERS, SHAPES_OF_TYPES, Config
from catalogue.oracle.shapes import Case

__all__ = ["generate_with_random_drafters", "write_random_drafters"]

WORDS = ["eagle", "eagle-", "eagle3", "EAGLE3-", "dflash", "DSpark", "medusa", "llama", "Qwen2.5", "my", "v1.2",
         "mtp", "head",
         "block", "peagle", "_x"]  # fmt: skip
ARCHITECTURES = [
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "Gemma3ForCausalLM",
    "PhiForCausalLM",
    "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "EagleLlamaForCausalLM", "EagleDeepSeekMTPModel", "NoSuchModel",
    "Eagle3Qwen3ForCausalLM", "Eagle3DeepseekV2ForCausalLM", "Eagle3MistralForCausalLM",
    "EagleMistralLarge3ForCausalLM",
    "PeagleLlamaForCausalLM", "LlamaForCausalLMEagle", "DFlashDraftModel", "DFlash2DraftModel", "LiLiCorrDraftModel",
    "XPressDraftModel", "MuseGlimmerAssistantModel", "Qwen3DSparkModel", "Gemma4DSparkModel", "DSparkDraftModel",
    "MedusaModel", "MLPSpeculatorPreTrainedModel", "DeepSeekMTPModel", "Qwen3NextMTP", "MiMoMTPModel",
    "Glm4MoeMTPModel",
    "ErnieMTPModel",
]  # fmt: skip
MODEL_TYPES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "mixtral", "gpt2", "eagle", "medusa", "mlp_speculator",
               "speculators", "qwen3_next", "deepseek_v3", "glm4_moe", "nope", None]  # fmt: skip
METHODS = ["eagle", "eagle3", "medusa", "mtp", "draft_model", "dflash", "dspark", "mlp_speculator", "ngram",
           "ngram_gpu",
           "suffix", "custom_class", "deepseek_mtp", "extract_hidden_states", None, None, None, None]  # fmt: skip
TARGETS = ["llama", "qwen3", "mistral", "gemma3", "gpt-oss", "deepseek", "qwen3-next"]
QUANTIZATIONS = ["fp8", "awq", "gptq", "compressed-tensors", "bitsandbytes"]

OPTIONAL: list[tuple[float, str, list[Any]]] = [
    (0.12, "architectures", [None, []]),
    (0.3, "vocab_size", [1024, 2000, 32000]),
    (0.25, "max_position_embeddings", [128, 512, 4096, 65536]),
    (0.3, "n_predict", [1, 2, 3, 4]),
    (0.2, "num_nextn_predict_layers", [0, 1, 2, 3]),
    (0.15, "block_size", [7, 8]),
    (0.1, "dspark_block_size", [5]),
    (0.15, "num_attention_heads", [8, 16]),
    (0.1, "num_lookahead_tokens", [3]),
    (0.1, "draft_vocab_size", [500]),
    (0.1, "quantization_config", [{"quant_method": name, "bits": 4, "group_size": 128} for name in QUANTIZATIONS]),
]
"""Probability, key of config.json, values."""


def write_random_drafters(folder: Path, seed: int, count: int) -> list[str]:
    """Write FOLDER/NAME/config.json for `count` drafters and return their names."""
    rng = Random(seed)
    names = []
    for index in range(count):
        name = _name(rng, index)
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(_config(rng)) + "\n", encoding="utf-8")
        names.append(name)
    return names


def _name(rng: Random, index: int) -> str:
    name = f"{''.join(rng.sample(WORDS, rng.randint(1, 3)))}-{index}"
    name = name.replace("-", ".") if rng.random() < 0.15 else name
    return f"hub/{name}" if rng.random() < 0.3 else name


def _config(rng: Random) -> Config:
    model_type = rng.choice(MODEL_TYPES)
    config = {**DECODERS, **SHAPES_OF_TYPES.get(model_type or "", {}), "num_hidden_layers": 1}
    config |= {"model_type": model_type, "architectures": [rng.choice(ARCHITECTURES)]}
    for probability, key, values in OPTIONAL:
        if rng.random() < probability:
            config[key] = rng.choice(values)
    if model_type is None:
        del config["model_type"]
    if rng.random() < 0.06:
        del config["architectures"]
    return config


def generate_with_random_drafters(seed: int, count: int, names: list[str]) -> Iterator[Case]:
    """Yield `count` cases over these drafters; half of them carry up to three faults."""
    rng = Random(seed)
    for index in range(count):
        spec = {"model": rng.choice(names), "num_speculative_tokens": rng.choice([1, 2, 3, 4, 6, 7, 8])}
        case: Case = {"target": rng.choice(TARGETS), "spec": spec, "flags": {}, "env": {}}
        if method := rng.choice(METHODS):
            spec["method"] = method
        if rng.random() < 0.15:
            del spec["num_speculative_tokens"]
        if rng.random() < 0.4:
            add_extras(rng, case)
        faults = add_faults(rng, case, rng.choice([0, 0, 0, 1, 2, 3]))
        yield {"id": f"random-{seed}-{index}", "shape": "random drafter", "faults": faults, **case}
