"""The invariants of a suffix forest, checked the slow way against the texts of its sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from draftwise.lookup import suffix_nodes as layout
from draftwise.lookup.suffix_nodes import Arena, find_child
from draftwise.lookup.suffix_tree import get_edge_length

__all__ = ["check_integrity"]


def check_integrity(arena: Arena, trees: Mapping[int, Sequence[int]]) -> None:
    """Check every tree (root: its sequences) and that each allocated node, group and bucket entry is in use or free.

    Raises:
        AssertionError: an invariant does not hold.
    """
    num_nodes = num_chained = 0
    groups: set[int] = set()
    for root, sequences in trees.items():
        nodes = list(_walk(arena, root))
        num_nodes += 1 + len(nodes)
        counts: Counter[tuple[int, ...]] = Counter()
        for node, path in nodes:
            length = int(get_edge_length(arena, node))
            assert length >= 1, "an edge holds at least one token"
            for end in range(len(path) - length + 1, len(path) + 1):
                counts[path[:end]] = int(arena.nodes[node + layout.COUNT])
        assert counts == _count_substrings(arena, sequences), "each path occurs as often as its node says"
        for parent in [root, *(node for node, _ in nodes)]:
            num_chained += _check_children(arena, root, parent, groups)
    meta = arena.meta
    assert _num_allocated(arena, layout.NODES_END, layout.NODES_FREE, layout.NEXT) == num_nodes
    assert _num_allocated(arena, layout.GROUPS_END, layout.GROUPS_FREE, layout.GROUP_HEAD) == len(groups)
    assert meta[layout.NUM_CHAINED] == num_chained, "only siblings are chained"
    assert num_chained <= meta[layout.NUM_BUCKETS] <= arena.buckets.size, "chains stay short"


def _walk(arena: Arena, root: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield every node below the root with the tokens that lead to its end."""
    stack: list[tuple[int, tuple[int, ...]]] = [(root, ())]
    while stack:
        parent, path = stack.pop()
        for child in _children(arena, parent):
            text = arena.seqs[arena.nodes[child + layout.SEQ] + layout.BASE] + arena.nodes[child + layout.REF]
            tokens = arena.tokens[text : text + get_edge_length(arena, child)]
            stack.append((child, path + tuple(tokens.tolist())))
            yield stack[-1]


def _children(arena: Arena, parent: int) -> list[int]:
    child, children = int(arena.nodes[parent + layout.FIRST]), []
    while child:
        children.append(child)
        child = int(arena.nodes[child + layout.NEXT])
    return children


def _count_substrings(arena: Arena, sequences: Sequence[int]) -> Counter[tuple[int, ...]]:
    depth = int(arena.meta[layout.DEPTH])
    counts: Counter[tuple[int, ...]] = Counter()
    for seq in sequences:
        base, size = arena.seqs[seq + layout.BASE], arena.seqs[seq + layout.SIZE]
        text = tuple(arena.tokens[base : base + size].tolist())
        counts.update(
            text[start:end] for start in range(size) for end in range(start + 1, min(start + depth, int(size)) + 1)
        )
    return counts


def _check_children(arena: Arena, root: int, parent: int, groups: set[int]) -> int:
    """Check the links and ranks of a node's children; return how many of them are chained."""
    nodes = arena.nodes
    children = _children(arena, parent)
    assert nodes[parent + layout.LAST] == (children[-1] if children else 0)
    before = 0
    for child in children:
        assert nodes[child + layout.PARENT] == parent
        assert nodes[child + layout.PREV] == before
        text = arena.seqs[nodes[child + layout.SEQ] + layout.BASE] + nodes[child + layout.REF]
        assert nodes[child + layout.TOKEN] == arena.tokens[text]
        assert find_child(arena, parent, nodes[child + layout.TOKEN]) == child
        if parent != root:
            assert nodes[child + layout.COUNT] < nodes[parent + layout.COUNT], "equal counts belong on one edge"
        before = child
    if len(children) < 2:
        assert all(nodes[child + layout.GROUP] == 0 for child in children)
        return 0
    _check_groups(nodes, children, groups)
    return len(children)


def _check_groups(nodes: np.ndarray, children: list[int], groups: set[int]) -> None:
    """Check that siblings are ranked by count and that each count has one group that knows its ends."""
    counts = [int(nodes[child + layout.COUNT]) for child in children]
    assert counts == sorted(counts, reverse=True)
    for count in set(counts):
        members = [child for child in children if nodes[child + layout.COUNT] == count]
        ids = {int(nodes[child + layout.GROUP]) for child in members}
        assert len(ids) == 1, "siblings of equal count share a group"
        assert not ids & groups, "and nobody else does"
        (group,) = ids
        assert nodes[group + layout.GROUP_HEAD] == members[0]
        assert nodes[group + layout.GROUP_TAIL] == members[-1]
        groups.add(group)


def _num_allocated(arena: Arena, end_field: int, free_field: int, next_field: int) -> int:
    num_rows = int(arena.meta[end_field]) // layout.NODE_WIDTH - 1
    free, num_free = int(arena.meta[free_field]), 0
    while free:
        num_free += 1
        free = int(arena.nodes[free + next_field])
    return num_rows - num_free
