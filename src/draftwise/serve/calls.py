"""Turns request bodies into engine requests, and results into answers. One function per endpoint."""

from __future__ import annotations

import json
import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from draftwise.checkpoints.text_files import read_json
from draftwise.core import InvalidSetup
from draftwise.engine.sampling.bad_words import encode_bad_words
from draftwise.engine.sampling.params import SamplingParams, StructuredOutputsParams
from draftwise.engine.step.scheduler import EngineRequest
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.knowledge.messages import refusal
from draftwise.serve.errors import RequestError
from draftwise.serve.formats import AnswerFormat, ChatFormat, CompletionFormat
from draftwise.serve.generation import Call
from draftwise.serve.request_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    DETOKENIZE_FIELDS,
    SAMPLING_FIELDS,
    TOKENIZE_FIELDS,
    read_fields,
)
from draftwise.serve.tools import read_tools

_SAMPLING = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("temperature", "top_k", "top_p", "min_p"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values of fields that a request leaves out."""

    sampling: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    """`max_new_tokens` of the checkpoint. None: the rest of the context."""

    @classmethod
    def from_checkpoint(cls, directory: str | Path) -> Defaults:
        """Return the defaults of a checkpoint directory; empty without a generation_config.json.

        Raises:
            InvalidSetup: the file is not valid JSON, or a value has the wrong type or range.
        """
        path = Path(directory) / "generation_config.json"
        if not path.is_file():
            return cls()
        try:
            config = read_json(path)
            sampling = read_fields({name: config.get(name) for name in _SAMPLING}, SAMPLING_FIELDS)
            length = read_fields({"max_tokens": config.get("max_new_tokens")}, COMPLETION_FIELDS)
            SamplingParams(**sampling, **length)
        except (RequestError, InvalidSetup) as error:
            raise refusal("bad-generation-config", path=path, error=error) from None
        return cls(sampling=sampling, **length)


class _Prompt(NamedTuple):
    ids: list[int]
    text: str | None
    """The given text; None for token ids."""


def _encode_prompts(
    prompt: Any, model: ServedModel, fields: Mapping[str, Any], *, add_special_tokens: bool
) -> list[_Prompt]:
    """Return the prompts of a `prompt` field: a string, token ids, or a list of either.

    Raises:
        RequestError: 400, it has another form, or has more characters or tokens than the model takes.
    """
    prompts = [
        _Prompt(model.encode(each, add_special_tokens), each) if isinstance(each, str) else _Prompt(each, None)
        for each in _as_list(prompt)
    ]
    truncated = [prompt._replace(ids=_truncate(prompt.ids, fields, model)) for prompt in prompts]
    for each in truncated:
        model.check_length(len(each.ids))
        if each.text is None and each.ids and not -(2**31) < min(each.ids) <= max(each.ids) < 2**31:
            raise RequestError(400, "The prompt has token ids that no model has.", param="prompt")
    return truncated


def _truncate(ids: list[int], fields: Mapping[str, Any], model: ServedModel) -> list[int]:
    """Return the tokens that `truncate_prompt_tokens` keeps: the last ones, unless `truncation_side` is `right`."""
    most, side = fields.get("truncate_prompt_tokens"), fields.get("truncation_side", "left")
    if side not in ("left", "right"):
        raise RequestError(400, "truncation_side must be left or right.", param="truncation_side")
    if most is None:
        return ids
    if not -1 <= most <= model.max_model_len:
        message = f"truncate_prompt_tokens must lie in -1..{model.max_model_len}, got {most}."
        raise RequestError(400, message, param="truncate_prompt_tokens")
    kept = model.max_model_len - 1 if most == -1 else most
    return ids[:kept] if side == "right" else ids[max(len(ids) - kept, 0) :]


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
    if not isinstance(calls, list | None):
        raise RequestError(400, f"{where}.tool_calls must be a list of calls.", param="messages")
    if calls:  # templates take an empty list for an answer with calls
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


def _render(fields: Mapping[str, Any], model: ServedModel, tools: list[Any] | None) -> tuple[str, str, str]:
    """Return a conversation rendered with the model's chat template, the role that answers, and its text so far.

    Raises:
        RequestError: 400, the messages are malformed, or the template is missing or rejects them.
    """
    messages = read_messages(fields.get("messages", []))
    goes_on = fields.get("continue_final_message", False)
    if goes_on and fields.get("add_generation_prompt", False):
        message = "Cannot set both continue_final_message and add_generation_prompt to true."
        raise RequestError(400, message, param="continue_final_message")
    begins = fields.get("add_generation_prompt", not goes_on)
    variables: dict[str, Any] = {"add_generation_prompt": begins} | ({} if tools is None else {"tools": tools})
    variables |= fields.get("chat_template_kwargs", {})
    try:
        text = model.tokenizer.apply_chat_template(messages, **variables)
    except InvalidSetup as error:
        raise RequestError.of_invalid(error) from None
    text = text.encode(errors="replace").decode()  # arguments of an earlier call may name half a surrogate pair
    last = messages[-1]
    role = "assistant" if begins else last["role"]
    said = last["content"] if last["role"] == role else ""
    return _cut_behind(text, last["content"]) if goes_on else text, role, said


def _cut_behind(text: str, message: str) -> str:
    """Return a rendered conversation up to the end of its last message, as transformers does."""
    bare = message.strip()
    start = text.rfind(bare)
    if start < 0 or not bare:
        words = "The final message does not occur in the conversation as the chat template renders it."
        raise RequestError(400, words, param="continue_final_message")
    full = message.lstrip()
    return text[: start + len(full if text.startswith(full, start) else bare)]


_COMPLETION_TOKENS = 16
"""OpenAI's default max_tokens of /v1/completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Properties of the served model that are needed to read a request."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int
    defaults: Defaults
    most_sequences: int = 2**10
    """Maximum completions of one request."""
    tool_call_parser: str | None = None
    """Parser for calls that the model may choose to make. None: such requests are rejected."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a prompt. Rejects one that is certainly too long with 400 before any work."""
        longest = self.max_model_len * self.tokenizer.longest_token
        if len(text) > longest:
            message = f"The prompt has {len(text)} characters, and {self.max_model_len} tokens have at most {longest}."
            raise RequestError(400, f"{message} Shorten it.", param="prompt")
        return self.tokenizer.encode(text, add_special_tokens)

    def check_length(self, num_tokens: int) -> None:
        """Reject a prompt that leaves no room for an answer with 400."""
        if num_tokens >= self.max_model_len:
            message = f"The prompt has {num_tokens} tokens, but prompt and output together may have "
            raise RequestError(400, f"{message}{self.max_model_len}. Shorten it.", param="prompt")


class CallPlan(NamedTuple):
    """An accepted call, to be opened by a process with a tokenizer."""

    make_format: Callable[..., AnswerFormat]
    """Called with the tokenizer."""
    make_call: Callable[..., Call]
    """Called with the format, as `format`."""

    def open(self, tokenizer: Tokenizer) -> Call:
        """Return the call."""
        return self.make_call(format=self.make_format(tokenizer))


def read_completion(body: Mapping[str, Any], model: ServedModel) -> tuple[CallPlan, list[EngineRequest]]:
    """Return a /v1/completions call and its requests, one per prompt.

    Raises:
        RequestError, InvalidSetup: a field is wrong.
    """
    fields = read_fields(body, COMPLETION_FIELDS)
    _check_model(fields, model)
    if fields.get("prompt", "") == "":
        raise RequestError(400, "prompt is missing or empty.", param="prompt")
    structured = _read_structured(fields)
    _check_work(fields, len(_as_list(fields["prompt"])), model)
    add_special = fields.get("add_special_tokens", True)
    prompts = _encode_prompts(fields["prompt"], model, fields, add_special_tokens=add_special)
    echo, logprobs, shows_ids = fields.get("echo", False), fields.get("logprobs"), fields.get("return_token_ids", False)
    only_prompt = echo and fields.get("max_tokens") == 0
    if echo and logprobs is not None:
        fields.setdefault("prompt_logprobs", logprobs)
        if fields.get("stream") and fields.get("n", 1) > 1:
            raise RequestError(400, "echo with logprobs can be streamed with n = 1 only.", param="n")
    max_tokens = 1 if only_prompt else fields.get("max_tokens", _COMPLETION_TOKENS)
    texts = [each.text if each.text is not None else model.tokenizer.decode(each.ids, False) for each in prompts]
    make_format = partial(
        CompletionFormat,
        prompts=[array("q", each.ids) for each in prompts] if echo or shows_ids else [],
        texts=([""] * len(texts) if shows_ids else texts) if echo else None,
        streamed=fields.get("stream", False),
        num_logprobs=logprobs,
        only_prompt=only_prompt,
        return_token_ids=shows_ids,
        name_by_id=fields.get("return_tokens_as_token_ids", False),
    )
    ids = [each.ids for each in prompts]
    return _call(fields, model, ids, "cmpl", make_format, structured, logprobs=logprobs, max_tokens=max_tokens)


def read_chat(body: Mapping[str, Any], model: ServedModel) -> tuple[CallPlan, list[EngineRequest]]:
    """Return a /v1/chat/completions call and its request.

    Raises:
        RequestError, InvalidSetup: a field is wrong, or the model has no chat template.
    """
    fields = read_fields(body, CHAT_FIELDS)
    _check_model(fields, model)
    if fields.get("top_logprobs") and not fields.get("logprobs"):
        raise RequestError(400, "top_logprobs needs logprobs: true.", param="top_logprobs")
    tool_use = read_tools(fields, model.tool_call_parser)
    structured = _read_structured(fields)
    if tool_use is not None and tool_use.make_parser is not None:
        if not tool_use.ends_in_calls and "structured_outputs" in fields:
            raise RequestError(400, "Give structured_outputs or name a tool, not both.", param="structured_outputs")
        structured = tool_use.structured_outputs or structured
        if tool_use.structured_outputs is None:
            fields["skip_special_tokens"] = False  # tags of calls may be special tokens
    _check_work(fields, 1, model)
    text, role, said = _render(fields, model, None if tool_use is None else tool_use.tools)
    add_special = fields.get("add_special_tokens", False)
    (prompt,) = _encode_prompts(text, model, fields, add_special_tokens=add_special)
    logprobs = fields.get("top_logprobs", 0) if fields.get("logprobs") else None
    max_tokens = fields.get("max_completion_tokens", fields.get("max_tokens", model.defaults.max_tokens))
    make_format = partial(
        ChatFormat,
        prompt=array("q", prompt.ids) if fields.get("return_token_ids") else None,
        role=role,
        said=said if fields.get("echo", False) else "",
        tool_use=tool_use,
        streamed=fields.get("stream", False),
        num_logprobs=logprobs,
        name_by_id=fields.get("return_tokens_as_token_ids", False),
    )
    return _call(
        *(fields, model, [prompt.ids], "chatcmpl", make_format, structured), logprobs=logprobs, max_tokens=max_tokens
    )


def read_tokenize(body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """Return the answer of /tokenize: the tokens of a prompt or a conversation.

    Raises:
        RequestError, InvalidSetup: a field is wrong.
    """
    fields = read_fields(body, TOKENIZE_FIELDS)
    _check_model(fields, model)
    is_chat = "messages" in fields
    if is_chat == ("prompt" in fields):
        raise RequestError(400, "Give prompt or messages.", param="prompt")
    text = _render(fields, model, fields.get("tools"))[0] if is_chat else fields["prompt"]
    ids = model.encode(text, fields.get("add_special_tokens", not is_chat))
    names = [model.tokenizer.piece(token) for token in ids] if fields.get("return_token_strs") else None
    return {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": names}


def read_detokenize(body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """Return the answer of /detokenize: the text of tokens.

    Raises:
        RequestError: a field is wrong.
    """
    fields = read_fields(body, DETOKENIZE_FIELDS)
    _check_model(fields, model)
    ids = fields.get("tokens")
    if ids is None or not all(0 <= token < 2**32 for token in ids):
        raise RequestError(400, "tokens must be a list of token ids.", param="tokens")
    return {"prompt": model.tokenizer.decode(ids, False)}


_MOST_ITEMS = 2**14
"""Items that a step looks at for a request: those of a list for each completion."""
_MOST_BIASES = 2**16
_MOST_CHARACTERS = 2**22
"""Characters of grammars, which every prompt takes to the engine."""


def _check_work(fields: Mapping[str, Any], num_prompts: int, model: ServedModel) -> None:
    """Refuse with 400 completions that never fit, by length or number, and lists that would hold up every step."""
    if fields.get("stream") and fields.get("prompt_logprobs"):
        raise RequestError(400, "prompt_logprobs cannot be streamed.", param="prompt_logprobs")
    for name in ("max_completion_tokens", "max_tokens"):
        if fields.get(name, 0) > model.max_model_len:
            message = f"{name} is {fields[name]}, but prompt and output together may have {model.max_model_len} tokens."
            raise RequestError(400, f"{message} Ask for fewer.", param=name)
    wanted = num_prompts * fields.get("n", 1)
    if wanted > model.most_sequences:
        raise RequestError(
            400,
            f"The request asks for {wanted} completions at once, but this server takes at most "
            f"{model.most_sequences}. Split it.",
        )
    for name, most in {"logit_bias": _MOST_BIASES, "stop_token_ids": _MOST_ITEMS}.items():
        if (size := len(fields.get(name, ())) * wanted) > most:
            message = f"{name} has {size} items over all completions, but the server takes at most {most}."
            raise RequestError(400, f"{message} Shorten it, or split the request.", param=name)


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
    check_model_name(fields.get("model", model.name), model.name)


def check_model_name(name: str, served: str) -> None:
    """Reject any name other than the model's with 404."""
    if name != served:
        message = f"The model `{name[:200]}` does not exist; this server has `{served}`."
        raise RequestError(404, message, param="model")


def _call(
    fields: Mapping[str, Any],
    model: ServedModel,
    prompts: list[list[int]],
    id_prefix: str,
    make_format: Callable[..., AnswerFormat],
    structured: StructuredOutputsParams | None,
    *,
    logprobs: int | None,
    max_tokens: int | None,
) -> tuple[CallPlan, list[EngineRequest]]:
    if structured is not None and (size := len(prompts) * len(structured.key)) > _MOST_CHARACTERS:
        message = f"The grammar has {size} characters over all prompts; the server takes at most {_MOST_CHARACTERS}."
        raise RequestError(400, f"{message} Split the request.", param="structured_outputs")
    options = fields.get("stream_options", {})
    if options and not fields.get("stream"):
        raise RequestError(400, "stream_options needs stream: true.", param="stream_options")
    if not all(isinstance(options.get(name), bool | None) for name in ("include_usage", "continuous_usage_stats")):
        raise RequestError(400, "stream_options must hold true or false.", param="stream_options")
    call_id = f"{id_prefix}-{uuid.uuid4().hex}"
    includes_usage = bool(options.get("include_usage"))
    make_call = partial(
        Call,
        call_id=call_id,
        model=model.name,
        prompt_lengths=[len(ids) for ids in prompts],
        n=fields.get("n", 1),
        stream=fields.get("stream", False),
        include_usage=includes_usage,
        continuous_usage=includes_usage and bool(options.get("continuous_usage_stats")),
    )
    sampling = model.defaults.sampling | {name: fields[name] for name in SAMPLING_FIELDS if name in fields}
    if "seed" in sampling:  # as in vLLM, -1 means no seed, and others may be negative
        sampling["seed"] = None if sampling["seed"] == -1 else sampling["seed"] % 2**63
    if sampling.get("n", 1) > 1 and sampling.get("temperature") == 0:
        raise RequestError(400, f"n must be 1 with temperature 0, got {sampling['n']}.", param="n")
    bad_word_ids = _encode_bad_words(sampling.get("bad_words", ()), model, len(prompts) * fields.get("n", 1))
    requests = [
        EngineRequest(
            request_id=f"{call_id}-{index}",
            prompt_token_ids=ids,
            params=SamplingParams(
                **sampling,
                logprobs=logprobs,
                max_tokens=_room(max_tokens, len(ids), model),
                structured_outputs=structured,
                bad_word_ids=bad_word_ids,
            ),
            cache_salt=fields.get("cache_salt", ""),
        )
        for index, ids in enumerate(prompts)
    ]
    return CallPlan(make_format, make_call), requests


def _encode_bad_words(
    words: Sequence[str], model: ServedModel, num_sequences: int
) -> tuple[tuple[int, ...], ...] | None:
    """Return the tokens of bad words; refuses a number that would hold up every step with 400."""
    if not words:
        return None
    encoded = encode_bad_words(words, lambda text: model.tokenizer.encode(text, False))
    if (size := num_sequences * len(encoded) * max(map(len, encoded))) > _MOST_ITEMS:
        message = (
            f"bad_words take {size} comparisons per step over all completions, but the server takes {_MOST_ITEMS}."
        )
        raise RequestError(400, f"{message} Give fewer or shorter words.", param="bad_words")
    return encoded


def _room(max_tokens: int | None, num_prompt_tokens: int, model: ServedModel) -> int:
    """Return the number of tokens to generate: as requested, but no more than the context has room for."""
    room = max(model.max_model_len - num_prompt_tokens, 1)
    return room if max_tokens is None else min(max_tokens, room)
