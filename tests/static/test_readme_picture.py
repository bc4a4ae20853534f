"""The picture of README.md shows the numbers of its sentence; DRAFTWISE_UPDATE=1 draws it again from them."""

from __future__ import annotations

import os
import re
from math import log
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "assets" / "demo-real.svg"
RESULT = re.compile(r"(?:(\S+(?: k=\d+)?) answers )?(\w+) ([\d.]+)x as fast \(([\d.]+)-([\d.]+)")
WHOLE = re.compile(r"one setting for all of it: (\S+(?: k=\d+)?), ([\d.]+)x \(([\d.]+)-([\d.]+)\)")
WIDTH, ROW, LEFT, RIGHT, TOP = 760, 36, 210, 590, 20
ENDS = (0.8, 4.5)
TICKS = (1, 1.5, 2, 3, 4)
MOST_PIXELS = 300


def read_results() -> list[tuple[str, float, float, float]]:
    """Return name, speed-up and interval of each result that README.md quotes."""
    quote = " ".join(
        line[2:] for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line[:2] == "> "
    )
    rows, last = [], ""
    for method, workload, *values in RESULT.findall(quote):
        last = method or last  # named once for several workloads
        rows.append((f"{workload} · {last}", *values))
    rows += [(f"all · {method}", *values) for method, *values in WHOLE.findall(quote)]
    return [(name, *map(float, values)) for name, *values in rows]


def place(value: float) -> float:
    """Return where a speed-up lies on the logarithmic axis."""
    low, high = map(log, ENDS)
    return round(LEFT + (RIGHT - LEFT) * (log(value) - low) / (high - low), 1)


def draw(rows: list[tuple[str, float, float, float]]) -> str:
    """Return the picture as SVG."""
    bottom = TOP + ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 50}" role="img" '
        'font-family="sans-serif" font-size="16">',
        "<title>Speed-up over plain decoding, with 95 % intervals: make demo-real</title>",
        f'<rect width="{WIDTH}" height="{bottom + 50}" fill="#fff"/>',
    ]
    for tick in TICKS:
        style = 'stroke="#333"' if tick == 1 else 'stroke="#ddd"'
        parts += [
            f'<line x1="{place(tick)}" y1="{TOP}" x2="{place(tick)}" y2="{bottom}" {style}/>',
            f'<text x="{place(tick)}" y="{bottom + 20}" text-anchor="middle" fill="#333">{tick}x</text>',
        ]
    for number, (name, value, low, high) in enumerate(rows):
        y = TOP + ROW * number + ROW // 2
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 5}" text-anchor="end" fill="#222">{name}</text>',
            f'<line x1="{place(low)}" y1="{y}" x2="{place(high)}" y2="{y}" stroke="#7bb896" stroke-width="4"/>',
            f'<circle cx="{place(value)}" cy="{y}" r="7" fill="#1a7f42"/>',
            f'<text x="{RIGHT + 10}" y="{y + 5}" fill="#222">{value:.2f}x ({low:.2f}-{high:.2f})</text>',
        ]
    caption = "speed-up over plain decoding (logarithmic); bar: 95 % interval"
    parts += [
        f'<text x="{(LEFT + RIGHT) / 2}" y="{bottom + 42}" text-anchor="middle" fill="#555">{caption}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def test_the_picture_shows_the_numbers_of_the_sentence() -> None:
    rows = read_results()
    assert len(rows) == 5
    if os.environ.get("DRAFTWISE_UPDATE"):
        PICTURE.write_text(draw(rows), encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == draw(rows)
    assert ElementTree.parse(PICTURE).getroot().tag.endswith("svg")


def test_the_front_page_has_one_picture_and_a_hundred_lines() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 100
    pictures = re.findall(r'<img src="([^"]+)" height="(\d+)"', page) + re.findall(r"!\[[^\]]*\]\(([^)]+)\)()", page)
    assert [(Path(ROOT / file), int(height) <= MOST_PIXELS) for file, height in pictures] == [(PICTURE, True)]
