"""Workload files: what is read, and what a user is told when it cannot be."""

from pathlib import Path

import pytest

from draftwise.core import InvalidSetup
from draftwise.measure.workload_file import BUNDLED, load_workload


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_workloads_load(name: str) -> None:
    workload = load_workload(name)
    assert len(workload.prompts) >= 32
    assert workload.source == "bundled"


def write(folder: Path, text: str) -> str:
    path = folder / "own.jsonl"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_gives_its_prompts_in_order_with_defaults(tmp_path: Path) -> None:
    chat = '{"id": 7, "messages": [{"role": "user", "content": "c"}], "max_tokens": 300}'
    workload = load_workload(write(tmp_path, f'{{"prompt": "a\u2028b", "user": "x"}}\n\n{chat}\n'), max_tokens=200)
    first, second = workload.prompts
    assert (workload.name, workload.source) == ("own", "own.jsonl")
    assert (first.id, first.text, first.max_tokens) == ("own.jsonl:1", "a\u2028b", 200)
    assert (second.id, second.text, second.max_tokens) == ("7", None, 200)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "own.jsonl: holds no prompt. Each line:"),
        ("{", "own.jsonl:1: not valid JSON"),
        ("[1]", "own.jsonl:1: is not a JSON object."),
        ("{}", "own.jsonl:1: needs either a prompt or messages."),
        ('{"prompt": ""}', "its prompt must be a text that is not empty."),
        ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "needs either a prompt or messages."),
        ('{"messages": ["hi"]}', "its messages must be a list of"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens must be a positive whole number, got 0."),
        ('{"prompt": "a", "max_token": 5}', "unknown key 'max_token'; did you mean 'max_tokens'?"),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', "the id 'a' is there more than once."),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload(write(tmp_path, text))
    assert words in str(caught.value)


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload(write(tmp_path, '{\n{"prompt": "a"}\n[]\n'))
    assert [finding.where for finding in caught.value.findings] == ["own.jsonl:1", "own.jsonl:3"]


@pytest.mark.parametrize(("name", "words"), [("proze", "Did you mean prose?"), ("/no/x.jsonl", "Bundled: code, prose")])
def test_an_unknown_workload_is_answered_with_a_suggestion(name: str, words: str) -> None:
    with pytest.raises(InvalidSetup, match="neither a bundled workload nor a file") as caught:
        load_workload(name)
    assert words in str(caught.value)


def test_the_hash_is_of_what_is_sent(tmp_path: Path) -> None:
    one = load_workload(write(tmp_path, '{"id": "a", "prompt": "x"}'))
    same = load_workload(write(tmp_path, '{"prompt": "x",   "id": "a", "note": 1}'))
    other = load_workload(write(tmp_path, '{"id": "a", "prompt": "x"}'), max_tokens=5)
    assert one.sha256 == same.sha256 != other.sha256
