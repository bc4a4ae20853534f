"""The architectures, releases and settings whose cache size was compared with vLLM's own planner.

`python -m catalogue law` writes the table; do not edit it by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from packaging.version import Version

from draftwise.knowledge.stored import read_data

FEATURES: Mapping[str, str] = {
    "plain": "its layers",
    "fp8": "an 8-bit KV cache",
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "lookup": "speculation without a drafter",
    "mtp": "MTP modules",
    "head": "a drafter with layers of its own",
}
"""What a proof is about -> its name in a sentence. Other types of the KV cache are proved by their own names.

`!` before a feature of the table says that it was compared, and that `size` differs from vLLM.
"""


@cache
def _read() -> Mapping[Version, Mapping[str, frozenset[str]]]:
    rows = read_data("kv_proofs")["releases"]
    return {
        Version(release): {name: frozenset(features.split()) for name, features in architectures.items()}
        for release, architectures in rows.items()
    }


def find_unproved(
    architecture: str, version: Version, features: Collection[str], *, is_simple: bool
) -> tuple[Collection[str], Collection[str]]:
    """Return the features of a setup whose memory was not compared with vLLM's planner, and those that differ from it.

    A release between two compared ones counts as compared if both agree. For a model whose layers all keep keys and
    values of every token, in one group, one of the two, or the oldest or newest release, is enough.

    Args:
        architecture: class name in config.json.
        version: release of vLLM.
        features: features that the setup needs: from `FEATURES`, or types of the KV cache.
        is_simple: whether all layers are of one kind, without windows, states or indexers.
    """
    proofs = _read()
    around = {each for each in (_nearest(version, older=True), _nearest(version, older=False)) if each is not None}
    said = [proofs[each].get(architecture, frozenset()) for each in around]
    different = {name for name in features if any(f"!{name}" in each for each in said)}
    enough = any if is_simple else all
    covered = is_simple or version in proofs or len(around) == 2
    proved = {name for name in features if covered and enough(name in each for each in said)} - different
    return sorted({*features} - proved - different), sorted(different)


def _nearest(version: Version, *, older: bool) -> Version | None:
    """Return the nearest compared release that is not newer, or not older."""
    compared = _read()
    if older:
        return max((each for each in compared if each <= version), default=None)
    return min((each for each in compared if each >= version), default=None)
