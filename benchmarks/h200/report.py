"""Reads results of versus_vllm.py: the table against the goals, and the figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cases import CASES, nominal_acceptance_length
from floors import kv_bytes, weight_bytes
from shapes import SCALES, Scale

__all__ = ["as_markdown", "draw", "lines", "merged", "number", "table"]

OURS = "draftwise"
PEERS = {"vllm": "vLLM", "sglang": "SGLang"}
VLLM_MEMORY = Path(__file__).parent / "results" / "vllm_memory.json"
_VLLM_MEMORY_NAMES = {"plain": "base"}
_COPY_BYTES_PER_S = 4.27e12
"""A large copy on an H200 with nothing else on the card; beside idle engines a copy came out as slow as 3.80e12 once,
while steps went on reading at 3.9e12."""
_STRAY = 0.05
"""Share by which a measured acceptance length may miss the simulated one before the table marks it."""

Result = dict[str, Any]


def merged(paths: Sequence[Path]) -> Result:
    """Return several results as one: rows of later files replace those of earlier ones."""
    results = [json.loads(path.read_text()) for path in paths]
    whole = results[-1]
    for kind, keys in (("rows", ("engine", "case", "batch")), ("first", ("engine", "case", "batch", "output_tokens"))):
        found = {tuple(row[key] for key in keys): row for result in results for row in result[kind]}
        whole[kind] = list(found.values())
    for kind in ("floor", "transformers", "engines", "capacity"):
        whole[kind] = next((result[kind] for result in reversed(results) if result.get(kind)), whole.get(kind))
    whole["notes"] = [note for result in results for note in result["notes"]]
    return whole


def lines(result: Result) -> Iterator[dict[str, Any]]:
    """Yield a line for each case and batch size that our engine or the other was measured at."""
    scale, peer = SCALES[result["about"]["scale"]], _peer(result)
    rows = {(row["engine"], row["case"], row["batch"]): row for row in result["rows"]}
    chains = {(each["case"], each["batch"]): each["ms"] for each in result["floor"].get("chains", ())}
    for name, case in CASES.items():
        for batch in sorted({batch for _, other, batch in rows if other == name}):
            ours, vllm = rows.get((OURS, name, batch)), rows.get((peer, name, batch))
            line: dict[str, Any] = {"case": name, "batch": batch, "goal": scale.goal or case.goals.get(batch)}
            line["even_goal"] = case.break_even_goal if batch == 1 and scale.goal is None else None
            simulated = nominal_acceptance_length(case.k) if result["about"]["acceptance"] != "real" else None
            for key, row in (("ours", ours), ("vllm", vllm)):
                nominal = simulated or (row or {}).get("acceptance_length")
                line[key] = row and row["ms_step"]
                line[f"{key}_tokens_per_s"] = row and 1e3 * nominal * batch / row["ms_step"]
                line[f"{key}_stray"] = bool(row) and abs(row["acceptance_length"] / nominal - 1) > _STRAY
                plain = rows.get((OURS if key == "ours" else peer, "plain", batch))
                line[f"{key}_break_even"] = row["ms_step"] / plain["ms_step"] if row and plain else None
            line["ratio"] = vllm["ms_step"] / ours["ms_step"] if ours and vllm else None
            if ours:
                line["floor_ms"] = floor_ms(result, scale, name, batch, ours["output_tokens"])
                line["chain_ms"] = chains.get((name, batch))
            yield line


def floor_ms(result: Result, scale: Scale, name: str, batch: int, output_tokens: int) -> float | None:
    """Return the time to read a step's weights, keys and values at the speed of a copy; None off the GPU."""
    if not result["floor"].get("copy_bytes_per_s"):
        return None
    bandwidth = max(result["floor"]["copy_bytes_per_s"], _COPY_BYTES_PER_S)
    context = scale.length_of_prompts(batch) + output_tokens // 2
    num_bytes = weight_bytes(CASES[name], scale) + kv_bytes(CASES[name], scale, batch=batch, context=context)
    return 1e3 * num_bytes / bandwidth


def _peer(result: Result) -> str:
    """Return the name of the engine that ours is compared with."""
    return next((row["engine"] for row in result["rows"] if row["engine"] != OURS), "vllm")


def as_markdown(result: Result) -> str:
    """Return the tables."""
    about = result["about"]
    parts = [f"{about['gpu']}; {about['date']}; commit {about['commit']}", _main_table(result), _first_table(result)]
    parts += [_capacity_table(result), _transformers_line(result)]
    parts.insert(2, "Bold: a goal is reached. Star: the acceptance length is over 5 % off what was simulated.")
    parts.append("\n".join(f"- {note['text']}" for note in result["notes"]))
    return "\n\n".join(part for part in parts if part)


def table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; nothing if there are none."""
    body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *body]) if body else ""


def _main_table(result: Result) -> str:
    peer = PEERS[_peer(result)]
    head = ("case", "B", "ms/step ours", peer, "tokens/s ours", peer, "ratio", "goal", "break-even ours", peer)
    return table((*head, "of the bandwidth floor", "of the product chain"), [_cells(line) for line in lines(result)])


def _cells(line: dict[str, Any]) -> list[str]:
    ours, even_goal = line["ours"], line["even_goal"]
    reached = line["ratio"] is not None and line["goal"] is not None and line["ratio"] >= line["goal"]
    ratio = number(line["ratio"], 3)
    even = number(line["ours_break_even"], 2)
    if even_goal is not None and line["ours_break_even"] is not None:
        even = f"**{even}**" if line["ours_break_even"] <= even_goal else even
        even += f" (goal {even_goal:.2f})"
    return [
        line["case"],
        str(line["batch"]),
        number(ours, 3) + ("*" if line["ours_stray"] else ""),
        number(line["vllm"], 3) + ("*" if line["vllm_stray"] else ""),
        number(line["ours_tokens_per_s"], 0),
        number(line["vllm_tokens_per_s"], 0),
        f"**{ratio}**" if reached else ratio,
        number(line["goal"], 2),
        even,
        number(line["vllm_break_even"], 2),
        _share(line.get("floor_ms"), ours),
        _share(line.get("chain_ms"), ours),
    ]


def _first_table(result: Result) -> str:
    """Return prompts a second and times to the first token."""
    scale, found = SCALES[result["about"]["scale"]], list[list[str]]()
    first = {(r["engine"], r["case"], r["batch"], r["output_tokens"]): r["first_ms"] for r in result["first"]}
    plain_ms = statistics.median(first[OURS, "plain", 1, 8]) if (OURS, "plain", 1, 8) in first else None
    for name, batch, output in dict.fromkeys(key[1:] for key in first):
        ours, vllm = (first.get((engine, name, batch, output)) for engine in (OURS, _peer(result)))
        ours_ms, vllm_ms = (statistics.median(each) if each else None for each in (ours, vllm))
        what = f"{batch} prompt{'s' * (batch > 1)} of {scale.length_of_prompts(batch)}" + (
            ", nothing more" if output == 1 else ""
        )
        speeds = [
            number(1e3 * batch * scale.length_of_prompts(batch) / ms if ms else None, 0) for ms in (ours_ms, vllm_ms)
        ]
        over_plain = number(ours_ms / plain_ms if ours_ms and plain_ms and output != 1 else None, 3)
        ratio = number(vllm_ms / ours_ms if ours_ms and vllm_ms else None, 3)
        found.append([name, what, number(ours_ms, 2), number(vllm_ms, 2), *speeds, ratio, over_plain])
    peer = PEERS[_peer(result)]
    head = ("case", "sent", "ms to all first tokens, ours", peer, "prompt tokens/s ours", peer, "ratio")
    return table((*head, "ours over our plain"), found)


def _capacity_table(result: Result) -> str:
    """Return the tokens of context that fit, beside those of vLLM at the same share of the card's memory."""
    if not result.get("capacity") or not VLLM_MEMORY.exists():
        return ""
    measured = {row["case"]: row for row in json.loads(VLLM_MEMORY.read_text())}
    rows = []
    for row in result["capacity"]:
        theirs = measured.get(_VLLM_MEMORY_NAMES.get(row["case"], row["case"]))
        same = theirs and theirs["gpu_memory_utilization"] == row["gpu_memory_utilization"]
        tokens = theirs["num_gpu_blocks"] * theirs["block_size"] if theirs and same else None
        ratio = number(row["kv_tokens"] / tokens if tokens else None, 3)
        rows.append([row["case"], f"{row['kv_tokens']:,}", f"{tokens:,}" if tokens else "-", ratio])
    share = result["capacity"][0]["gpu_memory_utilization"]
    return table(
        ("case", f"tokens of context at {share} of the memory, ours", "vLLM (vllm_memory.json)", "ratio"), rows
    )


def _transformers_line(result: Result) -> str:
    found = result.get("transformers") or {}
    kinds = [f"{kind} cache {found[kind]['ms_step']:.2f} ms a token" for kind in ("dynamic", "static") if kind in found]
    return f"transformers {found['version']} generate() at batch 1: {', '.join(kinds)}" if kinds else ""


def number(value: float | None, digits: int) -> str:
    """Return a number's text; a dash for what is not known."""
    return "-" if value is None else f"{value:.{digits}f}"


def _share(floor: float | None, ms: float | None) -> str:
    return "-" if floor is None or ms is None else f"{100 * floor / ms:.0f} %"


def draw(result: Result, folder: Path) -> None:
    """Write crossover.svg (tokens/s over vLLM's plain decoding, by batch) and step_time.svg (ms a step, by batch)."""
    from draftwise.reporting.svg import to_svg

    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "crossover": (_crossover, "Tokens per second over vLLM without speculation, by batch size"),
        "step_time": (
            lambda result: _figure(list(lines(result)), lambda line, engine: line[engine], "milliseconds a step"),
            "Milliseconds of a step, by batch size",
        ),
    }
    for name, (make, title) in figures.items():
        about = "A line for each method; the numbers are in versus_vllm.json."
        svg = to_svg(lambda make=make: make(result), name, title=title, about=about, alone=True)
        (folder / f"{name}.svg").write_text(svg)


def _crossover(result: Result) -> Any:
    """Return the figure that shows to which batch size a method pays, and in which engine it pays more."""
    found = list(lines(result))
    plain = {line["batch"]: line["vllm_tokens_per_s"] for line in found if line["case"] == "plain"}

    def over_plain(line: dict[str, Any], engine: str) -> float | None:
        rate, base = line[f"{engine}_tokens_per_s"], plain.get(line["batch"])
        return rate / base if rate and base else None

    return _figure(found, over_plain, "tokens/s over plain vLLM at the same batch")


def _figure(found: list[dict[str, Any]], value: Callable[[dict[str, Any], str], float | None], label: str) -> Any:
    """Return a figure with a line for each case and engine over the batch size."""
    from matplotlib.figure import Figure

    from draftwise.reporting.appearance import PALETTE, PLAIN

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = iter(PALETTE)
    for name in dict.fromkeys(line["case"] for line in found):
        rows = [line for line in found if line["case"] == name]
        colour = PLAIN if name == "plain" else next(colours)
        for engine, style in (("ours", "-"), ("vllm", "--")):
            points = [(line["batch"], at) for line in rows if (at := value(line, engine)) is not None]
            if points:
                legend = name if engine == "ours" else None
                axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=3, label=legend)
    axes.plot([], [], "--", color=PLAIN, label="dashed: vLLM 0.26.0")
    axes.set(xlabel="sequences decoded together", ylabel=label, xscale="log")
    axes.set_ylim(bottom=0)
    ticks = sorted({line["batch"] for line in found})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend()
    return figure
