"""The memory of suffix trees: growing arrays, sequences and the space for their tokens."""

from __future__ import annotations

import numpy as np

from draftwise.lookup import suffix_nodes as layout
from draftwise.lookup.suffix_nodes import Arena
from draftwise.lookup.suffix_tree import fell, plant

__all__ = ["SuffixForest"]

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
        """Bytes of all arrays, which keep the size of their peak.

        A token takes at most about 150 bytes in each tree that it is in, times the growth margin of 1.5.
        """
        return sum(array.nbytes for array in self.arena)

    def plant(self) -> int:
        """Return the root of a new, empty tree."""
        self._num_trees += 1
        self._reserve_nodes()
        return int(plant(self.arena))

    def fell(self, root: int) -> None:
        """Free a tree; its sequences are dropped by their owner."""
        fell(self.arena, root)
        self._num_trees -= 1

    def open_sequence(self, root: int) -> int:
        """Return a new, empty sequence of the tree; the sequences of a tree must be removed in this order."""
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
        """Release the space of a sequence that is in no tree any more."""
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
