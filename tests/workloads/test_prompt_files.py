"""Files of prompts: what is read, and what a user is told when it cannot be."""

import gzip
import json
from pathlib import Path

import pytest
from tests.support.loaded import load_workload

from draftwise.core import InvalidSetup, Workload
from draftwise.workloads import BUNDLED, read_prompts


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_workloads_load(name: str) -> None:
    workload = load_workload(name)
    assert len(workload.prompts) >= 32
    assert (workload.source, workload.random_tokens) == ("bundled", False)


def write(folder: Path, text: str, name: str = "own.jsonl") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_gives_its_prompts_in_order_with_defaults(tmp_path: Path) -> None:
    chat = '{"id": 7, "messages": [{"role": "user", "content": "c"}], "max_tokens": 300}'
    workload = load_workload(write(tmp_path, f'{{"prompt": "a\u2028b", "user": "x"}}\n\n{chat}\n'), max_tokens=200)
    first, second = workload.prompts
    assert (workload.name, workload.source) == ("own", "own.jsonl")
    assert (first.id, first.text, first.max_tokens) == ("own.jsonl:1", "a\u2028b", 128)
    assert (second.id, second.text, second.max_tokens) == ("7", None, 200)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "own.jsonl holds no prompt. Each line:"),
        ("{", "own.jsonl:1 is not valid JSON"),
        ("[1]", "own.jsonl:1 is not a JSON object."),
        ("{}", "own.jsonl:1 needs either a prompt or messages."),
        ("{}", "Accepted: a request body"),
        ('{"prompt": ""}', "own.jsonl:1 has a prompt that is empty or no text."),
        ('{"prompt": [1, 2]}', "it holds token ids, which no other model shares"),
        ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "needs either a prompt or messages."),
        ('{"messages": ["hi"]}', "own.jsonl:1 has messages that are no list of"),
        ('{"messages": [{"role": "assistant", "content": "hi"}]}', "or are all the assistant's."),
        ('{"prompt": "a", "max_tokens": 0}', "own.jsonl:1 has 0 as max_tokens, which must be a positive whole number."),
        (
            '{"prompt": "a", "max_completion_tokens": true}',
            "has True as max_completion_tokens, which must be a",
        ),
        ('{"prompt": "a", "max_token": 5}', "own.jsonl:1 has the unknown key 'max_token'; did you mean 'max_tokens'?"),
        (
            '{"prompt": "a", "arrival_s": -1}',
            "own.jsonl:1 has -1 as arrival_s, which must be seconds from the",
        ),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', "own.jsonl has the id 'a' more than once."),
        ('[{"prompt": "a"}, {"prompt": ', "own.jsonl:1 is not valid JSON"),
        ('[\n{"prompt": "a"},\n\n{"prompt": 5}]', "own.jsonl:4 has a prompt that is empty or no text"),
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


def test_many_faults_are_counted_rather_than_listed(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload(write(tmp_path, "{}\n" * 500))
    assert len(caught.value.findings) == 31
    assert caught.value.findings[-1].message == "own.jsonl has 470 more faults like these."


def test_bytes_that_are_no_utf8_are_a_fault_of_their_line(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(InvalidSetup, match=r"own\.jsonl:2 is not UTF-8"):
        load_workload(str(path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("proze", "Did you mean prose?"),
        ("/no/x.jsonl", "Bundled: code, prose"),
        ("log:/no/x.jsonl", "--workload: The workload '/no/x.jsonl' is neither"),
    ],
)
def test_an_unknown_workload_is_answered_with_a_suggestion(name: str, words: str) -> None:
    with pytest.raises(InvalidSetup, match="neither a bundled one nor a file") as caught:
        load_workload(name)
    assert words in str(caught.value)


def test_the_hash_is_of_what_is_sent(tmp_path: Path) -> None:
    one = load_workload(write(tmp_path, '{"id": "a", "prompt": "x"}'))
    same = load_workload(write(tmp_path, '{"prompt": "x",   "id": "a", "note": 1}'))
    other = load_workload(write(tmp_path, '{"id": "a", "prompt": "x"}'), max_tokens=5)
    assert one.sha256 == same.sha256 != other.sha256


def test_packed_files_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl.gz"
    path.write_bytes(gzip.compress("\ufeff".encode() + b'{"prompt": "a"}\n'))
    workload = load_workload(str(path))
    assert (workload.name, [prompt.text for prompt in workload.prompts]) == ("own", ["a"])
    path.write_bytes(b"no gzip")
    with pytest.raises(InvalidSetup, match=r"own\.jsonl\.gz cannot be read"):
        load_workload(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "code",
        "rewrite#prefix=64x2,force",
        "synthetic:prompt=30-90,output=lognormal:20:2,source=random,n=7",
        "prose#form=chat,output=9",
    ],
)
def test_what_a_run_directory_keeps_reads_back_as_it_was(tmp_path: Path, text: str) -> None:
    workload = load_workload(text)
    path = tmp_path / "workload.jsonl"
    path.write_text("".join(json.dumps(prompt.to_dict()) + "\n" for prompt in workload.prompts))
    assert read_prompts(path) == workload.prompts


def test_recorded_arrivals_survive_the_run_directory(tmp_path: Path) -> None:
    rows = [{"id": str(place), "prompt": "a", "arrival_s": 5.0 + place, "ignore_eos": True} for place in range(3)]
    path = Path(write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows)))
    kept = read_prompts(path)
    assert [prompt.to_dict() for prompt in kept] == [{**row, "max_tokens": 128} for row in rows]
    assert [prompt.arrival_s for prompt in load_workload(str(path)).prompts] == [0.0, 1.0, 2.0]


def numbered(folder: Path, count: int, **more: object) -> str:
    lines = (json.dumps({"id": str(place), "prompt": "x", **more}) for place in range(count))
    return write(folder, "\n".join(lines), "long.jsonl")


def test_a_long_log_is_sampled_evenly_and_says_so(tmp_path: Path) -> None:
    workload = load_workload(numbered(tmp_path, 40_000))
    places = [int(prompt.id) for prompt in workload.prompts]
    assert workload.description == "10000 of 40000 rows, drawn with seed 0"
    assert places == sorted(set(places))
    assert len(places) == 10_000
    # A fair draw has 2500 of each quarter with a standard deviation of 43; 2300 is over four of them off.
    assert all(2300 < sum(low <= place < low + 10_000 for place in places) < 2700 for low in range(0, 40_000, 10_000))


def test_a_long_recording_keeps_its_rate_in_stretches_and_says_so(tmp_path: Path) -> None:
    workload: Workload = load_workload(numbered(tmp_path, 10_001, timestamp=1700000000))
    assert workload.description == "20 stretches of 500 rows each of 10001, drawn with seed 0"
    assert len(workload.prompts) == 10_000


def test_faults_among_rows_that_are_not_drawn_stop_nothing(tmp_path: Path) -> None:
    path = Path(numbered(tmp_path, 30_000, time=0))
    path.write_text(path.read_text() + "\n" + "}\n" * 5)
    assert len(load_workload(str(path)).prompts) == 10_000
