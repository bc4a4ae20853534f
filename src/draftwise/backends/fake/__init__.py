"""A pretend server whose every latency, acceptance and failure is known, on virtual time or over real sockets."""

from draftwise.backends.fake.backend import FakeBackend
from draftwise.backends.fake.engine import FakeEngine
from draftwise.backends.fake.script import FakeScript, find_crossover
from draftwise.backends.fake.stream import Served

__all__ = ["FakeBackend", "FakeEngine", "FakeScript", "Served", "find_crossover"]
