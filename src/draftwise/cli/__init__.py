"""The `draftwise` command: one file a verb, imported when the verb is used."""

from __future__ import annotations

from draftwise.cli._group import VerbGroup

__all__ = ["main"]

_VERBS = {
    "bundle": "draftwise.cli.bundle",
    "calibrate": "draftwise.cli.calibrate",
    "check": "draftwise.cli.check",
    "compare": "draftwise.cli.compare",
    "decide": "draftwise.cli.decide",
    "deploy": "draftwise.cli.deploy",
    "explain": "draftwise.cli.explain",
    "export": "draftwise.cli.export",
    "facts": "draftwise.cli.facts",
    "fetch": "draftwise.cli.fetch",
    "forecast": "draftwise.cli.forecast",
    "guard": "draftwise.cli.guard",
    "inspect": "draftwise.cli.inspect",
    "pick": "draftwise.cli.pick",
    "replay": "draftwise.cli.replay",
    "report": "draftwise.cli.report",
    "rollback": "draftwise.cli.rollback",
    "schedule": "draftwise.cli.schedule",
    "schema": "draftwise.cli.schema",
    "serve": "draftwise.cli.serve",
    "size": "draftwise.cli.size",
    "train": "draftwise.cli.train",
    "upgrade": "draftwise.cli.upgrade",
    "verify": "draftwise.cli.verify",
    "warm-up": "draftwise.cli.warm_up",
    "watch": "draftwise.cli.watch",
}

main = VerbGroup(
    name="draftwise",
    verbs=_VERBS,
    help="Decide whether speculative decoding pays for your model, traffic, version and hardware: and keep it true.",
)
