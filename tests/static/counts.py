"""Figures of wordings, names and prose (`prose.py`); `counts.json` holds the committed ones, which may only fall.

python tests/static/counts.py                    # fail, and list the places, where a figure grew
python tests/static/counts.py --show beside      # list all places of one figure
python tests/static/counts.py --update           # lower the committed figures to today's; never raises one
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from tests.static.prose import help_of, measure  # noqa: E402

__all__ = ["COMMITTED", "compare", "count_all", "lower"]

COMMITTED = Path(__file__).with_suffix(".json")

SHOWN = 40
"""Places listed behind a figure that grew; `--show` lists all."""

Node = ast.Module | ast.ClassDef | ast.expr
Modules = Mapping[str, Sequence[Node]]
"""File -> the nodes of its tree that are looked at, the module first."""
Places = dict[str, list[str]]
"""Name of a count -> where its occurrences are, as `file:line: text`."""

WORDINGS = {
    "beside": r"\bbeside\b",
    "is none": r"\b(?:is|are|was|were) none\b",
    "so many": r"\bso many\b",
    "others than": r"\bothers? than\b",
    "that which": r"\bthat which\b",
    "is said": r"\b(?:is|are) said to be\b",
    "is let": r"\b(?:is|are|be) let (?:pass|through)\b",
    "is told": r"\b(?:is|are|was|were) told\b",
    "learnt": r"\blearnt\b",
    "has not": r"\b(?:has|have) not(?=[.,;:)]|$)",
}
"""Searched in docstrings, comments and other text of the package, and in README.md, CONTRIBUTING.md and docs/."""

PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
"""Kinds of tokens; from Python 3.12 on, an f-string is several."""
ANY_WORDING = re.compile("|".join(WORDINGS.values()), re.MULTILINE)

OPENS = re.compile(
    r"(?:About|Above|After|Against|Among|As|At|Before|Below|Beside|Between|Beyond|By|During|For|From|In|Into|Of|On|Over|"
    r"Per|Since|That|Through|To|Toward|Towards|Under|Until|Up to|Upon|With|Within|Without)\b"
)
"""A preposition or "that": text of an attribute or an option that begins with it is a fragment."""

PARTICIPLE = re.compile(
    r"(?!Confirmed$|Feed$|Need$|Seed$|Speed$)[A-Z][a-z]+ed|Begun|Bound|Built|Chosen|Done|Drawn|Driven|Fallen|Felt|Found|"
    r"Given|Gone|Grown|Held|Hidden|Kept|Known|Laid|Led|Left|Lost|Made|Meant|Met|Paid|Put|Said|Seen|Sent|Shown|Sight|"
    r"Sought|Spent|Split|Spoken|Sworn|Taken|Taught|Told|Understood|Won|Worn|Written"
)
"""A class with such a name says what was done to a thing, and not what the thing is."""


def count_all(root: Path) -> Places:
    """Return every count of a working tree."""
    places: Places = {name: [] for name in WORDINGS}
    modules = {path: path.read_text(encoding="utf-8") for path in sorted((root / "src").rglob("*.py"))}
    found = {path.relative_to(root).as_posix(): find_nodes(ast.parse(text)) for path, text in modules.items()}
    for path, text in modules.items():
        if ANY_WORDING.search(text):
            find_wordings(path.relative_to(root).as_posix(), texts_of(text), places)
    for path in [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]:
        if path.exists():
            lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            find_wordings(path.relative_to(root).as_posix(), lines, places)
    places["module docstrings with what"] = list(find_whats(found))
    places["attributes begun with a preposition"] = list(find_attributes(found))
    places["help begun with a preposition"] = list(find_helps(found))
    places["participles as classes"] = list(find_participles(found))
    places |= find_collisions(found)
    return places


def find_nodes(tree: ast.Module) -> list[Node]:
    """Return what is looked at in a module: itself, its classes and the help texts of options."""
    nodes = list(ast.walk(tree))
    return [
        *(each for each in nodes if isinstance(each, ast.Module | ast.ClassDef)),
        *filter(None, map(help_of, nodes)),
    ]


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of every line of prose in a module: comments and strings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in PROSE:
            yield from enumerate(token.string.splitlines(), token.start[0])


def find_wordings(file: str, lines: Iterable[tuple[int, str]], places: Places) -> None:
    """Add the places of all wordings in numbered lines of a file."""
    for number, line in lines:
        for name, pattern in WORDINGS.items():
            places[name] += [f"{file}:{number}: {line.strip()}"] * len(re.findall(pattern, line))


def module_of(nodes: Sequence[Node]) -> ast.Module:
    """Return the module itself, which `ast.walk` yields first."""
    assert isinstance(nodes[0], ast.Module)
    return nodes[0]


def find_whats(modules: Modules) -> Iterator[str]:
    """Yield modules whose docstring says "what"."""
    for file, nodes in modules.items():
        summary = (ast.get_docstring(module_of(nodes)) or "").partition("\n\n")[0]
        if re.search(r"\bwhat\b", summary, re.IGNORECASE):
            yield f"{file}:1: {summary}"


def find_attributes(modules: Modules) -> Iterator[str]:
    """Yield docstrings of attributes and constants, and rows of `Attributes:`, that begin with a preposition."""
    for file, nodes in modules.items():
        for node in nodes:
            if isinstance(node, ast.expr):
                continue
            for before, after in zip(node.body, node.body[1:], strict=False):
                text = string_of(after.value) if isinstance(after, ast.Expr) else None
                if isinstance(before, ast.Assign | ast.AnnAssign) and text and OPENS.match(text):
                    yield f"{file}:{after.lineno}: {first_line(text)}"
            rows = (ast.get_docstring(node) or "").partition("Attributes:\n")[2]
            for name, text in re.findall(r"^ {4}(\w+): (.*)", rows, re.MULTILINE):
                if OPENS.match(text[:1].upper() + text[1:]):
                    yield f"{file}:{getattr(node, 'lineno', 1)}: {name}: {text}"


def find_helps(modules: Modules) -> Iterator[str]:
    """Yield help texts of options that begin with a preposition."""
    for file, nodes in modules.items():
        for node in nodes:
            if isinstance(node, ast.expr) and (text := string_of(node)) and OPENS.match(text):
                yield f"{file}:{node.lineno}: {text}"


def string_of(node: ast.expr) -> str | None:
    """Return the text of a string literal, as far as it is one."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def first_line(text: str) -> str:
    """Return a text up to its first line break."""
    return text.partition("\n")[0]


def find_participles(modules: Modules) -> Iterator[str]:
    """Yield classes whose name is a participle alone."""
    for file, nodes in modules.items():
        for node in nodes:
            if isinstance(node, ast.ClassDef) and PARTICIPLE.fullmatch(node.name.lstrip("_")):
                yield f"{file}:{node.lineno}: class {node.name}"


def find_collisions(modules: Modules) -> Places:
    """Return file names in several folders, and names of public classes in several modules."""
    files, classes = defaultdict(list), defaultdict(list)
    for file, nodes in modules.items():
        name = Path(file).name
        if name not in ("__init__.py", "__main__.py"):
            files[name].append(file)
        for node in module_of(nodes).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(file)
    return {
        kind: [f"{name}: {', '.join(where)}" for name, where in sorted(found.items()) if len(where) > 1]
        for kind, found in (("colliding file names", files), ("colliding public classes", classes))
    }


def compare(places: Places, committed: Mapping[str, int], rates: Mapping[str, int] | None = None) -> list[str]:
    """Return a line for each figure that grew, followed by its places. A name without a rate is a plain count."""
    figures = figures_of(places, rates)
    return [
        "\n  ".join([f"{name}: {figure}, at most {committed.get(name, 0)} before", *places.get(name, [])[:SHOWN]])
        for name, figure in figures.items()
        if figure > committed.get(name, 0)
    ]


def lower(places: Places, committed: Mapping[str, int], rates: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the figures to commit: today's where they fell, the earlier ones elsewhere."""
    return {name: min(figure, committed.get(name, figure)) for name, figure in figures_of(places, rates).items()}


def figures_of(places: Places, rates: Mapping[str, int] | None) -> dict[str, int]:
    """Return the number of places by name, or the rate where there is one."""
    return {name: len(found) for name, found in places.items()} | dict(rates or {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="lower the committed numbers to today's")
    parser.add_argument("--show", metavar="NAME", help="list the places of one count")
    given = parser.parse_args()
    rates, prose = measure(ROOT)
    places = count_all(ROOT) | prose
    committed = json.loads(COMMITTED.read_text(encoding="utf-8")) if COMMITTED.exists() else {}
    if given.show is not None:
        sys.exit("\n".join(places.get(given.show, [f"The counts are: {', '.join(places)}."])))
    if given.update:
        COMMITTED.write_text(json.dumps(lower(places, committed, rates), indent=1) + "\n", encoding="utf-8")
    grown = compare(places, committed if committed else lower(places, {}, rates), rates)
    print("\n".join(grown) or "Wordings, names and prose: no figure grew.")
    sys.exit(bool(grown))


if __name__ == "__main__":
    main()
