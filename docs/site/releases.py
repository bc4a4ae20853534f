"""Pages of vLLM releases: what each adds, removes, changes, breaks and fixes for speculation; a matrix of methods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from docs.site.markdown import code_list, links, plain, table

from draftwise.core import CheckOutcome, Severity
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.methods import all_methods
from draftwise.knowledge.models import find_model
from draftwise.knowledge.published_drafters import PublishedDrafter, read_published_drafters
from draftwise.knowledge.rules import VllmRule, all_rules
from draftwise.knowledge.vllm import Release, releases
from draftwise.plan.check import Report, judge
from draftwise.setups.read import read_words

TOPICS: Mapping[str, str] = {
    "methods": "Methods",
    "spec_fields": "Keys of --speculative-config",
    "mtp_remap": "Targets with MTP modules",
    "aux_targets": "Targets whose hidden states EAGLE-3 can read",
    "async_scheduling": "Async scheduling",
    "runner_v2": "Model Runner V2",
    "cudagraph_sizes": "CUDA graphs",
    "batch_defaults": "Default batch limits",
    "sampling_params": "Sampling parameters under speculation",
    "engine_defaults": "Engine defaults",
    "flags": "Engine flags",
    "metrics": "Metrics",
}
"""Tables of the facts, and what each is about."""
WORSE = (Severity.ERROR, Severity.WARNING)


def pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of each release's page, but for the oldest one's, which has none to compare it with."""
    known = [release for release in releases() if release.added is None]
    for before, release in pairwise((None, *known)):
        assert release is not None
        yield f"releases/{release}.md", _page(before, release)


def list_releases() -> str:
    """Return all releases with their date and what began and ended in each, the newest first."""
    known = [release for release in releases() if release.added is None]
    rows = []
    for before, release in reversed([*pairwise((None, *known))]):
        assert release is not None
        new = sorted(_methods(release) - (_methods(before) if before else set()))
        gone = sorted(_methods(before) - _methods(release)) if before else []
        present = sum(row.state_in(release.version) == "present" for row in all_defects().values())
        rows.append(
            (links([str(release)], "release", "."), release.built, code_list(new), code_list(gone), str(present))
        )
    return table(("vLLM", "Built", "New methods", "Removed methods", "Known defects"), rows)


def _methods(release: Release) -> set[str]:
    """Return the methods of a release by the names of today."""
    table_ = release.table("methods")
    return {
        name for name, method in all_methods().items() if name in table_ or not table_.keys().isdisjoint(method.aliases)
    }


def _page(before: Release | None, release: Release) -> str:
    after = next((str(each) for each in releases() if each.version > release.version and each.added is None), "")
    around = [f"after {links([str(before)], 'release', '.')}" if before else "the oldest release that draftwise knows"]
    around += [f"before {links([after], 'release', '.')}"] if after else ["the newest release that draftwise knows"]
    head = f"# vLLM {release}\n\nBuilt {release.built}; {', '.join(around)}.\n"
    sections = {"Published drafters that become possible": [*_list_drafters(release)]}
    if before:
        begins, ends = _rules(before, release)
        fixed = [*_list_defects("fixed", before, release)]
        sections = {
            "Breaks": [*_list_rules(rule for rule in begins if rule.severity is Severity.ERROR)],
            "Warns of, or does differently": [
                *_list_rules(rule for rule in begins if rule.severity is Severity.WARNING)
            ],
            "Fixes": [*fixed, *_list_rules(rule for rule in ends if rule.severity in WORSE)],
            **sections,
        }
    texts = [head]
    if before:
        texts.append(
            f"To see what the move means for your setup:\n\n```sh\ndraftwise upgrade compose.yaml --from {before} "
            f"--to {release}\n```\n"
        )
    changes = [
        f"## {title}\n\n{''.join(f'- {row}{chr(10)}' for row in rows)}" for title, rows in sections.items() if rows
    ]
    if before:
        changes += filter(None, (_changes(topic, title, before, release) for topic, title in TOPICS.items()))
        changes = changes or [f"For speculation, nothing that draftwise knows of differs from {before}.\n"]
    texts += changes
    texts += [
        f"## {title}\n\n{''.join(f'- {row}{chr(10)}' for row in rows)}"
        for title, rows in (
            ("Known defects", [*_list_defects("present", release)]),
            ("Defects of earlier releases, not confirmed or ruled out here", [*_list_defects("later", release)]),
        )
        if rows
    ]
    return "\n".join(filter(None, texts))


def _rules(before: Release, release: Release) -> tuple[list[VllmRule], list[VllmRule]]:
    """Return the rules that begin to hold with a release, and those that no longer do."""
    rules = [*all_rules().values()]
    began = [rule for rule in rules if rule.holds(release.version) and not rule.holds(before.version)]
    ended = [rule for rule in rules if rule.holds(before.version) and not rule.holds(release.version)]
    return began, [rule for rule in ended if _is_here(rule.methods, release)]


def _is_here(methods: Iterable[str], release: Release) -> bool:
    """Say whether a release still has one of the methods that a row is about; what it removed is not mended."""
    return not methods or not _methods(release).isdisjoint(methods)


def _list_rules(rules: Iterable[VllmRule]) -> Iterator[str]:
    for rule in sorted(rules, key=lambda rule: rule.code):
        yield f"{links([rule.code], 'finding', '..')}: {plain(rule.title)}."


def _list_defects(state: str, release: Release, after: Release | None = None) -> Iterator[str]:
    """Yield the defects in a state: `present`, `later`, or `fixed` where `release` is the last that has them."""
    for row in all_defects().values():
        if state != "fixed":
            said = row.state_in(release.version) == state
        else:
            said = row.is_end_known and row.last_release == release.version and _is_here(row.methods, after or release)
        if said:
            yield f"{links([row.code], 'finding', '..')}: {plain(row.what)}"


def _list_drafters(release: Release) -> Iterator[str]:
    for drafter in read_published_drafters():
        if find_first_release(drafter) == release:
            yield f"`{drafter.model}` ({links([drafter.method], 'method', '..')}) for {code_list(drafter.targets)}"


def spec_of(drafter: PublishedDrafter) -> dict[str, Any]:
    """Return the speculative config that runs a published drafter."""
    method = all_methods()[drafter.method]
    config: dict[str, Any] = {"method": drafter.method, "model": drafter.model}
    if drafter.parallel_drafting and method.parallel == "option":
        config["parallel_drafting"] = True
    return config | {"num_speculative_tokens": drafter.num_speculative_tokens or method.usual_k}


def judge_line(target: str, spec: Mapping[str, Any], release: Release, *flags: str) -> Report:
    """Return what `check` says of a server with such a config."""
    words = ["vllm", "serve", target, "--speculative-config", json.dumps(spec), *flags]
    return judge(read_words(words, engine_version=str(release)))


def starts(report: Report) -> bool:
    """Say whether nothing that `check` knows stops such a server."""
    return report.outcome in (CheckOutcome.ACCEPTED, CheckOutcome.NOT_JUDGED)


def find_first_release(drafter: PublishedDrafter) -> Release | None:
    """Return the release from which on, without a gap, a published drafter is not refused for its target."""
    target = drafter.targets[0]
    model = find_model(target)
    kind = str(model.config.get("model_type")) if model else target
    return _find_first(drafter.method, kind, drafter.parallel_drafting, target, json.dumps(spec_of(drafter)))


_FIRST: dict[tuple[str, str, bool], Release | None] = {}


def _find_first(method: str, kind: str, parallel: bool, target: str, spec: str) -> Release | None:
    """The same, judged once for the targets of a kind."""
    key = (method, kind, parallel)
    if key not in _FIRST:
        first = None
        for release in reversed([each for each in releases() if each.added is None]):
            if not starts(judge_line(target, json.loads(spec), release)):
                break
            first = release
        _FIRST[key] = first
    return _FIRST[key]


def _changes(topic: str, title: str, before: Release, release: Release) -> str:
    """Return a section with the keys of a table that came, went, or have another value."""
    old, new = before.table(topic), release.table(topic)
    added, gone = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    rows = [f"Added: {code_list(added)}"] if added else []
    rows += [f"Removed: {code_list(gone)}"] if gone else []
    rows += [f"`{key}`: {said}" for key in sorted(old.keys() & new.keys()) if (said := _difference(old[key], new[key]))]
    return f"## {title}\n\n{''.join(f'- {row}{chr(10)}' for row in rows)}" if rows else ""


def _difference(old: Any, new: Any) -> str:
    """Return in words how a value changed; nothing for one that is the same, or whose type alone is spelled anew."""
    if old == new:
        return ""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [key for key in (*old, *(key for key in new if key not in old)) if key not in ("type", "field", "kind")]
        parts = (f"{key}: {said}" for key in keys if (said := _difference(old.get(key), new.get(key))))
        return "; ".join(parts)
    if isinstance(old, list) and isinstance(new, list):
        more, fewer = [each for each in new if each not in old], [each for each in old if each not in new]
        return ", ".join(f"{verb} {_show(each)}" for verb, each in (("adds", more), ("drops", fewer)) if each)
    if isinstance(old, list) or isinstance(new, list):
        return "no longer a fixed list" if new is None else "a fixed list" if old is None else ""
    return f"{_show(old)} becomes {_show(new)}"


def _show(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return code_list(value) or "nothing"
    return "nothing" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"
