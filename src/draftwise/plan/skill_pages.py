"""The agent skill: its main page from a template, references from the tables of methods, metrics and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files

from draftwise.core.exit_codes import ExitCode
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.methods import Method, all_methods, get_method
from draftwise.knowledge.metrics import METRICS, OLD_METRICS
from draftwise.knowledge.published_drafters import read_native_modules, read_published_drafters
from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.signals import SIGNALS
from draftwise.knowledge.spec_keys import read_spec_keys
from draftwise.knowledge.vllm import history, releases
from draftwise.version import __version__

NAME = "draftwise"
_SCRIPTS: Mapping[str, str] = {
    "smoke-check.sh": 'exec draftwise watch "${1:?usage: smoke-check.sh URL}" --once "${@:2}"',
    "check-config.sh": 'exec draftwise check "${@:?usage: check-config.sh SOURCE [OPTIONS]}" --json',
    "upgrade.sh": 'exec draftwise upgrade "${1:?usage: upgrade.sh SOURCE FROM TO}" --from "$2" --to "$3" --json',
}


def write_skill() -> dict[str, str]:
    """Return the files of the skill by their path in its folder, generated from the current tables."""
    pages = {name: make() for name, (_, make) in _REFERENCES.items()}
    known = releases()
    head = (files("draftwise.knowledge") / "data" / "skill" / "SKILL.md").read_text(encoding="utf-8")
    text = head.format(
        version=__version__,
        oldest=known[0],
        newest=known[-1],
        exit_codes="\n".join(f"- {int(code)}: {code.meaning}" for code in ExitCode),
        references="\n".join(f"- [{name}](references/{name}.md): {about}" for name, (about, _) in _REFERENCES.items()),
    )
    return {
        "SKILL.md": text,
        **{f"references/{name}.md": page for name, page in pages.items()},
        **{f"scripts/{name}": f"#!/usr/bin/env bash\nset -euo pipefail\n{line}\n" for name, line in _SCRIPTS.items()},
    }


def _page(title: str, *lines: str) -> str:
    return "\n".join((f"# {title}", "", *lines)).rstrip() + "\n"


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(each).replace('|', '/') for each in cells)} |"


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    names = list(head)
    return [_row(*names), f"|{'---|' * len(names)}", *(_row(*each) for each in rows), ""]


def _span(name: str) -> str:
    spans = history("methods", name)
    return ", ".join(f"{each.since} to {each.until or releases()[-1]}" for each in spans) or "no release of vLLM"


def _list_methods() -> str:
    rows = ((each.name, each.meaning, _span(each.name), each.usual_k, each.source) for each in all_methods().values())
    return _page(
        "Drafting methods",
        "Start with `draftwise pick MODEL --gpu NAME --workload KIND`, which ranks them for one case.",
        "",
        *_table(("method", "what it does", "vLLM", "usual k", "source"), rows),
    )


def _describe(*names: str) -> Callable[[], str]:
    def make() -> str:
        return "\n".join(_describe_method(get_method(name)) for name in names)

    return make


def _describe_method(method: Method) -> str:
    advice, keys = method.advice, read_spec_keys()
    native = read_native_modules() if method.weights == "target" else ()
    lists: Mapping[str, Iterable[str]] = {
        "Keys": (f"`{key}`: {keys[key].meaning}" for key in method.keys if key in keys),
        "Expected acceptance": (f"{each.low:g} to {each.high:g}. {each.source}" for each in advice.priors),
        "Published and measured": (
            f"{each.result}. {each.conditions} ({each.source})" for each in advice.published_results
        ),
        "Published drafters": (
            f"`{each.model}` for {', '.join(each.targets)}"
            for each in read_published_drafters()
            if each.method == method.name
        ),
        "Targets with modules of their own": (
            f"{', '.join(each.model_types)}: k {each.num_speculative_tokens}" for each in native
        ),
        "Rules of vLLM (`draftwise explain CODE`)": (
            f"`{each.code}`: {each.title}"
            for each in all_rules().values()
            if method.name in f"{each.code} {each.title} {each.explains}"
        ),
        "Known defects": (
            f"`{each.code}`, {each.span}: {each.what}" for each in all_defects().values() if method.name in each.methods
        ),
    }
    return _page(
        method.name,
        method.meaning,
        "",
        f"- vLLM: {_span(method.name)}",
        f"- usual k: {method.usual_k}",
        f"- source: {method.source}",
        "",
        *(line for title, lines in lists.items() for line in _section(title, lines)),
    )


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = [f"- {each}" for each in lines]
    if found:
        yield from (f"## {title}", "", *found, "")


def _list_metrics() -> str:
    rows = ((f"`{each.sample}`", each.kind, each.help, ", ".join(each.labels)) for each in METRICS)
    signals = ((f"`{each.name}`", each.definition, f"`{each.promql}`") for each in SIGNALS)
    old = ((f"`{name}`", f"`{now}`" if now else "nothing") for name, now in OLD_METRICS.items())
    return _page(
        "Metrics",
        "`draftwise watch URL --once` reads them and says what they mean.",
        "",
        *_table(("sample", "kind", "meaning", "labels"), rows),
        "## What to compute of them",
        "",
        *_table(("quantity", "definition", "PromQL"), signals),
        "## Metrics of vLLM's V0 engine",
        "",
        *_table(("was", "is today"), old),
    )


def _list_diagnoses() -> str:
    rows = (
        (f"`{each.code}`", each.title, each.diagnosis.told_by, " ".join(each.fix.split()))
        for each in all_findings().values()
        if each.diagnosis is not None
    )
    return _page(
        "Troubleshooting",
        "1. `draftwise check` the config with its release and GPU: many causes show before the start.",
        "2. `draftwise explain` the error or the line of the log.",
        "3. `draftwise watch URL --once`, with `--baseline` where there is one and `--setup` for the manifest.",
        "4. `draftwise watch --log FILE` where /metrics is out of reach.",
        "",
        "What `watch` tells apart:",
        "",
        *_table(("finding", "what", "told by", "what to do"), rows),
    )


def _list_training() -> str:
    trainable = [each for each in all_methods().values() if each.trainer]
    return _page(
        "Training data",
        "Train on the target's own answers to prompts like those that you will serve. `draftwise train METHOD",
        "--target DIR --data FILE --out DIR` lets the target answer them (`--answers target`) and holds some out.",
        "",
        "- Answers of other people teach another model's text. Use `--answers given` only for logs of this target.",
        "- Compare runs by the held-out acceptance that the command prints.",
        "- A drafter for one kind of traffic loses on others. Measure each with `draftwise decide --workload`.",
        "- A quantized target is another target. Train for the weights that you serve.",
        "- For all options, run `draftwise train METHOD --help`. The same command again resumes a stopped run.",
        "",
        *_table(("method", "what is trained"), ((each.name, each.meaning) for each in trainable)),
    )


def _list_sources() -> str:
    methods = ((each.name, each.source) for each in all_methods().values())
    results = (
        (each.name, result.result, result.source)
        for each in all_methods().values()
        for result in each.advice.published_results
    )
    return _page(
        "Sources",
        *_table(("method", "source"), methods),
        "## Published results",
        "",
        *_table(("method", "result", "source"), results),
    )


_REFERENCES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "methods": ("all drafting methods, their releases and usual k", _list_methods),
    "mtp": ("prediction modules of the target", _describe("mtp")),
    "eagle3": ("EAGLE-3 heads", _describe("eagle3")),
    "dflash": ("DFlash block drafters", _describe("dflash")),
    "arctic-inference": ("suffix decoding, which needs the package arctic-inference", _describe("suffix")),
    "training-data-recipes": ("what to train a drafter on", _list_training),
    "metrics": ("what a server exports, and what to compute of it", _list_metrics),
    "troubleshooting": ("causes of low acceptance and lost speed", _list_diagnoses),
    "sources": ("papers, pull requests and measurements", _list_sources),
}
"""References by name: what each is about, and what writes it."""
