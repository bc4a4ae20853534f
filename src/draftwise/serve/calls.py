"""From a request body to engine requests and the form of the answer: one function per endpoint."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.step.sequence import Request
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.serve.answers import Call
from draftwise.serve.defaults import Defaults
from draftwise.serve.errors import RequestError
from draftwise.serve.fields import CHAT_FIELDS, COMPLETION_FIELDS, SAMPLING_FIELDS, read_fields
from draftwise.serve.formats import ChatFormat, CompletionFormat, Format
from draftwise.serve.prompts import encode_prompts, render_conversation

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


async def read_completion(body: Mapping[str, Any], model: Model) -> tuple[Call, list[Request]]:
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
    return _call(fields, model, prompts, answer, logprobs=logprobs, max_tokens=max_tokens)


async def read_chat(body: Mapping[str, Any], model: Model) -> tuple[Call, list[Request]]:
    """Return a /v1/chat/completions call and its request.

    Raises:
        RequestError, InvalidSetup: a field is wrong, or the model has no chat template.
    """
    fields = read_fields(body, CHAT_FIELDS)
    _check_model(fields, model)
    if "top_logprobs" in fields and not fields.get("logprobs"):
        raise RequestError(400, "top_logprobs needs logprobs: true.", param="top_logprobs")
    variables = {"add_generation_prompt": fields.get("add_generation_prompt", True)}
    variables |= fields.get("chat_template_kwargs", {})
    text = render_conversation(model.tokenizer, fields.get("messages", []), variables)
    add_special = fields.get("add_special_tokens", False)
    prompts = await encode_prompts(text, model.tokenizer, add_special_tokens=add_special)
    logprobs = fields.get("top_logprobs", 0) if fields.get("logprobs") else None
    max_tokens = fields.get("max_completion_tokens", fields.get("max_tokens", model.defaults.max_tokens))
    answer = ChatFormat(
        model.tokenizer,
        prompts[0],
        streamed=fields.get("stream", False),
        num_logprobs=logprobs,
        return_token_ids=fields.get("return_token_ids", False),
        name_by_id=fields.get("return_tokens_as_token_ids", False),
    )
    return _call(fields, model, prompts, answer, logprobs=logprobs, max_tokens=max_tokens)


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
    *,
    logprobs: int | None,
    max_tokens: int | None,
) -> tuple[Call, list[Request]]:
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
        Request(
            request_id=f"{call_id}-{index}",
            prompt_token_ids=ids,
            params=SamplingParams(**sampling, logprobs=logprobs, max_tokens=_room(max_tokens, len(ids), model)),
            cache_salt=fields.get("cache_salt", ""),
        )
        for index, ids in enumerate(prompts)
    ]
    return call, requests


def _room(max_tokens: int | None, num_prompt_tokens: int, model: Model) -> int:
    """Return the number of tokens to generate: as requested, but no more than the context has room for."""
    room = max(model.max_model_len - num_prompt_tokens, 1)
    return room if max_tokens is None else min(max_tokens, room)
