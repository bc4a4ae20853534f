"""Numbers that plain torch and the kernels must share, so that both sample the same tokens."""

from __future__ import annotations

from enum import IntEnum

MIN_TEMPERATURE = 0.01
"""vLLM raises smaller positive temperatures to this (`_MAX_TEMP`): dividing by them would overflow."""

GROUP = 2048
"""Neighboring tokens, one of which is drawn once it is drawn that it is one of them (`sampling.tempering.draw`)."""
GROUPS = 2**40
"""An id beyond all token ids: group g has the noise of this id plus g."""
ATTEMPTS = 4
"""Draws of a token that may lie outside of the nucleus, before the nucleus is looked for."""
ATTEMPT = 2**41
"""An offset beyond all ids of groups: attempt i has the noise of ids i times this further on."""
STEP = 2**16
"""Positions between the draft tokens of one step and of the next: what a step drew and dropped again, having judged by
it what to keep, must not be drawn again."""

# The multipliers of the hash behind all random numbers (`sampling.random`), modulo 2^64.
GOLDEN = 0x9E3779B97F4A7C15
POSITION = 0xD1342543DE82EF95
LANE = 0xDA942042E4DD58B5
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


class Lane(IntEnum):
    """Independent streams at one position of one sequence."""

    TOKEN = 0
    """The target's choice of a token."""
    ACCEPT = 1
    """The uniform number that accepts or rejects a draft token."""
    DRAFT = 2
    """The drafter's choice of a token; it must not share noise with what accepts it."""
