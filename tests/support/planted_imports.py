"""Plants imports in a copy of the package and tells, for each of them alone, which import contracts it breaks.

Run as a script, in a folder with pyproject.toml and src/: it reads (file, import) pairs from stdin and writes lists
of names of contracts to stdout, both as JSON; the first list is that of the package as it is. The package is parsed
twice, as it is and with all plants; what a plant adds is then looked at without the others.
"""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path

from grimp import ImportGraph, build_graph
from importlinter import configuration
from importlinter.application import use_cases
from importlinter.application.app_config import settings
from importlinter.application.user_options import UserOptions


class Ready:
    """Stands where import-linter builds its graph, and hands it one that was built before."""

    def __init__(self, graph: ImportGraph) -> None:
        self._graph = graph

    def build(self, **_: object) -> ImportGraph:
        """Return the graph."""
        return self._graph


def broken(graph: ImportGraph, options: UserOptions) -> list[str]:
    """Return the names of the contracts that do not hold for a graph."""
    settings.configure(GRAPH_BUILDER=Ready(graph))
    report = use_cases.create_report(options, cache_dir=None)
    assert not report.invalid_contract_options
    return [contract.name for contract, check in report.get_contracts_and_checks() if not check.kept]


def plant(file: Path, line: str) -> None:
    """Add a function that imports, to a file that may not exist yet."""
    file.parent.mkdir(exist_ok=True)
    text = file.read_text(encoding="utf-8") if file.exists() else '"""A room of no layer."""\n'
    file.write_text(f"{text}\n\ndef planted() -> object:\n    {line}\n\n    return object()\n", encoding="utf-8")


def with_one(clean: ImportGraph, planted: ImportGraph, importer: str, line: str) -> ImportGraph:
    """Return the graph `clean` and what one line in a module adds to it in the graph `planted`."""
    graph = deepcopy(clean)
    for imported in planted.find_modules_directly_imported_by(importer):
        for detail in planted.get_import_details(importer=importer, imported=imported):
            if detail["line_contents"] == line:
                for module in {importer, imported} - graph.modules:
                    graph.add_module(module, is_squashed=planted.is_module_squashed(module))
                graph.add_import(**detail)
    return graph


def main() -> None:
    """Answer for what is read from stdin."""
    source = Path("src").resolve()
    sys.path.insert(0, str(source))
    plants = json.load(sys.stdin)
    configuration.configure()
    options = use_cases.read_user_options()
    use_cases._register_contract_types(options)
    parse = {"include_external_packages": options.session_options["include_external_packages"], "cache_dir": None}
    clean = build_graph("draftwise", **parse)
    for file, line in plants:
        plant(source / "draftwise" / file, line)
    planted = build_graph("draftwise", **parse)
    found = [broken(clean, options)]
    for file, line in plants:
        module = ".".join(["draftwise", *Path(file).with_suffix("").parts]).removesuffix(".__init__")
        found.append(broken(with_one(clean, planted, module, line), options))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
