"""The speculative config as far as vLLM has filled it in: a value, of which each step returns the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftwise.facts.methods import Method, find_method
from draftwise.plan.check.cli import Fields
from draftwise.plan.check.model import Model

__all__ = ["Spec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is known so far; a value that an earlier fault leaves open is not `known`, and its rules are skipped."""

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
    filled: Mapping[str, Any] = field(default_factory=dict)
    """Keys without a name of their own in `Resolved` that vLLM fills in."""
    open: frozenset[str] = frozenset()
    """Keys whose value an earlier fault leaves undecided; `draft` stands for the drafter itself."""

    @property
    def facts(self) -> Method | None:
        """What is true of the method; None while there is none."""
        return find_method(self.method)

    @property
    def draft_names(self) -> tuple[str, ...]:
        """The drafter's architectures, empty without one."""
        return () if self.draft is None else self.draft.config.architectures

    def get(self, key: str) -> Any:
        """Return a key's value; None for one that is unset, faulty or not in the release."""
        return self.fields.values.get(key)

    def known(self, *keys: str) -> bool:
        """Say whether none of these keys is faulty or undecided."""
        return self.open.isdisjoint(keys)

    def reads(self, key: str) -> bool:
        """Say whether a key of certain methods acts for this one."""
        return self.facts is not None and key in self.facts.keys

    def undecided(self, *keys: str) -> Spec:
        """Return the config with further keys left open by a fault."""
        return replace(self, open=self.open | set(keys))
