"""Error responses in OpenAI's format, as vLLM fills it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from draftwise.core import InvalidSetup

logger = logging.getLogger("draftwise.serve")


_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    413: "BadRequestError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


_LONGEST = 2000
"""Most characters of a message, which may quote a request."""


class RequestError(Exception):
    """A rejected request: HTTP status, message, and the field at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
        self.param = param
        self.headers = headers

    @classmethod
    def of_invalid(cls, error: InvalidSetup) -> RequestError:
        """Return the error for values that the engine rejects, all in one message."""
        return cls(400, " ".join(map(str, error.findings)), param=error.findings[0].where or None)


def make_error_body(error: RequestError) -> dict[str, Any]:
    """Return the JSON body of an error response."""
    kind = _TYPES.get(error.status, HTTPStatus(error.status).phrase)
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.status}}


def handle_request_error(_: Request, error: Exception) -> JSONResponse:
    """Return the response for a `RequestError`."""
    assert isinstance(error, RequestError)
    return JSONResponse(make_error_body(error), error.status, headers=error.headers)


def _handle_invalid_setup(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InvalidSetup)
    return handle_request_error(request, RequestError.of_invalid(error))


def _handle_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    messages = {
        404: f"There is no {request.scope['path']} here.",
        405: f"{request.method} is not allowed on {request.scope['path']}.",
    }
    message = messages.get(error.status_code, error.detail)
    return handle_request_error(request, RequestError(error.status_code, message, headers=error.headers))


def _handle_bug(request: Request, error: Exception) -> JSONResponse:
    logger.error("A request failed.", exc_info=error)
    return handle_request_error(request, RequestError(500, "The server failed; see its log."))


EXCEPTION_HANDLERS = {
    RequestError: handle_request_error,
    InvalidSetup: _handle_invalid_setup,
    HTTPException: _handle_http_error,
    Exception: _handle_bug,
}
"""Starlette's handlers: every error response has OpenAI's envelope."""
