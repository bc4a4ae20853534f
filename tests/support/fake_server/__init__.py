"""A pretend server whose every latency, acceptance and failure is known, on virtual time or over real sockets."""

from tests.support.fake_server.backend import FakeBackend
from tests.support.fake_server.engine import FakeEngine
from tests.support.fake_server.script import FakeScript, find_crossover
from tests.support.fake_server.stream import Served

__all__ = ["FakeBackend", "FakeEngine", "FakeScript", "Served", "find_crossover"]
