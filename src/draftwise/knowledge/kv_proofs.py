"""Lists the architectures, releases and settings whose cache size was compared with vLLM's own planner.

`python -m catalogue.kv_law prove` writes the table: nobody does by hand.
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
"""What a proof is about -> its name in a sentence. Other types of the KV cache are proved by their own names."""


@cache
def _read() -> Mapping[Version, Mapping[str, frozenset[str]]]:
    rows = read_data("kv_proofs")["releases"]
    return {
        Version(release): {name: frozenset(features.split()) for name, features in architectures.items()}
        for release, architectures in rows.items()
    }


def find_unproved(architecture: str, version: Version, features: Collection[str], *, is_simple: bool) -> list[str]:
    """Return the features of a setup whose memory no comparison with vLLM's own code covers.

    A release between two compared ones counts as compared where both agree. Beyond the oldest and the newest one, only
    a model counts whose layers all keep keys and values of every token, in one group: nothing to lay out.

    Args:
        architecture: as config.json names it.
        version: of vLLM.
        features: that the setup needs: of `FEATURES`, or types of the KV cache.
        is_simple: whether all layers are of one kind, without windows, states or indexers.
    """
    proofs = _read()
    around = [each for each in (_nearest(version, older=True), _nearest(version, older=False)) if each is not None]
    if len(around) < 2 and not is_simple:
        return sorted(features)
    proved = [proofs[each].get(architecture, frozenset()) for each in around]
    return sorted(name for name in features if any(name not in each for each in proved))


def _nearest(version: Version, *, older: bool) -> Version | None:
    """Return the nearest compared release that is not newer, or not older."""
    compared = _read()
    if older:
        return max((each for each in compared if each <= version), default=None)
    return min((each for each in compared if each >= version), default=None)
