"""Reads a request body: from bytes to engine requests, or directly to the answer.

Rendering a template or encoding a text may take arbitrarily long. The server runs both in `reader_process`, so nothing
else waits. Tests run them here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from draftwise.core import InvalidSetup
from draftwise.serve.calls import CallPlan, ServedModel, read_chat, read_completion, read_detokenize, read_tokenize
from draftwise.serve.channel import PackedRequest
from draftwise.serve.errors import RequestError
from draftwise.serve.request_fields import parse_body

logger = logging.getLogger("draftwise.serve")

BodyKind = str
"""The path of the endpoint."""


class PlannedCall(NamedTuple):
    """An accepted call and its requests."""

    plan: CallPlan
    requests: Sequence[PackedRequest]


class ReadError(NamedTuple):
    """The reason for a rejection, as arguments of `RequestError`."""

    status: int
    message: str
    param: str | None = None


TOO_MUCH = ReadError(400, "Reading the request takes too much memory, or it is nested too deep. Shorten it.")
Outcome = PlannedCall | ReadError | bytes
"""Bytes are a complete answer as JSON."""


class Reader(Protocol):
    """Reads request bodies, sequentially or concurrently."""

    def connect(self) -> AbstractAsyncContextManager[None]:
        """Return a block in which the reader works on the running event loop."""

    async def read(self, kind: BodyKind, body: bytes) -> Outcome:
        """Read a body."""


_CALLS = {"/v1/completions": read_completion, "/v1/chat/completions": read_chat}
_ANSWERS = {"/tokenize": read_tokenize, "/detokenize": read_detokenize}


def read_body(kind: BodyKind, body: bytes, model: ServedModel) -> Outcome:
    """Read a body; return its outcome, or the reason for a rejection."""
    try:
        given = parse_body(body)
        if kind in _ANSWERS:
            return json.dumps(_ANSWERS[kind](given, model), ensure_ascii=False, separators=(",", ":")).encode()
        plan, requests = _CALLS[kind](given, model)
        return PlannedCall(plan, [PackedRequest.pack(request) for request in requests])
    except (RequestError, InvalidSetup) as error:
        refused = error if isinstance(error, RequestError) else RequestError.of_invalid(error)
        return ReadError(refused.status, refused.message, refused.param)
    except (MemoryError, RecursionError):
        return TOO_MUCH
    except Exception:
        logger.exception("A request could not be read.")
        return ReadError(500, "The server failed; see its log.")
