"""The fields of a request body: types, refused and ignored ones, and the OpenAPI document of them all."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from draftwise.core import cause_of
from draftwise.serve.errors import RequestError
from draftwise.version import __version__

logger = logging.getLogger("draftwise.serve")

_WRONG = object()
_SALT = r"[^@/\\\x00]{1,128}"
Check = Callable[[Any], Any]
"""Returns the value, converted if necessary, or `_WRONG`."""


def _of_type(kind: type) -> Check:
    return lambda value: value if isinstance(value, kind) else _WRONG


_boolean, _string, _object, _list = _of_type(bool), _of_type(str), _of_type(dict), _of_type(list)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return _WRONG
    return float(value)


def _integer(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
        return _WRONG
    return int(value) if value == int(value) else _WRONG


def _strings(value: Any) -> Any:
    value = [value] if isinstance(value, str) else value
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else _WRONG


def _integers(value: Any) -> Any:
    return value if isinstance(value, list) and all(type(each) is int for each in value) else _WRONG


def _bias(value: Any) -> Any:
    """JSON keys are strings; token ids are integers. Biases are cut as in vLLM: a float32 cannot hold larger ones."""
    if not isinstance(value, dict) or any(_number(bias) is _WRONG for bias in value.values()):
        return _WRONG
    if wrong := [token[:20] for token in value if not re.fullmatch(r"-?\d{1,18}", token)]:
        raise RequestError(400, f"logit_bias has keys that are not token ids: {wrong[:8]}.", param="logit_bias")
    return {int(token): max(-100.0, min(100.0, float(bias))) for token, bias in value.items()}


def _salt(value: Any) -> Any:
    """As vLLM 0.33: cache backends take it as a part of names."""
    return value if isinstance(value, str) and re.fullmatch(_SALT, value) else _WRONG


def _any(value: Any) -> Any:
    return value


_STRING = {"type": "string"}
_KINDS: dict[Check, tuple[str, dict[str, Any]]] = {
    _boolean: ("true or false", {"type": "boolean"}),
    _number: ("a finite number", {"type": "number"}),
    _integer: ("an integer of at most 64 bits", {"type": "integer"}),
    _string: ("a string", _STRING),
    _object: ("an object", {"type": "object"}),
    _list: ("a list", {"type": "array"}),
    _strings: ("a string or a list of strings", {"anyOf": [_STRING, {"type": "array", "items": _STRING}]}),
    _salt: ("1 to 128 characters without @, / and \\", _STRING | {"pattern": f"^{_SALT}$"}),
    _integers: ("a list of integers", {"type": "array", "items": {"type": "integer"}}),
    _bias: ("an object from token ids to numbers", {"type": "object", "additionalProperties": {"type": "number"}}),
}
"""What a value must be, in words and as a JSON schema."""

SAMPLING_FIELDS: dict[str, Check] = {
    **dict.fromkeys(("temperature", "top_p", "min_p"), _number),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), _number),
    **dict.fromkeys(("n", "top_k", "min_tokens", "num_speculative_tokens", "seed", "prompt_logprobs"), _integer),
    **dict.fromkeys(("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"), _boolean),
    "logit_bias": _bias,
    "bad_words": _strings,
    "stop": _strings,
    "stop_token_ids": _integers,
}
"""Fields of `SamplingParams` with the same name."""

_COMMON: dict[str, Check] = {
    **dict.fromkeys(("model", "truncation_side"), _string),
    "cache_salt": _salt,
    **dict.fromkeys(("stream", "return_token_ids", "return_tokens_as_token_ids", "add_special_tokens"), _boolean),
    **dict.fromkeys(("stream_options", "response_format", "structured_outputs"), _object),
    **dict.fromkeys(("max_tokens", "truncate_prompt_tokens"), _integer),
}
COMPLETION_FIELDS = SAMPLING_FIELDS | _COMMON | {"prompt": _any, "echo": _boolean, "logprobs": _integer}
_CONVERSATION: dict[str, Check] = {
    "messages": _list,
    "tools": _list,
    "add_generation_prompt": _boolean,
    "continue_final_message": _boolean,
    "chat_template_kwargs": _object,
}
CHAT_FIELDS = (
    (SAMPLING_FIELDS | _COMMON | _CONVERSATION)
    | dict.fromkeys(("logprobs", "echo", "parallel_tool_calls"), _boolean)
    | {"top_logprobs": _integer, "max_completion_tokens": _integer, "tool_choice": _any}
)
TOKENIZE_FIELDS: dict[str, Check] = _CONVERSATION | {
    "model": _string,
    "prompt": _string,
    "add_special_tokens": _boolean,
    "return_token_strs": _boolean,
}
DETOKENIZE_FIELDS: dict[str, Check] = {"model": _string, "tokens": _integers}

_MOST = {"n": 128, "stop": 64, "temperature": 2} | dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs"), 20)
_MOST |= dict.fromkeys(("stop_token_ids", "bad_words"), 1024)
"""Largest value or number of items: OpenAI's for n, vLLM's default max_logprobs, and limits on the work per step."""
_LONGEST = {"stop": 2**14, "bad_words": 2**14}
"""Most characters, of all items together: each is compared with the output as it grows."""

_REFUSED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),  # vLLM before 0.12
    **dict.fromkeys(("prompt_embeds", "allowed_token_ids", "logprob_token_ids", "repetition_detection"), ()),
    **dict.fromkeys(("chat_template", "documents", "audio"), ()),
    **dict.fromkeys(("use_beam_search", "watermarking", "return_prompt_text", "return_weight_versions"), (False,)),
    **dict.fromkeys(("vllm_xargs", "kv_transfer_params", "ec_transfer_params"), ({},)),
    "suffix": ("",),
    "best_of": (1,),
    "priority": (0,),
    "tools": ([],),  # of a completion
    "functions": ([],),
    "thinking_token_budget": (-1,),
    "modalities": (["text"],),
}
"""Known fields that are not supported, with the values that have no effect."""

_IGNORED = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"),
        *("parallel_tool_calls", "tool_choice", "function_call", "reasoning_effort", "prediction"),
        *("request_id", "session_id", "length_penalty", "include_reasoning"),
        *("spaces_between_special_tokens", "stream_interval"),
    )
)
"""Known fields that have no effect here."""


def describe_field(name: str, check: Check) -> dict[str, Any]:
    """Return the JSON schema of a field."""
    _, schema = _KINDS.get(check, ("", {}))
    limit = "maximum" if schema.get("type") in ("integer", "number") else "maxItems"
    most = {limit: _MOST[name]} if name in _MOST else {}
    return schema | most


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a body.

    Raises:
        RequestError: 400, it is not an object, or has numbers or text that JSON or UTF-8 do not allow.
    """
    try:
        body = json.loads(raw.decode(), parse_constant=_refuse_constant)
        # Escaped lone surrogates parse, but neither a tokenizer nor a reply can hold them.
        if b"\\u" in raw:
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError(400, "The body has text with half a surrogate pair, which is not a character.") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"The body is not valid JSON: {cause_of(error)}.") from None
    if not isinstance(body, dict):
        raise RequestError(400, f"The body must be a JSON object, got {type(body).__name__}.")
    return body


def read_fields(body: Mapping[str, Any], known: Mapping[str, Check]) -> dict[str, Any]:
    """Return the given fields, validated and converted. null counts as not given.

    Raises:
        RequestError: 400, with every field that has the wrong type, is too large or is not supported.
    """
    given = {name: value for name, value in body.items() if value is not None}
    faults: list[tuple[str, str]] = []
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            fields[name] = _checked(name, value, known[name], faults)
        elif name in _REFUSED and value not in _REFUSED[name]:
            faults.append((name, "is not supported by draftwise serve; leave it out"))
    if faults:
        raise RequestError(400, "; ".join(f"{name} {text}" for name, text in faults) + ".", param=faults[0][0])
    unknown = given.keys() - known.keys() - _REFUSED.keys() - _IGNORED
    if unknown:
        shown = ", ".join(repr(name[:40]) for name in sorted(unknown)[:10])
        logger.warning("Unknown fields in the request were ignored: %s.", shown)
    return fields


def _checked(name: str, value: Any, check: Check, faults: list[tuple[str, str]]) -> Any:
    value = check(value)
    if value is _WRONG:
        faults.append((name, f"must be {_KINDS[check][0]}"))
    elif name in _MOST and (size := len(value) if isinstance(value, list) else value) > _MOST[name]:
        items = " items" if isinstance(value, list) else ""
        faults.append((name, f"must be at most {_MOST[name]}{items}, got {size}"))
    elif name in _LONGEST and (length := len("".join(value))) > _LONGEST[name]:
        faults.append((name, f"must have at most {_LONGEST[name]} characters, got {length}"))
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_OBJECT = {"type": "object"}
_INTEGER = {"type": "integer"}
_PROMPT = {
    "anyOf": [_STRING]
    + [
        {"type": "array", "minItems": 1, "items": items}
        for items in (_STRING, _INTEGER, {"type": "array", "items": _INTEGER})
    ]
}
_MESSAGE = _OBJECT | {"required": ["role"], "properties": {"role": _STRING}}
_MESSAGES = {"type": "array", "minItems": 1, "items": _MESSAGE}
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
    415: "The body is compressed.",
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
    paths["/v1/models/{name}"]["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _STRING}]
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
