"""Detects metrics pages of several processes: in one process, counters never fall and the start never changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from draftwise.backends.exposition import tidy_page
from draftwise.knowledge.metrics import find_sample
from draftwise.machine.network import is_here

_TYPE = re.compile(r'^# TYPE "?([^\s"]+)"? (\w+)', re.MULTILINE)
_SAMPLE = re.compile(r'^([\w:.]+)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?[ \t]+(\S+)', re.MULTILINE)
_SUFFIX = re.compile(r"[_.](total|bucket|count|sum|created)$")
_START = "process_start_time_seconds"
_CPU = "process_cpu_seconds_total"
START_TOLERANCE_S = 1.0
"""Tolerance in seconds between two start times of one process: gateways and exporters round them."""
_ROUNDED = 1e-9
"""Relative tolerance between sums of the same numbers."""


@dataclass(frozen=True, slots=True)
class PageIdentity:
    """The values on a page that only grow within a process, and those that never change."""

    counted: dict[str, float]
    """Counters and histogram parts, by name and labels."""
    fixed: dict[str, float]
    """Start times of the process and its counters, in seconds since the epoch."""
    cache: frozenset[str]
    """The engines' cache configurations, as labels."""

    def cannot_precede(self, later: PageIdentity) -> bool:
        """Return whether a later page cannot come from the same process.

        A truncated page only lacks labels, so both pages must have labels that the other lacks.
        """
        fell = any(later.counted.get(key, value) < value * (1 - _ROUNDED) for key, value in self.counted.items())
        moved = any(abs(later.fixed.get(key, value) - value) > START_TOLERANCE_S for key, value in self.fixed.items())
        other = bool(self.counted.keys() - later.counted.keys() and later.counted.keys() - self.counted.keys())
        return fell or moved or other or bool(self.cache and later.cache and self.cache != later.cache)

    def is_copied(self, later: PageIdentity) -> bool:
        """Return whether a later page is a copy, as of a cache: a process that writes one takes CPU time for it."""
        return _CPU in self.counted and self.counted == later.counted

    def may_be_copied(self, later: PageIdentity) -> bool:
        """Return whether a later page counts the same and does not tell whether its process was at work."""
        return _CPU not in self.counted and self.counted == later.counted


def read_identity(text: str) -> PageIdentity:
    """Return the identity of a metrics page's process. Ignores a truncated last line."""
    types = {_SUFFIX.sub("", name): kind for name, kind in _TYPE.findall(text) if not name.endswith("_created")}
    counted, fixed, cache = {}, {}, set()
    for name, labels, value in _list_samples(text[: text.rfind("\n") + 1]):
        suffix = _SUFFIX.search(name)
        kind = types.get(name) or types.get(_SUFFIX.sub("", name), "counter" if suffix else "")
        if name == _START or (suffix is not None and suffix[1] == "created"):
            fixed[name + labels] = value
        elif (known := find_sample(name)) is not None and known.reading == "cache_dtype":
            cache.add(labels)
        elif kind == "counter" or (suffix is not None and kind in ("histogram", "summary")):
            counted[name + labels] = value
    return PageIdentity(counted, fixed, frozenset(cache))


def _list_samples(text: str) -> Iterator[tuple[str, str, float]]:
    for name, labels, word in _SAMPLE.findall(tidy_page(text)):
        try:
            yield name, labels, float(word)
        except ValueError:
            continue


_NUMBERED = re.compile(r"-\d+$")
_LABELS_OF_SERVICE = 2
"""Its name and its namespace; a pod of a StatefulSet has a name of its own in front."""


def may_be_shared(url: str) -> bool:
    """Return whether an address may stand for several servers behind a sticky load balancer.

    True for a host name, unless it is this machine's or a pod's, and for an IP address with a proxy's port.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not host or is_here(host):
        return False
    try:
        ip_address(host)
    except ValueError:
        labels = host.split(".")
        if "svc" in labels:
            return labels.index("svc") <= _LABELS_OF_SERVICE
        return "pod" not in labels and not _NUMBERED.search(labels[0])
    return parts.port in (None, 80, 443)
