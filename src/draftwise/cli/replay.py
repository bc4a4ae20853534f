"""`draftwise replay`: what each drafting method would be worth on logged traffic, without serving it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from draftwise.checkpoints.gguf_files import is_gguf
from draftwise.cli._console import open_console, show_table
from draftwise.cli._findings import render_findings
from draftwise.cli._replayers import Workshop
from draftwise.core import Acceptance, InvalidSetup, Profile, Prompt, ReplayedTarget, Severity, SpecConfig
from draftwise.engine.engine_config import DEVICES, DTYPES
from draftwise.replaying.directory import PROFILE, ReplayDirectory, hash_transcripts
from draftwise.replaying.replaying import replay_candidates
from draftwise.replaying.transcripts import (
    Encoder,
    Grouping,
    Transcript,
    Transcripts,
    needs_encoder,
    read_transcripts,
)
from draftwise.reporting.replayed import PAGE, render_replay
from draftwise.version import __version__
from draftwise.workloads import load_workloads

__all__ = ["replay"]

_SHOWN_KS = (1, 3, 5, 7)


def _read_ks(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...]:
    try:
        ks = tuple(int(each) for each in (text or "").split(",") if each)
    except ValueError:
        raise click.BadParameter("give numbers, such as 1,3,5.") from None
    if any(k < 1 for k in ks):
        raise click.BadParameter("each must be 1 or more.")
    return ks


@click.command(short_help="Replay a log: acceptance of every method and k, without serving it.")
@click.argument("log")
@click.option("--target", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Checkpoint of the model that wrote the answers.")  # fmt: skip
@click.option("--candidate", "candidates", multiple=True, required=True, metavar="JSON",
              help="A speculative config; its num_speculative_tokens is the largest k. Repeat for more.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("profile"), show_default=True, metavar="DIR",
              help="Folder of the profile; goes on with a replay that was cut off.")  # fmt: skip
@click.option("--k", "ks", callback=_read_ks, metavar="K,K,...", help="Draft lengths to answer for  [default: all]")
@click.option("--group-by", type=click.Choice([each.value for each in Grouping]), help="Acceptance of each group too.")
@click.option("--default-temperature", type=click.FloatRange(0), default=1.0, show_default=True,
              help="Of requests that do not say theirs.")  # fmt: skip
@click.option("--max-model-len", type=click.IntRange(2), metavar="TOKENS", help="Of the server that wrote the log.")
@click.option("--in-flight", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Requests decoded together, for what is drafted from other answers.")  # fmt: skip
@click.option("--warm", type=click.IntRange(0), default=0, show_default=True, metavar="N",
              help="First requests of the log that a method with a memory has seen, not counted.")  # fmt: skip
@click.option("--to-the-end", is_flag=True,
              help="Draft up to the last token of max_tokens, as vLLM does.")  # fmt: skip
@click.option("--forced", is_flag=True,
              help="Decode every answer again, step for step: slower, and the truth for every method.")  # fmt: skip
@click.option("--draft-url", metavar="URL", help="Server of the draft model: its prompt_logprobs replace the models.")
@click.option("--target-url", metavar="URL", help="Server of the target, where drafts are sampled.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of the models  [default: the target's]")
@click.option("--device", type=click.Choice(DEVICES), help="Where the models run  [default: auto]")
@click.option(
    "--max-num-seqs",
    type=click.IntRange(1),
    metavar="N",
    help="Requests that models replay together  [default: 64 on a GPU, else 16]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON on stdout.")
def replay(
    log: str, target: Path, candidates: Sequence[str], out: Path, ks: tuple[int, ...], group_by: str | None,
    default_temperature: float, max_model_len: int | None, in_flight: int, warm: int, to_the_end: bool, forced: bool,
    draft_url: str | None, target_url: str | None, as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Replay LOG, prompts with their answers, and say what every candidate's drafts would have been worth.

    LOG is what `decide --workload` takes: a log of a gateway or observer, with the same options behind a #. Answers
    are taken as the target wrote them, so acceptance at their temperature is exact, for every k at once. ngram and
    suffix are replayed from the text alone; other methods load TARGET and their drafter.

    \b
    Examples:
      draftwise replay requests.jsonl --target MODEL --candidate '{"method": "ngram", "num_speculative_tokens": 8}'
      draftwise replay 'requests.jsonl#sample=500' --target MODEL --group-by route \\
          --candidate '{"method": "suffix", "num_speculative_tokens": 8}'
    """  # fmt: skip
    prompts = tuple(prompt for workload in load_workloads(log, takes_ids=True) for prompt in workload.prompts)
    checkpoint = _unpack(target)
    transcripts = read_transcripts(
        prompts,
        _find_encoder(checkpoint, prompts),
        name=Path(log.partition("#")[0]).name,
        default_temperature=default_temperature,
        group_by=None if group_by is None else Grouping(group_by),
        max_model_len=max_model_len,
    )
    seen, transcripts = _split_off(transcripts, warm)
    workshop = Workshop(
        target=checkpoint,
        ks=ks,
        longest=max(request.num_tokens for request in (*seen, *transcripts.requests)),
        in_flight=in_flight,
        warm=seen,
        forced=forced,
        target_url=target_url,
        draft_url=draft_url,
        settings={**settings, "max_model_len": max_model_len},
    )
    chosen = [workshop.make_candidate(SpecConfig.parse(text)) for text in candidates]
    plan: dict[str, Any] = {
        "draftwise": __version__,
        "requests_sha256": hash_transcripts(transcripts.requests),
        "target": str(target),
        "candidates": [{**each.spec.to_dict(), "k": list(each.ks)} for each in chosen],
        "in_flight": in_flight,
        "forced": forced,
        **({} if not seen else {"warm_sha256": hash_transcripts(seen)}),
        **({} if draft_url is None else {"servers_sha256": sha256(f"{draft_url} {target_url}".encode()).hexdigest()}),
        "max_model_len": max_model_len,
        "dtype": settings["dtype"],
    }
    directory = ReplayDirectory.open(out, plan)
    with _show_progress(len(chosen) * len(transcripts.requests)) as advance:
        profile, anchors = replay_candidates(
            directory,
            transcripts,
            chosen,
            target=_describe(target.name or str(target.resolve()), checkpoint),
            rows=len(prompts),
            limited=not to_the_end,
            advance=advance,
        )
    directory.write(PAGE, render_replay(profile, anchors))
    _finish(profile, out, as_json=as_json)


def _split_off(transcripts: Transcripts, warm: int) -> tuple[Sequence[Transcript], Transcripts]:
    """Return the requests at the log's beginning that are only remembered, and the others."""
    if warm >= len(transcripts.requests):
        raise InvalidSetup.because(
            "nothing-behind-warm",
            f"--warm takes {warm} of {len(transcripts.requests)} requests, and none is left to replay.",
            where="--warm",
            fix="Give a smaller number, or a longer log.",
        )
    if not warm:
        return (), transcripts
    skipped = {**transcripts.skipped, "warm-up": warm}
    return transcripts.requests[:warm], replace(transcripts, requests=transcripts.requests[warm:], skipped=skipped)


def _find_encoder(target: Path, prompts: Sequence[Prompt]) -> Encoder | None:
    """Return the target's tokenizer; None where no row needs it, or it cannot be used."""
    if not needs_encoder(prompts):
        return None
    try:
        from draftwise.engine.text.tokenizer import Tokenizer
    except ModuleNotFoundError:
        return None
    return Tokenizer.from_pretrained(target)


def _unpack(target: Path) -> Path:
    """Return a target's checkpoint: for a GGUF file the folder that it is unpacked into, if the engine is there."""
    if not is_gguf(target):
        return target
    try:
        from draftwise.engine.models.gguf import checkpoint_of
    except ModuleNotFoundError:
        return target
    return Path(checkpoint_of(str(target), partial(click.echo, err=True)))


def _describe(name: str, checkpoint: Path) -> ReplayedTarget:
    file = checkpoint / "tokenizer.json"
    digest = sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    return ReplayedTarget(name=name, tokenizer_sha256=digest)


@contextmanager
def _show_progress(total: int) -> Iterator[Any]:
    console = open_console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda label: progress.update(task, advance=1, description=label)


def _finish(profile: Profile, out: Path, *, as_json: bool) -> None:
    console = open_console(stderr=as_json)
    log = profile.log
    console.print(
        f"{log.used:,} of {log.rows:,} requests, {log.tokens_out:,} tokens, "
        f"{'in time order' if log.order == 'time' else 'in the order of the file'}",
        highlight=False,
    )
    show_table(console, _table(profile.entries))
    console.print(render_findings(profile.findings))
    if as_json:
        click.echo(json.dumps(profile.to_dict(), indent=1))
    click.echo(f"\nProfile: {out / PROFILE}\nReport: {out / PAGE}", err=True)
    sys.exit(1 if any(finding.severity is Severity.ERROR for finding in profile.findings) else 0)


def _table(entries: Sequence[Acceptance]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = sorted({k for entry in entries for k in (*_SHOWN_KS, entry.kmax) if k in entry.by_k})
    table.add_column("setting", no_wrap=True)
    for name in ("tokens/step", "95 %", "request P10/50/90", *(f"k={k}" for k in shown), "drafted/step"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        best = entry.by_k[max(entry.by_k)]
        found = best.tokens_per_step
        table.add_row(
            _name(entry),
            f"{found.value:.2f}",
            f"{found.low:.2f}-{found.high:.2f}",
            " ".join(f"{each:.2f}" for each in best.per_request),
            *(f"{entry.by_k[k].tokens_per_step.value:.2f}" if k in entry.by_k else "" for k in shown),
            f"{best.drafted / best.steps:.1f}",
        )
    return table


def _name(entry: Acceptance) -> str:
    label = replace(entry.candidate, num_speculative_tokens=None).label
    parts = (label, f"T={entry.temperature:g}", entry.group or "")
    return ("  " if entry.group else "") + " ".join(filter(None, parts))
