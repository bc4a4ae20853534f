"""Pages of the verbs: command line from click, JSON from the schema, Python from the Request and the Result."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from docs.site.markdown import code_list, fence, plain, table

import draftwise
from draftwise.cli import main
from draftwise.core.document_schema import field_texts
from draftwise.knowledge.metrics import METRICS, OLD_METRICS
from draftwise.verbs import VERBS, load_verb
from draftwise.verbs.schema import schema

ROOT = Path(__file__).parents[1]
GUIDES: Mapping[str, tuple[str, ...]] = {
    "check": ("start/manifest", "how-to/check-in-ci", "reference/checking"),
    "pick": ("how-to/choose", "reference/checking"),
    "size": ("how-to/size", "reference/checking"),
    "inspect": ("how-to/choose", "reference/checking"),
    "upgrade": ("how-to/upgrade", "reference/checking"),
    "explain": ("findings/index", "how-to/troubleshoot"),
    "facts": ("how-to/add-a-release", "releases/index"),
    "schema": ("reference/checking",),
    "config": ("reference/exit-codes", "reference/environment"),
    "fetch": ("start/gpu", "understanding/engine"),
    "decide": (
        "how-to/measure-two-servers",
        "how-to/measure-one-server",
        "how-to/measure-one-gpu",
        "reference/measuring",
    ),
    "compare": ("how-to/upgrade", "reference/measuring"),
    "report": ("how-to/read-a-report", "reference/run-directory"),
    "replay": ("how-to/replay", "reference/replaying"),
    "calibrate": ("how-to/forecast", "reference/forecasting"),
    "forecast": ("how-to/forecast", "reference/forecasting"),
    "schedule": ("how-to/forecast", "reference/forecasting"),
    "deploy": ("how-to/deploy", "how-to/canary", "reference/deploying"),
    "verify": ("how-to/canary", "reference/exit-codes"),
    "rollback": ("how-to/canary", "reference/exit-codes"),
    "bundle": ("how-to/air-gap", "reference/deploying"),
    "watch": ("start/server", "how-to/watch", "reference/watching"),
    "ui": ("how-to/read-a-report",),
    "guard": ("how-to/guard", "reference/guarding"),
    "mcp": ("reference/exit-codes",),
    "skill": ("reference/exit-codes",),
    "serve": ("how-to/serve", "reference/serving", "understanding/engine"),
    "warm-up": ("understanding/engine",),
    "train": ("how-to/train", "reference/training"),
    "export": ("how-to/train", "reference/training"),
}
"""Pages about a verb, the shortest way first."""

_ROOT = click.Context(main, info_name="draftwise", **main.context_settings)


def pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of each verb's page."""
    for name, row in VERBS.items():
        command = main.get_command(_ROOT, name)
        assert command is not None
        parts = [
            f"# draftwise {name}\n\n{row.summary}\n",
            _guides(name),
            *_commands(command, name),
            _json(name),
            _python(name),
        ]
        yield f"reference/verbs/{name}.md", "\n".join(filter(None, parts))


def _guides(name: str) -> str:
    """Return links to pages about a verb, by their titles."""
    titles = ((page, (ROOT / f"{page}.md").read_text(encoding="utf-8").split("\n", 1)[0]) for page in GUIDES[name])
    return f"Guides: {', '.join(f'[{title[2:]}](../../{page}.md)' for page, title in titles)}.\n"


def list_verbs() -> str:
    """Return all verbs by group."""
    texts = []
    for group, rows in groupby(VERBS.values(), key=lambda row: row.group):
        shown = ((f"[`{row.name}`](verbs/{row.name}.md)", plain(row.summary)) for row in rows)
        texts.append(f"## {group}\n\n{table(('Verb', 'What it does'), shown)}")
    return "\n".join(texts)


def list_metrics() -> str:
    """Return the metrics that draftwise reads and `serve` exports."""
    rows = ((f"`{each.sample}`", each.kind, code_list(each.labels), plain(each.help)) for each in METRICS)
    return table(("Metric", "Kind", "Labels", "Meaning"), rows)


def list_old_metrics() -> str:
    """Return names that guides use and the V1 engine does not have."""
    rows = ((f"`{name}`", f"`{instead}`" if instead else "nothing") for name, instead in OLD_METRICS.items())
    return table(("Not in the V1 engine", "Use instead"), rows)


def _commands(command: click.Command, name: str, depth: int = 2) -> Iterator[str]:
    """Yield usage, text and options of a command and its subcommands; those of `train` need the engine to be listed."""
    context = click.Context(command, info_name=f"draftwise {name}", help_option_names=_ROOT.help_option_names)
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    title = "Command line" if depth == 2 else f"draftwise {name}"
    yield f"{'#' * depth} {title}\n\n{fence(usage, 'text')}\n\n{_prose(command.help or '')}\n"
    rows = [
        (f"`{'`, `'.join((*each.opts, *each.secondary_opts))}`{_value(each)}", plain(each.help or ""), _default(each))
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden
    ]
    if rows:
        yield table(("Option", "Meaning", "Default"), rows)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            if name == "train":
                yield f"- `draftwise train {inner} --help`"
            elif (found := command.get_command(context, inner)) is not None:
                yield from _commands(found, f"{name} {inner}", depth + 1)


def _prose(text: str) -> str:
    """Return a help text as Markdown: examples, which follow `\\b`, as code."""
    parts = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept, _, lines = block.partition("\b\n")
        if lines or kept.startswith("\b"):
            title, _, code = lines.partition("\n")
            parts.append(f"{plain(title)}\n\n{fence(textwrap.dedent(code), 'sh')}")
        else:
            parts.append(plain(re.sub(r"\s+", " ", kept)))
    return "\n\n".join(parts)


def _value(option: click.Option) -> str:
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return f" {' or '.join(f'`{each}`' for each in option.type.choices)}"
    return f" {option.make_metavar(_ROOT)}" + (" ..." if option.multiple else "")


def _default(option: click.Option) -> str:
    if option.is_flag or option.default in (None, "") or repr(option.default).startswith("Sentinel") or option.multiple:
        return ""
    return f"`{option.default}`"


def _json(name: str) -> str:
    """Return the keys of the document that `--json` prints, and the command for its schema."""
    made: Mapping[str, Any] = schema(name).schema
    about, where = (
        ("An array of objects with these keys.", made["items"]) if made.get("type") == "array" else ("", made)
    )
    where = _resolve(where, made)
    keys = where.get("properties")
    if not keys:
        return ""
    rows = (
        (f"`{key}`", _type(each, made), plain(_resolve(each, made).get("description", each.get("description", ""))))
        for key, each in keys.items()
    )
    command = fence(f"draftwise schema {name}", "sh")
    shown = table(("Key", "Type", "Meaning"), rows)
    return f"## JSON\n\n`--json` prints this document. For the whole schema:\n\n{command}\n\n{about}\n\n{shown}"


def _resolve(own: Mapping[str, Any], made: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = own.get("$ref")
    if not isinstance(reference, str):
        return own
    found: Any = made
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return {**found, **{key: each for key, each in own.items() if key != "$ref"}}


def _type(own: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    own = _resolve(own, made)
    for several in ("anyOf", "oneOf"):
        if several in own:
            return " or ".join(dict.fromkeys(_type(each, made) for each in own[several]))
    if "enum" in own:
        return " or ".join(f"`{json.dumps(each)}`" for each in own["enum"])
    kind = own.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _python(name: str) -> str:
    """Return the function of a verb, with the fields of its Request and the properties of its Result."""
    if name not in draftwise.__all__:
        return ""
    verb = load_verb(name)
    fields = inspect.signature(verb).parameters.values()
    texts = field_texts(verb.request)
    rows = (
        (f"`{each.name}`", _typed(each.annotation), _shown(each.default), plain(texts.get(each.name, "")))
        for each in fields
    )
    said = re.sub(r"(?<!\n)\n(?!\n)", " ", plain(verb.about))
    result = verb.result
    call = fence(
        f"import draftwise\n\nresult = draftwise.{name}(...)  # {result.__name__}\nprint(result, result.to_dict())",
        "python",
    )
    return f"## Python\n\n{call}\n\n{said}\n\n{table(('Argument', 'Type', 'Default', 'Meaning'), rows)}"


def _typed(annotation: object) -> str:
    named = re.sub(r"Annotated\[(.+?), \w+\([^()]*\)\]", r"\1", str(annotation))
    return f"`{named.replace(' | ', ' or ')}`"


def _shown(default: object) -> str:
    return "required" if default is inspect.Parameter.empty else f"`{default!r}`"
