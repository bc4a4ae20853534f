"""What a tensor is for, from its name."""

from __future__ import annotations

import re

__all__ = ["MTP", "layer_of", "role_of"]

MTP = "mtp"
"""Role of the tensors of modules for multi-token prediction."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_VISION = re.compile(r"(?:^|\.)(?:visual|vision\w*|audio\w*|image\w*|multi_modal_projector|mm_projector)\.")
_ROLES = (
    (MTP, re.compile(r"(?:^|\.)(?:mtp(?:_\w+)?|nextn_predict_layers)\.|\.(?:eh_proj|enorm|hnorm|shared_head)\.")),
    ("other modality", _VISION),
    (
        "quantization",
        re.compile(
            r"(?:scales?|scale_inv|scale_2|qzeros|g_idx|zero_points?|weight_shape|amax|absmax|quant_map)$|quant_state\."
        ),
    ),
    ("vocabulary map", re.compile(r"(?:^|\.)(?:d2t|t2d|token_map)$")),
    ("embedding", re.compile(r"(?:embed_tokens|word_embeddings|wte|tok_embeddings|^speculator\.emb\.\d+)\.")),
    ("head", re.compile(r"(?:^|\.)(?:lm_head|lm_heads\.\d+|output|embed_out)\.|^speculator\.head\.")),
    ("experts", re.compile(r"\.(?:experts|shared_experts?|block_sparse_moe)\.")),
    ("attention", re.compile(r"\.(?:self_attn|attn|attention|linear_attn|mixer)\.")),
    ("mlp", re.compile(r"\.(?:mlp|feed_forward)\.")),
    ("norm", re.compile(r"norm|(?:^|\.)ln[._]")),
)


def layer_of(name: str) -> int | None:
    """Return the number of the decoder layer that a tensor belongs to, None if it belongs to none."""
    if _VISION.search(name):
        return None
    match = _LAYER.search(name)
    return int(match[1]) if match and len(match[1]) < 6 else None


def role_of(name: str, num_hidden_layers: int | None = None) -> str:
    """Return what a tensor is for: embedding, head, attention, experts, mlp, norm, mtp ... or `other`.

    Args:
        name: as in the checkpoint.
        num_hidden_layers: of the decoder; layers numbered on after them are multi-token prediction modules
            (DeepSeek's layout).
    """
    layer = layer_of(name)
    if num_hidden_layers is not None and layer is not None and layer >= num_hidden_layers:
        return MTP
    return next((role for role, pattern in _ROLES if pattern.search(name)), "other")
