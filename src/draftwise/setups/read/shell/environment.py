"""The variables of a server's process, as far as texts show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Variables by name: those with a value, and those set by something unavailable."""

    values: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Name -> source of its value, e.g. `key tp of ConfigMap llm, which is not in this text`."""
    assumed: Mapping[str, str] = field(default_factory=dict)
    """Name -> what its value depends on, for `values` that hold unless something else is set."""
    elsewhere: str = ""
    """Possible source of any other variable; empty if every variable is known."""

    def origin(self, name: str) -> str:
        """Return the source of a variable's value; empty if the value is known, or known to be unset."""
        return "" if name in self.values else self.unknown.get(name, self.elsewhere)

    def __or__(self, later: Environment) -> Environment:
        """Return both together; where both set a variable, `later` wins."""
        return Environment.join((self, later))

    @staticmethod
    def join(environments: Iterable[Environment]) -> Environment:
        """Return all together; where several set a variable, the last one wins."""
        values, unknown, assumed, elsewhere = dict[str, str](), dict[str, str](), dict[str, str](), ""
        for each in environments:
            for names, others in ((each.values, unknown), (each.unknown, values)):
                for name in names:
                    others.pop(name, None)
                    assumed.pop(name, None)
            values |= each.values
            unknown |= each.unknown
            assumed |= each.assumed
            elsewhere = each.elsewhere or elsewhere
        return Environment(values=values, unknown=unknown, assumed=assumed, elsewhere=elsewhere)

    def given(self, values: Mapping[str, str]) -> Environment:
        """Return the environment with values for unknown variables."""
        named = {name: values[name] for name in self.unknown if name in values}
        others = {name: value for name, value in values.items() if self.elsewhere and name not in self.unknown}
        filled = Environment(
            values={**others, **self.values}, unknown=self.unknown, assumed=self.assumed, elsewhere=self.elsewhere
        )
        return filled | Environment(values=named)


NOTHING_SET = Environment()


def describe_unknown(name: str, origin: str) -> str:
    """Return the name of an unavailable value in findings."""
    return f"{name} ({origin})"
