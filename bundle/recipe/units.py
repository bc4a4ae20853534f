"""Cut documents into units with a natural end: functions with context, entries and sections of prose."""

import ast
import random
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

DIRECTIVE = re.compile(r"^( *)\.\. (?:function|method|class|data|attribute|exception|module|describe|cmdoption):: ")
UNDERLINE = re.compile(r"^([=\-~^\"*#+.])\1{2,}$")
MAX_SECTION_CHARS = 1500
MAX_CONTEXT_LINES = 40
MIN_PROSE_CHARS = 150


@dataclass(frozen=True, slots=True)
class CodeUnit:
    """A function, the lines before it, and how many lines its signature and docstring take."""

    context: str
    function: str
    head_lines: int

    @property
    def text(self) -> str:
        return self.context + self.function


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def find_functions(tree: ast.Module) -> Iterator[tuple[FunctionNode, ast.ClassDef | None]]:
    """Yield the functions at module or class level and the class that holds each."""
    holders: list[tuple[ast.AST, ast.ClassDef | None]] = [(tree, None)]
    while holders:
        holder, owner = holders.pop()
        for node in ast.iter_child_nodes(holder):
            if isinstance(node, FunctionNode):
                yield node, owner
            elif isinstance(node, ast.ClassDef):
                holders.append((node, node))
            elif isinstance(node, ast.If | ast.Try):
                holders.append((node, owner))


def first_line(node: FunctionNode) -> int:
    """Return the 0-based line on which `node` starts, decorators included."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1


def head_length(node: FunctionNode) -> int:
    """Return how many lines the decorators, signature and docstring of `node` take."""
    body = node.body
    if ast.get_docstring(node, clean=False) is not None:
        return (body[0].end_lineno or 0) - first_line(node)
    return max(body[0].lineno - 1, node.lineno) - first_line(node)


def choose_context(rng: random.Random, lines: list[str], start: int, owner: ast.ClassDef | None) -> str:
    """Return nothing, the class header, or some lines of the file that come before line `start`."""
    choice = rng.random()
    if choice < 0.2:
        return ""
    if choice < 0.6 and owner is not None:
        header_end = owner.body[0].lineno - 1
        if ast.get_docstring(owner) is not None:
            header_end = owner.body[0].end_lineno or header_end
        if header_end <= start:
            return "\n".join(lines[owner.lineno - 1 : header_end]) + "\n\n"
    first = max(0, start - rng.randint(3, MAX_CONTEXT_LINES))
    while first < start and lines[first].strip():
        first += 1
    return "\n".join(lines[first:start]).lstrip("\n") + "\n" if first < start else ""


def code_units(text: str, rng: random.Random) -> Iterator[CodeUnit]:
    """Yield every function of a module as a unit whose context is drawn by `rng`."""
    lines = text.split("\n")
    for node, owner in find_functions(ast.parse(text)):
        start, end = first_line(node), node.end_lineno or node.lineno
        if node.body[0].lineno == node.lineno:
            continue
        context = choose_context(rng, lines, start, owner)
        function = "\n".join(lines[start:end])
        if not context:
            function = textwrap.dedent(function)
        yield CodeUnit(context, function, head_length(node))


def prose_entries(lines: list[str]) -> Iterator[str]:
    """Yield each documented object: its directive and the indented lines under it."""
    for index, line in enumerate(lines):
        match = DIRECTIVE.match(line)
        if match is None:
            continue
        indent, end = len(match.group(1)), index + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" " * (indent + 1))):
            end += 1
        yield textwrap.dedent("\n".join(lines[index:end])).strip()


def prose_sections(lines: list[str]) -> Iterator[str]:
    """Yield each section, from its title to the line before the next title."""
    starts = [0] + [i - 1 for i in range(1, len(lines)) if UNDERLINE.match(lines[i]) and lines[i - 1].strip()]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield "\n".join(lines[start:end]).strip()


def split_section(section: str) -> Iterator[str]:
    """Yield a section whole, or cut between paragraphs where it outgrows MAX_SECTION_CHARS."""
    part: list[str] = []
    for block in section.split("\n\n"):
        if part and sum(map(len, part)) + len(block) > MAX_SECTION_CHARS:
            yield "\n\n".join(part)
            part = []
        part.append(block)
    yield "\n\n".join(part)


def prose_units(text: str) -> Iterator[str]:
    """Yield the entries and the sections of a document that have some length."""
    lines = text.split("\n")
    units = [*prose_entries(lines), *(part for section in prose_sections(lines) for part in split_section(section))]
    yield from (unit for unit in units if len(unit) >= MIN_PROSE_CHARS)


def cut_code(unit: CodeUnit, body_lines: int) -> tuple[str, str]:
    """Return a prompt that ends after the head and some lines of the body, and the rest."""
    lines = unit.function.split("\n")
    kept = min(unit.head_lines + body_lines, len(lines) - 1)
    prompt = unit.context + "\n".join(lines[:kept]).rstrip()
    return prompt, unit.text[len(prompt) :]


def cut_prose(unit: str, rng: random.Random) -> tuple[str, str]:
    """Return a prompt that ends at a word 25 to 65 % into the unit, and the rest."""
    target = int(len(unit) * rng.uniform(0.25, 0.65))
    match = re.compile(r"(?<=\S)(?=\s)").search(unit, target)
    cut = match.start() if match else len(unit)
    return unit[:cut], unit[cut:]
