"""Reads the body of a request: from bytes to the requests for the engine, or to the answer itself.

Rendering a template and encoding a text take as long as a client or the checkpoint wants. The server has them done by
`reader_process`, so that nothing else waits, and tests do them here.
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
    """The reason of a refusal, as `RequestError` takes it."""

    status: int
    message: str
    param: str | None = None


Outcome = PlannedCall | ReadError | bytes
"""Bytes are a whole answer as JSON."""


class Reader(Protocol):
    """Reads bodies, one after another or several at a time."""

    def connect(self) -> AbstractAsyncContextManager[None]:
        """Be ready on the running event loop."""

    async def read(self, kind: BodyKind, body: bytes) -> Outcome:
        """Return what a body asks for."""


_CALLS = {"/v1/completions": read_completion, "/v1/chat/completions": read_chat}
_ANSWERS = {"/tokenize": read_tokenize, "/detokenize": read_detokenize}


def read_body(kind: BodyKind, body: bytes, model: ServedModel) -> Outcome:
    """Return what a body asks for, or why that is refused."""
    try:
        given = parse_body(body)
        if kind in _ANSWERS:
            return json.dumps(_ANSWERS[kind](given, model), ensure_ascii=False, separators=(",", ":")).encode()
        plan, requests = _CALLS[kind](given, model)
        return PlannedCall(plan, [PackedRequest.pack(request) for request in requests])
    except RequestError as error:
        return ReadError(error.status, error.message, error.param)
    except InvalidSetup as error:
        return read_error_of(error)
    except MemoryError:
        return ReadError(400, "Reading the request takes too much memory. Shorten it.")
    except Exception:
        logger.exception("A request could not be read.")
        return ReadError(500, "The server failed; see its log.")


def read_error_of(error: InvalidSetup) -> ReadError:
    """Return the refusal of values that the engine rejects."""
    refused = RequestError.of_invalid(error)
    return ReadError(refused.status, refused.message, refused.param)
