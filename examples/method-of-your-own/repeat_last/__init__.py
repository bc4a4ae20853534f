"""A drafting method that proposes the last k tokens once more; this file is its row, and imports nothing."""

ROW = {
    "name": "repeat_last",
    "meaning": "Proposes the last k tokens of the sequence once more. It pays for output that goes round in circles.",
    "remembers": "nothing",  # it keeps nothing of one request for another
    "drafts_from": "text",
    "network": "none",
    "usual_k": 4,
    "proposer": "repeat_last.proposer:build",
    "source": "draftwise: examples/method-of-your-own",
    "checked": "2026-11-28",
}
"""The columns are explained in `draftwise.knowledge.methods.Method`; those that are left out have a default."""
