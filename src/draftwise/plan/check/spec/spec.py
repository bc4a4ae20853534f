"""The speculative config while it is being resolved, as vLLM fills it in step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model import Model
from draftwise.plan.check.schema import Fields

__all__ = ["Work"]


@dataclass(slots=True, kw_only=True)
class Work:
    """What is known so far; a value that an earlier fault leaves open is told by `known`, and its rules are skipped."""

    context: Context
    fields: Fields
    target: Model | None
    """None where the target's config.json cannot be read here."""
    method: str | None = None
    model: str | None = None
    """Name of the drafter, or a placeholder for methods without one."""
    tokens: Any = None
    quantization: str | None = None
    lookup: tuple[int | None, int | None] = (None, None)
    """Shortest and longest n-gram."""
    draft: Model | None = None
    """None without a drafter, and where its config.json cannot be read or was refused."""
    draft_tp: int | None = None
    draft_len: int | None = None
    parallel_drafting: bool = False
    rates: tuple[float, ...] | None = None
    filled: dict[str, Any] = field(default_factory=dict)
    """Keys without a name of their own in `Resolved` that vLLM fills in."""
    open: set[str] = field(default_factory=set)
    """Keys whose value an earlier fault leaves undecided."""
    rulings: list[Ruling] = field(default_factory=list)

    @property
    def values(self) -> Mapping[str, Any]:
        """The typed keys of the JSON, with defaults."""
        return self.fields.values

    def get(self, key: str) -> Any:
        """Return a key's value; None for one that is unset, faulty or not in the release."""
        return self.fields.values.get(key)

    def known(self, *keys: str) -> bool:
        """Say whether none of these keys of the release is faulty or undecided."""
        table = self.context.release.table("spec_fields")
        return not any(key in self.open or (key in table and key not in self.fields.values) for key in keys)

    def add(
        self, code: str, message: str, *, where: str = "", fix: str = "", becomes: str = "", opens: tuple[str, ...] = ()
    ) -> None:
        """Record a finding if its rule holds in the release; `opens` are the keys that it leaves undecided."""
        rule = self.context.rule(code)
        if rule is not None:
            self.rulings.append(rule.ruling(message, where=where, fix=fix, becomes=becomes))
            self.open.update(opens)
