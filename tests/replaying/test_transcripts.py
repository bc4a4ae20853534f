"""Transcripts: which tokens are taken, and that whatever is left out is counted and said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from draftwise.core import InvalidSetup, Prompt, RecordedAnswer, Severity
from draftwise.replaying.anchors import UNLIMITED
from draftwise.replaying.transcripts import Grouping, Transcripts, read_transcripts


class Characters:
    """A token a character, and 0 at the end of an answer."""

    end_ids = frozenset({0})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(each) for each in text]

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], /, **variables: Any) -> str:
        if variables.get("tools"):
            raise InvalidSetup.because("chat-template-refused", "No tools.")
        return "".join(str(message["content"]) for message in messages)


def read(*recorded: RecordedAnswer, text: str | None = "ab", **options: Any) -> Transcripts:
    prompts = [Prompt(id=f"r{number}", text=text, max_tokens=9, recorded=each) for number, each in enumerate(recorded)]
    return read_transcripts(prompts, Characters(), **{"name": "log.jsonl", "default_temperature": 1.0} | options)


KNOWN = RecordedAnswer(answer="xyz", temperature=0.5)


def test_text_is_encoded_and_limits_are_kept() -> None:
    (request,) = read(replace(KNOWN, max_tokens=7)).requests
    assert request.prompt_ids == (1, ord("a"), ord("b"))
    assert request.answer_ids == tuple(map(ord, "xyz"))
    assert (request.limit, request.temperature) == (7, 0.5)
    (request,) = read(KNOWN).requests
    assert request.limit == UNLIMITED
    (request,) = read(KNOWN, max_model_len=8).requests
    assert request.limit == 5


def test_logged_ids_go_before_text() -> None:
    (request,) = read(replace(KNOWN, token_ids=(7, 8), prompt_token_ids=(9,))).requests
    assert (request.prompt_ids, request.answer_ids) == ((9,), (7, 8))


def test_a_counted_end_token_is_added() -> None:
    (request,) = read(replace(KNOWN, num_tokens=4)).requests
    assert request.answer_ids == (*map(ord, "xyz"), 0)


@pytest.mark.parametrize(
    ("faulty", "code"),
    [
        (RecordedAnswer(temperature=0.0), "no-answer"),
        (replace(KNOWN, num_tokens=9), "token-drift"),
        (replace(KNOWN, num_tokens=2), "token-drift"),
        (replace(KNOWN, num_prompt_tokens=2), "cut-prompt"),
        (replace(KNOWN, reasoned=True), "hidden-reasoning"),
        (replace(KNOWN, called_tools=True), "tool-calls"),
    ],
)
@pytest.mark.parametrize(("others", "severity"), [(1, Severity.ERROR), (9, Severity.WARNING), (30, Severity.INFO)])
def test_uncertain_rows_are_left_out_and_counted(
    faulty: RecordedAnswer, code: str, others: int, severity: Severity
) -> None:
    found = read(faulty, *[KNOWN] * others)
    assert len(found.requests) == others
    assert found.skipped == {code: 1}
    assert {finding.code: finding.severity for finding in found.findings}[code] is severity


def test_uncertain_text_does_not_matter_where_ids_are_logged() -> None:
    ids = replace(KNOWN, token_ids=(7,), prompt_token_ids=(9,), reasoned=True, called_tools=True, num_tokens=9)
    assert read(ids).skipped == {}


def test_messages_that_the_template_refuses_are_left_out() -> None:
    chat = Prompt(id="c", messages=({"role": "user", "content": "q"},), max_tokens=9, recorded=KNOWN)
    tools = replace(chat, id="t", recorded=replace(KNOWN, template_variables={"tools": [{}]}))
    found = read_transcripts([chat, tools], Characters(), name="log", default_temperature=1.0)
    assert [request.prompt_ids for request in found.requests] == [(ord("q"),)]
    assert found.skipped == {"unrendered-prompt": 1}


def test_what_is_assumed_is_said() -> None:
    found = read(KNOWN, replace(KNOWN, temperature=None))
    assert [request.temperature for request in found.requests] == [0.5, 1.0]
    assert [finding.code for finding in found.findings] == [
        "assumed-temperature",
        "several-temperatures",
        "no-time-order",
    ]
    assert not found.in_time_order


@pytest.mark.parametrize(
    ("group_by", "groups"),
    [
        (Grouping.ROUTE, ["code", "none"]),
        (Grouping.TEMPERATURE, ["T=0.5", "T=0.5"]),
        (Grouping.LENGTH, ["prompt of 0-1023 tokens", "prompt of 65536 tokens or more"]),
    ],
)
def test_requests_are_grouped(group_by: Grouping, groups: list[str]) -> None:
    long = replace(KNOWN, prompt_token_ids=tuple(range(70_000)))
    found = read(replace(KNOWN, route="code"), long, group_by=group_by)
    assert [request.group for request in found.requests] == groups


def test_text_without_a_tokenizer_is_refused_with_what_to_install() -> None:
    prompts = [Prompt(id="a", text="p", max_tokens=1, recorded=KNOWN)]
    with pytest.raises(InvalidSetup, match=r"Run `pip install tokenizers`\.") as caught:
        read_transcripts(prompts, None, name="log", default_temperature=1.0)
    assert caught.value.findings[0].code == "tokens-not-known"


def test_a_log_of_nothing_else_is_refused_with_its_reasons() -> None:
    with pytest.raises(InvalidSetup, match="2 of 2 requests without an answer") as caught:
        read(RecordedAnswer(), RecordedAnswer())
    assert caught.value.findings[0].code == "nothing-to-replay"
