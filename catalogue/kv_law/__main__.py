"""`python -m catalogue.kv_law`: write the cases of the law, and turn vLLM's answers into a proof and a record."""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from catalogue.kv_law.cases import write_cases
from catalogue.kv_law.compare import compare
from draftwise.core.layer_kinds import STATE_ALONE

PROOFS = Path("src/draftwise/knowledge/data/kv_proofs.json")
RECORDS = Path("tests/plan/size/kv_law")
ABOUT = (
    "What of the cache's size was compared with vLLM's own planner, by release and architecture: see "
    "draftwise.knowledge.kv_proofs. Written by `python -m catalogue.kv_law prove`."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    cases = verbs.add_parser("cases", help="write models and cases")
    cases.add_argument("folder", type=Path)
    cases.add_argument("--defaults", type=Path, help="what transformers_defaults.py wrote")
    prove = verbs.add_parser("prove", help="compare answers, and write proof and record of a release")
    prove.add_argument("folder", type=Path)
    prove.add_argument("answers", type=Path, nargs="+")
    prove.add_argument("--release", required=True)
    options = parser.parse_args()
    if options.verb == "cases":
        print(write_cases(options.folder, options.defaults), "cases")
    else:
        _prove(options.folder, options.answers, options.release)


def _prove(folder: Path, answers: list[Path], release: str) -> None:
    files = [folder / "cases.jsonl", folder / "few.jsonl"]
    cases = {row["id"]: row for path in files for row in map(json.loads, path.read_text().splitlines())}
    models = folder / "models"
    said: defaultdict[str, list[tuple[frozenset[str], bool]]] = defaultdict(list)
    kept, count = [], Counter[str]()
    for answer in (json.loads(line) for path in answers for line in path.read_text().splitlines()):
        case = cases[answer["id"]]
        if "error" in answer:
            count["vLLM gives no number"] += 1
            continue
        config = json.loads((models / case["target"] / "config.json").read_text())
        alone = config.get("model_type") in STATE_ALONE  # what decides on their prefix caching is not in the case
        found = None if alone else compare(case, answer, models, release)
        count["no number here" if found is None else "differ" if found else "agree"] += 1
        if found:
            print(answer["id"], *found[:3], sep="  ")
        if found is not None:
            said[config["architectures"][0]].append((features_of(case), not found))
        if found == []:
            kept.append({"case": case, "answer": {key: answer[key] for key in sorted(answer) if key in _KEPT}})
    proofs = {name: proved for name, rows in sorted(said.items()) if (proved := _proved(rows))}
    _write_proofs(release, proofs)
    _write_record(release, kept, models)
    print(dict(count), len(proofs), "architectures")


_KEPT = ("blocks", "max_model_len", "per_sequence", "in_flight", "least", "max_num_seqs")


def features_of(case: dict[str, Any]) -> frozenset[str]:
    """Return what a case proves, by the names of `kv_proofs.FEATURES`."""
    flags, method = case.get("flags") or {}, (case.get("spec") or {}).get("method")
    found = {"plain"}
    found |= {name for key, name in _BY_FLAG.items() if key in flags}
    found |= {flags["kv_cache_dtype"]} if "kv_cache_dtype" in flags else set()
    return frozenset(found | ({_BY_METHOD[method]} if method else set()))


_BY_FLAG = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp"}
_BY_METHOD = {"ngram": "lookup", "mtp": "mtp", "eagle3": "head"}


def _proved(rows: list[tuple[frozenset[str], bool]]) -> str:
    """Return the features with an agreeing case and without a differing one that they alone explain."""
    names = {name for features, _ in rows for name in features}
    wrong = {name for name in names if any(not agrees and features <= {"plain", name} for features, agrees in rows)}
    wrong |= {
        name for name in names for features, agrees in rows if not agrees and name in features and not features & wrong
    }
    right = {name for name in names - wrong if any(agrees and name in features for features, agrees in rows)}
    return " ".join(sorted(right)) if "plain" in right else ""


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


def _write_record(release: str, kept: list[dict[str, Any]], models: Path) -> None:
    """Write the agreeing cases as JSON lines: first the config.json of each model, then cases with vLLM's answers."""
    names = {row["case"]["target"] for row in kept}
    names |= {spec["model"] for row in kept if (spec := row["case"].get("spec")) and "model" in spec}
    configs = {name: json.loads((models / name / "config.json").read_text()) for name in sorted(names)}
    lines = [json.dumps({"model": name, "config": config}) for name, config in configs.items()]
    lines += [json.dumps(row, sort_keys=True) for row in kept]
    RECORDS.mkdir(exist_ok=True)
    with (RECORDS / f"{release}.jsonl.gz").open("wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        packed.write(("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
