"""From a request body to engine requests and the form of the answer: one function per endpoint."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.structured_outputs import StructuredOutputsParams
from draftwise.engine.step.sequence import EngineRequest
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.serve.answers import Call
from draftwise.serve.defaults import Defaults
from draftwise.serve.errors import RequestError
from draftwise.serve.fields import CHAT_FIELDS, COMPLETION_FIELDS, SAMPLING_FIELDS, read_fields
from draftwise.serve.formats import ChatFormat, CompletionFormat, Format
from draftwise.serve.prompts import encode_prompts, render_conversation
from draftwise.serve.tools import read_tools

__all__ = ["Model", "read_chat", "read_completion"]

_COMPLETION_TOKENS = 16
"""OpenAI's default max_tokens of /v1/completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Properties of the served model that are needed to read a request."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int
    defaults: Defaults
    tool_call_parser: str | None = None
    """For calls at the model's own choice; None: there are none."""


async def read_completion(body: Mapping[str, Any], model: Model) -> tuple[Call, list[EngineRequest]]:
    """Return a /v1/completions call and its requests, one a prompt.

    Raises:
        RequestError, InvalidSetup: a field is wrong.
    """
    fields = read_fields(body, COMPLETION_FIELDS)
    _check_model(fields, model)
    if "prompt" not in fields:
        raise RequestError(400, "prompt is missing.", param="prompt")
    add_special = fields.get("add_special_tokens", True)
    prompts = await encode_prompts(fields["prompt"], model.tokenizer, add_special_tokens=add_special)
    echo, logprobs = fields.get("echo", False), fields.get("logprobs")
    only_prompt = echo and fields.get("max_tokens") == 0
    if echo and logprobs is not None:
        fields.setdefault("prompt_logprobs", logprobs)
        if fields.get("stream") and fields.get("n", 1) > 1:
            raise RequestError(400, "echo with logprobs can be streamed with n = 1 only.", param="n")
    max_tokens = 1 if only_prompt else fields.get("max_tokens", _COMPLETION_TOKENS)
    answer = CompletionFormat(
        model.tokenizer,
        prompts,
        num_logprobs=logprobs,
        echo=echo,
        only_prompt=only_prompt,
        return_token_ids=fields.get("return_token_ids", False),
        name_by_id=fields.get("return_tokens_as_token_ids", False),
    )
    structured = _read_structured(fields)
    return _call(fields, model, prompts, answer, structured, logprobs=logprobs, max_tokens=max_tokens)


async def read_chat(body: Mapping[str, Any], model: Model) -> tuple[Call, list[EngineRequest]]:
    """Return a /v1/chat/completions call and its request.

    Raises:
        RequestError, InvalidSetup: a field is wrong, or the model has no chat template.
    """
    fields = read_fields(body, CHAT_FIELDS)
    _check_model(fields, model)
    if "top_logprobs" in fields and not fields.get("logprobs"):
        raise RequestError(400, "top_logprobs needs logprobs: true.", param="top_logprobs")
    tool_use = read_tools(fields, model.tool_call_parser)
    variables = {"add_generation_prompt": fields.get("add_generation_prompt", True)}
    variables |= {} if tool_use is None else {"tools": tool_use.tools}
    variables |= fields.get("chat_template_kwargs", {})
    text = render_conversation(model.tokenizer, fields.get("messages", []), variables)
    add_special = fields.get("add_special_tokens", False)
    prompts = await encode_prompts(text, model.tokenizer, add_special_tokens=add_special)
    logprobs = fields.get("top_logprobs", 0) if fields.get("logprobs") else None
    demanded = None
    if tool_use is not None and tool_use.make_parser is not None:
        demanded = tool_use.structured_outputs
        if demanded is None:
            fields["skip_special_tokens"] = False  # tags of calls may be special tokens
    max_tokens = fields.get("max_completion_tokens", fields.get("max_tokens", model.defaults.max_tokens))
    answer = ChatFormat(
        model.tokenizer,
        prompts[0],
        tool_use=tool_use,
        streamed=fields.get("stream", False),
        num_logprobs=logprobs,
        return_token_ids=fields.get("return_token_ids", False),
        name_by_id=fields.get("return_tokens_as_token_ids", False),
    )
    structured = demanded or _read_structured(fields)
    return _call(fields, model, prompts, answer, structured, logprobs=logprobs, max_tokens=max_tokens)


def _read_structured(fields: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """Return what the output must match, from structured_outputs or response_format; None: anything."""
    given = fields.get("structured_outputs")
    form = fields.get("response_format", {"type": "text"})
    kind = form.get("type")
    if kind == "text":
        return None if given is None else StructuredOutputsParams.parse(given)
    if given is not None:
        raise RequestError(400, "Give response_format or structured_outputs, not both.", param="response_format")
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind != "json_schema":
        message = f"response_format.type must be text, json_object or json_schema, got {kind!r}."
        raise RequestError(400, message, param="response_format")
    described = form.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise RequestError(400, "response_format.json_schema.schema must be an object.", param="response_format")
    return StructuredOutputsParams(json=schema)


def _check_model(fields: Mapping[str, Any], model: Model) -> None:
    """Refuse the name of another model; a request may leave it out."""
    if fields.get("model", model.name) != model.name:
        message = f"The model `{fields['model']}` does not exist; this server has `{model.name}`."
        raise RequestError(404, message, param="model")


def _call(
    fields: Mapping[str, Any],
    model: Model,
    prompts: list[list[int]],
    answer: Format,
    structured: StructuredOutputsParams | None,
    *,
    logprobs: int | None,
    max_tokens: int | None,
) -> tuple[Call, list[EngineRequest]]:
    options = fields.get("stream_options")
    if options is not None and not fields.get("stream"):
        raise RequestError(400, "stream_options needs stream: true.", param="stream_options")
    call_id = f"{answer.id_prefix}-{uuid.uuid4().hex}"
    call = Call(
        call_id=call_id,
        model=model.name,
        format=answer,
        prompt_lengths=[len(ids) for ids in prompts],
        n=fields.get("n", 1),
        stream=fields.get("stream", False),
        include_usage=bool((options or {}).get("include_usage")),
        continuous_usage=bool((options or {}).get("continuous_usage_stats")),
    )
    sampling = model.defaults.sampling | {name: fields[name] for name in SAMPLING_FIELDS if name in fields}
    requests = [
        EngineRequest(
            request_id=f"{call_id}-{index}",
            prompt_token_ids=ids,
            params=SamplingParams(
                **sampling,
                logprobs=logprobs,
                max_tokens=_room(max_tokens, len(ids), model),
                structured_outputs=structured,
            ),
            cache_salt=fields.get("cache_salt", ""),
        )
        for index, ids in enumerate(prompts)
    ]
    return call, requests


def _room(max_tokens: int | None, num_prompt_tokens: int, model: Model) -> int:
    """Return the number of tokens to generate: as requested, but no more than the context has room for."""
    room = max(model.max_model_len - num_prompt_tokens, 1)
    return room if max_tokens is None else min(max_tokens, room)
