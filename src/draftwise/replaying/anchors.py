"""Holds the drafts after each token of the logged answers, and how many draft tokens are accepted.

An anchor is a place in an answer where a step can begin. All answers are concatenated in one array.

Shape letters: R requests, N answer tokens of all requests, K draft tokens.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.core import SpecConfig, cause_of
from draftwise.knowledge.messages import refusal
from draftwise.machine.whole_files import write_whole

UNLIMITED = 2**31 - 1
"""Limit of a request whose maximum answer length the log does not contain."""
_FILE = "anchors.npz"
_INDEX = "index"

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """The drafts of up to k tokens at every answer token. Row t is the draft that starts with token t.

    Row 0 of a request is unused: prefill produces its first token.
    """

    drafted_N: NDArray[np.uint16]
    """uint16 [N]: tokens drafted."""
    accepted_N: NDArray[np.uint16] | None = None
    """uint16 [N]: accepted ones of these, for deterministic drafts; None for sampled drafts."""
    chances_NK: NDArray[np.float32] | None = None
    """float32 [N, K]: probability that sampled draft token j is accepted if the earlier ones are; 0 after the draft."""
    confidence_NK: NDArray[np.float16] | None = None
    """float16 [N, K]: the drafter's largest token probability at position j; 0 after the draft. None for lookups and
    drafters that do not report it. It shows the gain from stopping drafts below a threshold."""

    def __post_init__(self) -> None:
        if (self.accepted_N is None) == (self.chances_NK is None):
            raise ValueError("drafts have either accepted tokens or chances")
        given = self.accepted_N if self.chances_NK is None else self.chances_NK
        assert given is not None
        if self.drafted_N.ndim != 1 or len(given) != len(self.drafted_N):
            raise ValueError(f"{len(given)} rows for {len(self.drafted_N)} drafts")
        if self.accepted_N is not None and (self.accepted_N > self.drafted_N).any():
            raise ValueError("more tokens accepted than drafted")
        if self.chances_NK is not None and not ((self.chances_NK >= 0) & (self.chances_NK <= 1)).all():
            raise ValueError("a chance is outside 0-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """The drafts of one candidate on the requests of one temperature. `walk` evaluates any k or limit on them."""

    candidate: SpecConfig
    """The candidate, with the largest k."""
    temperature: float
    requests: tuple[str, ...]
    """Ids, in the log's order."""
    groups: tuple[str | None, ...]
    """Group of each request."""
    offsets: Ints
    """[R + 1]: the answer of request r is rows `offsets[r]:offsets[r + 1]`."""
    limits: Ints
    """[R]: maximum answer length in tokens (`max_tokens`), or UNLIMITED."""
    drafts: Mapping[int, Drafts]
    """Drafts by k. A single k covers every smaller one, because a shorter draft is a prefix of a longer one. Several ks
    belong to a drafter without that property, and cover only themselves."""

    def __post_init__(self) -> None:
        num = len(self.requests)
        sizes = (len(self.groups), len(self.limits), len(self.offsets) - 1)
        if sizes != (num, num, num) or not num:
            raise ValueError(f"{num} requests with {sizes} groups, limits and answers")
        if self.offsets[0] != 0 or (np.diff(self.offsets) < 1).any():
            raise ValueError("answers do not lie behind each other")
        if not self.drafts or min(self.drafts) < 1:
            raise ValueError(f"drafts of k {list(self.drafts)}")
        if any(len(each.drafted_N) != self.offsets[-1] for each in self.drafts.values()):
            raise ValueError("drafts and answers differ in length")

    @property
    def lengths(self) -> Ints:
        """[R]: tokens of each answer."""
        return np.diff(self.offsets)

    @property
    def ks(self) -> tuple[int, ...]:
        """Every k that these drafts cover."""
        return tuple(range(1, max(self.drafts) + 1)) if len(self.drafts) == 1 else tuple(sorted(self.drafts))

    def drafts_for(self, k: int) -> Drafts:
        """Return the drafts from which to cut k tokens.

        Raises:
            KeyError: the drafts do not cover this k.
        """
        if k not in self.ks:
            raise KeyError(k)
        return self.drafts.get(k) or self.drafts[max(self.drafts)]


def write_anchors(folder: Path, anchors: Iterable[Anchors]) -> None:
    """Write `anchors.npz` atomically.

    Raises:
        OSError: the file cannot be written.
    """
    arrays: dict[str, NDArray[Any]] = {}
    index = []
    for number, each in enumerate(anchors):
        index.append(_describe(each))
        arrays |= {f"{number}/offsets": each.offsets, f"{number}/limits": each.limits}
        for k, drafts in each.drafts.items():
            named: dict[str, NDArray[Any] | None] = {
                "drafted": drafts.drafted_N,
                "accepted": drafts.accepted_N,
                "chances": drafts.chances_NK,
                "confidence": drafts.confidence_NK,
            }
            arrays |= {f"{number}/{k}/{name}": array for name, array in named.items() if array is not None}
    arrays[_INDEX] = np.frombuffer(json.dumps(index).encode(), np.uint8)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]  # its stub takes a name for an option
    write_whole(folder / _FILE, packed.getvalue())


def read_anchors(folder: Path) -> tuple[Anchors, ...]:
    """Read the file of `write_anchors`.

    Raises:
        InvalidSetup: the folder has no such file, or it is damaged.
    """
    path = folder / _FILE
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        index = json.loads(arrays[_INDEX].tobytes())
        return tuple(_restore(row, number, arrays) for number, row in enumerate(index))
    except FileNotFoundError:
        raise refusal("not-a-profile", folder=folder, file=_FILE) from None
    except Exception as error:  # zip files and arrays fail in a dozen ways
        raise refusal("damaged-profile", path=path, cause=cause_of(error)) from None


def _describe(anchors: Anchors) -> dict[str, Any]:
    return {
        "candidate": anchors.candidate.to_dict(),
        "temperature": anchors.temperature,
        "requests": list(anchors.requests),
        "groups": list(anchors.groups),
        "k": sorted(anchors.drafts),
    }


def _restore(row: Mapping[str, Any], number: int, arrays: Mapping[str, NDArray[Any]]) -> Anchors:
    ks: Sequence[int] = row["k"]
    return Anchors(
        candidate=SpecConfig.parse(row["candidate"]),
        temperature=row["temperature"],
        requests=tuple(row["requests"]),
        groups=tuple(row["groups"]),
        offsets=arrays[f"{number}/offsets"],
        limits=arrays[f"{number}/limits"],
        drafts={
            k: Drafts(
                drafted_N=arrays[f"{number}/{k}/drafted"],
                accepted_N=arrays.get(f"{number}/{k}/accepted"),
                chances_NK=arrays.get(f"{number}/{k}/chances"),
                confidence_NK=arrays.get(f"{number}/{k}/confidence"),
            )
            for k in ks
        },
    )
