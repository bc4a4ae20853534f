"""What no step can do without: bytes to read, and the matrix products to compute.

A step computes k + 1 rows a sequence in the target. A drafter's first pass takes in what was confirmed, up to k + 1
rows a sequence; the further passes of a chain have one row a sequence each.
"""

from __future__ import annotations

from dataclasses import dataclass

from cases import Case
from shapes import Config, Scale

__all__ = ["Product", "kv_bytes", "kv_bytes_for", "kv_bytes_per_token", "products", "weight_bytes"]

_BF16 = 2  # bytes of an element


@dataclass(frozen=True, slots=True)
class Product:
    """Rows times a matrix [num_out, num_in]."""

    num_out: int
    num_in: int
    rows: int
    """For one sequence."""
    item: int = _BF16
    """Bytes of an element of the matrix."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrix."""
        return self.item * self.num_out * self.num_in


def products(case: Case, scale: Scale) -> list[Product]:
    """Return a step's matrix products in order, the target's first."""
    return _model(scale.target, case.k + 1, case.k + 1, scale.weight_bytes) + _draft(case, scale)


def weight_bytes(case: Case, scale: Scale) -> int:
    """Return the bytes of weights that a step reads: a matrix counts once for every pass that needs it."""
    return sum(product.num_bytes for product in products(case, scale))


def kv_bytes(case: Case, scale: Scale, *, batch: int, context: int) -> int:
    """Return the bytes of keys and values that a step reads at a context length."""
    target = kv_bytes_per_token(scale.target, scale.kv_bytes)
    method = case.spec["method"] if case.spec else None
    drafter = {
        "eagle3": lambda: case.k * kv_bytes_per_token(scale.eagle3),
        "draft_model": lambda: case.k * kv_bytes_per_token(scale.draft_model),
        "dflash": lambda: kv_bytes_per_token(scale.dflash),
    }.get(method or "", lambda: 0)()
    return batch * context * (target + drafter)


def kv_bytes_per_token(config: Config, item: int = _BF16) -> int:
    """Return the bytes that a token's keys and values take in all layers, at so many an element."""
    return 2 * item * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]


def kv_bytes_for(case: Case, scale: Scale, batch: int, output_tokens: int) -> int:
    """Return a KV cache's size in which a batch runs without preemption, the drafter's part included."""
    per_token = kv_bytes_per_token(scale.target, scale.kv_bytes)
    if case.drafter:
        per_token += kv_bytes_per_token(getattr(scale, case.drafter))
    return int(
        1.03
        * per_token
        * (batch * (scale.length_of_prompts(batch) + output_tokens + case.k + 33) + scale.max_model_len)
    )


def _draft(case: Case, scale: Scale) -> list[Product]:
    """Return the drafter's products."""
    if case.spec is None or case.drafter is None:
        return []
    hidden, width = scale.target["hidden_size"], case.k + 1
    if case.drafter == "draft_model":
        return [each for rows in _chain_rows(case.k) for each in _model(scale.draft_model, rows, 1)]
    if case.drafter == "eagle3":
        found = [Product(hidden, 3 * hidden, width)]
        for rows in _chain_rows(case.k):
            found += _layer(scale.eagle3, rows, num_in=2 * hidden)
            found.append(Product(scale.draft_vocab_size, hidden, 1))
        return found
    fuse = Product(hidden, len(scale.dflash_aux_layers) * hidden, width)
    return [fuse, *_model(scale.dflash, width, case.k)]


def _chain_rows(k: int) -> list[int]:
    return [k + 1] + [1] * (k - 1)


def _model(config: Config, rows: int, head_rows: int, item: int = _BF16) -> list[Product]:
    """Return a model's products; `item` bytes an element of the layers' matrices."""
    layers = [each for _ in range(config["num_hidden_layers"]) for each in _layer(config, rows, item=item)]
    return [*layers, Product(config["vocab_size"], config["hidden_size"], head_rows)]


def _layer(config: Config, rows: int, *, num_in: int | None = None, item: int = _BF16) -> list[Product]:
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    return [
        Product(q + 2 * kv, num_in or hidden, rows, item),
        Product(hidden, q, rows, item),
        Product(2 * inner, hidden, rows, item),
        Product(hidden, inner, rows, item),
    ]
