"""Draw the loss logs as one SVG picture."""

import argparse
import csv
from pathlib import Path

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PANELS = (
    ("target_loss.csv", "Target: likelihood", "step", ["text", "unit", "rewrite", "heldout_code", "heldout_prose"]),
    ("unloop_loss.csv", "Target: on-policy unlikelihood", "round", ["loops", "ended"]),
    ("draft_loss.csv", "Draft model: distillation", "step", ["kl_own_text", "kl_corpus"]),
)


def draw(axes: Axes, file: Path, title: str, unit: str, columns: list[str]) -> None:
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    for column in columns:
        axes.plot([int(row["step"]) for row in rows], [float(row[column]) for row in rows], label=column)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(unit)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=Path, required=True, help="folder with the *_loss.csv files")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rcParams["svg.hashsalt"] = "bundle"
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    panels = figure.subplots(1, len(PANELS))
    for axes, (name, *panel) in zip(panels, PANELS, strict=True):
        draw(axes, args.logs / name, *panel)
    figure.savefig(args.out, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
