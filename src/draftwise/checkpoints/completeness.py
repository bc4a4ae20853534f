"""Whether a drafter's files hold the tensors that its config asks for: vLLM loads most incomplete heads in silence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from draftwise.checkpoints.decoder_tensors import Shapes
from draftwise.checkpoints.expected import Expected, TargetSizes, expect_tensors
from draftwise.checkpoints.headers import Headers, Tensor
from draftwise.checkpoints.quoting import quote, quote_some
from draftwise.checkpoints.recognize import RecognizedDrafter
from draftwise.core import Ruling
from draftwise.knowledge.rules import Rulebook

__all__ = ["find_tensor_findings"]

_QUANTIZED_PART = re.compile(
    r"\.(?:qweight|qzeros|scales|g_idx|weight_packed|weight_scale(?:_\w+)?|weight_shape|weight_zero_point|weight_g_idx"
    r"|input_scale|input_global_scale|weight_global_scale|k_scale|v_scale|weight\.[\w.]+)$"
)
"""Endings of what stands in for `.weight`, or beside it, in a quantized layer."""
_PACKED_TYPES = frozenset({"U8", "I8", "I32", "F4", "F6_E2M3", "F6_E3M2"})
_FLEXIBLE = "mask_hidden"
"""Read flat, whatever its shape."""


def find_tensor_findings(
    rules: Rulebook, drafter: RecognizedDrafter, headers: Headers, target: TargetSizes | None, *, is_quantized: bool
) -> Iterator[Ruling]:
    """Yield what is missing, unknown or of another shape.

    Args:
        rules: of the release that is to load it.
        drafter: as recognized.
        headers: its tensors.
        target: see `expect_tensors`.
        is_quantized: whether its config says that its weights are quantized: packed ones have shapes of their own.
    """
    where = str(headers.directory)
    expected = expect_tensors(drafter, target)
    if expected is None:
        if drafter.is_head:
            yield from _unchecked(rules, drafter, where)
        return
    found = {expected.rename(name): tensor for name, tensor in headers.tensors.items()}
    if drafter.is_head and drafter.traits.weights != "target" and _all_prefixed(found, expected):
        yield from rules.ruling("tensors-prefixed", name=quote(min(found)), where=where)
        return
    stems = {_stem(name) for name in found} if is_quantized else set[str]()
    yield from _find_missing(rules, expected, found, stems, where)
    yield from _find_misshapen(rules, expected, found, where, is_quantized=is_quantized)
    if expected.refuses_unknown:
        yield from _find_unknown(rules, drafter, expected, found, where, is_quantized=is_quantized)


def _unchecked(rules: Rulebook, drafter: RecognizedDrafter, where: str) -> tuple[Ruling, ...]:
    return rules.ruling("tensors-unchecked", drafter=quote(drafter.architecture or drafter.method), where=where)


def _all_prefixed(found: Mapping[str, Tensor], expected: Expected) -> bool:
    known = expected.required.keys() | expected.optional.keys()
    return not known & found.keys() and any(name.removeprefix("model.") in known for name in found)


def _stem(name: str) -> str:
    """Return the name that a layer's weight would have if it were not quantized."""
    return _QUANTIZED_PART.sub(".weight", name)


def _find_missing(
    rules: Rulebook, expected: Expected, found: Mapping[str, Tensor], stems: set[str], where: str
) -> Iterator[Ruling]:
    missing = sorted(name for name in expected.required if name not in found and name not in stems)
    silent = [name for name in missing if expected.silent.match(name)]
    loud = [name for name in missing if not expected.silent.match(name)]
    if silent:
        yield from rules.ruling("tensors-missing", num=len(silent), names=quote_some(silent), where=where)
    if loud:
        yield from rules.ruling("tensors-missing-refused", num=len(loud), names=quote_some(loud), where=where)


def _find_misshapen(
    rules: Rulebook, expected: Expected, found: Mapping[str, Tensor], where: str, *, is_quantized: bool
) -> Iterator[Ruling]:
    shapes: Shapes = {**expected.required, **expected.optional}
    wrong = [
        f"{name} is {list(found[name].shape)}, not {list(shape)}"
        for name, shape in sorted(shapes.items())
        if name in found and not _fits(found[name], name, shape, may_be_packed=is_quantized)
    ]
    if wrong:
        yield from rules.ruling("tensor-shapes", num=len(wrong), names=quote_some(wrong), where=where)


def _fits(tensor: Tensor, name: str, shape: tuple[int, ...], *, may_be_packed: bool) -> bool:
    if name == _FLEXIBLE:
        return tensor.num_elements == math.prod(shape)
    is_packed = may_be_packed and name.endswith(".weight") and tensor.dtype in _PACKED_TYPES
    return tensor.shape == shape or is_packed


def _find_unknown(
    rules: Rulebook,
    drafter: RecognizedDrafter,
    expected: Expected,
    found: Mapping[str, Tensor],
    where: str,
    *,
    is_quantized: bool,
) -> Iterator[Ruling]:
    known = expected.required.keys() | expected.optional.keys()
    unknown = [
        name
        for name in sorted(found)
        if name not in known
        and not expected.ignored.fullmatch(name)
        and not (is_quantized and (_stem(name) in known or _QUANTIZED_PART.search(name)))
    ]
    if not drafter.is_head and len(unknown) > len(known):
        return  # another family under a familiar name: nothing that a list of names would explain
    biases = [name for name in unknown if name.endswith(".bias")]
    for code in ("biases-dropped", "biases-refused") if biases else ():
        yield from rules.ruling(
            code, architecture=quote(drafter.architecture), num=len(biases), names=quote_some(biases), where=where
        )
    unknown = [name for name in unknown if name not in biases]
    if unknown:
        yield from rules.ruling(
            "tensors-unknown",
            architecture=quote(drafter.architecture),
            num=len(unknown),
            names=quote_some(unknown),
            where=where,
        )
