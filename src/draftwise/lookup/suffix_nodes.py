"""Nodes of the suffix forest in flat arrays: children by token, siblings by frequency (kernels compiled by numba).

A node id is the offset of its row in `Arena.nodes`. 0 means no node, so zeroed links are empty. An only child, like
most nodes, is found without hashing and ranks first without bookkeeping. Siblings are chained in a hash table and
ranked in groups of equal count.

numba caches compiled kernels next to their source file and misses changes in kernels that they call from other files.
After editing one of the suffix files, remove their `__pycache__`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

NIL = 0

# Fields of a node's row: 64 bytes, one cache line.
COUNT = 0  # suffixes that end in or pass through the node
TOKEN = 1  # its first token, the key among its siblings
LENGTH = 2  # tokens on the edge into it, or OPEN
SEQ = 3  # sequence in which those tokens are written ...
REF = 4  # ... and where the first of them stands there
START = 5  # of an open leaf: where its only suffix starts in SEQ
PARENT = 6
FIRST = 7  # most frequent child
LAST = 8
NEXT = 9  # sibling that is as frequent or less
PREV = 10
GROUP = 11  # of siblings with equal count; 0 for an only child
CHAIN = 12  # next node of the same hash bucket
GROUP_HEAD = 13  # fields 13 and 14 belong to the group whose id is this row's
GROUP_TAIL = 14
NODE_WIDTH = 16

OPEN = 0
"""LENGTH of an open leaf, which extends to the end of its sequence and grows with it."""

# Fields of a sequence's row, followed by a ring of `depth` nodes: where its latest suffixes end.
BASE = 0  # offset of its tokens in Arena.tokens
SIZE = 1  # how many there are
SHARED = 2  # its suffixes from this start on also occur elsewhere; the longer ones are open leaves
ROOT = 3
ORDER = 4  # sequences of one tree leave it in this order
RING = 5

# Fields of Arena.meta.
DEPTH = 0
NODES_END = 1
NODES_FREE = 2
GROUPS_END = 3
GROUPS_FREE = 4
NUM_BUCKETS = 5
BUCKET_MASK = 6
NUM_CHAINED = 7
META_WIDTH = 8


class Arena(NamedTuple):
    """The arrays of a forest."""

    nodes: np.ndarray[Any, np.dtype[np.int32]]
    buckets: np.ndarray[Any, np.dtype[np.int32]]
    tokens: np.ndarray[Any, np.dtype[np.int32]]
    seqs: np.ndarray[Any, np.dtype[np.int64]]
    meta: np.ndarray[Any, np.dtype[np.int64]]


def _can_cache() -> bool:
    """Return whether numba finds a folder for its compiled kernels: it raises where none can be written."""
    try:
        njit(cache=True)(_can_cache)
    except RuntimeError:
        return False
    return True


_INT32S, _INT64S = types.Array(types.int32, 1, "C"), types.Array(types.int64, 1, "C")
ARENA = types.NamedTuple((_INT32S, _INT32S, _INT32S, _INT64S, _INT64S), Arena)
INT, VOID = types.int64, types.void
# The caller owns every array for longer than a kernel runs; counting references at each call costs five times the work.
OPTIONS = {"cache": _can_cache(), "_nrt": False}
INLINED = OPTIONS | {"forceinline": True}  # what a token takes: 1.2 to 1.8 times faster than calls


@njit(INT(ARENA, INT, INT, INT, INT, INT), **OPTIONS)
def make_node(arena: Arena, count: int, token: int, length: int, seq: int, ref: int) -> int:
    """Return a new node without parent or children."""
    nodes, meta = arena.nodes, arena.meta
    node = meta[NODES_FREE]
    if node != NIL:
        meta[NODES_FREE] = nodes[node + NEXT]
    else:
        node = meta[NODES_END]
        meta[NODES_END] += NODE_WIDTH
    nodes[node + COUNT] = count
    nodes[node + TOKEN] = token
    nodes[node + LENGTH] = length
    nodes[node + SEQ] = seq
    nodes[node + REF] = ref
    for field in range(PARENT, GROUP + 1):
        nodes[node + field] = NIL
    return node


@njit(VOID(ARENA, INT), **OPTIONS)
def free_node(arena: Arena, node: int) -> None:
    """Release the row of a node that has been removed from its siblings."""
    arena.nodes[node + NEXT] = arena.meta[NODES_FREE]
    arena.meta[NODES_FREE] = node


# --- Children by token: a chained hash table that grows one bucket at a time (Litwin's linear hashing), so that
# --- no insertion ever waits for a rehash.


@njit(INT(INT, INT), **INLINED)
def _hash(parent: int, token: int) -> int:
    mixed = ((parent >> 4) * 0x9E3779B1) ^ (token * 0x85EBCA77)
    mixed = ((mixed ^ (mixed >> 29)) & 0xFFFFFFFF) * 0x2C1B3C6D
    return mixed ^ (mixed >> 31)


@njit(INT(ARENA, INT, INT), **INLINED)
def _bucket(arena: Arena, parent: int, token: int) -> int:
    meta = arena.meta
    hashed = _hash(parent, token)
    bucket = hashed & meta[BUCKET_MASK]
    if bucket >= meta[NUM_BUCKETS]:
        bucket = hashed & (meta[BUCKET_MASK] >> 1)
    return bucket


@njit(INT(ARENA, INT, INT), **INLINED)
def find_child(arena: Arena, parent: int, token: int) -> int:
    """Return the child of `parent` whose edge begins with `token`, or NIL."""
    nodes = arena.nodes
    child = nodes[parent + FIRST]
    if child == nodes[parent + LAST]:
        return child if child != NIL and nodes[child + TOKEN] == token else NIL
    child = arena.buckets[_bucket(arena, parent, token)]
    while child != NIL and (nodes[child + TOKEN] != token or nodes[child + PARENT] != parent):
        child = nodes[child + CHAIN]
    return child


@njit(VOID(ARENA), **OPTIONS)
def _split_bucket(arena: Arena) -> None:
    nodes, buckets, meta = arena.nodes, arena.buckets, arena.meta
    new = meta[NUM_BUCKETS]
    old = new & (meta[BUCKET_MASK] >> 1)
    node = buckets[old]
    buckets[old] = buckets[new] = NIL
    meta[NUM_BUCKETS] += 1
    while node != NIL:
        following = nodes[node + CHAIN]
        bucket = _bucket(arena, nodes[node + PARENT], nodes[node + TOKEN])
        nodes[node + CHAIN] = buckets[bucket]
        buckets[bucket] = node
        node = following
    if meta[NUM_BUCKETS] > meta[BUCKET_MASK]:
        meta[BUCKET_MASK] = 2 * meta[BUCKET_MASK] + 1


@njit(VOID(ARENA, INT), **OPTIONS)
def _chain(arena: Arena, node: int) -> None:
    nodes, buckets, meta = arena.nodes, arena.buckets, arena.meta
    bucket = _bucket(arena, nodes[node + PARENT], nodes[node + TOKEN])
    nodes[node + CHAIN] = buckets[bucket]
    buckets[bucket] = node
    meta[NUM_CHAINED] += 1
    if meta[NUM_CHAINED] > meta[NUM_BUCKETS]:
        _split_bucket(arena)


@njit(VOID(ARENA, INT, INT), **OPTIONS)
def _unchain(arena: Arena, node: int, heir: int) -> None:
    """Remove `node` from its bucket; `heir` replaces it, unless it is NIL."""
    nodes, buckets = arena.nodes, arena.buckets
    bucket = _bucket(arena, nodes[node + PARENT], nodes[node + TOKEN])
    following = nodes[node + CHAIN]
    if heir != NIL:
        nodes[heir + CHAIN] = following
        following = heir
    else:
        arena.meta[NUM_CHAINED] -= 1
    prior = buckets[bucket]
    if prior == node:
        buckets[bucket] = following
        return
    while nodes[prior + CHAIN] != node:
        prior = nodes[prior + CHAIN]
    nodes[prior + CHAIN] = following


# --- Siblings by frequency. Counts change by one, so a node moves at most to the border of the neighboring group.
# --- Among equal counts the order is that of ArcticInference 0.1.1, so that drafts are the same: a count that grew
# --- ranks first among its new equals if it ranked first among its old ones, else last; one that shrank ranks first.


@njit(VOID(ARENA, INT), **OPTIONS)
def _new_group(arena: Arena, node: int) -> None:
    nodes, meta = arena.nodes, arena.meta
    group = meta[GROUPS_FREE]
    if group != NIL:
        meta[GROUPS_FREE] = nodes[group + GROUP_HEAD]
    else:
        group = meta[GROUPS_END]
        meta[GROUPS_END] += NODE_WIDTH
    nodes[group + GROUP_HEAD] = nodes[group + GROUP_TAIL] = node
    nodes[node + GROUP] = group


@njit(VOID(ARENA, INT), **OPTIONS)
def _leave_group(arena: Arena, node: int) -> None:
    nodes = arena.nodes
    group = nodes[node + GROUP]
    nodes[node + GROUP] = NIL
    head, tail = nodes[group + GROUP_HEAD], nodes[group + GROUP_TAIL]
    if head == tail:
        nodes[group + GROUP_HEAD] = arena.meta[GROUPS_FREE]
        arena.meta[GROUPS_FREE] = group
    elif head == node:
        nodes[group + GROUP_HEAD] = nodes[node + NEXT]
    elif tail == node:
        nodes[group + GROUP_TAIL] = nodes[node + PREV]


@njit(VOID(ARENA, INT), **OPTIONS)
def _join_last(arena: Arena, node: int) -> None:
    """Make `node` the last of the group before it, if it has that group's count, else the first of its own."""
    nodes = arena.nodes
    before = nodes[node + PREV]
    if before != NIL and nodes[before + COUNT] == nodes[node + COUNT]:
        group = nodes[before + GROUP]
        nodes[node + GROUP] = group
        nodes[group + GROUP_TAIL] = node
    else:
        _new_group(arena, node)


@njit(VOID(ARENA, INT), **OPTIONS)
def _join_first(arena: Arena, node: int) -> None:
    """Make `node` the first of the group behind it, if it has that group's count, else the first of its own."""
    nodes = arena.nodes
    behind = nodes[node + NEXT]
    if behind != NIL and nodes[behind + COUNT] == nodes[node + COUNT]:
        group = nodes[behind + GROUP]
        nodes[node + GROUP] = group
        nodes[group + GROUP_HEAD] = node
    else:
        _new_group(arena, node)


@njit(VOID(ARENA, INT, INT, INT), **OPTIONS)
def _connect(arena: Arena, parent: int, before: int, behind: int) -> None:
    """Link two children of `parent`. NIL is the end of the list."""
    nodes = arena.nodes
    if before != NIL:
        nodes[before + NEXT] = behind
    else:
        nodes[parent + FIRST] = behind
    if behind != NIL:
        nodes[behind + PREV] = before
    else:
        nodes[parent + LAST] = before


@njit(VOID(ARENA, INT, INT), **OPTIONS)
def _move_before(arena: Arena, node: int, behind: int) -> None:
    """Move `node` to the place before its sibling `behind`. NIL is the end of the list."""
    nodes = arena.nodes
    if nodes[node + NEXT] == behind:
        return
    parent = nodes[node + PARENT]
    _connect(arena, parent, nodes[node + PREV], nodes[node + NEXT])
    before = nodes[behind + PREV] if behind != NIL else nodes[parent + LAST]
    _connect(arena, parent, before, node)
    _connect(arena, parent, node, behind)


@njit(VOID(ARENA, INT), **INLINED)
def increment(arena: Arena, node: int) -> None:
    """Count one more suffix through `node`."""
    nodes = arena.nodes
    count = nodes[node + COUNT] + 1
    nodes[node + COUNT] = count
    group = nodes[node + GROUP]
    if group == NIL:
        return
    head = nodes[group + GROUP_HEAD]
    _leave_group(arena, node)
    if head != node:
        _move_before(arena, node, head)
        _join_last(arena, node)
        return
    before = nodes[node + PREV]
    if before != NIL and nodes[before + COUNT] == count:
        _move_before(arena, node, nodes[nodes[before + GROUP] + GROUP_HEAD])
    _join_first(arena, node)


@njit(VOID(ARENA, INT), **OPTIONS)
def decrement(arena: Arena, node: int) -> None:
    """Count one suffix fewer through `node`. At least one must remain."""
    nodes = arena.nodes
    nodes[node + COUNT] -= 1
    group = nodes[node + GROUP]
    if group == NIL:
        return
    behind = nodes[nodes[group + GROUP_TAIL] + NEXT]
    _leave_group(arena, node)
    _move_before(arena, node, behind)
    _join_first(arena, node)


@njit(VOID(ARENA, INT, INT), **OPTIONS)
def adopt(arena: Arena, parent: int, child: int) -> None:
    """Add `child`, which must be no more frequent than the others, as the last child of `parent`."""
    nodes = arena.nodes
    last = nodes[parent + LAST]
    nodes[child + PARENT] = parent
    nodes[child + GROUP] = NIL
    _connect(arena, parent, last, child)
    _connect(arena, parent, child, NIL)
    if last == NIL:
        return
    if nodes[last + GROUP] == NIL:  # an only child until now
        _new_group(arena, last)
        _chain(arena, last)
    _join_last(arena, child)
    _chain(arena, child)


@njit(VOID(ARENA, INT), **OPTIONS)
def disown(arena: Arena, child: int) -> None:
    """Remove `child` from its parent's children."""
    nodes = arena.nodes
    parent = nodes[child + PARENT]
    siblings = nodes[child + GROUP] != NIL
    if siblings:
        _leave_group(arena, child)
        _unchain(arena, child, NIL)
    _connect(arena, parent, nodes[child + PREV], nodes[child + NEXT])
    only = nodes[parent + FIRST]
    if siblings and only == nodes[parent + LAST]:
        _leave_group(arena, only)
        _unchain(arena, only, NIL)


@njit(VOID(ARENA, INT, INT), **OPTIONS)
def take_place(arena: Arena, old: int, new: int) -> None:
    """Replace `old` among the children of its parent by `new`, which has the same count."""
    nodes = arena.nodes
    parent, group = nodes[old + PARENT], nodes[old + GROUP]
    nodes[new + PARENT] = parent
    nodes[new + TOKEN] = nodes[old + TOKEN]
    nodes[new + GROUP] = group
    _connect(arena, parent, nodes[old + PREV], new)
    _connect(arena, parent, new, nodes[old + NEXT])
    if group == NIL:
        return
    _unchain(arena, old, new)
    if nodes[group + GROUP_HEAD] == old:
        nodes[group + GROUP_HEAD] = new
    if nodes[group + GROUP_TAIL] == old:
        nodes[group + GROUP_TAIL] = new
