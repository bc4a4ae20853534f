"""Recognizes the format of a result file and reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from draftwise.core import InvalidSetup
from draftwise.deciding.interchange.aiperf import is_aiperf_record, is_aiperf_summary, read_aiperf
from draftwise.deciding.interchange.guidellm import is_guidellm, read_guidellm
from draftwise.deciding.interchange.results import Results, make_unreadable
from draftwise.deciding.interchange.vllm_bench import is_vllm_bench, read_vllm_bench

_RECORDS, _SUMMARY, _REPORT = "profile_export.jsonl", "profile_export_aiperf.json", "benchmarks.json"
"""File names that aiperf and guidellm use."""


def read_results(path: Path) -> Results:
    """Return another tool's results from a file, or from the files under the tool's own names in a folder.

    Raises:
        InvalidSetup: the file does not exist, or has no known format.
    """
    for name in (_RECORDS, _SUMMARY, _REPORT) if path.is_dir() else ():
        if (path / name).is_file():
            return read_results(path / name)
    documents = _documents(path)
    source = str(path)
    try:
        results = _recognise(documents, path, source)
        _require_sound(results)
    except InvalidSetup:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise make_unreadable(source, f"it has an invalid field ({error!r})") from error
    cells = results.cells
    if not any(cell.num_requests or any(each.mean for each in cell.aggregates.values()) for cell in cells):
        raise make_unreadable(source, "it has no answered request")
    return results


def _recognise(documents: Sequence[Any], path: Path, source: str) -> Results:
    if len(documents) == 1 and isinstance(documents[0], list):
        # summary.json of `vllm bench sweep serve`
        documents = documents[0]
    if documents and all(map(is_vllm_bench, documents)):
        return read_vllm_bench(documents, source)
    if documents and all(map(is_aiperf_record, documents)):
        return read_aiperf(documents, _sibling(path, _SUMMARY), source)
    if len(documents) == 1 and is_guidellm(documents[0]):
        return read_guidellm(documents[0], source)
    if len(documents) == 1 and is_aiperf_summary(documents[0]):
        return read_aiperf((), documents[0], source)
    if documents and isinstance(documents[0], dict) and "experiments" in documents[0]:
        raise make_unreadable(
            source, "it is genai-perf's raw record; draftwise reads profile_export_genai_perf.json next to it"
        )
    raise make_unreadable(source, "it has no known format")


_MOST = 1e12
"""Largest number that a result may hold: later than any clock, more than any count."""


def _require_sound(results: Results) -> None:
    """Raise ValueError if a reading is no number, or if time runs backwards."""
    for cell in results.cells:
        means = [value for each in cell.aggregates.values() for value in (each.mean, *each.percentiles.values())]
        spec = () if cell.spec is None else (*cell.spec.accepted_per_pos, cell.spec.num_drafts,
                                             cell.spec.num_draft_tokens, cell.spec.num_accepted_tokens)  # fmt: skip
        _require_numbers(cell.num_requests, cell.num_failed, cell.duration_s, cell.output_tokens_per_s, *means, *spec)
        for answer in cell.answers:
            timing = answer.timing
            times = [timing.sent, *(time for time, _ in timing.chunks)]
            _require_numbers(*times, timing.finished, timing.intended, timing.num_tokens, answer.num_prompt_tokens)
            if times != sorted(times) or min((tokens for _, tokens in timing.chunks), default=0) < 0:
                raise ValueError(f"request {answer.prompt_id}: its times run backwards")


def _require_numbers(*values: Any) -> None:
    for value in values:
        if value is not None and not (isinstance(value, int | float) and 0 <= value < _MOST):
            raise ValueError(f"{value!r:.40} is not a possible reading")


def _documents(path: Path) -> Sequence[Any]:
    """Return the JSON documents of a file, one after another, or the YAML document."""
    if not path.is_file():
        raise make_unreadable(str(path), "the file does not exist" if not path.exists() else "the folder holds none")
    try:
        text = path.read_text(encoding="utf-8")
        return [yaml.load(text, Loader=_LOADER)] if path.suffix in (".yaml", ".yml") else _parse_json(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise make_unreadable(str(path), f"it is not JSON or YAML ({str(error).splitlines()[0]})") from error


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _parse_json(text: str) -> list[Any]:
    decoder, space, documents = json.JSONDecoder(), re.compile(r"\s*"), []
    position = len(text) - len(text.lstrip())
    while position < len(text):
        document, end = decoder.raw_decode(text, position)
        documents.append(document)
        following = space.match(text, end)
        position = following.end() if following else end
    return documents


def _sibling(path: Path, name: str) -> dict[str, Any]:
    """Return the summary in the folder of a file of records; empty if missing."""
    beside = path.with_name(name)
    documents = _documents(beside) if beside.is_file() else [{}]
    return documents[0] if isinstance(documents[0], dict) else {}
