"""The `draftwise` command: one file a verb, imported when the verb is used."""

from __future__ import annotations

from draftwise.cli._group import VerbGroup

__all__ = ["main"]

VERBS = {
    "decide": "draftwise.cli.decide",
    "export": "draftwise.cli.export",
    "report": "draftwise.cli.report",
    "serve": "draftwise.cli.serve",
    "train": "draftwise.cli.train",
}

main = VerbGroup(
    name="draftwise",
    verbs=VERBS,
    help="Decide whether speculative decoding pays for your model, traffic, version and hardware: and keep it true.",
)
