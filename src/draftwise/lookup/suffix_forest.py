"""The memory of suffix trees: growing arrays, sequences, space for their tokens, and invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from draftwise.lookup import suffix_nodes as layout
from draftwise.lookup.suffix_nodes import Arena, find_child
from draftwise.lookup.suffix_tree import fell, get_edge_length, plant

FIRST_NODES = 1024
SMALLEST_ROOM = 64  # tokens
MAX_NODE_ID = 2**31 - 1


class SuffixForest:
    """Owns the arrays that the kernels of `suffix_tree` work on; trees and sequences are integer ids."""

    def __init__(self, depth: int) -> None:
        self.arena = Arena(
            nodes=np.zeros(FIRST_NODES * layout.NODE_WIDTH, np.int32),
            buckets=np.zeros(FIRST_NODES, np.int32),
            tokens=np.zeros(SMALLEST_ROOM, np.int32),
            seqs=np.zeros(layout.RING + depth, np.int64),
            meta=np.zeros(layout.META_WIDTH, np.int64),
        )
        meta = self.arena.meta
        meta[layout.DEPTH] = depth
        meta[layout.NODES_END] = meta[layout.GROUPS_END] = layout.NODE_WIDTH  # row 0 is unused: ids of 0 mean none
        meta[layout.NUM_BUCKETS] = 1
        meta[layout.BUCKET_MASK] = 1
        self._seq_width = layout.RING + depth
        self._seqs_end = self._seq_width
        self._seqs_free: list[int] = []
        self._tokens_end = 0
        self._rooms_free: dict[int, list[int]] = {}
        self._rooms: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._num_reserved = 0
        self._num_trees = 0
        self._order = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays, which never shrink.

        A token takes at most about 150 bytes per tree, times the growth margin of 1.5.
        """
        return sum(array.nbytes for array in self.arena)

    def plant(self) -> int:
        """Return the root of a new, empty tree."""
        self._num_trees += 1
        self._reserve_nodes()
        return int(plant(self.arena))

    def fell(self, root: int) -> None:
        """Free a tree. Its owner drops the sequences."""
        fell(self.arena, root)
        self._num_trees -= 1

    def open_sequence(self, root: int) -> int:
        """Return a new, empty sequence of a tree. Remove a tree's sequences in the order in which you opened them."""
        if self._seqs_free:
            seq = self._seqs_free.pop()
        else:
            seq = self._seqs_end
            self._seqs_end += self._seq_width
            _grow(self.arena.seqs, self._seqs_end)
        self._order += 1
        self.arena.seqs[seq : seq + layout.RING] = 0
        self.arena.seqs[seq + layout.ROOT] = root
        self.arena.seqs[seq + layout.ORDER] = self._order
        self._rooms[seq] = self._sizes[seq] = 0
        return seq

    def drop_sequence(self, seq: int) -> None:
        """Release the space of a sequence that no tree contains any more."""
        self._release_room(seq)
        self._num_reserved -= self._sizes.pop(seq)
        del self._rooms[seq]
        self._seqs_free.append(seq)

    def reserve(self, seq: int, num_tokens: int) -> None:
        """Reserve space to append `num_tokens` tokens to a sequence."""
        size = self._sizes[seq] = self._sizes[seq] + num_tokens
        self._num_reserved += num_tokens
        if size > self._rooms[seq]:
            self._move_to_larger_room(seq, size)
        self._reserve_nodes()

    def _reserve_nodes(self) -> None:
        """Grow the nodes to the largest number that can be needed.

        Every node but a root has two children or a suffix ends in it, so two nodes a token are enough.
        """
        num_nodes = 1 + self._num_trees + 2 * self._num_reserved
        if num_nodes > self.arena.buckets.size:
            if num_nodes * layout.NODE_WIDTH > MAX_NODE_ID:
                raise MemoryError("The suffix cache is full: lower suffix_decoding_max_cached_requests.")
            _grow(self.arena.buckets, num_nodes)
            _grow(self.arena.nodes, self.arena.buckets.size * layout.NODE_WIDTH)

    def _move_to_larger_room(self, seq: int, size: int) -> None:
        """Move the tokens of a sequence to a room of at least `size`, a power of two."""
        room = max(SMALLEST_ROOM, 1 << (size - 1).bit_length())
        free = self._rooms_free.get(room)
        if free:
            base = free.pop()
        else:
            base = self._tokens_end
            self._tokens_end += room
            _grow(self.arena.tokens, self._tokens_end)
        seqs, tokens = self.arena.seqs, self.arena.tokens
        old, filled = int(seqs[seq + layout.BASE]), int(seqs[seq + layout.SIZE])
        tokens[base : base + filled] = tokens[old : old + filled]
        self._release_room(seq)
        self._rooms[seq] = room
        seqs[seq + layout.BASE] = base

    def _release_room(self, seq: int) -> None:
        if self._rooms[seq]:
            base = int(self.arena.seqs[seq + layout.BASE])
            self._rooms_free.setdefault(self._rooms[seq], []).append(base)


def _grow(array: np.ndarray, size: int) -> None:
    """Grow an array in place to at least `size` elements (large ones are remapped by the allocator, not copied)."""
    if size > array.size:
        # The arena's tuple is the only owner and kernels keep no views: nothing can dangle.
        array.resize(max(size, array.size * 3 // 2), refcheck=False)


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
    """Check the links and ranks of a node's children. Return how many of them are chained."""
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
