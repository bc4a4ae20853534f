"""Rules, alerts and panels as `deploy` writes them for an example, for the page of metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from docs.site.markdown import code_list, links, plain, table

import draftwise

_EXAMPLE = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}
_SELECTOR = re.compile(r'service="[^"]*",revision=~"[^"]*",?')


@cache
def _read() -> tuple[Any, Any]:
    """Return the rules and the dashboard of an example."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "deploy"
        draftwise.deploy(
            "meta-llama/Llama-3.1-8B-Instruct",
            vllm="0.33.0",
            gpu="H200",
            speculative_config=_EXAMPLE,
            to="kubernetes",
            out=out,
        )
        rules = yaml.safe_load((out / "observe/rules.yaml").read_text(encoding="utf-8"))
        return rules, json.loads((out / "observe/dashboard.json").read_text(encoding="utf-8"))


def _rules(kind: str) -> Iterator[dict[str, Any]]:
    return (rule for group in _read()[0]["groups"] for rule in group["rules"] if kind in rule)


def _query(text: str) -> str:
    """Return a query without the selectors of the example's service."""
    return f"`{_SELECTOR.sub('', text).replace('{}', '')}`"


def list_rules() -> str:
    """Return the recording rules."""
    return table(("Record", "Query"), ((f"`{rule['record']}`", _query(rule["expr"])) for rule in _rules("record")))


def list_alerts() -> str:
    """Return the alerts, each with the finding that it is about and what to do first."""
    rows = (
        (
            f"`{rule['alert']}`",
            links([rule["labels"]["rule"]], "finding", ".."),
            rule["labels"]["action"],
            rule.get("for", ""),
            _query(rule["expr"]),
            plain(rule["annotations"]["description"]),
        )
        for rule in _rules("alert")
    )
    return table(("Alert", "Finding", "First", "For", "Query", "What it says"), rows)


def list_panels() -> str:
    """Return the panels of the dashboard by row."""
    rows, row = [], ""
    for panel in _read()[1]["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        else:
            queries = [_query(target["expr"]).strip("`") for target in panel["targets"]]
            rows.append((row, plain(panel["title"]), code_list(queries)))
    return table(("Row", "Panel", "Queries"), rows)
