"""Random identifiers, and the consistent renaming of a function's identifiers by them."""

import ast
import builtins
import keyword
import random
import re
import string
from collections import Counter
from dataclasses import dataclass

WORD = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*\b")
FIXED = {"self", "cls", "_", *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The words that identifiers of a corpus consist of, and sentences of its prose."""

    words: list[str]
    sentences: list[str]

    def name(self, rng: random.Random) -> str:
        """Return a snake-case identifier that is no keyword and no builtin."""
        while True:
            if rng.random() < 0.12:
                name = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 7)))
            else:
                name = "_".join(rng.choices(self.words, k=rng.choice([1, 2, 2, 3])))
            if name not in FIXED:
                return name

    def like(self, name: str, rng: random.Random) -> str:
        """Return a new identifier in the style of `name`: constant, class, private or plain."""
        new = self.name(rng)
        if name.isupper():
            new = new.upper()
        elif name[:1].isupper():
            new = "".join(part.capitalize() for part in new.split("_"))
        if name.startswith("_"):
            new = "_" + new
        return new

    def sentence(self, rng: random.Random) -> str:
        return rng.choice(self.sentences)


def build_lexicon(code: list[str], prose: list[str]) -> Lexicon:
    """Return the lexicon of the given texts, most frequent words first."""
    counts = Counter(
        part.lower()
        for text in code
        for name in WORD.findall(text)
        for part in name.split("_")
        if 2 < len(part) < 12 and part.isalpha()
    )
    words = [word for word, count in counts.most_common(6000) if count > 5]
    pattern = re.compile(r"(?<=\s)[A-Z][a-z]+ [a-z][A-Za-z0-9 ,-]{8,70}\.(?=\s)")
    sentences = sorted({match for text in prose for match in pattern.findall(text)})
    return Lexicon(words, sentences)


def names_in(tree: ast.AST) -> set[str]:
    """Return the identifiers of `tree` that a renaming may touch."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return {name for name in found if name not in FIXED and not name.startswith("__")}


def substitute(source: str, rng: random.Random, lexicon: Lexicon, share: float) -> str:
    """Return `source` with about `share` of its identifiers renamed, everywhere they occur."""
    names = sorted(names_in(ast.parse(source)))
    mapping = {name: lexicon.like(name, rng) for name in names if rng.random() < share}
    return WORD.sub(lambda match: mapping.get(match.group(), match.group()), source)
