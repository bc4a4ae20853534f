"""Drafts by prompt lookup: the tokens after the first occurrence of the longest known suffix (Saxena 2023).

Source: https://github.com/apoorvumang/prompt-lookup-decoding; drafts exactly as vLLM's `ngram`.
"""

from __future__ import annotations

from collections.abc import Iterable


class NgramIndex:
    """One sequence's tokens with a suffix automaton (Blumer et al. 1985), built online.

    A state represents substrings with the same end positions: `_size` is the length of the longest, `_end` their first
    end, `_link` the state of their longest suffix that also ends elsewhere. So the link of the whole text's state is
    the longest suffix that occurred before, and its `_end` is the earliest occurrence. Takes constant amortized time
    (about 1 us) and 0.5 KB per token, for any range of n-gram lengths.

    Args:
        shortest: minimum length of a repeat in tokens.
        longest: maximum length of a repeat in tokens.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        assert 1 <= shortest <= longest
        self.tokens: list[int] = []
        self._shortest, self._longest = shortest, longest
        self._next: list[dict[int, int]] = [{}]
        self._link = [0]
        self._size = [0]
        self._end = [0]
        self._last = 0
        self._match = 0  # state of the longest suffix of at most `longest` tokens that occurred before

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._append(token)

    def draft(self, budget: int) -> list[int]:
        """Return up to `budget` tokens that followed the earliest occurrence of the text's longest repeated suffix;
        empty without a repeat."""
        if budget <= 0 or self._size[self._match] < self._shortest:
            return []
        end = self._end[self._match]
        return self.tokens[end : end + budget]

    def _append(self, token: int) -> None:
        """Append a token. The first suffix already known to go on with it, longest first, becomes the repeat."""
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
