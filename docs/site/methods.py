"""Generated parts of the methods' pages: figure, facts, configs by release, drafters, numbers, memory, pitfalls."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from docs.site.figures import draw
from docs.site.markdown import code_list, fence, links, plain, table

from draftwise.core import CheckOutcome, Effect, Ruling, Severity
from draftwise.knowledge.advice import read_seen_speedups
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.methods import Method, all_methods
from draftwise.knowledge.published_drafters import PublishedDrafter, read_native_modules, read_published_drafters
from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.vllm import Release, releases
from draftwise.plan.check import judge
from draftwise.setups.read import read_words

__all__ = ["PARTS", "Ruled", "judge_shapes", "list_pages"]

ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """What one release makes of a page's config."""

    release: Release
    shape: Mapping[str, Any]
    """The first of the page's shapes that does as written, `config` and perhaps `flags`; the first where none does."""
    outcome: CheckOutcome
    codes: tuple[str, ...]
    """Errors that stop it; of a config that starts, findings that say it does something else than written."""

    idle: bool
    """Whether the release ignores a part of the config."""

    @property
    def works(self) -> bool:
        """Whether the server starts as far as `check` can tell, and ignores nothing of the config."""
        return self.starts and not self.idle

    @property
    def starts(self) -> bool:
        """Whether nothing that `check` knows stops the server."""
        return self.outcome in (CheckOutcome.ACCEPTED, CheckOutcome.NOT_JUDGED)

    @property
    def said(self) -> str:
        """What `check` says, as a cell of a table."""
        codes = links(self.codes, "finding", "..")
        if not self.starts:
            return f"{self.outcome}: {codes}"
        known = "accepted" if self.outcome is CheckOutcome.ACCEPTED else "nothing against it by name"
        return f"{known}, but {codes}" if codes else known


@cache
def _rows() -> Mapping[str, Any]:
    rows: Mapping[str, Any] = json.loads(Path(__file__).with_name("methods.json").read_text(encoding="utf-8"))
    return rows


def list_pages() -> tuple[str, ...]:
    """Return the names of the methods' pages."""
    return tuple(_rows())


def _method(page: str) -> Method:
    return all_methods()[_rows()[page].get("method", page)]


@cache
def judge_shapes(page: str) -> tuple[Ruled, ...]:
    """Return what each release makes of a page's config, the oldest first."""
    return tuple(_judge(page, release) for release in releases() if release.added is None)


def _judge(page: str, release: Release) -> Ruled:
    row, tried = _rows()[page], []
    for shape in row["shapes"]:
        words = shlex.split(_command(row["target"], shape).replace("\\\n", " "))
        installed = frozenset(row["installed"]) if "installed" in row else None
        report = judge(read_words(words, engine_version=str(release)), installed=installed)
        stops = [each.code for each in report.findings if each.severity is Severity.ERROR]
        rulings = [each for each in report.findings if isinstance(each, Ruling)]
        alters = [each.code for each in rulings if each.effect in (Effect.INEFFECTIVE, Effect.CHANGED)]
        idle = any(each.effect is Effect.INEFFECTIVE for each in rulings)
        codes = tuple(sorted({*(stops or alters)}))
        tried.append(Ruled(release=release, shape=shape, outcome=report.outcome, codes=codes, idle=idle))
    return next((each for each in tried if each.works), tried[0])


def _command(target: str, shape: Mapping[str, Any]) -> str:
    flags = shlex.join(shape.get("flags", ())).replace(" --", " \\\n  --")
    end = f" \\\n  {flags}" if flags else ""
    return f"vllm serve {target} \\\n  --speculative-config '{json.dumps(shape['config'])}'{end}"


def _show_figure(page: str) -> str:
    return draw(_method(page), parallel=_rows()[page].get("parallel", False))


def _list_facts(page: str) -> str:
    method = _method(page)
    weights = {
        "drafter": "a checkpoint of its own",
        "target": "modules in the target's checkpoint",
        "either": "a checkpoint of its own, or the target's",
        "none": "none",
    }
    lengths = {"varies": "can vary from step to step", "fixed": "fixed", "none": "not run"}
    said = {
        "vLLM": ", ".join(_spans(judge_shapes(page))) or "no release that draftwise knows",
        "Weights": weights[method.weights],
        "Reads hidden states of the target": {
            "none": "no",
            "last": "of the last layer",
            "several": "of several layers",
        }[method.aux_states],
        "KV cache of its own": "yes" if method.keeps_kv else "no",
        "Remembers earlier requests": {"nothing": "no", "answers": "yes", "unknown": "depends on your class"}[
            method.remembers
        ],
        "Package to install in the server": f"`{method.package}`" if method.package else "none",
        "Draft length on Model Runner V1": lengths[method.v1_draft_length],
        "Its own keys": code_list(method.keys) or "none",
        "Source": plain(method.source),
    }
    return table(("Property", "Value"), said.items())


def _spans(ruled: tuple[Ruled, ...]) -> Iterator[str]:
    """Yield the ranges of releases in which a config starts."""
    for starts, group in groupby(ruled, key=lambda each: each.works):
        run = [str(each.release) for each in group]
        if starts:
            newest = " (newest)" if run[-1] == str(ruled[-1].release) else ""
            ends = [links([run[0]], "release", ".."), links([run[-1]], "release", "..")]
            yield (" to ".join(ends) if run[1:] else ends[0]) + newest


def _list_configs(page: str) -> str:
    """Return the config's shapes, and what each range of releases makes of them."""
    rows, shown = [], []
    for (shape, said), group in groupby(judge_shapes(page), key=lambda each: (json.dumps(each.shape), each.said)):
        run = [str(each.release) for each in group]
        if shape not in shown:
            shown.append(shape)
        span = links([run[0]], "release", "..") + (f" to {links([run[-1]], 'release', '..')}" if run[1:] else "")
        rows.append((span, chr(ord("A") + shown.index(shape)), said))
    commands = [_command(_rows()[page]["target"], json.loads(shape)) for shape in shown]
    blocks = [f"{'ABC'[at]}:\n\n{fence(command, 'sh')}" for at, command in enumerate(commands)]
    return "\n\n".join(blocks) + "\n\n" + table(("vLLM", "Shape", "`check` says"), reversed(rows))


def _drafters(page: str) -> Iterator[PublishedDrafter]:
    row = _rows()[page]
    for drafter in read_published_drafters():
        if drafter.method == _method(page).name and drafter.parallel_drafting == row.get("parallel", False):
            yield drafter


def _list_drafters(page: str) -> str:
    rows = [
        (
            f"`{each.model}`",
            code_list(each.targets),
            str(each.num_speculative_tokens or ""),
            plain(each.note),
            plain(each.source),
        )
        for each in sorted(_drafters(page), key=lambda each: (each.targets[0].lower(), each.model.lower()))
    ]
    if not rows:
        return "draftwise knows no published drafter for it."
    return table(("Drafter", "Target", "k of the publisher", "Note", "Source"), rows)


def _list_families() -> str:
    """Return the families with modules of their own, and the architectures of the newest release that have any."""
    rows = [
        (code_list(each.model_types), str(each.num_speculative_tokens), plain(each.source))
        for each in read_native_modules()
    ]
    newest = releases()[-1].table("mtp_remap")
    kinds = sorted({str(each["model_type"]) for each in newest.values() if "model_type" in each})
    return (
        table(("model_type", "k", "Source"), rows)
        + f"\nvLLM {releases()[-1]} builds these kinds of modules: {code_list(kinds)}.\n"
    )


def _list_predicts() -> str:
    """Return which config.json key gives the number of modules, by target, in the newest release."""
    rows = [
        (
            f"`{key}`",
            f"`{each['n_predict']}`",
            "" if each.get("n_predict_default") is None else str(each["n_predict_default"]),
        )
        for key, each in sorted(releases()[-1].table("mtp_remap").items())
        if each.get("n_predict")
    ]
    return table(("Target (model_type or architecture)", "Key of config.json", "Default"), rows)


def _is_about(page: str, conditions: str) -> bool:
    """Say whether figures are those of a page: one for parallel drafts shares its method with another page."""
    return ("P-EAGLE" in conditions or "PARD" in conditions) is bool(_rows()[page].get("parallel"))


def _list_acceptance(page: str) -> str:
    advice = _method(page).advice
    seen = [
        (each.traffic, f"{each.length:g}", str(each.k), plain(each.conditions), plain(each.source))
        for each in advice.seen_acceptance
        if _is_about(page, each.conditions)
    ]
    priors = [(each.overlap or "other", f"{each.low:g} to {each.high:g}", plain(each.source)) for each in advice.priors]
    texts = []
    if seen:
        texts.append(
            "Tokens per step that were measured:\n\n"
            + table(("Traffic", "Tokens/step", "k", "Conditions", "Source"), seen)
        )
    if priors:
        texts.append(
            "What `pick` assumes before anything is measured: the chance that a draft token is accepted if those "
            "before it were.\n\n" + table(("Text repeated from the prompt", "Chance", "Source"), priors)
        )
    return "\n".join(texts) or "Nobody has published figures that draftwise could check."


def _list_results(page: str) -> str:
    advice = _method(page).advice
    published = [
        (plain(each.result), plain(each.conditions), plain(each.source))
        for each in advice.published_results
        if _is_about(page, f"{each.result} {each.conditions}")
    ]
    series = [
        (
            f"`{each.targets[0]}`",
            "" if each.k is None else str(each.k),
            ", ".join(f"{gain:g}x at {load}" for load, gain in each.points),
            plain(each.conditions),
            "draftwise" if each.ours else plain(each.source),
        )
        for each in read_seen_speedups()
        if each.method == _method(page).name and _is_about(page, each.conditions)
    ]
    texts = []
    if series:
        texts.append(
            "Speed-up over plain decoding by sequences that decode together:\n\n"
            + table(("Target", "k", "Speed-up", "Conditions", "Measured by"), series)
        )
    if published:
        texts.append("Published results:\n\n" + table(("Result", "Conditions", "Source"), published))
    return "\n".join(texts) or "Nobody has published a speed-up that draftwise could check."


def _show_memory(page: str) -> str:
    """Return what `size` says of the page's config on one H100."""
    import draftwise

    row = _rows()[page]
    gpu = "H200" if "DeepSeek" in row["target"] else "H100"
    ruled = [each for each in judge_shapes(page) if each.works][-1]
    wide = 8 if "DeepSeek" in row["target"] or "70B" in row["target"] else 1
    done = draftwise.size(
        row["target"],
        gpu=gpu,
        speculative_config=ruled.shape["config"],
        vllm=str(ruled.release),
        tensor_parallel_size=wide,
    )
    on, off = done.with_drafter, done.without_drafter
    gib = 2**30
    rows = [
        ("Drafter weights", f"{on.drafter / gib:.2f} GiB", "-"),
        ("KV cache", f"{on.kv_bytes / gib:.2f} GiB", f"{off.kv_bytes / gib:.2f} GiB" if off else ""),
        ("Tokens in the KV cache", f"{on.kv_tokens:,}", f"{off.kv_tokens:,}" if off else ""),
    ]
    command = (
        f"draftwise size {row['target']} --gpu {gpu}{f' --tensor-parallel-size {wide}' if wide > 1 else ''} "
        f"--vllm {ruled.release} \\\n  --speculative-config '{json.dumps(ruled.shape['config'])}'"
    )
    return fence(command, "sh") + "\n\n" + table((f"Per GPU ({gpu}, {wide} of them)", "With it", "Without"), rows)


def _list_pitfalls(page: str) -> str:
    name = _method(page).name
    rules = [rule for rule in all_rules().values() if name in rule.methods and rule.severity is not Severity.INFO]
    rows = [
        (links([rule.code], "finding", ".."), plain(rule.title), rule.severity, _when(rule.spans))
        for rule in sorted(
            rules, key=lambda rule: (rule.spans[-1][1] is not None, ORDER.index(rule.severity), rule.code)
        )
    ]
    return (
        table(("Finding", "What goes wrong", "Severity", "vLLM"), rows)
        if rows
        else "No rule is about this method alone."
    )


def _when(spans: tuple[tuple[str, str | None], ...]) -> str:
    return ", ".join(first if first == last else f"{first} to {last or 'newest'}" for first, last in spans)


def _list_defects(page: str) -> str:
    rows = [
        (links([row.code], "finding", ".."), plain(row.what), row.span)
        for row in sorted(all_defects().values(), key=lambda row: (row.is_end_known, row.code))
        if _method(page).name in row.methods
    ]
    return table(("Defect", "What you see", "vLLM"), rows) if rows else "The ledger has no defect of this method alone."


def _list_spans() -> str:
    """Return the releases in which each page's config works."""
    rows = ((f"[{page}]({page}.md)", ", ".join(_spans(judge_shapes(page)))) for page in list_pages())
    return table(("Method", "Works with vLLM"), rows)


def _show_matrix() -> str:
    """Return what each release makes of each page's config, the newest release first."""
    columns = [judge_shapes(page) for page in list_pages()]
    rows = [
        (links([str(row[0].release)], "release", "."), *("yes" if each.works else "no" for each in row))
        for row in reversed([*zip(*columns, strict=True)])
    ]
    return table(("vLLM", *(f"[{page}](../methods/{page}.md)" for page in list_pages())), rows)


PARTS: Mapping[str, Callable[..., str]] = {
    "method-figure": _show_figure,
    "method-facts": _list_facts,
    "method-configs": _list_configs,
    "method-drafters": _list_drafters,
    "method-families": _list_families,
    "method-predicts": _list_predicts,
    "method-acceptance": _list_acceptance,
    "method-results": _list_results,
    "method-memory": _show_memory,
    "method-pitfalls": _list_pitfalls,
    "method-defects": _list_defects,
    "method-spans": _list_spans,
    "method-matrix": _show_matrix,
}
"""Functions of a page's name that write its generated parts."""
