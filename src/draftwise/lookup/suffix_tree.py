"""Suffix trees of token sequences: append a token, remove a sequence, draft (kernels compiled by numba).

A tree holds every suffix of its sequences, cut to `depth` tokens, with the count of each path. An edge is a run of
tokens with one count. Appending a token extends every suffix of the sequence. Suffixes that occur nowhere else are open
leaves, which grow by themselves, so the work per token is the length of the longest repeated suffix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from draftwise.lookup.suffix_nodes import (
    ARENA,
    BASE,
    COUNT,
    DEPTH,
    FIRST,
    INLINED,
    INT,
    LAST,
    LENGTH,
    NIL,
    OPEN,
    OPTIONS,
    ORDER,
    PARENT,
    REF,
    RING,
    ROOT,
    SEQ,
    SHARED,
    SIZE,
    START,
    TOKEN,
    VOID,
    Arena,
    adopt,
    decrement,
    disown,
    find_child,
    free_node,
    increment,
    make_node,
    take_place,
)


@njit(INT(ARENA), **OPTIONS)
def plant(arena: Arena) -> int:
    """Return the root of an empty tree. Its count stays 0, because nothing reads it."""
    return make_node(arena, 0, 0, 0, NIL, 0)


@njit(VOID(ARENA, INT), **OPTIONS)
def fell(arena: Arena, root: int) -> None:
    """Free a whole tree."""
    nodes = arena.nodes
    node = root
    while True:
        while nodes[node + FIRST] != NIL:
            node = nodes[node + FIRST]
        if node == root:
            break
        parent = nodes[node + PARENT]
        disown(arena, node)
        free_node(arena, node)
        node = parent
    free_node(arena, root)


@njit(INT(ARENA, INT), **INLINED)
def get_edge_length(arena: Arena, node: int) -> int:
    """Return the number of tokens on the edge into `node`."""
    nodes, seqs = arena.nodes, arena.seqs
    length = nodes[node + LENGTH]
    if length != OPEN:
        return length
    end = min(seqs[nodes[node + SEQ] + SIZE], nodes[node + START] + arena.meta[DEPTH])
    return end - nodes[node + REF]


@njit(INT(ARENA, INT), **INLINED)
def _text_of(arena: Arena, node: int) -> int:
    """Return where in `Arena.tokens` the tokens of the edge into `node` begin."""
    return arena.seqs[arena.nodes[node + SEQ] + BASE] + arena.nodes[node + REF]


@njit(VOID(ARENA, INT), **INLINED)
def _close(arena: Arena, leaf: int) -> None:
    """Make an open leaf of one token an ordinary node, as another suffix now ends in it, and update its owner."""
    nodes, seqs = arena.nodes, arena.seqs
    owner = nodes[leaf + SEQ]
    nodes[leaf + LENGTH] = 1
    seqs[owner + SHARED] = min(seqs[owner + SHARED], nodes[leaf + START])


@njit(VOID(ARENA, INT), **INLINED)
def _drop_first_token(arena: Arena, node: int) -> None:
    nodes = arena.nodes
    nodes[node + REF] += 1
    if nodes[node + LENGTH] != OPEN:
        nodes[node + LENGTH] -= 1
    nodes[node + TOKEN] = arena.tokens[_text_of(arena, node)]


@njit(VOID(ARENA, INT, INT, INT), **INLINED)
def _write_in_latest(arena: Arena, node: int, seq: int, end: int) -> None:
    """Refer to the node's tokens in whichever of its sequences leaves the tree last, so that they never move."""
    nodes, seqs = arena.nodes, arena.seqs
    if seqs[seq + ORDER] > seqs[nodes[node + SEQ] + ORDER]:
        nodes[node + SEQ] = seq
        nodes[node + REF] = end + 1 - nodes[node + LENGTH]


@njit(INT(ARENA, INT, INT, INT, INT, INT), **INLINED)
def _lengthen(arena: Arena, seq: int, node: int, child: int, length: int, end: int) -> int:
    """Extend a suffix that ends in `node` while all others continue to `child`: the boundary of the two moves down."""
    nodes = arena.nodes
    if length > 1:
        nodes[node + LENGTH] += 1
        _drop_first_token(arena, child)
        return node
    nodes[child + COUNT] += 1
    nodes[child + LENGTH] += nodes[node + LENGTH]
    nodes[child + REF] -= nodes[node + LENGTH]
    take_place(arena, node, child)
    free_node(arena, node)
    _write_in_latest(arena, child, seq, end)
    return child


@njit(INT(ARENA, INT, INT, INT, INT), **INLINED)
def _descend(arena: Arena, seq: int, child: int, length: int, end: int) -> int:
    """Extend a suffix from the parent of `child` by its first token. A longer edge is split after that token."""
    nodes = arena.nodes
    if length > 1:
        upper = make_node(arena, nodes[child + COUNT], 0, 1, nodes[child + SEQ], nodes[child + REF])
        take_place(arena, child, upper)
        _drop_first_token(arena, child)
        adopt(arena, upper, child)
        child = upper
    increment(arena, child)
    _write_in_latest(arena, child, seq, end)
    return child


@njit(INT(ARENA, INT, INT, INT, INT, INT), **INLINED)
def _step(arena: Arena, seq: int, node: int, start: int, end: int, token: int) -> int:
    """Extend the suffix from `start`, which ends in `node`, by the token at `end`. Return where it ends now."""
    nodes = arena.nodes
    child = find_child(arena, node, token)
    if child == NIL:
        leaf = node
        if nodes[node + COUNT] == 1:
            nodes[node + LENGTH] = OPEN  # those that shared it have been removed
        else:
            leaf = make_node(arena, 1, token, OPEN, seq, end)
            adopt(arena, node, leaf)
        nodes[leaf + START] = start
        return leaf
    length = get_edge_length(arena, child)
    if length == 1 and nodes[child + LENGTH] == OPEN:
        _close(arena, child)
    if nodes[node + COUNT] == nodes[child + COUNT] + 1:
        return _lengthen(arena, seq, node, child, length, end)
    return _descend(arena, seq, child, length, end)


@njit(VOID(ARENA, INT, INT), **OPTIONS)
def append(arena: Arena, seq: int, token: int) -> None:
    """Append one token to a sequence: O(longest repeated suffix), at most O(depth)."""
    nodes, seqs, depth = arena.nodes, arena.seqs, arena.meta[DEPTH]
    end = seqs[seq + SIZE]
    arena.tokens[seqs[seq + BASE] + end] = token
    seqs[seq + SIZE] = end + 1
    seqs[seq + RING + end % depth] = seqs[seq + ROOT]
    shared = max(seqs[seq + SHARED], end + 1 - depth)
    at = shared % depth
    for start in range(shared, end + 1):  # longest first: the open leaves are a prefix of the suffixes
        node = _step(arena, seq, seqs[seq + RING + at], start, end, token)
        seqs[seq + RING + at] = node
        if nodes[node + LENGTH] == OPEN:
            shared = start + 1
        at += 1
        if at == depth:
            at = 0
    seqs[seq + SHARED] = shared


@njit(VOID(ARENA, INT), **OPTIONS)
def _merge_into_only_child(arena: Arena, node: int) -> None:
    """Merge `node` with its only child, if no suffix ends between them any more."""
    nodes = arena.nodes
    child = nodes[node + FIRST]
    if child == NIL or child != nodes[node + LAST] or nodes[node + COUNT] != nodes[child + COUNT]:
        return
    if nodes[child + LENGTH] != OPEN:
        nodes[child + LENGTH] += nodes[node + LENGTH]
    nodes[child + REF] -= nodes[node + LENGTH]
    take_place(arena, node, child)
    free_node(arena, node)


@njit(VOID(ARENA, INT), **OPTIONS)
def remove(arena: Arena, seq: int) -> None:
    """Remove every suffix of a sequence from its tree. It must have the lowest ORDER there."""
    nodes, seqs, tokens = arena.nodes, arena.seqs, arena.tokens
    base, size = seqs[seq + BASE], seqs[seq + SIZE]
    for start in range(size):
        node, end = seqs[seq + ROOT], start
        while end < size:
            child = find_child(arena, node, tokens[base + end])
            if child == NIL:  # the suffix was cut at depth
                break
            if nodes[child + COUNT] == 1:
                disown(arena, child)
                free_node(arena, child)
                break
            decrement(arena, child)
            end += get_edge_length(arena, child)
            node = child
        _merge_into_only_child(arena, node)


@njit(**OPTIONS)
def _locate(arena: Arena, root: int, begin: int, end: int) -> tuple[int, int]:
    """Return (node, tokens into its edge) where the path spelled by `tokens[begin:end]` ends, or (NIL, 0)."""
    tokens = arena.tokens
    node, inside, length, text = root, 0, 0, 0
    for at in range(begin, end):
        if inside == length:
            node = find_child(arena, node, tokens[at])
            if node == NIL:
                return NIL, 0
            inside, length, text = 0, get_edge_length(arena, node), _text_of(arena, node)
        elif tokens[text + inside] != tokens[at]:
            return NIL, 0
        inside += 1
    return node, inside


@njit(**OPTIONS)
def follow(
    arena: Arena, node: int, inside: int, limit: int, min_prob: np.float32, draft: np.ndarray
) -> tuple[int, np.float32]:
    """Write the most frequent continuation to `draft`; return its length and the sum of its tokens' probabilities.

    It starts `inside` tokens into the edge of `node`. A token's probability is the product of the shares of the
    branches leading to it. The draft ends before that falls below `min_prob`, or at `limit` tokens.
    """
    nodes, tokens = arena.nodes, arena.tokens
    prob, score, size = np.float32(1), np.float32(0), 0
    length, text = get_edge_length(arena, node), _text_of(arena, node)
    while size < limit and prob >= min_prob:
        if inside < length:
            draft[size] = tokens[text + inside]
            score += prob
            size += 1
            inside += 1
            continue
        child = np.int64(nodes[node + FIRST])
        if child == NIL:
            break
        prob *= np.float32(nodes[child + COUNT]) / np.float32(nodes[node + COUNT])
        node, inside, length, text = child, 0, get_edge_length(arena, child), _text_of(arena, child)
    return size, score


@njit(**OPTIONS)
def find_best_match(
    arena: Arena,
    root: int,
    tracked: int,
    context: int,
    k: int,
    factor: np.float32,
    min_prob: np.float32,
    draft: np.ndarray,
) -> tuple[Any, ...]:
    """Return (node, tokens into its edge, limit, score) of a tree's best draft after the end of sequence `context`.

    Every suffix of the context that occurs in the tree (shorter than both the context and `depth`) proposes its
    continuation, of at most `factor` times its own length. The highest score wins, then the longest suffix. `tracked`:
    a sequence of this tree that ends like the context, or NIL. Its suffixes need no search. `draft`: scratch.
    """
    seqs, depth = arena.seqs, arena.meta[DEPTH]
    best = (np.int64(NIL), 0, 0, np.float32(0))
    end = seqs[context + BASE] + seqs[context + SIZE]
    for length in range(1, min(seqs[context + SIZE], depth)):
        start = seqs[tracked + SIZE] - length
        if start >= 0:
            if start < seqs[tracked + SHARED]:  # it occurs nowhere else, nor does a longer one
                break
            node = seqs[tracked + RING + start % depth]
            inside = get_edge_length(arena, node)
        else:
            node, inside = _locate(arena, root, end - length, end)
            if node == NIL:
                break
        limit = min(k, int(np.float32(length) * factor + 1e-6))
        _, score = follow(arena, node, inside, limit, min_prob, draft)
        if score >= best[3]:
            best = (node, inside, limit, score)
    return best
