"""Lengths and parallel sizes that no server can have, whatever the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draftwise.core import Ruling, Stage
from draftwise.plan.check.context import Context

__all__ = ["find_sizes"]

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size")


def find_sizes(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of sizes below 1, and of more GPUs than a node has."""
    length = context.given.get("max_model_len")
    as_fits = -1 if context.holds("length-auto") else 0
    if isinstance(length, int) and (length == 0 or length < as_fits):
        yield from context.ruling(
            "target-length-not-positive",
            f"max_model_len is {length}; it must be above 0.",
            where="max_model_len",
            fix="Leave it out.",
        )
    for name in _SIZES:
        size = context.given.get(name)
        if isinstance(size, int) and size < 1:
            yield from _find_size_below_one(context, name, size)
    yield from _find_world(context)


def _find_size_below_one(context: Context, name: str, size: int) -> Iterator[Ruling]:
    message, fix = f"{name} is {size}; it must be 1 or more.", "Give 1 or more."
    yield from context.ruling("parallel-size-not-positive", message, where=name, fix=fix)
    # Old releases divide by the size without a check: with the drafter, where there is one.
    method = context.keys.get("method")
    drafts = context.spec is not None and not context.applies("suffix-without-draft-config", method)
    for ruling in context.ruling("parallel-size-zero", message, where=name, fix=fix):
        yield replace(ruling, stage=Stage.CONFIG if drafts else Stage.ENGINE)


def _find_world(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of more GPUs than a single node has, where it is known how many that are."""
    device = context.setup.device
    if device is None or device.kind != "cuda" or context.flag("nnodes", 1) != 1:
        return
    if device.count <= 1:  # what a description says that does not count its GPUs
        return
    if context.given.get("distributed_executor_backend") or context.flag("data_parallel_backend") == "ray":
        return
    tensor, stages = (context.flag(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
    if isinstance(tensor, int) and isinstance(stages, int) and tensor * stages > device.count:
        yield from context.ruling(
            "world-beyond-node",
            f"tensor_parallel_size {tensor} times {stages} pipeline stages need {tensor * stages} GPUs, and the node "
            f"has {device.count}.",
            where="tensor_parallel_size",
            fix="Set distributed_executor_backend to ray, or nnodes.",
        )
