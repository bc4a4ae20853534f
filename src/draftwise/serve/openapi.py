"""Generates the server's OpenAPI document from the fields that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.serve.request_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    DETOKENIZE_FIELDS,
    TOKENIZE_FIELDS,
    Check,
    describe_field,
)
from draftwise.version import __version__

_OBJECT = {"type": "object"}
_PROMPT = {
    "anyOf": [
        {"type": "string"},
        *({"type": "array", "minItems": 1, "items": items} for items in ({"type": "string"}, {"type": "integer"})),
        {"type": "array", "minItems": 1, "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "object", "required": ["role"], "properties": {"role": {"type": "string"}}},
}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}}
_OWN_SCHEMAS: dict[str, dict[str, Any]] = {"prompt": _PROMPT, "messages": _MESSAGES, "tokens": _TOKENS}
"""Schemas of fields that a check alone does not describe."""
_REFUSALS = {
    400: "A field is wrong.",
    401: "The API key is missing or wrong.",
    403: "The host or the web page may not use the server.",
    404: "The server has no such model.",
    405: "The path takes another method.",
    408: "The body did not arrive.",
    413: "The body is too large.",
    431: "The headers are too large.",
    500: "The engine failed.",
    503: "The queue is full, or the server is shutting down.",
}


def make_document() -> dict[str, Any]:
    """Return the OpenAPI document as JSON values."""
    posts = {
        "/v1/completions": ("Complete prompts.", COMPLETION_FIELDS, ("prompt",)),
        "/v1/chat/completions": ("Answer a conversation.", CHAT_FIELDS, ("messages",)),
        "/tokenize": ("Return the tokens of a prompt or a conversation.", TOKENIZE_FIELDS, ()),
        "/detokenize": ("Return the text of tokens.", DETOKENIZE_FIELDS, ("tokens",)),
    }
    gets = {
        "/v1/models": "List the model.",
        "/v1/models/{name}": "Describe the model.",
        "/health": "Say whether the server takes requests.",
        "/ping": "Say whether the server takes requests.",
        "/load": "Return the number of requests that run.",
        "/version": "Return the version.",
        "/metrics": "Return the counters in Prometheus' format.",
        "/openapi.json": "Return this document.",
    }
    paths: dict[str, Any] = {path: {"post": _describe_post(path, *row)} for path, row in posts.items()}
    for path, summary in gets.items():
        paths[path] = {"get": {"summary": summary, "responses": _responses(_kind_of(path))}}
    paths["/ping"]["post"] = paths["/ping"]["get"]
    paths["/v1/models/{name}"]["parameters"] = [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    return {
        "openapi": "3.1.0",
        "info": {"title": "draftwise serve", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _kind_of(path: str) -> str | None:
    """Return the media type of an answer; None: it has no content."""
    return {"/metrics": "text/plain", "/health": None, "/ping": None}.get(path, "application/json")


def _describe_post(path: str, summary: str, fields: Mapping[str, Check], required: tuple[str, ...]) -> dict[str, Any]:
    properties = {name: _schema_of(path, name, check) for name, check in fields.items()}
    properties |= {name: _nullable(schema) for name, schema in properties.items() if name not in required}
    schema = _OBJECT | {"properties": properties, "required": [*required]}
    responses = _responses("application/json")
    if "stream" in fields:
        responses["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    content = {"application/json": {"schema": schema}}
    return {"summary": summary, "requestBody": {"required": True, "content": content}, "responses": responses}


def _schema_of(path: str, name: str, check: Check) -> dict[str, Any]:
    if name == "prompt" and path == "/tokenize":
        return {"type": "string"}
    return _OWN_SCHEMAS.get(name) or describe_field(name, check)


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Null counts as left out."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else schema


def _responses(media_type: str | None) -> dict[str, Any]:
    text = {"type": "string"}
    of_error = _OBJECT | {"required": ["message", "type", "param", "code"], "properties": {"message": text}}
    error = _OBJECT | {"required": ["error"], "properties": {"error": of_error}}
    content: dict[str, Any] = {} if media_type is None else {"content": {media_type: {"schema": {}}}}
    refusals = {
        str(status): {"description": words, "content": {"application/json": {"schema": error}}}
        for status, words in _REFUSALS.items()
    }
    return {"200": {"description": "The answer."} | content} | refusals
