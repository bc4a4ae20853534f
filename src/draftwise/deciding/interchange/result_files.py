"""Recognizes the format of a result file and reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

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
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise make_unreadable(source, f"it has an invalid field ({error!r})") from error
    if documents and isinstance(documents[0], dict) and "experiments" in documents[0]:
        raise make_unreadable(
            source, "it is genai-perf's raw record; draftwise reads profile_export_genai_perf.json next to it"
        )
    raise make_unreadable(source, "it has no known format")


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
