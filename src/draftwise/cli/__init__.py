"""The `draftwise` command: one file per verb, which builds a Request and renders a Result."""

from __future__ import annotations

from draftwise.cli._group import VerbGroup

__all__ = ["main"]

main = VerbGroup(
    name="draftwise",
    help="Decide whether speculative decoding pays for your model, traffic, version and hardware, and keep the answer "
    "current.",
)
