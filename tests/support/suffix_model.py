"""SuffixDecoding by definition: tries of dictionaries, no compression, every match searched from the root.

A reference for `SuffixProposer` that shares nothing with it: about a hundred times slower, and short enough to be read.
"""

from __future__ import annotations

import numpy as np


class Trie:
    """A node; its children are ordered by count, equal counts as ArcticInference 0.1.1 orders them."""

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[int, Trie] = {}
        self.order: list[int] = []

    def add(self, token: int) -> Trie:
        """Count one more path into a child."""
        if token not in self.children:
            self.children[token] = Trie()
            self.order.append(token)
        else:
            count = self.children[token].count
            first = next(i for i, other in enumerate(self.order) if self.children[other].count == count)
            at = self.order.index(token)
            self.order.remove(token)
            if at == first:  # goes before those that already have one more
                first = next(i for i, t in enumerate([*self.order, None]) if t is None or self._count(t) <= count + 1)
            self.order.insert(first, token)
        self.children[token].count += 1
        return self.children[token]

    def discard(self, token: int) -> Trie:
        """Count one path less into a child."""
        child = self.children[token]
        self.order.remove(token)
        child.count -= 1
        if child.count:
            behind = (i for i, t in enumerate([*self.order, None]) if t is None or self._count(t) <= child.count)
            self.order.insert(next(behind), token)
        else:
            del self.children[token]
        return child

    def _count(self, token: int) -> int:
        return self.children[token].count

    def find(self, path: list[int]) -> Trie | None:
        """Return the node that a path leads to."""
        node: Trie | None = self
        for token in path:
            node = node.children.get(token) if node else None
        return node


class Tree:
    """A trie of all suffixes of some sequences, cut to `depth` tokens."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.root = Trie()
        self.texts: dict[int, list[int]] = {}

    def append(self, name: int, token: int) -> None:
        text = self.texts.setdefault(name, [])
        text.append(token)
        for length in range(min(self.depth, len(text)), 0, -1):
            parent = self.root.find(text[len(text) - length : -1])
            assert parent is not None
            parent.add(token)

    def remove(self, name: int) -> None:
        text = self.texts.pop(name, [])
        for start in range(len(text)):
            node = self.root
            for token in text[start : start + self.depth]:
                node = node.discard(token)

    def speculate(self, context: list[int], k: int, factor: float, min_prob: float) -> tuple[list[int], np.float32]:
        best: tuple[list[int], np.float32] = ([], np.float32(0))
        for length in range(1, len(context)):
            node = self.root.find(context[-length:])
            if node is None:
                break
            limit = min(k, int(np.float32(length) * np.float32(factor) + 1e-6))
            draft = self._follow(node, limit, np.float32(min_prob))
            if draft[1] >= best[1]:
                best = draft
        return best

    @staticmethod
    def _follow(node: Trie, limit: int, min_prob: np.float32) -> tuple[list[int], np.float32]:
        tokens: list[int] = []
        prob, score = np.float32(1), np.float32(0)
        while len(tokens) < limit and node.order:
            child = node.children[node.order[0]]
            prob *= np.float32(child.count) / np.float32(node.count)
            if prob < min_prob:
                break
            tokens.append(node.order[0])
            score += prob
            node = child
        return tokens, score


class SuffixModel:
    """What `SuffixProposer` does, with requests by name; a batch is one call of `step` per sequence."""

    def __init__(self, depth: int, max_cached: int, factor: float, min_prob: float) -> None:
        self.depth, self.max_cached, self.factor, self.min_prob = depth, max_cached, factor, min_prob
        self.shared = Tree(depth)
        self.cached: list[int] = []
        self.own: dict[int, Tree] = {}
        self.responding: set[int] = set()

    def step(self, name: int, prompt: list[int], response: list[int], k: int) -> list[int]:
        """Take in new tokens of a request and return its draft."""
        own = self.own.setdefault(name, Tree(self.depth))
        for token in prompt + response:
            own.append(0, token)
        if response and name not in self.responding:
            self.responding.add(name)
            response = response[-1:]  # the rest was output before a preemption
            if self.max_cached:
                self.cached.append(name)
                for oldest in self.cached[: -self.max_cached]:
                    self.shared.remove(oldest)
                self.cached = self.cached[-self.max_cached :]
        if name in self.cached:
            for token in response:
                self.shared.append(name, token)
        if name not in self.responding:
            return []
        context = own.texts[0][-self.depth :]
        mine = own.speculate(context, k, self.factor, self.min_prob)
        shared = self.shared.speculate(context, k, self.factor, self.min_prob)
        return max(mine, shared, key=lambda draft: draft[1])[0]

    def release(self, name: int) -> None:
        """Forget a request's own tree."""
        self.own.pop(name, None)
