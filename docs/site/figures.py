"""Figures of how a method drafts, drawn from the columns of its row: one style, in the colors of the page's theme."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.knowledge.methods import Method

_K = 4
_SIDE = 24
_STYLE = "font: 12px sans-serif; color: var(--md-default-fg-color, currentColor)"
_ACCENT = "var(--md-typeset-a-color, #4051b5)"
_SOURCES = {
    "text": "copy what followed",
    "own_model": "small model",
    "own_code": "your class",
    "target_states": "",
    "none": "",
}
_NETWORKS = {"chain": "one pass a token", "one_pass": "one pass for all", "heads": "one head a position"}


def draw(method: Method, *, parallel: bool = False) -> str:
    """Return an SVG of one step: what is drafted, from what, and what the target verifies.

    Args:
        method: its columns `drafts_from`, `network`, `aux_states` and `weights` decide what is drawn.
        parallel: whether to draw the form with `parallel_drafting`.
    """
    network = "one_pass" if parallel else method.network
    drafts = method.drafts_from != "none"
    parts = [*_text(drafts=drafts), *_target(drafts=drafts, taps={"several": 3, "last": 1}.get(method.aux_states, 0))]
    parts += _drafter(method, network) if drafts else [_box(152, 84, 130, 34, "writes states to files")]
    said = f"How {method.name} drafts: {_describe(method, network)}"
    body = "".join(parts)
    return (
        f'<figure><svg viewBox="0 0 480 214" role="img" aria-label="{said}" style="{_STYLE}" fill="none" '
        f'stroke="currentColor" xmlns="http://www.w3.org/2000/svg">'
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="currentColor" stroke="none"/></marker></defs>{body}</svg>'
        f"<figcaption>{said}.</figcaption></figure>"
    )


def _describe(method: Method, network: str) -> str:
    if method.drafts_from == "none":
        return "it drafts nothing, and writes hidden states of the target to files"
    source = {
        "text": "it looks the last tokens up in the text and copies what followed them",
        "own_model": "a small language model reads the text",
        "own_code": "your own class returns the draft tokens",
        "target_states": f"a small network reads hidden states of {method.aux_states} "
        f"{'layers' if method.aux_states == 'several' else 'layer'} of the target".replace("of last", "of the last"),
    }[method.drafts_from]
    how = {"chain": ", one pass for each draft token", "one_pass": ", one pass for all draft tokens"}.get(network, "")
    how = ", one head for each draft token" if network == "heads" else how
    return f"{source}{how}; then one pass of the target verifies all of them"


def _text(*, drafts: bool) -> Iterator[str]:
    """Yield the row of tokens: the text so far, the draft, and what is left of it after verification."""
    yield _label(8, 16, "text so far")
    for at in range(5):
        yield _token(8 + at * 27, "fill='currentColor' fill-opacity='0.25'")
    if not drafts:
        return
    yield _label(152, 16, f"draft, k = {_K}")
    yield _label(338, 16, "after one step")
    for at in range(_K):
        yield _token(152 + at * 27, "stroke-dasharray='3 2'")
    for at in range(_K):
        sign = "M6 12l4 5l8-10" if at < _K - 2 else "M7 7l10 10M17 7l-10 10" if at == _K - 2 else ""
        sign = sign if at < _K - 1 else "M12 6v12M6 12h12"
        fill = f"fill='{_ACCENT}' fill-opacity='0.25'" if at != _K - 2 else ""
        x = 338 + at * 30
        yield _token(x, fill) + f'<path transform="translate({x} 24)" d="{sign}" stroke-width="1.6"/>'


def _target(*, drafts: bool, taps: int) -> Iterator[str]:
    """Yield the target's passes, and the hidden states that a drafter takes from the last one."""
    yield _box(8, 158, 132, 40, "target: last pass")
    for at in range(taps):
        yield f'<circle cx="{62 + at * 24}" cy="158" r="3" fill="currentColor"/>'
        yield _arrow(62 + at * 24, 156, 146, 92 + at * 9)
    if taps:
        yield _label(8, 142, "hidden states")
    if drafts:
        yield _box(318, 158, 154, 40, f"target: verify {_K} + 1")
        yield _arrow(264, 52, 340, 154)
        yield _arrow(440, 154, 440, 54)


def _drafter(method: Method, network: str) -> Iterator[str]:
    """Yield the boxes that make the draft."""
    label = "modules of the target" if method.weights == "target" else _SOURCES[method.drafts_from]
    if method.drafts_from == "text":
        yield _box(40, 84, 172, 34, label)
        yield _arrow(66, 54, 66, 80) + _arrow(196, 80, 196, 54)
        return
    if method.drafts_from == "own_code":
        yield _box(152, 84, 108, 34, label) + _arrow(206, 80, 206, 54)
        return
    if method.drafts_from == "own_model":
        yield _arrow(128, 54, 154, 80)
    if network == "chain":
        for at in range(_K):
            yield _box(152 + at * 27, 84, 22, 34, "") + _arrow(163 + at * 27, 80, 163 + at * 27, 54)
            if at:
                yield _arrow(150 + at * 27 - 4, 101, 151 + at * 27, 101)
    elif network == "heads":
        for at in range(_K):
            yield _box(152 + at * 27, 84, 22, 34, str(at + 1)) + _arrow(163 + at * 27, 80, 163 + at * 27, 54)
    else:
        yield _box(152, 84, 104, 34, "")
        for at in range(_K):
            yield _arrow(163 + at * 27, 80, 163 + at * 27, 54)
    for at, line in enumerate(filter(None, (label, _NETWORKS[network]))):
        yield _label(152, 134 + at * 15, line)


def _token(x: int, paint: str) -> str:
    return f'<rect x="{x}" y="24" width="{_SIDE}" height="{_SIDE}" rx="4" {paint}/>'


def _box(x: int, y: int, width: int, height: int, text: str) -> str:
    label = _label(x + width // 2, y + height // 2 + 4, text, "middle") if text else ""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" stroke="{_ACCENT}"/>{label}'


def _label(x: int, y: int, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor" stroke="none">{text}</text>'


def _arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    return f'<path d="M{x1} {y1}L{x2} {y2}" marker-end="url(#tip)"/>'
