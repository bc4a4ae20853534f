from __future__ import annotations

import pytest
import torch

from draftwise.engine.models import load_model
from draftwise.engine.models.linear import align
from draftwise.engine.models.weight_loading import WeightReader

TOKENS = torch.randint(96, (50,), generator=torch.Generator().manual_seed(3)).tolist()
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 5000.0}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500000.0,
}
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 700.0},
    "linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "llama3": {"rope_type": "llama3"} | LLAMA3,
    "yarn": {"rope_type": "yarn"} | YARN,
    "yarn-mscale": {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.1, "truncate": False} | YARN,
    "yarn-fixed": {"rope_type": "yarn", "attention_factor": 1.3, "beta_fast": 16, "beta_slow": 2} | YARN,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.015625,
    "logits_scaling": 10.0,
}
GEMMA = {
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 20,
    "tie_word_embeddings": True,
}
FAMILIES = {
    "llama": {},
    "granite": MULTIPLIERS | {"rms_norm_eps": 1e-2},
    "granite-tied": MULTIPLIERS | {"tie_word_embeddings": True, "attention_bias": True},
    "llama-biased": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2},
    "llama-tied": {"tie_word_embeddings": True},
    "gemma3_text": GEMMA,
    "gemma3_text-scaled": GEMMA
    | {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    },
    "mistral": {"sliding_window": None},
    "mistral-window": {"sliding_window": 7},
    "qwen2": {},
    "qwen2-window": {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1},
    "qwen2-tied": {"tie_word_embeddings": True},
    "qwen3": {},
    "qwen3-biased": {"attention_bias": True},
    "qwen3_moe": EXPERTS | {"norm_topk_prob": True},
    "qwen3_moe-shares": EXPERTS | {"norm_topk_prob": False, "mlp_only_layers": [1]},
    "qwen3_moe-step": EXPERTS | {"decoder_sparse_step": 2},
}


def reference(model, tokens):
    with torch.inference_mode():
        out = model(torch.tensor([tokens]), output_hidden_states=True)
    return out.logits[0], [hidden[0] for hidden in out.hidden_states]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 2e-5)])
def test_logits_agree_with_transformers(name, dtype, tolerance, save_tiny, run_paged):
    path, theirs = save_tiny(name.split("-")[0], **FAMILIES[name])
    expected, _ = reference(theirs.to(getattr(torch, dtype)), TOKENS)
    ours = load_model(path, dtype=dtype, device="cpu")
    [(hidden,)] = run_paged(ours, [TOKENS], [[35, 9, 1, 5]])
    assert ours.logits(hidden).dtype == getattr(torch, dtype)
    torch.testing.assert_close(ours.logits(hidden), expected, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("name", ["llama", "llama-biased", "llama-tied", "qwen2"])
@pytest.mark.parametrize(("vocab", "inner"), [(96, 64), (97, 61), (129, 130), (192, 256)])
def test_room_for_whole_tiles_adds_nothing(name, vocab, inner, save_tiny, run_paged, monkeypatch):
    path, theirs = save_tiny(name.split("-")[0], **FAMILIES[name], vocab_size=vocab, intermediate_size=inner)
    expected, _ = reference(theirs.double(), TOKENS)
    monkeypatch.setattr(WeightReader, "_room", lambda _, size, multiple=64: align(size, multiple))  # as on a GPU
    ours = load_model(path, dtype="float64", device="cpu")
    [(hidden,)] = run_paged(ours, [TOKENS], [[35, 9, 1, 5]])
    torch.testing.assert_close(ours.logits(hidden), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("layout", ["rope_parameters", "rope_scaling"])
def test_every_rope_scaling_agrees_with_transformers(name, layout, save_tiny, run_paged, edit_config):
    path, theirs = save_tiny("llama", rope_parameters=dict(ROPES[name]))
    expected, _ = reference(theirs.double(), TOKENS)
    if layout == "rope_scaling":
        old = dict(ROPES[name])
        theta, kind = old.pop("rope_theta"), old.pop("rope_type")
        edit_config(path, rope_parameters=None, rope_theta=theta, rope_scaling={"type": kind} | old)
    ours = load_model(path, dtype="float64", device="cpu")
    [(hidden,)] = run_paged(ours, [TOKENS], [[50]])
    torch.testing.assert_close(ours.logits(hidden), expected, rtol=1e-6, atol=1e-5)


def test_rope_scalings_are_told_apart(save_tiny, run_paged):
    """Were the scaling ignored, the test above must have failed: every pair of kinds gives other logits."""
    logits = []
    for name in set(ROPES) - {"dynamic"}:
        ours = load_model(save_tiny("llama", rope_parameters=dict(ROPES[name]))[0], dtype="float64", device="cpu")
        [(hidden,)] = run_paged(ours, [TOKENS], [[50]])
        logits.append(ours.logits(hidden))
    assert min((a - b).abs().max() for i, a in enumerate(logits) for b in logits[:i]) > 1e-3


@pytest.mark.parametrize("name", ["qwen3", "granite", "gemma3_text"])
def test_aux_layers_are_the_residual_stream(name, save_tiny, run_paged):
    path, theirs = save_tiny(name, **FAMILIES[name])
    _, states = reference(theirs.double(), TOKENS)
    ours = load_model(path, dtype="float64", device="cpu")
    [(hidden, last, embedded, second)] = run_paged(ours, [TOKENS], [[40, 10]], aux_layers=(3, 0, 2))
    close = dict.fromkeys(("rtol", "atol"), 1e-5 if name == "gemma3_text" else 1e-6)  # whose norms are in float32
    torch.testing.assert_close(embedded, states[0], **close)
    torch.testing.assert_close(second, states[2], **close)
    # transformers' last hidden state is after the final norm; the auxiliary one is before it.
    torch.testing.assert_close(hidden, states[3], **close)
    torch.testing.assert_close(theirs.model.norm(last), states[3], **close)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_ragged_mixed_batch_equals_each_sequence_alone(dtype, save_tiny, run_paged):
    path, _ = save_tiny("qwen2")
    ours = load_model(path, dtype=dtype, device="cpu")
    sequences = [TOKENS, TOKENS[7:30], TOKENS[20:], TOKENS[:3]]
    chunks = [[40, 3, 1, 6], [1, 4, 2, 16], [2, 28], [1, 1, 1]]
    together = run_paged(ours, sequences, chunks)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 0.1}[dtype]
    for tokens, (hidden,) in zip(sequences, together, strict=True):
        [(alone,)] = run_paged(ours, [tokens], [[len(tokens)]], block_size=16)
        torch.testing.assert_close(hidden, alone, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["llama", "granite", "gemma3_text"])
def test_bfloat16_stays_close_to_transformers(name, save_tiny, run_paged):
    path, theirs = save_tiny(name, **FAMILIES[name])
    expected, _ = reference(theirs.double(), TOKENS)
    ours = load_model(path, dtype="bfloat16", device="cpu")
    [(hidden,)] = run_paged(ours, [TOKENS], [[40, 4, 1, 5]])
    logits = ours.logits(hidden)
    assert logits.dtype == torch.bfloat16
    assert (logits - expected).norm() / expected.norm() < 0.03
