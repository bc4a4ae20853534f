"""Which way a candidate is replayed: from text alone, or by an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.engine.spec import ResolvedSpec, resolve_spec
from draftwise.facts.methods import get_method
from draftwise.replay.lookup_drafts import NgramReplayer, SuffixReplayer
from draftwise.replay.replayer import Replayer
from draftwise.replay.replaying import Candidate, choose_ks

__all__ = ["make_candidate"]

_PREFIX = "suffix_decoding_"


def make_candidate(spec: SpecConfig, target: Path, ks: tuple[int, ...], *, in_flight: int) -> Candidate:
    """Return a candidate with what replays it.

    Args:
        spec: as it was given; its k is the largest.
        target: checkpoint of the target.
        ks: the k that were asked for; empty: all.
        in_flight: requests that are decoded together.

    Raises:
        InvalidSetup: it cannot be replayed.
    """
    resolved = resolve_spec(spec)
    chosen = choose_ks(resolved.k, ks)
    whole = replace(spec, method=resolved.method, num_speculative_tokens=chosen[-1])
    return Candidate(spec=whole, ks=chosen, make=_maker(resolved, target, chosen, in_flight))


def _maker(resolved: ResolvedSpec, target: Path, ks: tuple[int, ...], in_flight: int) -> Callable[[], Replayer]:
    method = get_method(resolved.method)
    if method.drafts_from != "text":
        raise InvalidSetup.because(
            "replay-needs-engine",
            f"{resolved.method} drafts with a model, which this version does not replay from {target}.",
            where="--candidate",
        )
    if method.remembers != "answers":
        shortest, longest = resolved.prompt_lookup_min, resolved.prompt_lookup_max
        return partial(NgramReplayer, k=ks[-1], shortest=shortest, longest=longest)
    options = {key.removeprefix(_PREFIX): value for key, value in resolved.to_dict().items() if key.startswith(_PREFIX)}
    return partial(SuffixReplayer, ks=ks, options=options, in_flight=in_flight)
