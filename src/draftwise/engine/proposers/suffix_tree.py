"""Suffix trees of token sequences: grow by a token, forget a sequence, draft (kernels compiled by numba).

A tree holds every suffix of its sequences, cut to `depth` tokens, with the number of times that each path occurs; an edge
is a run of tokens with one count. Appending a token extends every suffix of the sequence; those that occur nowhere
else are open leaves, which grow by themselves, so the work a token is the length of its longest repeated suffix.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from draftwise.engine.proposers.suffix_nodes import (
    BASE,
    COUNT,
    DEPTH,
    FIRST,
    LAST,
    LENGTH,
    NEXT,
    NIL,
    OPEN,
    ORDER,
    PARENT,
    PREV,
    REF,
    RING,
    ROOT,
    SEQ,
    SHARED,
    SIZE,
    START,
    TOKEN,
    adopt,
    decrement,
    disown,
    find_child,
    free_node,
    increment,
    new_node,
    take_place,
)

__all__ = ["append", "best_match", "fell", "follow", "plant", "remove"]

COUNTED_NOWHERE = 0  # a root is never left upward, so nobody asks for its count


@njit(cache=True)
def plant(arena):  # type: ignore[no-untyped-def]
    """Return the root of an empty tree."""
    return new_node(arena, COUNTED_NOWHERE, 0, 0, NIL, 0)


@njit(cache=True)
def fell(arena, root):  # type: ignore[no-untyped-def]
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


@njit(cache=True)
def length_of(arena, node):  # type: ignore[no-untyped-def]
    """Return how many tokens the edge into `node` holds."""
    nodes, seqs = arena.nodes, arena.seqs
    length = nodes[node + LENGTH]
    if length != OPEN:
        return np.int64(length)
    end = min(seqs[nodes[node + SEQ] + SIZE], nodes[node + START] + arena.meta[DEPTH])
    return end - nodes[node + REF]


@njit(cache=True)
def append(arena, seq, token):  # type: ignore[no-untyped-def]
    """Append one token to a sequence; amortised O(longest repeated suffix) <= O(depth)."""
    nodes, seqs, depth = arena.nodes, arena.seqs, arena.meta[DEPTH]
    end = seqs[seq + SIZE]
    arena.tokens[seqs[seq + BASE] + end] = token
    seqs[seq + SIZE] = end + 1
    seqs[seq + RING + end % depth] = seqs[seq + ROOT]
    shared = max(seqs[seq + SHARED], end + 1 - depth)
    at = shared % depth
    for start in range(shared, end + 1):  # longest suffix first: once one is unique, the longer ones are
        node = _step(arena, seq, seqs[seq + RING + at], start, end, token)
        seqs[seq + RING + at] = node
        if nodes[node + LENGTH] == OPEN:
            shared = start + 1
        at += 1
        if at == depth:
            at = 0
    seqs[seq + SHARED] = shared


@njit(cache=True)
def _step(arena, seq, node, start, end, token):  # type: ignore[no-untyped-def]
    """Extend the suffix from `start`, which ends in `node`, by the token at `end`; return where it ends now."""
    nodes = arena.nodes
    child = find_child(arena, node, token)
    if child == NIL:
        if nodes[node + COUNT] != 1:  # others end in or pass through it, or it is the root
            leaf = new_node(arena, 1, token, OPEN, seq, end)
            nodes[leaf + START] = start
            adopt(arena, node, leaf)
            return leaf
        nodes[node + LENGTH] = OPEN  # the others have been removed
        nodes[node + START] = start
        return np.int64(node)
    length = length_of(arena, child)
    if length == 1 and nodes[child + LENGTH] == OPEN:
        _close(arena, child)
    if nodes[node + COUNT] == nodes[child + COUNT] + 1:
        return _lengthen(arena, seq, node, child, length, end)
    return _descend(arena, seq, node, child, length, end)


@njit(cache=True)
def _close(arena, leaf):  # type: ignore[no-untyped-def]
    """Make an open leaf of one token an ordinary node, since another suffix comes to end in it, and tell its owner."""
    nodes, seqs = arena.nodes, arena.seqs
    owner = nodes[leaf + SEQ]
    nodes[leaf + LENGTH] = 1
    seqs[owner + SHARED] = min(seqs[owner + SHARED], nodes[leaf + START])


@njit(cache=True)
def _lengthen(arena, seq, node, child, length, end):  # type: ignore[no-untyped-def]
    """Extend a suffix that ends in `node` where all others go on to `child`: the border between the two moves down."""
    nodes = arena.nodes
    if length > 1:
        nodes[node + LENGTH] += 1
        _drop_first_token(arena, child)
        return np.int64(node)
    nodes[child + COUNT] += 1
    nodes[child + LENGTH] += nodes[node + LENGTH]
    nodes[child + REF] -= nodes[node + LENGTH]
    take_place(arena, node, child)
    free_node(arena, node)
    _write_in_latest(arena, child, seq, end)
    return np.int64(child)


@njit(cache=True)
def _descend(arena, seq, node, child, length, end):  # type: ignore[no-untyped-def]
    """Extend a suffix from `node` by the first token of `child`, which is split after it if it is longer."""
    nodes = arena.nodes
    if length > 1:
        upper = new_node(arena, nodes[child + COUNT], 0, 1, nodes[child + SEQ], nodes[child + REF])
        take_place(arena, child, upper)
        _drop_first_token(arena, child)
        adopt(arena, upper, child)
        child = upper
    increment(arena, child)
    _write_in_latest(arena, child, seq, end)
    return np.int64(child)


@njit(cache=True)
def _drop_first_token(arena, node):  # type: ignore[no-untyped-def]
    nodes = arena.nodes
    nodes[node + REF] += 1
    if nodes[node + LENGTH] != OPEN:
        nodes[node + LENGTH] -= 1
    nodes[node + TOKEN] = arena.tokens[arena.seqs[nodes[node + SEQ] + BASE] + nodes[node + REF]]


@njit(cache=True)
def _write_in_latest(arena, node, seq, end):  # type: ignore[no-untyped-def]
    """Let the node's tokens stand in whichever of its sequences leaves the tree last: they never need a new home."""
    nodes, seqs = arena.nodes, arena.seqs
    if seqs[seq + ORDER] > seqs[nodes[node + SEQ] + ORDER]:
        nodes[node + SEQ] = seq
        nodes[node + REF] = end + 1 - nodes[node + LENGTH]


@njit(cache=True)
def remove(arena, seq):  # type: ignore[no-untyped-def]
    """Take every suffix of a sequence out of its tree; it must be the one of lowest ORDER there."""
    nodes, seqs = arena.nodes, arena.seqs
    base, size = seqs[seq + BASE], seqs[seq + SIZE]
    for start in range(size):
        node, end = seqs[seq + ROOT], start
        while end < size:
            child = find_child(arena, node, arena.tokens[base + end])
            if child == NIL:  # cut at depth
                break
            if nodes[child + COUNT] == 1:
                disown(arena, child)
                free_node(arena, child)
                break
            decrement(arena, child)
            end += length_of(arena, child)
            node = np.int64(child)
        _merge_into_only_child(arena, node)


@njit(cache=True)
def _merge_into_only_child(arena, node):  # type: ignore[no-untyped-def]
    """Join `node` with its only child, if no suffix ends between them any more."""
    nodes = arena.nodes
    child = nodes[node + FIRST]
    if child == NIL or child != nodes[node + LAST] or nodes[node + COUNT] != nodes[child + COUNT]:
        return
    if nodes[child + LENGTH] != OPEN:
        nodes[child + LENGTH] += nodes[node + LENGTH]
    nodes[child + REF] -= nodes[node + LENGTH]
    take_place(arena, node, child)
    free_node(arena, node)


@njit(cache=True)
def _locate(arena, root, begin, end):  # type: ignore[no-untyped-def]
    """Return (node, tokens into its edge) where the path spelled by `tokens[begin:end]` ends, or (NIL, 0)."""
    nodes, tokens = arena.nodes, arena.tokens
    node, depth_in_edge, length, text = root, 0, 0, 0
    for at in range(begin, end):
        if depth_in_edge == length:
            node = np.int64(find_child(arena, node, tokens[at]))
            if node == NIL:
                return NIL, 0
            depth_in_edge, length = 0, length_of(arena, node)
            text = arena.seqs[nodes[node + SEQ] + BASE] + nodes[node + REF]
        elif tokens[text + depth_in_edge] != tokens[at]:
            return NIL, 0
        depth_in_edge += 1
    return node, depth_in_edge


@njit(cache=True)
def follow(arena, node, depth_in_edge, limit, min_prob, draft):  # type: ignore[no-untyped-def]
    """Write into `draft` the most frequent continuation and return (its length, sum of its tokens' probabilities).

    The probability of a token is the product of the shares of the branches that lead to it; the draft ends before it
    falls below `min_prob`, or at `limit` tokens.
    """
    nodes = arena.nodes
    prob, score, size = np.float32(1), np.float32(0), 0
    length = length_of(arena, node)
    text = arena.seqs[nodes[node + SEQ] + BASE] + nodes[node + REF]
    while size < limit and prob >= min_prob:
        if depth_in_edge < length:
            draft[size] = arena.tokens[text + depth_in_edge]
            score += prob
            size += 1
            depth_in_edge += 1
            continue
        child = np.int64(nodes[node + FIRST])
        if child == NIL:
            break
        prob *= np.float32(nodes[child + COUNT]) / np.float32(nodes[node + COUNT])
        node, depth_in_edge, length = child, 0, length_of(arena, child)
        text = arena.seqs[nodes[node + SEQ] + BASE] + nodes[node + REF]
    return size, score


@njit(cache=True)
def best_match(arena, root, tracked, context, k, factor, min_prob, draft):  # type: ignore[no-untyped-def]
    """Return (node, tokens into its edge, limit, score) of the best draft in a tree after the end of sequence `context`.

    Every suffix of the context that occurs in the tree (shorter than both the context and depth) proposes what follows
    it, at most `factor` times its own length; the highest score wins, among equals the longest suffix. `tracked` is
    the sequence of this tree, or NIL, that ends like the context: its suffixes need no search.
    """
    seqs, depth = arena.seqs, arena.meta[DEPTH]
    best_node, best_depth, best_limit, best_score = np.int64(NIL), 0, 0, np.float32(0)
    end = seqs[context + BASE] + seqs[context + SIZE]
    for length in range(1, min(seqs[context + SIZE], depth)):
        start = seqs[tracked + SIZE] - length
        if start >= 0:
            if start < seqs[tracked + SHARED]:
                break
            node = seqs[tracked + RING + start % depth]
            depth_in_edge = length_of(arena, node)
        else:
            node, depth_in_edge = _locate(arena, root, end - length, end)
            if node == NIL:
                break
        limit = min(k, int(np.float32(length) * factor + 1e-6))
        _, score = follow(arena, node, depth_in_edge, limit, min_prob, draft)
        if score >= best_score:
            best_node, best_depth, best_limit, best_score = node, depth_in_edge, limit, score
    return best_node, best_depth, best_limit, best_score
