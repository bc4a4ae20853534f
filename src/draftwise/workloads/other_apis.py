"""Converts requests and answers of Gemini, Ollama, Cohere, SGLang, models on Bedrock and others to OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

Body = Mapping[str, Any]

_SETTINGS = ("generationConfig", "generation_config", "inferenceConfig", "options", "parameters", "sampling_params",
             "textGenerationConfig")  # fmt: skip
"""Where requests have their settings: Gemini's, Bedrock's, Ollama's, Text Generation Inference's, SGLang's, Titan's."""
_LIMITS = ("maxOutputTokens", "max_output_tokens", "maxTokens", "num_predict", "max_new_tokens", "max_gen_len",
           "max_tokens_to_sample", "maxTokenCount")  # fmt: skip
_TEXTS = (("inputs", ""), ("inputText", ""), ("text", "sampling_params"), ("input_ids", "sampling_params"))
"""Where requests have their text, and the key next to it: Text Generation Inference, Titan, SGLang."""
_SAID = (
    (("generation",), "stop_reason"),
    (("completion",), "stop_reason"),
    (("text",), "meta_info"),
    (("text",), "generation_id"),
    (("results", "outputText"), "inputTextTokenCount"),
    (("outputs", "text"), "outputs"),
)
"""Where answers have their text, and a key of the same body: Llama, Claude 2, SGLang, Cohere, Titan, Mistral."""
_COUNTS = (("generation_token_count",), ("meta_info", "completion_tokens"), ("results", "tokenCount"),
           ("meta", "tokens", "output_tokens"))  # fmt: skip
_ROLES = {"model": "assistant", "chatbot": "assistant", "function": "tool"}


def to_request(body: Body) -> Body:
    """Return a request with its messages, text and settings under OpenAI's names."""
    read = dict(body)
    for settings in (body, *(each for key in _SETTINGS if isinstance(each := body.get(key), Mapping))):
        # Ollama writes -1 for no limit.
        limits = (settings[key] for key in _LIMITS if type(settings.get(key)) is int and settings[key] > 0)
        found = {"max_tokens": next(limits, None), "temperature": settings.get("temperature")}
        read = {key: value for key, value in found.items() if value is not None} | read
    if isinstance(given := body.get("contents"), list) and "messages" not in body:
        read["messages"] = [_to_message(each) for each in given]
        above = body.get("systemInstruction", body.get("system_instruction"))
        read.setdefault("system", above.get("parts") if isinstance(above, Mapping) else above)
    history = body.get("chat_history") or []
    is_cohere = isinstance(history, list) and isinstance(body.get("message"), str) and "messages" not in body
    if is_cohere and {"chat_history", "preamble"} & body.keys():
        turns = [each for each in history if isinstance(each, Mapping)]
        said = [(str(each.get("role")).lower(), each.get("message")) for each in turns]
        said = [*said, ("user", body["message"])]
        read["messages"] = [{"role": _ROLES.get(role, role), "content": text} for role, text in said]
        read.setdefault("system", body.get("preamble"))
    if not {"prompt", "messages", "input"} & read.keys():
        texts: Iterator[Any] = (body[key] for key, other in _TEXTS if body.get(key) and (not other or other in body))
        if (text := next(texts, None)) is not None and not _is_cut(text):
            read["prompt"] = text
    if isinstance(body.get("system"), str) and body["system"] and isinstance(body.get("prompt"), str):  # Ollama
        read["messages"] = [{"role": "user", "content": read.pop("prompt")}]
    return read


def _is_cut(text: Any) -> bool:
    """Whether SGLang kept only the begin and the end of a text (`--log-requests-level 2`)."""
    return isinstance(text, str) and len(text) == 2051 and text[1024:1027] == "..."


def is_piece(value: Body) -> bool:
    """Return whether a body is a piece of an answer, or all of it, in one of these APIs."""
    is_ollama = isinstance(value.get("done"), bool) and bool({"response", "message"} & value.keys())
    return is_ollama or isinstance(value.get("candidates"), list) or {"token", "generated_text"} <= value.keys()


def to_answer(pieces: Sequence[Body]) -> Body | None:
    """Return the pieces of an answer as the body of a chat completion; None for other APIs.

    One that was cut off is `{"cut": true}`.
    """
    if len(pieces) == 1 and "choices" not in pieces[0]:
        for place, other in _SAID:
            if other in pieces[0] and isinstance(text := _follow(pieces[0], place), str):
                counts = [count for each in _COUNTS if type(count := _follow(pieces[0], each)) is int]
                choice = {"message": {"role": "assistant", "content": text}, "token_ids": pieces[0].get("output_ids")}
                return {"choices": [choice], "usage": {"completion_tokens": counts[0]} if counts else {}}
    if not pieces or not all(is_piece(each) or isinstance(each.get("generated_text"), str) for each in pieces):
        return None
    last = pieces[-1]
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    is_over: Any = True
    usage: Any
    names: tuple[str, ...]
    if "candidates" in last:
        for parts in (_first(each.get("candidates")) for each in pieces):
            for key, value in _to_message(parts.get("content")).items():
                if isinstance(value, str | list) and key != "role":
                    alike = not message.get(key) or isinstance(message[key], type(value))
                    message[key] = (message.get(key) or type(value)()) + cast(Any, value) if alike else {"cut": True}
        usage = last.get("usageMetadata")
        names = ("candidatesTokenCount", "thoughtsTokenCount")
    elif "generated_text" in last:
        message["content"], usage = last["generated_text"], last.get("details")
        names = ("generated_tokens",)
    else:
        for each in pieces:
            said = each["message"] if isinstance(each.get("message"), Mapping) else {"content": each.get("response")}
            message["content"] += said["content"] if isinstance(said.get("content"), str) else ""
            message |= {"reasoning_content": "..."} if said.get("thinking") or each.get("thinking") else {}
            message |= {"tool_calls": said["tool_calls"]} if said.get("tool_calls") else {}
        usage, is_over = last, last.get("done")
        names = ("eval_count",)
    if not is_over or not isinstance(message["content"], str):
        return {"cut": True}
    counts = [count for name in names if isinstance(usage, Mapping) and type(count := usage.get(name)) is int]
    return {"choices": [{"message": message}], "usage": {"completion_tokens": sum(counts)} if counts else {}}


def _follow(value: Any, place: Sequence[str]) -> Any:
    """Return what is at a path of keys, in the first element of each list."""
    for key in place:
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _first(values: Any) -> Body:
    return values[0] if isinstance(values, list) and values and isinstance(values[0], Mapping) else {}


def _to_message(value: Any) -> dict[str, Any]:
    """Return a message of Gemini's; what no chat API takes stays as it is."""
    if not isinstance(value, Mapping) or not isinstance(value.get("parts"), list):
        return dict(value) if isinstance(value, Mapping) else {}
    parts = [each for each in value["parts"] if isinstance(each, Mapping)]
    texts = [(each["text"], bool(each.get("thought"))) for each in parts if isinstance(each.get("text"), str)]
    calls = [each["functionCall"] for each in parts if isinstance(each.get("functionCall"), Mapping)]
    answered = [each["functionResponse"] for each in parts if isinstance(each.get("functionResponse"), Mapping)]
    others = [{"type": "file", **each} for each in parts if {"inlineData", "fileData"} & each.keys()]
    role = str(value.get("role", "user"))
    message: dict[str, Any] = {"role": _ROLES.get(role, role)}
    message["content"] = "".join(text for text, is_thought in texts if not is_thought)
    if answered:
        message |= {"role": "tool", "content": json.dumps([each.get("response") for each in answered])}
    elif others:
        message["content"] = [{"type": "text", "text": message["content"]}, *others]
    elif not message["content"]:
        message["content"] = None
    if calls:
        functions = ({"name": str(each.get("name")), "arguments": json.dumps(each.get("args"))} for each in calls)
        message["tool_calls"] = [{"type": "function", "function": each} for each in functions]
    if thoughts := "".join(text for text, is_thought in texts if is_thought):
        message["reasoning_content"] = thoughts
    return message
