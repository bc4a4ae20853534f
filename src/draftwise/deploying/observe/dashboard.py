"""A dashboard for Grafana that answers whether speculation pays; vLLM's own shows the rest of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from draftwise.deploying.observe.naming import Naming
from draftwise.deploying.order import Order

__all__ = ["PANELS", "Panel", "make_dashboard"]

_SCHEMA_VERSION = 42
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over time."""

    title: str
    unit: str
    """Of Grafana: `short`, `s`, `percentunit`."""
    queries: Mapping[str, str]
    """Expressions by legend."""


_PLAIN = 'draftwise:seconds_per_token:15m{pool="plain"}'
_SPEC = 'draftwise:seconds_per_token:15m{pool!="plain"}'


def _mean(histogram: str) -> str:
    """Return the expression of a histogram's mean over 15 minutes."""
    total, count = (f"sum by (model_name, pool) (rate({histogram}_{part}[15m]))" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


PANELS: Mapping[str, Sequence[Panel]] = {
    "Does it pay?": (
        Panel(
            "Tokens per step",
            "short",
            {
                "{{pool}}": "draftwise:tokens_per_step:5m",
                "break-even": "draftwise:breakeven_tokens_per_step",
                "as measured": "draftwise:expected_tokens_per_step",
            },
        ),
        Panel(
            "Requests in flight, by server",
            "short",
            {"{{pool}}": "draftwise:in_flight:5m", "crossover": "draftwise:crossover_in_flight"},
        ),
        Panel(
            "Seconds per token, plain over speculating",
            "short",
            {"{{pool}}, above 1 is faster": f"{_PLAIN} / on (model_name) group_right () {_SPEC}"},
        ),
    ),
    "Acceptance": (
        Panel(
            "Drafts accepted up to a position", "percentunit", {"{{pool}} {{position}}": "draftwise:position_rate:5m"}
        ),
        Panel("Steps with a draft", "percentunit", {"{{pool}}": "draftwise:coverage:5m"}),
        Panel(
            "Tokens of a draft", "short", {"{{pool}}": "draftwise:mean_k:5m", "configured": "draftwise:configured_k"}
        ),
    ),
    "Cost": (
        Panel("Seconds of a step", "s", {"{{pool}}": "draftwise:seconds_per_token:15m * draftwise:tokens_per_step:5m"}),
        Panel("Seconds to the first token, mean", "s", {"{{pool}}": _mean("vllm:time_to_first_token_seconds")}),
        Panel("Prompt tokens from the prefix cache", "percentunit", {"{{pool}}": "draftwise:prefix_hit_rate:30m"}),
        Panel(
            "Use of the KV cache, fullest server",
            "percentunit",
            {"{{pool}}": "max by (model_name, pool) (vllm:kv_cache_usage_perc)"},
        ),
        Panel(
            "Preemptions per second",
            "short",
            {"{{pool}}": "sum by (model_name, pool) (rate(vllm:num_preemptions_total[10m]))"},
        ),
        Panel("Seconds of prefill, mean", "s", {"{{pool}}": _mean("vllm:request_prefill_time_seconds")}),
    ),
    "Replicas": (
        Panel(
            "Accepted tokens of a draft",
            "short",
            {"{{pool}} {{instance}}": "draftwise:replica_accepted_per_draft:15m"},
        ),
        Panel(
            "Tokens per second",
            "short",
            {"{{pool}} {{instance}}": "sum by (model_name, pool, instance) (rate(vllm:generation_tokens_total[5m]))"},
        ),
    ),
}


def make_dashboard(order: Order, naming: Naming) -> str:
    """Return the dashboard as JSON, to be imported or provisioned."""
    title = f"{order.service}: does speculation pay?"
    dashboard = {
        "uid": sha256(title.encode()).hexdigest()[:16],
        "title": title,
        "description": order.evidence.headline,
        "tags": ["draftwise", "vllm"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "annotations": {"list": list(_annotate(naming))},
        "links": [{"title": "vLLM", "type": "dashboards", "tags": ["vllm"], "asDropdown": True, "icon": "", "url": "",
                   "tooltip": "", "includeVars": False, "keepTime": True, "targetBlank": False}],
        "panels": list(_lay_out(naming)),
    }  # fmt: skip
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


def _lay_out(naming: Naming) -> Iterator[dict[str, Any]]:
    """Yield rows and panels with their places, three panels beside each other."""
    number = top = 0
    for row, panels in PANELS.items():
        number += 1
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row, "gridPos": place, "collapsed": False, "panels": []}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            left, down = index * _WIDTH % _COLUMNS, index * _WIDTH // _COLUMNS * _HEIGHT
            place = {"x": left, "y": top + down, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": number, "gridPos": place, **_draw(panel, naming)}
        top += _HEIGHT * -(-len(panels) * _WIDTH // _COLUMNS)


def _draw(panel: Panel, naming: Naming) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": naming.write(query), "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}},
        "targets": targets,
    }


def _annotate(naming: Naming) -> Iterator[dict[str, Any]]:
    """Yield the events that are drawn over all panels."""
    alerts = f'ALERTS{{alertstate="firing",rule!="",model_name={json.dumps(naming.model)}}}'
    restarts = "changes(process_start_time_seconds[5m]) > 0 and on (job, instance) vllm:num_requests_running"
    for name, expression, colour in (("Alerts", alerts, "red"), ("Restarts", naming.write(restarts), "blue")):
        yield {"name": name, "datasource": _SOURCE, "enable": True, "iconColor": colour, "expr": expression}
