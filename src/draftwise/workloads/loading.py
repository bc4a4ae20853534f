"""Loads the workloads that `--workload` names."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from draftwise.core import Origin, Prompt, Workload
from draftwise.core.documents import from_json
from draftwise.knowledge.messages import refusal
from draftwise.workloads.log_formats import SHAPES, find_logged
from draftwise.workloads.logged_prompts import LogReader
from draftwise.workloads.reshape import draw, in_bucket, locate, set_form, set_outputs, share_prefixes, split_by_length
from draftwise.workloads.text_lengths import (
    CHARS_PER_TOKEN,
    RANDOM,
    Length,
    Tokens,
    find_source,
    find_tokens,
    parse_length,
)
from draftwise.workloads.trace import MAX_CHARS, TraceReader, find_format
from draftwise.workloads.workload_rows import LOST, MAX_ROWS, OTHER_KIND, Faults, FileRow, from_begin, read_rows
from draftwise.workloads.workload_spec import BUNDLED, WorkloadKind, WorkloadSpec, check_options, parse_spec

_SYNTHETIC_PROMPTS = 128
_SYNTHETIC_LENGTH = "512"
_SYNTHETIC_OUTPUT = "128"
_SOURCE = "code"
_SHOWN = 10
"""Lines that are named of those that are left out."""
_EXAMPLE = f'Each line: {{"id": "a1", "prompt": "def add(", "max_tokens": 128}}. {SHAPES}'


def load_workloads(
    text: str,
    *,
    max_tokens: int | None = None,
    tokenizer: Path | None = None,
    takes_ids: bool = False,
    keeps_times: bool = True,
    seed: int | None = None,
) -> tuple[Workload, ...]:
    """Return the workloads of a `--workload`: one, or one for each length bucket.

    Args:
        text: `SOURCE[#OPTION,...]`, as `WorkloadSpec` describes.
        max_tokens: upper limit for the max_tokens of every prompt.
        tokenizer: tokenizer.json, or the folder of a model, to count lengths with; if it cannot be read, they are
            estimated.
        takes_ids: whether prompts of a log may be token ids, as for a replay.
        keeps_times: whether a recording keeps its rate; otherwise a long one is sampled like any other log.
        seed: seed of draws; None for the one in the text.

    Raises:
        InvalidSetup: the text or its source has faults; the error lists all of them.
    """
    faults = Faults()
    spec = parse_spec(text, faults)
    faults.raise_any()
    if seed is not None and "seed" not in spec.options:
        spec = replace(spec, seed=seed)
    tokens = find_tokens(spec.tokenizer, hint=tokenizer)
    notes: list[str] = []
    share, left_out = 1.0, ""
    if spec.kind is WorkloadKind.SYNTHETIC:
        prompts = _make(spec, tokens, notes)
    else:
        spec, prompts, share, left_out = _read(
            spec, tokens, notes, faults, takes_ids=takes_ids, keeps_times=keeps_times
        )
    prompts, population, choice = _reshape(spec, locate(prompts), tokens, notes, share)
    if max_tokens:
        prompts = tuple(replace(prompt, max_tokens=min(prompt.max_tokens, max_tokens)) for prompt in prompts)
    source = {WorkloadKind.SYNTHETIC: "synthetic", WorkloadKind.BUNDLED: "bundled"}.get(
        spec.kind, Path(spec.target).name
    )
    whole = Workload(
        name=spec.label,
        source=source,
        prompts=prompts,
        random_tokens=spec.source == RANDOM,
        description="; ".join(notes),
        left_out=left_out,
        unread=bool(faults.unread),
        population=population,
        choice=choice,
    )
    return _split(spec, whole, tokens)


def read_prompts(file: Traversable) -> tuple[Prompt, ...]:
    """Return the prompts in a JSON-lines file of a run directory, which `Prompt.to_dict` wrote.

    Raises:
        InvalidSetup: the file cannot be read, or has another format.
    """
    faults = Faults()
    rows = read_rows(file, faults, most=2**62, in_order=bool).rows
    reader = LogReader(turns=None, logged=False, tokens=find_tokens(None), faults=faults)
    prompts = {each.id: each for each in reader.read(rows, file.name, rebase=False)}
    faults.raise_any()
    return tuple(
        replace(prompts[each.value["id"]], origin=_read_origin(each.value))
        for each in rows
        if each.value.get("id") in prompts
    )


def _read_origin(row: Mapping[str, Any]) -> Origin | None:
    return from_json(Origin, row["origin"]) if row.get("origin") is not None else None


def _make(spec: WorkloadSpec, tokens: Tokens, notes: list[str]) -> tuple[Prompt, ...]:
    """Return prompts of stated lengths."""
    source = find_source(spec.source or _SOURCE, tokens)
    prompt = spec.prompt or parse_length(_SYNTHETIC_LENGTH)
    output = spec.output or parse_length(_SYNTHETIC_OUTPUT)
    lengths = _draw_lengths(prompt, spec)
    notes += [f"synthetic, seed {spec.seed}", f"prompt tokens {prompt.label}, output tokens {output.label}",
              source.note, tokens.note]  # fmt: skip
    made = (
        Prompt(
            id=f"synthetic-{number:05d}",
            text=source.text(length, number, random.Random(f"{spec.seed}-{number}")),
            max_tokens=1,
            ignore_eos=True,
        )
        for number, length in enumerate(lengths)
    )
    return set_outputs(tuple(made), length=output, force=None, seed=spec.seed)


def _draw_lengths(prompt: Length, spec: WorkloadSpec) -> list[int]:
    rng, lengths, total = random.Random(f"{spec.seed}-prompts"), list[int](), 0
    for _ in range(spec.n or _SYNTHETIC_PROMPTS):
        lengths.append(prompt.draw(rng))
        total += lengths[-1]
        if CHARS_PER_TOKEN * total > MAX_CHARS:
            raise refusal("too-much-text", spec=spec.text, most=MAX_CHARS // 10**6)
    return lengths


def _read(
    spec: WorkloadSpec, tokens: Tokens, notes: list[str], faults: Faults, *, takes_ids: bool, keeps_times: bool
) -> tuple[WorkloadSpec, tuple[Prompt, ...], float, str]:
    """Return what is read, now that it is known whether it is a trace, its prompts, which share of all they are, and
    what was left out."""
    file = _find_file(spec)
    most = max(MAX_ROWS, spec.n or 0, spec.sample or 0)
    in_order = _is_recording if keeps_times else _is_none
    first = spec.n is not None and spec.sample is None
    table = read_rows(file, faults, most=most, seed=spec.seed, in_order=in_order, only_first=first)
    if spec.kind is WorkloadKind.FILE:
        is_trace = bool(table.rows) and find_format(table.rows[0].value) is not None
        spec = replace(spec, kind=WorkloadKind.TRACE if is_trace else WorkloadKind.LOG)
        check_options(spec.kind, spec.options, faults)
    notes += [table.note] if table.note else []
    read = _read_trace if spec.kind is WorkloadKind.TRACE else partial(_read_log, takes_ids=takes_ids)
    others = len(faults.left_out.get(OTHER_KIND, ()))
    drawn = len(table.rows) + sum(len(each) for key, each in faults.left_out.items() if key not in (OTHER_KIND, LOST))
    whole = round(drawn / table.share) + others
    prompts = read(spec, table.rows, file.name, tokens, notes, faults)
    left_out = {
        reason: _tell(reason, places, whole if reason == OTHER_KIND or table.share == 1 else drawn)
        for reason, places in faults.left_out.items()
    }
    notes += left_out.values()
    if not prompts and not faults:
        reasons = ", ".join(left_out.values())
        text = f"{file.name} holds no prompt" + (f" ({reasons})." if reasons else ".")
        faults.add("empty-workload", text, file.name, "" if spec.kind is WorkloadKind.TRACE else _EXAMPLE)
    faults.raise_any(but_rows=bool(prompts))
    return spec, prompts, table.share, "; ".join(left_out.values())


def _is_none(_: Any) -> bool:
    return False


def _read_trace(
    spec: WorkloadSpec, rows: Sequence[FileRow], file: str, tokens: Tokens, notes: list[str], faults: Faults
) -> tuple[Prompt, ...]:
    source = find_source(spec.source or _SOURCE, tokens)
    trace = TraceReader(source, bucket=spec.bucket, seed=spec.seed, faults=faults)
    stretches = {row.where: row.stretch for row in rows}
    prompts = tuple(
        replace(each, origin=Origin(row=0, place=0, stretch=stretches.get(each.id, 0)))
        for each in trace.read(rows, file, most=spec.n)
    )
    notes += [*trace.notes, source.note, tokens.note]
    if spec.output is None:
        forced = "answers forced to the recorded lengths"
        notes.append(forced if spec.force is not False else "answers cut at the recorded lengths")
    return prompts


def _read_log(
    spec: WorkloadSpec,
    rows: Sequence[FileRow],
    file: str,
    tokens: Tokens,
    notes: list[str],
    faults: Faults,
    *,
    takes_ids: bool,
) -> tuple[Prompt, ...]:
    log = LogReader(turns=spec.turns, logged=spec.logged, tokens=tokens, faults=faults, takes_ids=takes_ids)
    prompts = log.read(rows, file)
    notes += [f"{count} row{'s' * (count > 1)} {note}" for note, count in log.notes.items()]
    return prompts


def _tell(reason: str, places: Sequence[str], total: int) -> str:
    if reason == LOST:
        return f"everything from line {places[0].rpartition(':')[2].partition(' ')[0]} on is {LOST}"
    shown = [place.rpartition(":")[2] for place in places[:_SHOWN]]
    more = f" and {len(places) - _SHOWN:,} more" if len(places) > _SHOWN else ""
    return f"{len(places):,} of {total:,} rows {reason}: line{'s' * (len(places) > 1)} {', '.join(shown)}{more}"


def _is_recording(value: Any) -> bool:
    """Whether a file's first row carries a time: its rows are in order, and a sample would change their rate."""
    if find_format(value):
        return True
    logged = find_logged(value) if isinstance(value, dict) else None
    return logged is not None and logged.time is not None


def _find_file(spec: WorkloadSpec) -> Traversable:
    if spec.kind is WorkloadKind.BUNDLED:
        return files("draftwise.workloads") / "bundled" / f"{spec.target}.jsonl"
    path = Path(spec.target)
    if not path.is_file():
        near = get_close_matches(spec.target, (*BUNDLED, WorkloadKind.SYNTHETIC), 1)
        known = (
            f"Bundled: {', '.join(BUNDLED)}; or give a .jsonl, .json or .csv file, or synthetic:prompt=512,output=128."
        )
        raise refusal("unknown-workload", target=spec.target, fix=f"Did you mean {near[0]}?" if near else known)
    return path


def _reshape(
    spec: WorkloadSpec, prompts: tuple[Prompt, ...], tokens: Tokens, notes: list[str], share: float
) -> tuple[tuple[Prompt, ...], int, str]:
    """Return the prompts as the options want them, of how many these were drawn, and how the operator chose them.

    Args:
        share: of all that the source has, that `prompts` are.
    """
    if spec.bucket is not None and spec.kind is not WorkloadKind.TRACE:
        prompts = _only(spec, in_bucket(prompts, spec.bucket, tokens), tokens, notes)
    population, choice = round(len(prompts) / share), ""
    if spec.sample is not None and spec.sample < len(prompts):
        notes.append(f"{spec.sample} of {len(prompts)} prompts, drawn with seed {spec.seed}")
        chosen = {each.id for each in draw(prompts, spec.seed, spec.text)[: spec.sample]}
        prompts = tuple(each for each in prompts if each.id in chosen)
    if spec.n is not None and spec.n < population:
        choice = f"the first {spec.n} of {population}" if spec.n < len(prompts) else ""
        notes += [f"{choice} prompts"] if choice else []
        prompts = prompts[: spec.n]
        population = len(prompts) if choice else population
    length: Length | None = None if spec.kind is WorkloadKind.SYNTHETIC else spec.output
    prompts = set_outputs(prompts, length=length, force=spec.force, seed=spec.seed)
    notes += [f"output tokens {length.label}"] if length else []
    notes += ["output tokens as logged"] if spec.logged else []
    if spec.prefix is not None:
        size, groups = spec.prefix
        common = find_source("prose", tokens)
        prompts = share_prefixes(prompts, length=size, groups=groups, source=common, seed=spec.seed)
        notes.append(f"every prompt begins with one of {groups} common texts of {size} tokens, in turn; {tokens.note}")
    if spec.form is not None:
        prompts = set_form(prompts, spec.form)
        notes.append(f"sent as {spec.form}")
    return _rebased(prompts), population, choice


def _only(spec: WorkloadSpec, prompts: tuple[Prompt, ...], tokens: Tokens, notes: list[str]) -> tuple[Prompt, ...]:
    low, high = spec.bucket or (0, None)
    words = f"prompts of {low} tokens or more" if high is None else f"prompts of {low} to {high - 1} tokens"
    if not prompts:
        raise refusal("empty-bucket", text=spec.text, words=words, note=tokens.note)
    notes.append(f"{words}, {tokens.note}")
    return prompts


def _rebased(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Return the prompts with arrivals counted from the first one that is left."""
    prompts = tuple(prompts)
    times = from_begin([prompt.arrival_s for prompt in prompts])
    return tuple(replace(prompt, arrival_s=time) for prompt, time in zip(prompts, times, strict=True))


def _split(spec: WorkloadSpec, whole: Workload, tokens: Tokens) -> tuple[Workload, ...]:
    if not spec.split:
        return (whole,)
    stem = spec.name or replace(spec, text=spec.text.partition("#")[0]).label
    parts = split_by_length(whole.prompts, spec.split, tokens)
    return tuple(
        replace(
            whole,
            name=f"{stem}-prompt={bucket}",
            prompts=_rebased(prompts),
            population=round(whole.population * len(prompts) / len(whole.prompts)),
            description="; ".join(filter(None, (whole.description, f"prompts of {bucket} tokens, {tokens.note}"))),
        )
        for bucket, prompts in parts.items()
        if prompts
    )
