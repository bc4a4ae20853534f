"""Explains draftwise's own names: verbs, exit codes, keys of its JSON, alerts and recorded series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from draftwise.core.document_schema import json_schema
from draftwise.core.exit_codes import ExitCode
from draftwise.core.finding import SITE
from draftwise.plan.explanations import Explanation
from draftwise.verbs import VERBS, load_verb


def list_own() -> dict[str, Explanation]:
    """Return verbs and exit codes by every spelling; importing no verb."""
    found: dict[str, Explanation] = {}
    for row in VERBS.values():
        text = f"{row.summary} All options: `draftwise {row.name} --help`."
        link = f"{SITE}reference/verbs/{row.name}/"
        found[row.name] = found[f"draftwise {row.name}"] = Explanation(kind="verb", name=row.name, text=text, link=link)
    link = f"{SITE}reference/exit-codes/"
    for code in ExitCode:
        told = Explanation(kind="exit code", name=f"exit code {int(code)}", text=code.meaning, link=link)
        found |= dict.fromkeys((f"exit code {int(code)}", f"exit {int(code)}", str(int(code))), told)
    table = " ".join(f"{int(code)}: {code.meaning}" for code in ExitCode)
    told = Explanation(kind="exit code", name="exit codes", text=table, link=link)
    return found | dict.fromkeys(("exit code", "exit codes", "return code"), told)


def find_alert(name: str) -> Iterator[Explanation]:
    """Yield the alert or the recorded series that `deploy` writes under a name."""
    from draftwise.deploying.observe.alert_rules import ALERTS, READINGS

    for alert in ALERTS:
        if alert.name.lower() == name.lower():
            text = f"An alert of `draftwise deploy`. It fires after {alert.wait} of: {alert.expression}"
            yield Explanation(kind="alert", name=alert.name, text=text, see=(alert.code,))
    if name in READINGS:
        text = f"A series that a recording rule of `draftwise deploy` writes: {READINGS[name]}"
        yield Explanation(kind="series", name=name, text=text)
    elif name.startswith("draftwise:") and (users := [each.name for each in ALERTS if name in each.expression]):
        text = f"A number of your deployment, which these alerts compare with: {', '.join(users)}."
        yield Explanation(kind="series", name=name, text=text)


def find_key(name: str) -> Iterator[Explanation]:
    """Yield what a key of the JSON of verbs holds, once for each meaning; imports every verb."""
    meanings: dict[str, list[str]] = {}
    for verb, schema in _schemas().items():
        for owner, own in (("", schema), *schema.get("definitions", {}).items()):
            for each in _find_properties(own, name):
                text = each.get("description") or f"{own.get('description', owner)} {_tell_type(each)}".strip()
                if verb not in meanings.setdefault(text, []):
                    meanings[text].append(verb)
    for text, verbs in meanings.items():
        yield Explanation(kind="JSON key", name=name, text=f"{text} In the JSON of {', '.join(verbs)}.")


@cache
def _schemas() -> Mapping[str, Mapping[str, Any]]:
    return {verb: json_schema(load_verb(verb).result, title=verb) for verb in VERBS}


def _find_properties(schema: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    properties = schema.get("properties", {})
    if name in properties:
        yield properties[name]
    for inner in properties.values():
        yield from _find_properties(inner, name)


def _tell_type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type") or schema.get("enum") or schema.get("$ref", "").rpartition("/")[2]
    return f"Here: {kind if isinstance(kind, str) else ' or '.join(map(str, kind))}." if kind else ""
