"""Runs in pyodide: compiles /site.zip into /compiled.zip, and what it needs of /library.zip into /pruned.zip.

Kept of the standard library is what the interpreter and one request of each verb import, what any line of the
archive imports, and what all of these import when they are imported.
"""

import ast
import importlib._bootstrap_external
import importlib.util
import sys
import types
import zipfile

_EARLIEST = (1980, 1, 1, 0, 0, 0)
_ENCODINGS = ("ascii", "idna", "latin_1", "utf_16", "utf_16_be", "utf_16_le", "utf_8_sig")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_COMMAND = 'vllm serve Qwen/Qwen3-8B --speculative-config \'{"method": "ngram", "num_speculative_tokens": 5}\''


def compile_source(content, path):
    """Return the bytecode of a module, which is never compared with its source, without the text of docstrings."""
    tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body[0].value.value = "-"  # a dataclass without one makes its own, slowly
    code = drop_lines(compile(tree, path, "exec", dont_inherit=True))
    return importlib._bootstrap_external._code_to_hash_pyc(code, importlib.util.source_hash(content), False)


def drop_lines(code):
    """Return code without the table of its lines, a quarter of it."""
    inner = tuple(drop_lines(each) if isinstance(each, types.CodeType) else each for each in code.co_consts)
    return code.replace(co_consts=inner, co_linetable=b"")


def find_imports(content, name, is_package, whole):
    """Yield the names of modules that a module imports; `whole`: also inside functions."""
    package = name if is_package else name.rpartition(".")[0]
    nodes = [ast.parse(content)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                base = ".".join([*above[: len(above) + 1 - node.level], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("__name__ == '__main__'", "TYPE_CHECKING"):
            nodes.extend(node.orelse)
        elif whole or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            nodes.extend(ast.iter_child_nodes(node))


def name_of(path):
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def write(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in sorted(files.items()):
            if name.endswith(".py"):
                name, content = f"{name}c", compile_source(content, name)
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), content, zipfile.ZIP_DEFLATED, 9)


def read(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


site, library = read("/site.zip"), read("/library.zip")
with zipfile.ZipFile("/site.zip") as archive:
    archive.extractall("/lib/python3.14/site-packages")
from draftwise.verbs.pages.answers import answer, list_choices  # noqa: E402

list_choices()
asked = {
    "check": {"sources": _COMMAND, "gpu": "H100"},
    "upgrade": {"sources": f"services:\n  a: {{command: {_COMMAND!r}}}\n", "before": "0.19.1", "after": "newest"},
    "size": {"target": "Qwen/Qwen3-8B", "gpu": "H100"},
    "pick": {"target": "Qwen/Qwen3-8B", "gpu": "H100", "workload": "chat"},
    "explain": {"name": "num_speculative_tokens"},
}  # fmt: skip
for verb, fields in asked.items():
    if '"error": [' in (text := answer(verb, fields)):
        raise SystemExit(f"{verb} cannot be answered in the browser: {text}")


def reach(names, *, files, whole):
    """Return the paths, of these files, that modules of these names and whatever they import have."""
    modules = {name_of(path): path for path in files if path.endswith(".py")}
    wanted, kept = list(names), set()
    while wanted:
        name = wanted.pop()
        path = modules.get(name)
        if path is None or path in kept:
            continue
        kept.add(path)
        wanted.append(name.rpartition(".")[0])
        wanted += find_imports(files[path], name, path.endswith("/__init__.py"), whole=whole)
    return kept


def imports_of(files):
    """Return what any line of the files imports."""
    return [
        name
        for path, content in files.items()
        if path.endswith(".py")
        for name in find_imports(content, name_of(path), path.endswith("/__init__.py"), whole=True)
    ]


own = {path: content for path, content in site.items() if path.startswith("draftwise/")}
site = own | {path: site[path] for path in reach(imports_of(own), files=site, whole=True) - set(own)}
names = [*sys.modules, *(f"encodings.{name}" for name in _ENCODINGS), *imports_of(site)]
pruned = {path: library[path] for path in reach(names, files=library, whole=False)}
write("/compiled.zip", site)
write("/pruned.zip", pruned)
print(f"{len(pruned)} of {len(library)} files of the standard library")
