"""The context of a run as a value: JSON and back, with what has no field of its own kept."""

import pytest

from draftwise.core import Hardware, RunContext, ServerRecord
from draftwise.core.documents import DocumentError, from_json, to_json

ROW = {
    "started": "2026-01-01 10:00 UTC",
    "hardware": {"as told": "8 x H200", "rack": 7},
    "software": {"python": "3.11"},
    "model": {"name": "m", "dtype": "auto", "licence": "mit"},
    "thresholds": {"margin": 0.1},
    "notes": {"hardware": "8 x H200"},
    "launch": {"vllm": "vllm", "gpus": ["0", "1"], "switch": "x {arm}", "leave": "plain"},
    "servers": {"plain": {"command": "c", "url": "u", "model": "m", "max_model_len": None,
                          "version": {"version": "1"}, "started": {"seconds": {"loading": 2.0}},
                          "hardware": "1 x H200", "metric_names": "vLLM"}},
}  # fmt: skip


def test_what_was_written_is_read() -> None:
    assert to_json(from_json(RunContext, ROW)) == ROW


def test_what_is_known_has_a_field_and_the_rest_is_kept() -> None:
    context = from_json(RunContext, ROW)
    assert context.hardware == Hardware(told="8 x H200", others={"rack": 7})
    assert context.server("plain").release == "1"
    assert context.server("unknown") == ServerRecord()


@pytest.mark.parametrize("row", [[], {"hardware": [1]}, {"servers": {"plain": {"no": 1}}}])
def test_something_else_is_refused(row: object) -> None:
    with pytest.raises(DocumentError):
        from_json(RunContext, row)


def test_no_speculation_is_not_the_same_as_not_saying() -> None:
    assert ServerRecord().speculative_config is None
    assert ServerRecord(version={"speculative_config": None}).speculative_config == {}
    assert ServerRecord(version={"speculative_config": {"method": "ngram"}}).speculative_config == {"method": "ngram"}
