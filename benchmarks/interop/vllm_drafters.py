"""Our drafters in real vLLM and in the embedded engine: the same drafts, guess for guess, and the same text.

    python benchmarks/interop/vllm_drafters.py --vllm-python VLLM_PYTHON --out results/vllm_drafters.json

Every drafter directory of a bundle is loaded by both engines for the same target. Both answer the same prompts at
temperature 0, and every single draft is compared. Rounding is the only excuse for a difference: the two largest logits
must then be a tie. Anything else fails the run (exit code 1).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sides import Comparison, Job, OurGaps, Side, Vllm, compare, count, run_ours

from draftwise import __version__
from draftwise.core import InvalidSetup
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.machine.processes import cpu_name
from draftwise.machine.whole_files import write_whole
from draftwise.training.drafter_export import assemble_mtp

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: a way to draft, and the directory that it needs."""

    name: str
    spec: dict[str, Any] | None
    folder: str | None = None
    """Directory of the bundle with the drafter."""
    k_key: str | None = None
    """Key of the drafter's config.json that bounds k."""
    chained: bool = True
    """Whether each guess is made from the one before it."""
    in_target: bool = False
    """The drafter's weights lie in the target's directory: `draftwise export` writes one with both."""
    unable: str | None = None
    """Why vLLM for CPU cannot run it."""


ROWS = (
    Row(name="none", spec=None),
    Row(name="ngram", spec={"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
    Row(name="suffix", spec={"method": "suffix"}),
    Row(name="draft_model", folder="draft_model", spec={"method": "draft_model"}),
    Row(name="pard", folder="pard", spec={"method": "draft_model", "parallel_drafting": True}, chained=False),
    Row(name="medusa", folder="medusa", spec={"method": "medusa"}, k_key="num_heads", chained=False),
    Row(name="eagle", folder="eagle", spec={"method": "eagle"}),
    Row(name="eagle3", folder="eagle3", spec={"method": "eagle3"}),
    Row(name="p_eagle", folder="p_eagle", spec={"method": "eagle3", "parallel_drafting": True}, chained=False),
    Row(name="mtp", folder="mtp", spec={"method": "mtp"}, in_target=True),
    Row(name="dflash", folder="dflash", spec={"method": "dflash"}, k_key="block_size", chained=False),
    Row(
        name="mlp_speculator",
        spec=None,
        unable="no vLLM 0.32 runs it: its line in the model registry is commented out (0.33 drops the method)",
    ),
    Row(name="ngram_gpu", spec=None, unable="vLLM asks for pinned memory, which needs an accelerator"),
)


def main() -> None:
    bundle = ROOT / "bundle"
    args = parse_arguments(ROWS, description=__doc__, bundle=bundle, out=HERE / "results" / "vllm_drafters.json")
    names, prompts = read_prompts(args.workloads, args.bundle / "target", args.prompts)
    sys.exit(run(ROWS, args, names, prompts))


def run(rows: Sequence[Row], args: argparse.Namespace, names: list[str], prompts: list[list[int]]) -> int:
    """Check the rows that were asked for, write the result and show it; return the exit code."""
    assert len(set(map(tuple, prompts))) == len(prompts), "prompts are told apart by their tokens"
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    results = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, Vllm(args.vllm_python) as vllm:
        rows = choose_rows(rows, args)
        bar = progress.add_task("", total=len(rows))
        for row in rows:
            progress.update(bar, description=row.name)
            results[row.name] = check(row, args, prompts, vllm)
            progress.advance(bar)
    document = {
        "what": "the same drafters in real vLLM and in draftwise, every draft compared",
        "date": date.today().isoformat(),
        "command": command_without_paths(args),
        "versions": versions(results),
        "machine": {"processor": cpu_name(), "cores": os.cpu_count()},
        "settings": shared_settings(args) | {"max_tokens": args.max_tokens, "tie": args.tie},
        "prompts": names,
        "methods": results,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(args.out, json.dumps(document, indent=2) + "\n")
    console.print(make_table(results, args))
    console.print(f"written to {args.out}")
    return int(any(result["verdict"] not in ("same", "not run") for result in results.values()))


def parse_arguments(
    rows: Sequence[Row], *, description: str | None, bundle: Path, out: Path, max_model_len: int = 1024
) -> argparse.Namespace:
    """Return the command line's arguments, checked."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", required=True, help="python of an environment with vLLM 0.32 for CPU")
    parser.add_argument("--bundle", type=Path, default=bundle, help="directory with target/ and drafters")
    parser.add_argument("--workloads", type=Path, default=ROOT / "src/draftwise/workloads/bundled")
    parser.add_argument("--only", nargs="+", metavar="METHOD", choices=[row.name for row in rows])
    parser.add_argument("--prompts", type=int, default=8, help="of each workload")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--k", type=int, default=4, help="num_speculative_tokens, where the drafter can")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-num-seqs", type=int, default=1)
    parser.add_argument("--max-model-len", type=int, default=max_model_len)
    parser.add_argument("--prefix-caching", action="store_true", help="on in both engines; else off in both")
    parser.add_argument(
        "--timed-passes", type=int, default=0, help="for ms a token; the machine should do nothing else"
    )
    parser.add_argument("--tie", type=float, default=1e-3, help="two logits closer than this may swap by rounding")
    parser.add_argument("--out", type=Path, default=out)
    args = parser.parse_args()
    check_vllm(parser, args.vllm_python)
    if not (args.bundle / "target" / "config.json").exists():
        parser.error(f"--bundle: there is no target/ in {args.bundle}")
    if args.prompts < 1 or args.k < 1 or args.max_tokens <= args.k + 1:
        parser.error("--prompts and --k must be at least 1, --max-tokens at least k + 2")
    return args


def check_vllm(parser: argparse.ArgumentParser, python: str) -> None:
    """End with a clear message unless `python` is an interpreter that has vLLM."""
    probe = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    try:
        found = subprocess.run([python, "-c", probe], capture_output=True).returncode == 0
    except OSError as error:
        parser.error(f"--vllm-python: cannot be run ({error.strerror}): {python}")
    if not found:
        parser.error(f"--vllm-python: has no package vllm: {python}")


def choose_rows(rows: Sequence[Row], args: argparse.Namespace) -> list[Row]:
    """Return the rows asked for; those whose drafter the bundle lacks say so."""
    rows = [row for row in rows if not args.only or row.name in args.only]
    absent = "the bundle has no {}/"
    return [
        replace(row, unable=row.unable or absent.format(row.folder))
        if row.folder and not (args.bundle / row.folder / "config.json").exists()
        else row
        for row in rows
    ]


def read_prompts(workloads: Path, target: Path, number: int) -> tuple[list[str], list[list[int]]]:
    """Return names and token ids of the first prompts of each workload; conversations are rendered here, once."""
    tokenizer = Tokenizer.from_pretrained(str(target))
    lines = [line for file in sorted(workloads.glob("*.jsonl")) for line in file.read_text().splitlines()[:number]]
    rows = [json.loads(line) for line in lines]
    ids = [
        tokenizer.encode(row["prompt"])
        if "prompt" in row
        else tokenizer.encode(tokenizer.apply_chat_template(row["messages"]), False)
        for row in rows
    ]
    return [row["id"] for row in rows], ids


def check(row: Row, args: argparse.Namespace, prompts: list[list[int]], vllm: Vllm) -> dict[str, Any]:
    """Return what both engines did with one drafter."""
    if row.unable:
        return {"verdict": "not run", "reason": row.unable}
    with TemporaryDirectory() as folder:
        try:
            job = make_job(row, args, prompts, Path(folder))
            theirs, ours = vllm.run(job), run_ours(job)
        except (RuntimeError, InvalidSetup) as error:
            return {"verdict": "failed", "reason": str(error)}
        k = (job.speculative_config or {}).get("num_speculative_tokens", 0)
        comparison = compare(
            ours.answers,
            theirs.answers,
            max_tokens=args.max_tokens,
            k=k,
            chained=row.chained,
            tie=args.tie,
            gaps_of=cache(lambda number: OurGaps(job, number)),
        )
        return describe(row, args, k, comparison, ours, theirs)


def make_job(row: Row, args: argparse.Namespace, prompts: list[list[int]], folder: Path) -> Job:
    """Return what both engines are asked; `folder` is for a target with the drafter in it."""
    target, spec = args.bundle / "target", None
    if row.spec is not None:
        drafter = args.bundle / row.folder if row.folder else None
        spec = row.spec | {"num_speculative_tokens": number_of_guesses(row, args.k, drafter)}
        if row.in_target:
            assert drafter is not None
            target = with_drafter(drafter, target, folder / "assembled")
        elif drafter is not None:
            spec |= {"model": str(drafter)}
    return Job(
        target=target,
        speculative_config=spec,
        prompts=prompts,
        max_tokens=args.max_tokens,
        settings=shared_settings(args),
        timed_passes=args.timed_passes,
    )


def number_of_guesses(row: Row, k: int, drafter: Path | None) -> int:
    """Return k, or fewer where the drafter cannot make as many."""
    if drafter is None or row.k_key is None:
        return k
    bound = json.loads((drafter / "config.json").read_text()).get(row.k_key)
    # A block holds the last known token and the guesses.
    return k if bound is None else min(k, bound - (row.k_key == "block_size"))


def shared_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that both engines know under the same name."""
    return {
        "dtype": args.dtype,
        "max_model_len": args.max_model_len,
        "max_num_seqs": args.max_num_seqs,
        "max_num_batched_tokens": 2 * args.max_model_len,
        "enable_prefix_caching": args.prefix_caching,
    }


def with_drafter(drafter: Path, target: Path, out: Path) -> Path:
    """Return a directory that holds the target with the drafter's layers in it."""
    if (drafter / "tokenizer.json").exists():
        return drafter  # it holds both already
    assemble_mtp(target, drafter, out)
    return out


def describe(
    row: Row, args: argparse.Namespace, k: int, comparison: Comparison, ours: Side, theirs: Side
) -> dict[str, Any]:
    """Return one method's part of the result."""
    counts = {
        name: asdict(count(side.answers, max_tokens=args.max_tokens, k=k))
        for name, side in {"draftwise": ours, "vllm": theirs}.items()
    }
    for side in (ours, theirs):
        recorded = sum(len(answer.drafts) for answer in side.answers)
        assert recorded == side.counters.get("num_drafts", 0), "every draft counted was recorded, and no other"
    return {
        "verdict": "DIFFERENT" if comparison.failures else "same",
        "speculative_config": (row.spec or {}) | ({"num_speculative_tokens": k} if row.spec else {}),
        **asdict(comparison),
        "ms_per_token": {
            name: [round(each, 2) for each in side.ms_per_token]
            for name, side in {"draftwise": ours, "vllm": theirs}.items()
        },
        "counts": counts,
        "counters": {"draftwise": ours.counters, "vllm": theirs.counters},
        "versions": theirs.versions,
        "vllm_corrections": [
            each for each in theirs.corrections if row.spec and each.startswith(row.spec["method"] + ":")
        ],
    }


def make_table(results: dict[str, dict[str, Any]], args: argparse.Namespace) -> Table:
    """Return the results for people."""
    table = Table(title="The same drafter in draftwise and in vLLM", caption_justify="left")
    for heading in (
        "method",
        "k",
        "outputs equal",
        "drafts equal",
        "accepted per position (both)",
        "ms a token",
        "ties",
        "verdict",
    ):
        table.add_column(heading)
    for name, result in results.items():
        if "reason" in result:
            table.add_row(name, "", "", "", "", "", "", f"{result['verdict']}: {result['reason'].splitlines()[-1]}")
            continue
        k = result["speculative_config"].get("num_speculative_tokens", 0)
        table.add_row(
            name,
            str(k or ""),
            f"{result['equal_outputs']}/{result['num_prompts']}",
            f"{result['equal_drafts']}/{result['drafts_at_same_text']}" if k else "",
            accepted(result["counts"]) if k else "",
            " / ".join(f"{min(each):.1f}" for each in result["ms_per_token"].values() if each),
            str(len(result["ties"])),
            verdict(result),
        )
    table.caption = f"{args.dtype}, temperature 0, at most {args.max_tokens} tokens; a tie: logits within {args.tie:g}"
    if args.timed_passes:
        table.caption += "; ms a token: draftwise / vLLM (eager), prompts included, the fastest pass"
    return table


def accepted(counts: dict[str, dict[str, Any]]) -> str:
    """Return accepted tokens of each draft position over drafts, once where both engines agree."""
    ours, theirs = (
        " ".join(map(str, counts[name]["accepted_per_pos"])) + f" of {counts[name]['num_drafts']}"
        for name in ("draftwise", "vllm")
    )
    return ours if ours == theirs else f"{ours} / {theirs}"


def verdict(result: dict[str, Any]) -> str:
    if not result["failures"]:
        return " ".join(["same", *(f"(vLLM corrected: {each})" for each in result["vllm_corrections"])])
    first = result["failures"][0]
    gap = "no logits" if first["gap"] is None else f"gap {first['gap']:.4g}"
    place = f"prompt {first['prompt']}, token {first['position']}"
    return f"{len(result['failures'])} DIFFERENT; first: {first['what']} at {place} ({gap})"


def versions(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    theirs: Iterator[dict[str, str]] = (result["versions"] for result in results.values() if "versions" in result)
    return {
        "draftwise": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "vllm environment": next(theirs, None),
    }


def command_without_paths(args: argparse.Namespace) -> str:
    """Return the command as others can type it."""
    words = [word.replace(args.vllm_python, "VLLM_PYTHON") for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/interop/{Path(sys.argv[0]).name}", *words])


if __name__ == "__main__":
    main()
