"""The prompts of a request as token ids, from text, ids or a conversation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.serve.errors import RequestError

__all__ = ["encode_prompts", "read_messages", "render_conversation"]

_LONG_TEXT = 20_000
"""Characters beyond which encoding would block the event loop for milliseconds."""


async def encode_prompts(prompt: Any, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[list[int]]:
    """Return token ids for a `prompt` field: a string, token ids, or a list of either.

    Raises:
        RequestError: 400, it is none of these.
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
    content = message.get("content")
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in content]
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
            raise RequestError(400, f"{where} has content that is not text; this model takes text.", param="messages")
        content = "\n".join(part["text"] for part in parts)
    if not (isinstance(content, str) or (content is None and message["role"] == "assistant")):
        raise RequestError(400, f"{where} must have text as content.", param="messages")
    read = message | {"content": content}
    if isinstance(calls := message.get("tool_calls"), list):
        read["tool_calls"] = [_with_arguments(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(calls)]
    return read


def _with_arguments(where: str, call: Any) -> dict[str, Any]:
    """Return an earlier call with its arguments as an object, which is what chat templates print."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RequestError(400, f"{where} must have a function.", param="messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise RequestError(400, f"{where}.function.arguments is not valid JSON.", param="messages") from None
    return call | {"function": function | {"arguments": arguments}}


def render_conversation(tokenizer: Tokenizer, messages: list[Any], variables: Mapping[str, Any]) -> str:
    """Return a conversation rendered with the model's chat template.

    Raises:
        RequestError: 400, the messages are malformed, or the template is missing or rejects them.
    """
    try:
        return tokenizer.apply_chat_template(read_messages(messages), **variables)
    except InvalidSetup as error:
        raise RequestError.of_invalid(error) from None
