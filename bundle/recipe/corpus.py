"""Collect the Python standard library and its documentation into one JSONL file of documents."""

import argparse
import ast
import hashlib
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

HELDOUT = json.loads((Path(__file__).parent / "heldout.json").read_text())
SKIPPED = ("site-packages/", "encodings/", "pydoc_data/", "lib2to3/tests/data/", "test/", "_sysconfigdata")
MAX_TEST_BYTES = 5_000_000
MAX_FILE_BYTES = 250_000
POLICY_SHARE = 0.06
MIN_DUPLICATE_CHARS = 200


def hash_share(path: str) -> float:
    """Return a number in [0, 1) that depends on `path` alone."""
    return int(hashlib.sha256(path.encode()).hexdigest()[:8], 16) / 2**32


def choose_split(path: str, kind: str) -> str:
    """Return "heldout" (evaluation), "policy" (prompts for generation only) or "train"."""
    if any(path.startswith(prefix) for prefix in HELDOUT[kind]):
        return "heldout"
    return "policy" if hash_share(path) < POLICY_SHARE else "train"


def read_python(path: Path) -> str | None:
    """Return the text of a Python file that is plain UTF-8 and parses, or None."""
    try:
        text = path.read_text(encoding="utf-8")
        ast.parse(text)
    except (UnicodeDecodeError, SyntaxError, ValueError):
        return None
    return text if 0 < len(text) <= MAX_FILE_BYTES else None


def library_documents(stdlib: Path) -> Iterator[dict[str, str]]:
    for file in sorted(stdlib.rglob("*.py")):
        inner = file.relative_to(stdlib).as_posix()
        if inner.startswith(SKIPPED) or "/test" in inner or "_test/" in inner:
            continue
        text = read_python(file)
        if text is not None:
            path = f"Lib/{inner}"
            yield {"path": path, "kind": "code", "split": choose_split(path, "code"), "text": text}


def test_documents(stdlib: Path) -> Iterator[dict[str, str]]:
    """Yield test modules in hash order: the first MAX_TEST_BYTES train, the rest only prompt."""
    heldout_names = {Path(prefix).stem for prefix in HELDOUT["code"]}
    files = sorted((stdlib / "test").rglob("*.py"), key=lambda file: hash_share(file.name))
    used = 0
    for file in files:
        inner = file.relative_to(stdlib).as_posix()
        if any(name in inner for name in heldout_names):
            continue
        text = read_python(file)
        if text is None:
            continue
        used += len(text)
        split = "train" if used <= MAX_TEST_BYTES else "policy"
        yield {"path": f"Lib/{inner}", "kind": "code", "split": split, "text": text}


def prose_documents(sources: Path) -> Iterator[dict[str, str]]:
    """Yield reStructuredText documents, each long paragraph in the first document only."""
    seen: set[str] = set()
    files = sorted(sources.rglob("*.rst.txt"))
    documents = []
    for file in files:
        path = "Doc/" + file.relative_to(sources).as_posix().removesuffix(".txt")
        documents.append((choose_split(path, "prose"), path, file.read_text(encoding="utf-8")))
    for split, path, text in sorted(documents):
        blocks = []
        for block in text.split("\n\n"):
            if len(block) >= MIN_DUPLICATE_CHARS:
                if block in seen:
                    continue
                seen.add(block)
            blocks.append(block)
        yield {"path": path, "kind": "prose", "split": split, "text": "\n\n".join(blocks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--docs", type=Path, required=True, help="the documentation's _sources folder")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    documents = [
        *library_documents(args.stdlib),
        *test_documents(args.stdlib),
        *prose_documents(args.docs),
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w") as file:
        file.writelines(json.dumps(document) + "\n" for document in documents)
    for kind in ("code", "prose"):
        for split in ("train", "policy", "heldout"):
            texts = [d["text"] for d in documents if d["kind"] == kind and d["split"] == split]
            print(f"{kind:5} {split:7} {len(texts):5} documents {sum(map(len, texts)):>10,} characters")


if __name__ == "__main__":
    main()
