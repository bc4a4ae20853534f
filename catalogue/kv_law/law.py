"""Asks a release of vLLM for the cache of every architecture, and writes what `size` says alike: proof and record.

Answers that the folder holds are kept, so you can stop the command and start it again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from catalogue.build import WHEELS
from catalogue.kv_law.cases import write_cases
from catalogue.kv_law.compare import compare
from draftwise.core.layer_kinds import STATE_ALONE
from draftwise.knowledge.vllm import get_release

PROOFS = Path("src/draftwise/knowledge/data/kv_proofs.json")
RECORDS = Path("tests/plan/size/kv_law")
ABOUT = (
    "What of the cache's size was compared with vLLM's own planner, by release and architecture: see "
    "draftwise.knowledge.kv_proofs. Written by `python -m catalogue law`."
)


def main(arguments: list[str]) -> int:
    """Run the law for one release."""
    parser = argparse.ArgumentParser(prog="python -m catalogue law", description=__doc__)
    parser.add_argument("--release", required=True, help="release of vLLM")
    parser.add_argument(
        "--python", type=Path, required=True, help="interpreter with torch, transformers and vLLM's needs"
    )
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder of unpacked wheels (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/kv_law"), help="of cases and answers, which are kept"
    )
    parser.add_argument("--few", action="store_true", help="a shorter grid")
    parser.add_argument("--new", action="store_true", help="take the answers of the committed record as they are")
    parser.add_argument(
        "--only",
        type=lambda text: frozenset(text.split(",")),
        help="architectures that are asked for",
    )
    given = parser.parse_args(arguments)
    tree, folder, here = given.wheels / given.release, given.folder.resolve(), Path(__file__).parent
    if not (tree / "vllm").is_dir():
        print(f"{tree} holds no sources: python -m catalogue.wheels {given.wheels} {given.release}", file=sys.stderr)
        return 2
    names, defaults, answers = (folder / name for name in ("names.json", "defaults.json", f"{given.release}.jsonl"))
    if not defaults.exists():
        folder.mkdir(parents=True, exist_ok=True)
        names.write_text(json.dumps(sorted(get_release(given.release).table("architectures"))))
        subprocess.run([given.python, here / "transformers_defaults.py", names, defaults], check=True)
    write_cases(folder, defaults)
    if given.new and not answers.exists():
        answers.write_text("".join(json.dumps(each) + "\n" for each in _read_record(given.release, folder)))
    cases = folder / ("few.jsonl" if given.few else "cases.jsonl")
    if given.only:
        models = folder / "models"
        rows = [
            each for each in _read_lines(cases)
            if _read_config(models, each["target"])["architectures"][0] in given.only
        ]  # fmt: skip
        cases = folder / "only.jsonl"
        cases.write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = ["--cases", cases, "--models", folder / "models", "--out", answers, "--tree", tree.resolve()]
    subprocess.run([given.python, here / "worker.py", *paths], check=True)
    _prove(folder, answers, given.release)
    return 0


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def _read_config(models: Path, name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((models / name / "config.json").read_text())
    return config


def _models_of(case: dict[str, Any]) -> set[str]:
    return {case["target"], (case.get("spec") or {}).get("model", case["target"])}


def _read_grid(folder: Path) -> dict[str, dict[str, Any]]:
    files = [folder / "cases.jsonl", folder / "few.jsonl"]
    return {row["id"]: row for path in files for row in _read_lines(path)}


def _read_record(release: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield vLLM's answers of the committed record, as far as case and models are those of the grid."""
    grid = _read_grid(folder)
    for answer in _read_kept(RECORDS / f"{release}.jsonl.gz", folder / "models", [], [*grid.values()]):
        case = answer.pop("case")
        if grid.get(case["id"]) == case:
            yield {"id": case["id"], **answer}


def _read_kept(
    record: Path, models: Path, answered: list[dict[str, Any]], held: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the cases and answers of a record but those `answered`; models not `held` become the record's."""
    ids, names = {case["id"] for case in answered}, {name for case in held for name in _models_of(case)}
    changed = set()
    for row in _read_lines(record):
        if "model" in row:
            path = models / row["model"] / "config.json"
            if row["model"] not in names:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(row["config"]))
            elif json.loads(path.read_text()) != row["config"]:
                changed.add(row["model"])
        elif row["case"]["id"] not in ids and changed.isdisjoint(_models_of(row["case"])):
            yield {**row["answer"], "case": row["case"]}


def _prove(folder: Path, answers: Path, release: str) -> None:
    """Write what the answers prove; a case without a new answer keeps the one of the committed record."""
    cases, models, record = _read_grid(folder), folder / "models", RECORDS / f"{release}.jsonl.gz"
    sizes = RECORDS / "weights" / record.name
    weights = {row["model"]: row for row in _read_lines(sizes)}
    kept, count = [], Counter[str]()
    found = [{**answer, "case": cases[answer["id"]]} for answer in _read_lines(answers) if answer["id"] in cases]
    new = [answer["case"] for answer in found if "error" not in answer]
    for answer in [*found, *_read_kept(record, models, new, new)]:
        case = answer["case"]
        config = _read_config(models, case["target"])
        if "weights" in answer and case["id"].endswith(":default"):
            weights[case["target"]] = {"model": case["target"], "config": config, "weights": answer["weights"]}
        if "error" in answer:
            count["vLLM gives no number"] += 1
            continue
        alone = config.get("model_type") in STATE_ALONE  # what decides on their prefix caching is not in the case
        faults = None if alone else compare(case, answer, models, release)
        count["no number here" if faults is None else "differ" if faults else "agree"] += 1
        if faults:
            print(case["id"], *faults[:3], sep="  ")
        if faults is not None:
            told = {key: answer[key] for key in sorted(answer) if key in _KEPT}
            kept.append({"case": case, "answer": told, **({"differs": True} if faults else {})})
    names = sorted({name for row in kept for name in _models_of(row["case"])})
    rows = [*({"model": name, "config": _read_config(models, name)} for name in names), *kept]
    _write_lines(record, rows)
    if weights:
        _write_lines(sizes, [weights[name] for name in sorted(weights)])
    before = json.loads(PROOFS.read_text())["releases"].get(release, {}) if PROOFS.exists() else {}
    _write_proofs(release, proofs := before | prove(rows))
    print(dict(count), len(proofs), "architectures")


_KEPT = ("blocks", "max_model_len", "per_sequence", "in_flight", "least", "max_num_seqs")


def prove(record: list[dict[str, Any]]) -> dict[str, str]:
    """Return the row of `kv_proofs.json` of each architecture in a record."""
    architectures = {row["model"]: row["config"]["architectures"][0] for row in record if "model" in row}
    said: defaultdict[str, list[tuple[frozenset[str], bool]]] = defaultdict(list)
    for row in record:
        if "case" in row:
            said[architectures[row["case"]["target"]]].append((features_of(row["case"]), "differs" not in row))
    return {name: judge(rows) for name, rows in sorted(said.items())}


def features_of(case: dict[str, Any]) -> frozenset[str]:
    """Return what a case proves, by the names of `kv_proofs.FEATURES`."""
    flags, method = case.get("flags") or {}, (case.get("spec") or {}).get("method")
    found = {"plain"}
    found |= {name for key, name in _BY_FLAG.items() if key in flags}
    found |= {flags["kv_cache_dtype"]} if "kv_cache_dtype" in flags else set()
    return frozenset(found | ({_BY_METHOD[method]} if method else set()))


_BY_FLAG = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp"}
_BY_METHOD = {"ngram": "lookup", "mtp": "mtp", "eagle3": "head"}


def judge(rows: list[tuple[frozenset[str], bool]]) -> str:
    """Return the features whose cases all agree, and `!` before each that explains a case which differs.

    A case of several features is blamed on those that do not agree alone; on all but `plain` where each does.
    """
    alone: defaultdict[str, list[bool]] = defaultdict(list)
    for features, agrees in rows:
        if len(own := features - {"plain"} or features) == 1:
            alone[next(iter(own))].append(agrees)
    wrong = {feature for feature, agreed in alone.items() if not all(agreed)}
    for features, agrees in rows:
        if not agrees and not features & wrong:
            wrong |= features - alone.keys() or features - {"plain"}
    names = {feature for features, _ in rows for feature in features}
    right = {each for each in names - wrong if any(agrees and each in features for features, agrees in rows)}
    return " ".join([*sorted(right), *sorted(f"!{each}" for each in wrong)])


def _write_proofs(release: str, proofs: dict[str, str]) -> None:
    table = json.loads(PROOFS.read_text())["releases"] if PROOFS.exists() else {}
    table[release] = proofs
    order = sorted(table, key=lambda name: [int(part) for part in name.split(".")])
    blocks = [
        f'    "{name}": {{\n'
        + ",\n".join(f'      "{key}": "{table[name][key]}"' for key in sorted(table[name]))
        + "\n    }"
        for name in order
    ]
    text = '{\n  "about": ' + json.dumps(ABOUT) + ',\n  "releases": {\n' + ",\n".join(blocks) + "\n  }\n}\n"
    PROOFS.write_text(text)


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write JSON lines, packed."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        packed.write("".join(json.dumps(row, sort_keys="case" in row) + "\n" for row in rows).encode())
