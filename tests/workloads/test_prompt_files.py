"""Files of prompts: what is read, and what a user is told when it cannot be."""

import bz2
import gzip
import json
import lzma
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.loaded import load_workload

from draftwise.core import InvalidSetup, Prompt, Severity, Workload
from draftwise.workloads import BUNDLED, keep_fitting, load_workloads, read_prompts, report_left_out


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
        ('[{"prompt": ', "own.jsonl:1 to the end is not valid JSON"),
        ('[\n{"prompt": {}},\n\n{"prompt": 5}]', "own.jsonl:4 has a prompt that is empty or no text"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload(write(tmp_path, text))
    assert words in str(caught.value)


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload(write(tmp_path, '{\n{"prompt": ""}\n[]\n'))
    assert [finding.where for finding in caught.value.findings] == ["own.jsonl:1", "own.jsonl:2", "own.jsonl:3"]


def test_many_faults_are_counted_rather_than_listed(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload(write(tmp_path, "{}\n" * 500))
    assert len(caught.value.findings) == 31
    assert caught.value.findings[-1].message == "own.jsonl has 470 more faults like these."


def test_bytes_that_are_no_utf8_are_a_fault_of_their_line(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'{"prompt": ""}\n{"prompt": "\xff"}\n')
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


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("damage", [lambda packed: packed[: len(packed) * 3 // 4], lambda packed: packed[:30]])
def test_a_packed_file_that_is_cut_is_read_up_to_there(
    pack: Callable[[bytes], bytes], damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "own.jsonl"
    texts = [random.Random(number).randbytes(400).hex() for number in range(400)]
    path.write_bytes(damage(pack("".join(json.dumps({"prompt": text}) + "\n" for text in texts).encode())))
    try:
        (workload,) = load_workloads(str(path))
    except InvalidSetup as error:
        assert "own.jsonl cannot be read" in str(error)  # noqa: PT017
        return
    read = [prompt.text for prompt in workload.prompts]
    assert read == texts[: len(read)]
    assert re.search(r"everything from line \d+ on is lost, because the packed file is damaged$", workload.left_out)


@pytest.mark.parametrize(
    ("pack", "damage"),
    [
        (gzip.compress, lambda packed: packed[:-6] + bytes([packed[-6] ^ 255]) + packed[-5:]),
        (gzip.compress, lambda packed: packed + b"more"),
        (bz2.compress, lambda packed: packed[:-3000] + bytes([packed[-3000] ^ 255]) + packed[-2999:]),
    ],
)
def test_damage_late_in_a_packed_file_loses_only_what_follows(
    pack: Callable[[bytes], bytes], damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    texts = [random.Random(number).randbytes(400).hex() for number in range(1500)]
    packed = damage(pack("\n".join(json.dumps({"prompt": text}) for text in texts).encode()))
    (tmp_path / "own.jsonl").write_bytes(packed)
    (workload,) = load_workloads(str(tmp_path / "own.jsonl"))
    assert len({prompt.text for prompt in workload.prompts} & set(texts)) > 1000
    assert re.match(r"everything from line \d+ on is lost, because the packed file is damaged", workload.left_out)


@pytest.mark.parametrize(
    ("pack", "name"), [(gzip.compress, "own.csv.gz"), (bz2.compress, "own.csv.bz2"), (lzma.compress, "own.tsv.xz")]
)
def test_a_packed_table_is_a_table(pack: Callable[[bytes], bytes], name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pack(b"prompt;max_tokens\na;3\n"))
    assert [(each.text, each.max_tokens) for each in load_workload(str(tmp_path / name)).prompts] == [("a", 3)]


@pytest.mark.parametrize("key", ["rid", "uid"])
def test_an_id_of_the_engine_is_no_slip(key: str, tmp_path: Path) -> None:
    row = {"text": "a", "sampling_params": {"max_new_tokens": 3}, key: "1"}
    assert load_workload(write(tmp_path, json.dumps(row))).prompts[0].text == "a"


_SPAN = json.dumps({"span_id": "1", "attributes.llm.input_messages": "[{'a': {[]}}]"})
_ENGINE = (
    "[2026-01-02 10:00:00] Receive: obj=GenerateReqInput(rid='a', text='b', sampling_params={'max_new_tokens': %s})"
)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("own.jsonl", '{"prompt": "b", "n": ' + "9" * 5000 + "}"),
        ("own.json", '{"prompt": "b", "n": ' + "9" * 5000 + "}"),
        ("own.jsonl", '{"message": "b", "chat_history": 5}'),
        ("own.jsonl", _SPAN),
    ],
    ids=["digits", "digits in an array", "history", "span"],
)
def test_a_row_that_python_cannot_convert_stops_no_other(name: str, row: str, tmp_path: Path) -> None:
    rows = ['{"prompt": "a"}', row, '{"prompt": "c"}']
    text = "\n".join(rows) if name == "own.jsonl" else "[" + ",\n".join(rows) + "]"
    (workload,) = load_workloads(write(tmp_path, text, name))
    assert [prompt.text for prompt in workload.prompts] == ["a", "c"]
    assert "1 of 3 rows" in workload.left_out


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_limit_in_an_engine_log_that_is_no_number_of_tokens_is_not_read(digits: int, tmp_path: Path) -> None:
    (prompt,) = load_workload(write(tmp_path, _ENGINE % ("9" * digits), "own.log")).prompts
    assert (prompt.text, prompt.max_tokens) == ("b", 128)


def _docker(number: int, row: str) -> str:
    return json.dumps({"log": row, "stream": "stdout", "time": f"2026-01-02T{number // 3600:02}:00:00Z"})


COUNTED = [
    ("other kind", [_docker(i, json.dumps({"prompt": "a"} if i % 5 else {"msg": "b"}) + "\n") for i in range(15_000)],
     "3,000 of 15,000 rows of another kind"),
    ("recording", [json.dumps({"prompt": "a", "timestamp": 1.7e9 + i}) if i % 4 else "{" for i in range(20_000)],
     "2,500 of 10,000 rows damaged"),
    ("sample", ["{", *('{"prompt": "a"}' for _ in range(40_000))], ""),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "said"), [case[1:] for case in COUNTED], ids=[case[0] for case in COUNTED])
def test_faults_of_a_file_that_is_read_twice_count_once(lines: list[str], said: str, tmp_path: Path) -> None:
    (workload,) = load_workloads(write(tmp_path, "\n".join(lines)), keeps_times=True)
    assert workload.left_out.startswith(said)
    assert bool(workload.left_out) is bool(said)


def test_a_packed_file_with_wrong_bytes_is_said(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b'{"prompt": "a"}\n' * 9))
    for place in range(10, len(packed)):
        (tmp_path / "own.jsonl").write_bytes(packed[:place] + bytes([packed[place] ^ 255]) + packed[place + 1 :])
        try:
            assert load_workload(str(tmp_path / "own.jsonl")).left_out
        except InvalidSetup as error:
            assert "own.jsonl" in str(error)  # noqa: PT017


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


DAMAGED = [
    ("own.jsonl", '{"prompt": "a"}\n{"prompt": "b\n[]\n{}\n{"prompt": "c", "max_tokens": 0}\n{"promt": "d"}\n'
     '{"prompt": "e"}\n', "ae",
     "1 of 7 rows damaged, no valid JSON: line 2; 3 of 7 rows without a request: lines 3, 4, 6; "
     "1 of 7 rows with max_tokens out of range: line 5; 1 of 7 rows with the unknown key 'promt': line 6"),
    ("own.json", '[{"prompt": "a"},\n{"prompt": "b"\n{"prompt": "c"},\n{"prompt": "d', "ac",
     "2 of 4 rows damaged, no valid JSON: lines 2, 4 to the end"),
    ("own.json", '[\n  {\n    "prompt": "a"\n  },\n  {\n    "prompt": x\n  },\n  {\n    "prompt": "c"\n  }\n]', "ac",
     "1 of 3 rows damaged, no valid JSON: line 5"),
    ("own.csv", 'prompt,route\na,x\nb,x,y\n"c"d,x\ne,x\n"f,x\ng,x\n', "ae",
     "4 of 6 rows with cells that do not match the header: lines 3, 4, 6, 7"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "read", "said"), DAMAGED)
def test_a_damaged_row_is_counted_and_named_and_stops_no_other(
    tmp_path: Path, name: str, text: str, read: str, said: str
) -> None:
    (workload,) = load_workloads(write(tmp_path, text, name))
    assert [prompt.text for prompt in workload.prompts] == list(read)
    assert (workload.left_out, workload.population) == (said, len(read))
    (finding,) = report_left_out([workload])
    assert (finding.severity, said in finding.message) == (Severity.WARNING, True)


def test_faults_among_rows_that_are_not_drawn_stop_nothing(tmp_path: Path) -> None:
    path = Path(numbered(tmp_path, 30_000, time=0))
    path.write_text(path.read_text() + "\n" + "}\n" * 5)
    assert len(load_workload(str(path)).prompts) == 10_000


def test_what_surely_does_not_fit_a_context_is_left_out_and_what_may_fit_stays() -> None:
    """Without a tokenizer only the characters tell: a megabyte cannot be 1,000 tokens, 100,000 spaces can."""
    texts = {"short": "a", "spaces": " " * 100_000, "long": "a b " * 300_000}
    image = [{"type": "image_url", "image_url": {"url": "data:," + "A" * 3_000_000}}, {"type": "text", "text": "What?"}]
    prompts = [Prompt(id=name, text=text, max_tokens=1) for name, text in texts.items()]
    prompts.append(Prompt(id="image", messages=({"role": "user", "content": image},), max_tokens=1))
    whole = Workload(name="own", source="own.jsonl", prompts=tuple(prompts), population=8)
    kept, said = keep_fitting(whole, 1000, None)
    assert [each.id for each in kept.prompts] == ["short", "spaces", "image"]
    assert said == kept.left_out == "1 of 4 prompts do not fit into the server's context of 1,000 tokens: long"
    assert kept.population == 6
    assert keep_fitting(whole, 2000, None) == (whole, "")
    with pytest.raises(InvalidSetup, match="1 of 1 prompts do not fit"):
        keep_fitting(replace(whole, prompts=(prompts[2],)), 1000, None)


@pytest.mark.engine
def test_a_tokenizer_tells_more_of_what_fits(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    prompts = tuple(Prompt(id=f"{n} words", text="a " * n, max_tokens=1) for n in (99, 100, 900))
    longer = Prompt(id="one word", text="a" * 2000, max_tokens=1)
    workload = Workload(name="own", source="own.jsonl", prompts=(*prompts, longer))
    kept, said = keep_fitting(workload, 100, tmp_path)
    assert [each.id for each in kept.prompts] == ["99 words", "one word"]
    assert said.endswith("2 of 4 prompts do not fit into the server's context of 100 tokens: 100 words, 900 words")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("rows", ['{"prompt": "a"}\n' * 9, ' [{"prompt": "一"}]', "prompt,max_tokens\na,3\n" * 3])
@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE", "UTF-32"])
def test_a_file_in_a_wide_encoding_is_named_once_with_what_converts_it(
    tmp_path: Path, encoding: str, rows: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "own.jsonl").write_bytes(pack(rows.encode(encoding)))
    with pytest.raises(InvalidSetup) as caught:
        load_workload(str(tmp_path / "own.jsonl"))
    (finding,) = caught.value.findings
    assert f"own.jsonl is text in {encoding}. " in finding.message
    assert finding.fix == f"Convert it: iconv -f {encoding} -t UTF-8 own.jsonl > utf-8-own.jsonl"


@pytest.mark.parametrize("content", [b"\x00\x01\x02\x03" * 9, b"\x00" * 64, b"a\x00\x01\x00" * 9, b"\x00", b""])
def test_bytes_that_are_no_text_are_not_called_a_wide_encoding(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.jsonl").write_bytes(content)
    with pytest.raises(InvalidSetup) as caught:
        load_workload(str(tmp_path / "own.jsonl"))
    assert "is text in" not in str(caught.value)
