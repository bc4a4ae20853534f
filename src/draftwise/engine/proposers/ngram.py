"""Prompt lookup on the host: what followed the sequence's longest known suffix where it first occurred."""

from __future__ import annotations

from draftwise.engine.proposers.base import Confirmed, Proposer
from draftwise.engine.sampling.draft import Draft

__all__ = ["NgramProposer"]


class NgramProposer(Proposer):
    """Drafts by lookup in the sequence itself (Saxena 2023, prompt-lookup-decoding), exactly as vLLM's `ngram`.

    Of all n-grams with prompt_lookup_min <= n <= prompt_lookup_max that end the sequence, it takes the longest one that
    occurred before, goes to that n-gram's earliest occurrence and drafts what followed it (at most up to
    max_model_len tokens in all).
    """

    needs_history = True
    on_host = True

    def __init__(
        self,
        *,
        prompt_lookup_min: int,
        prompt_lookup_max: int,
        max_num_seqs: int,  # noqa: ARG002  (of the method's other implementation, which allocates by it)
        max_model_len: int,
    ) -> None:
        assert 1 <= prompt_lookup_min <= prompt_lookup_max, "the resolved config guarantees it"
        self._shortest, self._longest = prompt_lookup_min, prompt_lookup_max
        self._max_model_len = max_model_len
        self._histories: dict[int, _History] = {}

    def propose(self, new: Confirmed, k: int) -> Draft:
        """Take in `new` and draft up to k tokens each: constant time per new token, however long the prompt."""
        rows = []
        limits = new.limits_B.tolist()
        for slot, tokens, limit in zip(new.slots_B.tolist(), new.to_lists(), limits, strict=True):
            history = self._histories.get(slot)
            if history is None:
                history = self._histories[slot] = _History(self._longest)
            history.extend(tokens)
            budget = min(limit, k, self._max_model_len - len(history.tokens))
            rows.append(history.continuation(self._shortest, budget))
        return Draft.from_lists(rows, k)

    def release(self, slot: int) -> None:
        """Forget the sequence in `slot`."""
        self._histories.pop(slot, None)


class _History:
    """The tokens of one sequence and their suffix automaton (Blumer et al. 1985), built online.

    A state stands for substrings that end at the same positions: `_size` is the length of the longest, `_end` where
    they first ended, `_link` the state of their longest suffix that also ends elsewhere. So the link of the state of
    the whole text is the longest suffix that occurred before, and its `_end` the earliest occurrence. Constant
    amortised time (about a microsecond) and half a kilobyte a token, for any range of n-gram lengths.
    """

    def __init__(self, longest: int) -> None:
        self.tokens: list[int] = []
        self._longest = longest
        self._next: list[dict[int, int]] = [{}]
        self._link = [0]
        self._size = [0]
        self._end = [0]
        self._last = 0
        self._match = 0  # state of the longest suffix of at most `longest` tokens that occurred before

    def extend(self, tokens: list[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._append(token)

    def continuation(self, shortest: int, budget: int) -> list[int]:
        """Return up to `budget` tokens that followed the match, or none if it is below `shortest` tokens."""
        if budget <= 0 or self._size[self._match] < shortest:
            return []
        end = self._end[self._match]
        return self.tokens[end : end + budget]

    def _append(self, token: int) -> None:
        """Append a token; the first suffix already known to go on with it, longest first, becomes the repeat."""
        edges_of, link = self._next, self._link
        self.tokens.append(token)
        source, state = self._last, self._new_state(len(self.tokens), len(self.tokens), {}, 0)
        self._last = state
        while token not in (edges := edges_of[source]):
            edges[token] = state
            if source == 0:
                self._match = 0
                return
            source = link[source]
        target = edges[token]
        if self._size[target] != self._size[source] + 1:
            target = self._split(source, token, target)
        link[state] = target
        self._match = target if self._size[target] <= self._longest else self._extend_match(token)

    def _split(self, source: int, token: int, target: int) -> int:
        """Split off the substrings of `target` that are no longer than `source` plus token, and return their state."""
        edges_of, link = self._next, self._link
        split = self._new_state(self._size[source] + 1, self._end[target], edges_of[target].copy(), link[target])
        link[target] = split
        while edges_of[source].get(token) == target:
            edges_of[source][token] = split
            if source == 0:
                break
            source = link[source]
        return split

    def _extend_match(self, token: int) -> int:
        """Return the match one token later, still of `longest` tokens, without a walk down from the longer repeat."""
        match = self._match  # of `longest` tokens too: a repeat grows by at most one token a step
        while match and self._size[self._link[match]] >= self._longest - 1:  # drop its first token
            match = self._link[match]
        return self._next[match][token]

    def _new_state(self, size: int, end: int, edges: dict[int, int], link: int) -> int:
        self._size.append(size)
        self._end.append(end)
        self._next.append(edges)
        self._link.append(link)
        return len(self._size) - 1
