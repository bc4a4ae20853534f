"""Turns the chat messages of a request, in several formats, into prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

Message = Mapping[str, Any]

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""ShareGPT's speakers (`from`), as FastChat and vLLM's benchmarks read them."""
_CLASSES = {"HumanMessage": "user", "AIMessage": "assistant", "SystemMessage": "system", "ToolMessage": "tool"}
"""LangChain's messages as it serializes them: `{"lc": 1, "id": [..., "HumanMessage"], "kwargs": {"content": ...}}`."""
_PART_TEXT = ("text", "input_text", "output_text")
"""Types of content parts that hold text: chat completions, Responses API."""


class Turns(StrEnum):
    """Which of a conversation's user turns become prompts."""

    FIRST = "first"
    LAST = "last"
    ALL = "all"
    """Every turn, each with the recorded conversation before it."""


def to_messages(value: Any) -> tuple[Message, ...] | None:
    """Return chat messages; None if the value is not a list of them.

    Accepts OpenAI's `{"role", "content"}` and Responses items, ShareGPT's `{"from", "value"}`, and chat-ui's
    `{"from", "content"}`.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    if len(value) == 1 and isinstance(value[0], list):
        return to_messages(value[0])  # LangChain: batches of one
    messages = [_to_message(each) for each in value]
    return None if any(message is None for message in messages) else tuple(each for each in messages if each)


def _to_message(value: Any) -> Message | None:
    if not isinstance(value, Mapping):
        return None
    said = value.get("value", value.get("content"))
    if "from" in value and isinstance(said, str):
        speaker = str(value["from"])
        return {"role": _ROLES.get(speaker, speaker), "content": said}
    kwargs, path = value.get("kwargs"), value.get("id")
    if isinstance(kwargs, Mapping) and isinstance(path, list) and path:
        name = str(path[-1]).removesuffix("Chunk")
        return _to_message({**kwargs, "role": _CLASSES.get(name, name)})
    if not isinstance(value.get("role"), str) or not ("content" in value or value.get("tool_calls")):
        return None
    content = value.get("content")
    return {**value, "content": _chat_parts(content)} if _is_content(content, value["role"]) else None


def _is_content(content: Any, role: str) -> bool:
    """Return whether a chat API takes this: text or parts, and nothing only from who calls tools or is silent."""
    if content is None or content == []:
        return role != "user"
    parts = content if isinstance(content, list) else [content]
    return all(isinstance(part, str) or (isinstance(part, Mapping) and part is not content) for part in parts)


def _chat_parts(content: Any) -> Any:
    """Return content with the Responses API's text parts named as chat completions name them."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part["text"]}
        if isinstance(part, Mapping) and part.get("type", "text") in _PART_TEXT and isinstance(part.get("text"), str)
        else part
        for part in content
    ]


def plain_text(content: Any) -> str:
    """Return the text in a message's content; empty for images and calls."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(plain_text(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def split_turns(messages: Sequence[Message], turns: Turns) -> Iterator[tuple[tuple[Message, ...], str | None]]:
    """Yield (messages up to a user's turn, the recorded answer or None) for the requested turns."""
    ends = [place for place, message in enumerate(messages, 1) if message["role"] != "assistant"]
    # A turn ends where the assistant speaks next, or where the conversation ends.
    ends = [end for end in ends if end == len(messages) or messages[end]["role"] == "assistant"]
    chosen = {Turns.FIRST: ends[:1], Turns.LAST: ends[-1:], Turns.ALL: ends}[turns]
    for end in chosen:
        answer = messages[end]["content"] if end < len(messages) else None
        yield tuple(messages[:end]), plain_text(answer) or None


def as_chat(text: str) -> tuple[Message, ...]:
    """Return a text as a chat with one message."""
    return ({"role": "user", "content": text},)


def as_completion(messages: Sequence[Message]) -> str:
    """Return a chat as one text to continue; several messages get their roles in front."""
    if len(messages) == 1:
        return plain_text(messages[0]["content"])
    said = "".join(f"{message['role'].capitalize()}: {plain_text(message['content'])}\n\n" for message in messages)
    return f"{said}Assistant:"


def from_json_text(value: Any) -> Any:
    """Return the value of a JSON text, as logs store structured values; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
