"""From a request body to engine requests and the form of the answer: one function per endpoint."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.engine.sampling.params import SamplingParams, StructuredOutputsParams
from draftwise.engine.step.sequence import EngineRequest
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.serve.errors import RequestError
from draftwise.serve.formats import AnswerFormat, ChatFormat, CompletionFormat
from draftwise.serve.generation import Call
from draftwise.serve.request_fields import CHAT_FIELDS, COMPLETION_FIELDS, SAMPLING_FIELDS, read_fields
from draftwise.serve.tools import read_tools

__all__ = [
    "Defaults",
    "ServedModel",
    "check_model_name",
    "encode_prompts",
    "read_chat",
    "read_completion",
    "read_messages",
    "render_conversation",
]

_SAMPLING = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("temperature", "top_k", "top_p", "min_p"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values of fields that a request leaves out."""

    sampling: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    """`max_new_tokens`; None: the rest of the context."""

    @classmethod
    def from_checkpoint(cls, directory: str | Path) -> Defaults:
        """Return the defaults of a checkpoint directory; none without a generation_config.json.

        Raises:
            InvalidSetup: the file is not valid JSON or holds a value out of range.
        """
        path = Path(directory) / "generation_config.json"
        if not path.is_file():
            return cls()
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            sampling = {name: config[name] for name in _SAMPLING if config.get(name) is not None}
            SamplingParams(**sampling)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidSetup.because(
                "bad-generation-config", f"{path} cannot be used: {error}", where=str(path), fix="Correct or remove it."
            ) from None
        return cls(sampling=sampling, max_tokens=config.get("max_new_tokens"))


_LONG_TEXT = 20_000
"""Characters beyond which encoding would block the event loop for milliseconds."""


async def encode_prompts(prompt: Any, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[list[int]]:
    """Return token ids for a `prompt` field: a string, token ids, or a list of either.

    Raises:
        RequestError: 400, it has another form.
    """
    prompts = _as_list(prompt)
    return [await _encode(each, tokenizer, add_special_tokens) if isinstance(each, str) else each for each in prompts]


def _as_list(prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(each, str) for each in prompt):
            return prompt
        if _are_ids(prompt):
            return [prompt]
        if all(isinstance(each, list) and _are_ids(each) for each in prompt):
            return prompt
    raise RequestError(
        400, "prompt must be a string, a list of strings, a list of token ids, or a list of such lists.", param="prompt"
    )


def _are_ids(values: Sequence[Any]) -> bool:
    return all(type(value) is int for value in values)


async def _encode(text: str, tokenizer: Tokenizer, add_special_tokens: bool) -> list[int]:
    if len(text) > _LONG_TEXT:
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens)
    return tokenizer.encode(text, add_special_tokens)


def read_messages(messages: list[Any]) -> list[dict[str, Any]]:
    """Return the messages with their content as plain text, text parts joined by newlines as in vLLM.

    Raises:
        RequestError: 400, a message has no role or a content that is not text.
    """
    if not messages:
        raise RequestError(400, "messages must hold at least one message.", param="messages")
    return [_read_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _read_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(400, f"{where} must be an object with a role.", param="messages")
    read: dict[str, Any] = message | {"content": _read_content(where, message.get("content"))}
    calls = read.pop("tool_calls", None)
    if isinstance(calls, list) and calls:  # templates take an empty list for an answer with calls
        read["tool_calls"] = [_with_arguments(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(calls)]
    return read


_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of parts that hold text, and the field that does, as in vLLM."""


def _read_content(where: str, content: Any) -> str:
    """Return the text of a content; an absent one is empty, as in an answer that only calls tools."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(400, f"{where} must have text as content.", param="messages")
    texts = []
    for part in content:
        field_name = _TEXT_PARTS.get(str(part.get("type"))) if isinstance(part, dict) else None
        text = part.get(field_name) if field_name else part
        if text is None and field_name in ("text", "refusal"):
            continue
        if not isinstance(text, str):
            raise RequestError(400, f"{where} has content that is not text; this model takes text.", param="messages")
        texts.append(text)
    return "\n".join(texts)


def _with_arguments(where: str, call: Any) -> dict[str, Any]:
    """Return an earlier call with its arguments as an object, which is what chat templates print."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RequestError(400, f"{where} must have a function.", param="messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            # A model wrote it in an earlier turn: refusing it would end the conversation for good.
            arguments = None
    return call | {"function": function | {"arguments": arguments if isinstance(arguments, dict) else {}}}


def render_conversation(tokenizer: Tokenizer, messages: list[Any], variables: Mapping[str, Any]) -> str:
    """Return a conversation rendered with the model's chat template.

    Raises:
        RequestError: 400, the messages are malformed, or the template is missing or rejects them.
    """
    try:
        return tokenizer.apply_chat_template(read_messages(messages), **variables)
    except InvalidSetup as error:
        raise RequestError.of_invalid(error) from None


_COMPLETION_TOKENS = 16
"""OpenAI's default max_tokens of /v1/completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Properties of the served model that are needed to read a request."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int
    defaults: Defaults
    tool_call_parser: str | None = None
    """For calls at the model's own choice; None: such calls are refused."""


async def read_completion(body: Mapping[str, Any], model: ServedModel) -> tuple[Call, list[EngineRequest]]:
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


async def read_chat(body: Mapping[str, Any], model: ServedModel) -> tuple[Call, list[EngineRequest]]:
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


def _check_model(fields: Mapping[str, Any], model: ServedModel) -> None:
    """Refuse the name of another model; a request may leave it out."""
    check_model_name(fields.get("model", model.name), model)


def check_model_name(name: str, model: ServedModel) -> None:
    """Refuse a name that is not the model's with 404."""
    if name != model.name:
        message = f"The model `{name[:200]}` does not exist; this server has `{model.name}`."
        raise RequestError(404, message, param="model")


def _call(
    fields: Mapping[str, Any],
    model: ServedModel,
    prompts: list[list[int]],
    answer: AnswerFormat,
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


def _room(max_tokens: int | None, num_prompt_tokens: int, model: ServedModel) -> int:
    """Return the number of tokens to generate: as requested, but no more than the context has room for."""
    room = max(model.max_model_len - num_prompt_tokens, 1)
    return room if max_tokens is None else min(max_tokens, room)
