"""Things that answer prompts over HTTP and report SpecStats: the embedded server, any URL, a fake."""

from draftwise.backends.base import Backend, ServerInfo
from draftwise.backends.embedded import EmbeddedBackend
from draftwise.backends.fake import FakeBackend, FakeScript
from draftwise.backends.url import UrlBackend

__all__ = ["Backend", "EmbeddedBackend", "FakeBackend", "FakeScript", "ServerInfo", "UrlBackend"]
