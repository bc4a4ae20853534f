"""Who is told of an alert: routes and receivers for Alertmanager, whose texts carry what the decision said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from draftwise.deploying.observe.naming import Naming

__all__ = ["make_routes"]

_PAGED = ("drain", "rollback", "switch")
"""Actions that do not wait until the morning."""
_CAUSES = "spec-off|drafts-stopped|zero-acceptance"
_EFFECTS = "fell-below-break-even|slower-than-plain|tail-dead"
"""Findings that follow from those and say nothing more."""
_SECRETS = "/etc/alertmanager/secrets"
_TITLE = "{{ .CommonLabels.model_name }}: {{ .CommonLabels.rule }}, {{ .CommonLabels.action }}"
_TEXT = (
    "{{ range .Alerts }}{{ .Annotations.summary }} {{ .Annotations.description }}\n{{ end }}"
    "{{ with .CommonAnnotations.decision }}Measured before: {{ . }}{{ end }}"
    "{{ with .CommonAnnotations.run }} (run {{ . }}){{ end }}"
)


def make_routes(naming: Naming) -> dict[str, Any]:
    """Return a whole configuration, of which the route, the receivers and the inhibitions go into one's own.

    Secrets are named by the files that hold them.
    """
    model = f"model_name={json.dumps(naming.model)}"
    pager = {"receiver": "draftwise-pager", "matchers": [f'action=~"{"|".join(_PAGED)}"']}
    route = {
        "receiver": "draftwise-tickets",
        "matchers": [model, 'rule!=""'],
        "group_by": ["model_name", "rule", "action"],
        "group_wait": "1m",
        "repeat_interval": "12h",
        "routes": [pager],
    }
    return {
        "route": {"receiver": "default", "routes": [route]},
        "receivers": [{"name": "default"}, _make_tickets(), _make_pager()],
        "inhibit_rules": [_inhibit(model)],
    }


def _make_tickets() -> dict[str, Any]:
    return {"name": "draftwise-tickets", "slack_configs": [_write_slack()]}


def _make_pager() -> dict[str, Any]:
    pagerduty = {
        "routing_key_file": f"{_SECRETS}/pagerduty-key",
        "description": _TITLE,
        "severity": '{{ if eq .CommonLabels.severity "critical" }}critical{{ else }}warning{{ end }}',
        "details": {"what": _TEXT},
    }
    return {"name": "draftwise-pager", "pagerduty_configs": [pagerduty], "slack_configs": [_write_slack()]}


def _write_slack() -> Mapping[str, Any]:
    return {"api_url_file": f"{_SECRETS}/slack-url", "channel": "#inference", "title": _TITLE, "text": _TEXT}


def _inhibit(model: str) -> dict[str, Any]:
    return {
        "source_matchers": [model, f'rule=~"{_CAUSES}"'],
        "target_matchers": [model, f'rule=~"{_EFFECTS}"'],
        "equal": ["model_name"],
    }
