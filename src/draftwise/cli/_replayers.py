"""Which way a candidate is replayed: from text alone, or by an engine with the target and its drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.engine.resolved_spec import ResolvedSpec, resolve_spec
from draftwise.engine.sampling.acceptance_rules import Standard
from draftwise.knowledge.methods import get_method
from draftwise.replaying.lookup_drafts import NgramReplayer, SuffixReplayer
from draftwise.replaying.replayer import Replayer
from draftwise.replaying.replaying import Candidate, choose_ks
from draftwise.replaying.served_drafts import ServedReplayer
from draftwise.replaying.transcripts import Transcript

__all__ = ["Workshop"]

_PREFIX = "suffix_decoding_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What all candidates of a replay have in common."""

    target: Path
    ks: tuple[int, ...]
    """The k that were asked for; empty: all."""
    longest: int
    """Tokens of the longest request with its answer."""
    in_flight: int
    """Requests that are decoded together, for what is drafted from other answers."""
    warm: Sequence[Transcript] = ()
    """Earlier requests, which a method that remembers answers has seen."""
    forced: bool
    """Whether everything is replayed by forced decoding."""
    settings: Mapping[str, Any]
    """Of the engine; None where its default holds."""
    target_url: str | None = None
    draft_url: str | None = None
    """Of the server that runs the draft model; None where it is on disk."""

    def make_candidate(self, spec: SpecConfig) -> Candidate:
        """Return a candidate with what replays it.

        Raises:
            InvalidSetup: it cannot be replayed.
        """
        resolved = resolve_spec(spec)
        _refuse_lossy(resolved)
        ks = choose_ks(resolved.k, self.ks)
        whole = replace(spec, method=resolved.method, num_speculative_tokens=ks[-1])
        from_text = get_method(resolved.method).drafts_from == "text" and not self.forced
        if from_text:
            make = self._from_text(resolved, ks)
        elif self.draft_url is not None and get_method(resolved.method).drafts_from == "own_model":
            make = self._from_servers(whole, resolved, ks)
        else:
            make = self._from_engine(whole, resolved, ks)
        return Candidate(spec=whole, ks=ks, make=make)

    def _from_text(self, resolved: ResolvedSpec, ks: tuple[int, ...]) -> Callable[[], Replayer]:
        if get_method(resolved.method).remembers != "answers":
            shortest, longest = resolved.prompt_lookup_min, resolved.prompt_lookup_max
            return partial(NgramReplayer, k=ks[-1], shortest=shortest, longest=longest)
        given = resolved.to_dict().items()
        options = {key.removeprefix(_PREFIX): value for key, value in given if key.startswith(_PREFIX)}
        return partial(SuffixReplayer, ks=ks, options=options, in_flight=self.in_flight, warm=self.warm)

    def _from_servers(self, spec: SpecConfig, resolved: ResolvedSpec, ks: tuple[int, ...]) -> Callable[[], Replayer]:
        if spec.options.get("parallel_drafting") or self.forced:
            raise InvalidSetup.because(
                "served-drafts-are-chains",
                f"{spec.label} drafts in one pass, or is to be decoded again: a server's log-probabilities do not say "
                "what it would draft.",
                where="--draft-url",
                fix="Leave --draft-url out: the models on disk are replayed.",
            )
        if resolved.probabilistic and self.target_url is None:
            raise InvalidSetup.because(
                "sampled-drafts-need-target",
                f"{spec.label} samples its drafts: the target's log-probabilities also decide whether one is accepted.",
                where="--target-url",
                fix="Give the server of the target as --target-url.",
            )
        return partial(self._ask, ks[-1], sampled=resolved.probabilistic)

    def _ask(self, k: int, *, sampled: bool) -> Replayer:
        from draftwise.backends.asking import Scorer

        assert self.draft_url is not None
        target = Scorer(self.target_url).score if sampled and self.target_url is not None else None
        return ServedReplayer(k=k, draft=Scorer(self.draft_url).score, target=target)

    def _from_engine(self, spec: SpecConfig, resolved: ResolvedSpec, ks: tuple[int, ...]) -> Callable[[], Replayer]:
        if find_spec("torch") is None:
            raise InvalidSetup.because(
                "replay-needs-engine",
                f"{spec.label} is replayed with its models, which needs torch.",
                where="--candidate",
                fix="pip install 'draftwise[engine]'.",
            )
        if self.forced and resolved.probabilistic:
            raise InvalidSetup.because(
                "forced-needs-greedy-drafts",
                f"{spec.label} samples its drafts, and forced decoding would only see whether a draw names the text.",
                where="--forced",
                fix="Leave --forced out: the dense replay takes the chance of every draft token instead.",
            )
        return partial(self._open, spec, ks)

    def _open(self, spec: SpecConfig, ks: tuple[int, ...]) -> Replayer:
        from draftwise.engine.replay.opening import open_replayer

        return open_replayer(spec, self.target, ks, longest=self.longest, forced=self.forced, settings=self.settings)


def _refuse_lossy(resolved: ResolvedSpec) -> None:
    if not isinstance(resolved.acceptance, Standard):
        raise InvalidSetup.because(
            "replay-needs-lossless",
            f"{resolved.method} accepts drafts by a rule that changes the text, so that no log is what it would write.",
            where="--candidate",
            fix="Leave out rejection_sample_method and acceptance_method.",
        )
