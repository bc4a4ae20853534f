"""Collects what is wrong with a workload, all of it, without drowning the reader."""

from __future__ import annotations

from draftwise.core import Finding, InvalidSetup

__all__ = ["Faults"]

_SHOWN = 30


class Faults:
    """The faults found so far; the first ones are kept word for word, the rest counted."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._more = 0

    def add(self, code: str, message: str, where: str, fix: str = "") -> None:
        """Note one fault."""
        if len(self._findings) < _SHOWN:
            finding = Finding.error(code, message, where=where, fix=fix)
            self._findings.append(finding)
        else:
            self._more += 1

    def __bool__(self) -> bool:
        return bool(self._findings)

    def raise_any(self) -> None:
        """Raise what was found.

        Raises:
            InvalidSetup: with every fault; past the first thirty, with their number.
        """
        if self._more:
            where = self._findings[-1].where.rpartition(":")[0]
            more = Finding.error("more-faults", f"{where} has {self._more} more faults like these.", where=where)
            self._findings.append(more)
        if self._findings:
            raise InvalidSetup(self._findings)
