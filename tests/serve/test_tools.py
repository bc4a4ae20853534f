"""Tool calls: what a request demands of the output, and the calls found in what the model says."""

import json

import jsonschema
import pytest
from tests.support.fake_engine import FakeEngine
from tests.support.serving import serving

from draftwise.cli import serve_command as command
from draftwise.engine.text.tokenizer import ChatTemplate
from draftwise.serve.calls import read_messages
from draftwise.serve.errors import RequestError
from draftwise.serve.tools import TOOL_CALL_PARSERS, read_tools

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/name"}}, "$defs": {"name": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "time"}},
]
MESSAGES = [{"role": "user", "content": "x"}]
OSLO, ROME = '{"name": "weather", "arguments": {"city": "Oslo"}}', '{"name": "time", "arguments": {}}'
CALLED = [("weather", {"city": "Oslo"}), ("time", {})]
ANSWERS = {
    "no call": ("hermes", "just text <tool", "just text <tool", []),
    "one call": ("hermes", f"<tool_call>\n{OSLO}\n</tool_call>", "", CALLED[:1]),
    "text and calls": (
        *("hermes", f"Let me see.<tool_call>\n{OSLO}\n</tool_call>\n<tool_call>{ROME}</tool_call>\n"),
        *("Let me see.", CALLED),
    ),
    "no end tag": ("hermes", f"<tool_call>{OSLO}", "", CALLED[:1]),
    "broken call": ("hermes", "<tool_call>{oops</tool_call>", "<tool_call>{oops", []),
    "call without a name": ("hermes", '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}', []),
    "bare JSON": ("llama3_json", OSLO.replace("arguments", "parameters"), "", CALLED[:1]),
    "two of them": ("llama3_json", f"<|python_tag|>{OSLO}; {ROME}", "", CALLED),
    "text": ("llama3_json", "It rains {today}.", "It rains {today}.", []),
    "other JSON": ("llama3_json", '{"a": 1} is it', '{"a": 1} is it', []),
    "cut off": ("llama3_json", OSLO[:20], OSLO[:20], []),
    "half a character": (
        *("hermes", '<tool_call>{"name": "time", "arguments": {"a": "\\ud800"}}</tool_call>', ""),
        [("time", {"a": "\ud800"})],
    ),
    "half a name": ("hermes", '<tool_call>{"name": "\\ud800"}</tool_call>', '<tool_call>{"name": "\\ud800"}', []),
    "no number of JSON": (
        *("hermes", '<tool_call>{"name": "time", "arguments": 1e999}</tool_call>'),
        *('<tool_call>{"name": "time", "arguments": 1e999}', []),
    ),
    "deep": ("hermes", f"<tool_call>{'[' * 2000}</tool_call>", f"<tool_call>{'[' * 2000}", []),
    "deep JSON": ("llama3_json", '{"a":' * 1500, '{"a":' * 1500, []),
}


def found_in(parser, pieces):
    """Return the content and the calls of an answer that comes in pieces."""
    content, names, arguments = "", [], []
    for text, parts in [*map(parser.feed, pieces), parser.finish()]:
        content += text
        for part in parts:
            if part.name is not None:
                assert part.index == len(names)
                names.append(part.name)
                arguments.append("")
            arguments[part.index] += part.arguments
            assert part.arguments.encode()
    return content, list(zip(names, map(json.loads, arguments), strict=True))


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("case", ANSWERS)
def test_calls_are_found_however_the_answer_is_cut(case, size):
    name, answer, content, calls = ANSWERS[case]
    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    assert found_in(TOOL_CALL_PARSERS[name](), pieces) == (content, calls)


def test_required_calls_are_a_list_that_matches_the_tools():
    use = read_tools({"tools": TOOLS, "tool_choice": "required"}, None)
    schema = json.loads(use.structured_outputs.json)
    answer = [{"name": "weather", "parameters": {"city": "Oslo"}}, {"name": "time", "parameters": {}}]
    jsonschema.validate(answer, schema)
    for wrong in ([], [{"name": "other", "parameters": {}}], [{"name": "weather", "parameters": {"city": 1}}]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    text = json.dumps(answer)
    assert found_in(use.make_parser(), list(text)) == ("", CALLED)
    assert found_in(use.make_parser(), [text[:20]]) == (text[:20], []), "nothing of a cut answer is lost"
    one = read_tools({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, None)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(answer, json.loads(one.structured_outputs.json))


def test_tools_that_define_a_name_differently_are_refused():
    other = {"type": "function", "function": {"name": "o", "parameters": {"$defs": {"name": {"type": "integer"}}}}}
    with pytest.raises(RequestError, match="'name' differently"):
        read_tools({"tools": [*TOOLS, other], "tool_choice": "required"}, None)


def test_the_flag_knows_all_parsers():
    (option,) = (each for each in command.serve.params if each.name == "tool_call_parser")
    assert tuple(option.type.choices) == tuple(TOOL_CALL_PARSERS)


def ask(client, *, stream=False, **fields):
    """Return the content, the calls and the finish reason of an answer."""
    answer = client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, stream=stream, **fields)
    if not stream:
        choice = answer.choices[0]
        calls = [(each.function.name, each.function.arguments) for each in choice.message.tool_calls or []]
        assert all(each.id and each.type == "function" for each in choice.message.tool_calls or [])
        return choice.message.content, calls, choice.finish_reason
    content, calls, reason = "", [], None
    for chunk in answer:
        delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason
        content += delta.content or ""
        for part in delta.tool_calls or []:
            if part.id is not None:
                calls.append((part.function.name, ""))
            calls[part.index] = (calls[part.index][0], calls[part.index][1] + part.function.arguments)
    return content or None, calls, reason


@pytest.mark.parametrize("stream", [False, True])
def test_calls_come_with_whole_answers_and_streams(checkpoint, stream):
    text = f"<tool_call>{OSLO}</tool_call><tool_call>{ROME}</tool_call>"
    with serving(FakeEngine(checkpoint, reply=text, max_model_len=400), tool_call_parser="hermes") as server:
        content, calls, reason = ask(server.client, stream=stream)
        assert (content, reason) == (None, "tool_calls")
        assert [(name, json.loads(arguments)) for name, arguments in calls] == CALLED
        assert server.engine.params[-1].skip_special_tokens is False
        only_one = ask(server.client, stream=stream, parallel_tool_calls=False)
        assert [name for name, _ in only_one[1]] == ["weather"]
        assert ask(server.client, stream=stream, tool_choice="none") == (text, [], "stop")
        assert ask(server.client, stream=stream, max_tokens=9)[1:] == ([], "length")


def test_templates_see_the_tools_and_earlier_calls_as_objects(checkpoint):
    template = "{{ tools[0].function.name }}:{{ messages[0].tool_calls[0].function.arguments.city }}"
    with serving(FakeEngine(checkpoint), tool_call_parser="hermes") as server:
        server.engine.tokenizer.chat_template = ChatTemplate(template)
        function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
        earlier = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        replied = {"role": "tool", "tool_call_id": "1", "content": "rain"}
        server.client.chat.completions.create(model="m", messages=[earlier, replied], tools=TOOLS)
        assert server.engine.tokenizer.decode(server.engine.prompts[-1]) == "weather:Oslo"
        function["arguments"] = '{"city": "Os\\ud800lo"}'  # which a model may write
        server.client.chat.completions.create(model="m", messages=[earlier, replied], tools=TOOLS)
        assert server.engine.tokenizer.decode(server.engine.prompts[-1]) == "weather:Os?lo"


CALL = {"id": "1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
REPLY = {"role": "tool", "tool_call_id": "1", "content": "noon"}
CONTENTS = [{"content": None}, {}, {"content": ""}, {"content": []}, {"content": [{"type": "text", "text": ""}]}]


@pytest.mark.parametrize("content", CONTENTS, ids=str)
@pytest.mark.parametrize("role", ["assistant", "user", "system", "tool"])
def test_a_message_without_content_is_empty(role, content):
    (read,) = read_messages([{"role": role, **content}])
    assert read["content"] == ""


@pytest.mark.parametrize("arguments", ["{", "[]", "1", "", "null", None, "[" * 100_000, '{"a": 1}', {"a": 1}])
def test_arguments_of_earlier_calls_are_an_object_whatever_a_model_wrote(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    (read,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
    expected = {"a": 1} if '"a"' in str(arguments) or isinstance(arguments, dict) else {}
    assert read["tool_calls"][0]["function"]["arguments"] == expected


@pytest.mark.parametrize("calls", [None, [], [CALL]])
def test_an_agent_may_send_its_own_answers_back(checkpoint, calls):
    """Ten turns, each with the answer that the server gave, in the SDK's form."""
    template = (
        '{% for m in messages %}{{ m.role + m.content + (m.tool_calls | tojson if m.tool_calls else "") }}{% endfor %}'
    )
    reply = f"<tool_call>{ROME}</tool_call>"
    with serving(FakeEngine(checkpoint, reply=reply, max_model_len=4096), tool_call_parser="hermes") as server:
        server.engine.tokenizer.chat_template = ChatTemplate(template)
        messages = [*MESSAGES, {"role": "assistant", "content": "Hm.", "tool_calls": calls}, *MESSAGES]
        for _ in range(10):
            answer = server.client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0]
            (call,) = answer.message.tool_calls
            messages += [answer.message, REPLY | {"tool_call_id": call.id}]
