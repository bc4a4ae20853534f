"""Reads which public models there are, and what their config.json says, into `draftwise.knowledge.models`' data files.

    python -m catalogue.model_names FOLDER

FOLDER holds what the table `SOURCES` names, each in a folder of its own: the unpacked source distribution of a vLLM
release, the installed transformers, and checkouts of the repositories, at the commits whose hashes the table names.

A name is written with the architecture that its sources agree on, else with the one that vLLM tests or documents; where
no source gives one, the name is left out. So are names of copies (`model_copies.json`): their base counts.

`CONFIGS` names the copies of config.json files that repositories hold; their rows (`model_configs.json`) are whole.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from draftwise.knowledge.model_copies import UNKNOWN
from draftwise.knowledge.models import read_models
from draftwise.knowledge.stored import read_data
from draftwise.knowledge.vllm import releases

__all__ = ["SOURCES", "read_sources", "write"]

_FOLDER = Path(__file__).parents[1] / "src/draftwise/knowledge/data"
_LONGEST = 8000
"""Characters of a row's config; a longer one lists what it quantizes, or how, layer by layer."""
_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CELL = re.compile(r"`([\w.-]+/[\w.-]+)`")
_CLASS = re.compile(r"\| `(\w+)`")

_AIC = "aiconfigurator/aic-core/src/aiconfigurator_core/model_configs"
CONFIGS: Mapping[str, str] = {
    _AIC: "config.json, as copied in ai-dynamo/aiconfigurator (095f58a5, 2026-08-21)",
    "inference-sim/model_configs": "config.json, as copied in inference-sim/inference-sim (f90a1e3a, 2026-08-22)",
}
"""Folder of config.json files -> what their rows cite."""
_STAND_FOR: Mapping[str, str] = {
    "nvidia/Gemma-4-31B-IT-NVFP4": "google/gemma-4-31B-it",
    "nvidia/Kimi-K2.6-NVFP4": "moonshotai/Kimi-K2.6",
    "nvidia/Kimi-K2.7-Code-NVFP4": "moonshotai/Kimi-K2.7-Code",
    "nvidia/Qwen3.6-27B-NVFP4": "Qwen/Qwen3.6-27B",
    "nvidia/Qwen3.6-35B-A3B-NVFP4": "Qwen/Qwen3.6-35B-A3B",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
    "codellama-34b-instruct-hf": "codellama/CodeLlama-34b-Instruct-hf",
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
    "mistral-nemo-instruct-2407": "mistralai/Mistral-Nemo-Instruct-2407",
    "yi-34b": "01-ai/Yi-34B",
}
"""File -> the model whose config.json it is but for the quantization."""
_ALSO: Mapping[str, tuple[str, ...]] = {"google/gemma-4-26B-A4B": ("google/gemma-4-26B-A4B-it",)}
_QUANTIZED_AS = dict.fromkeys(("moonshotai/Kimi-K2.6", "moonshotai/Kimi-K2.7-Code"), "moonshotai/Kimi-K2.5")
"""Models of whose own quantization the file of a copy says nothing -> the model that has the same."""
_SAME_BITS = "; quantized as Kimi-K2.5 (github.com/vllm-project/recipes/pull/533, InternLM/lmdeploy/pull/4846)"
_NOT_NEEDED = re.compile(
    r".*(_token_id|_token_index|_token_ids|id2label|label2id|transformers_version|use_cache|initializer_range|initializer|dropout"
    r"|_name_or_path|problem_type|pad_token|output_|return_dict|chunk_size_feed|is_encoder|is_decoder|gradient_check.*)$"
)

_NOT_SERVED = ("speculative_decoding", "transformers_backend", "transformers")
"""Groups of vLLM's registry whose classes no config.json names: drafters, and stand-ins for classes that vLLM lacks."""

SOURCES: Mapping[str, str] = {
    "vllm": "vLLM 0.33.0 tests/models/registry.py",
    "vllm-docs": "vLLM 0.33.0 docs/models/supported_models.md",
    "ms-swift": "https://github.com/modelscope/ms-swift swift/model/models (3602360a, 2026-08-22)",
}
"""Folder -> what its rows cite, the one that counts most first."""


def read_sources(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield source, name and architecture of every model that a source lists."""
    vllm = folder / "vllm"
    yield from (("vllm", *row) for row in _read_registry((vllm / "tests/models/registry.py").read_text("utf-8")))
    yield from (
        ("vllm-docs", *row) for row in _read_docs((vllm / "docs/models/supported_models.md").read_text("utf-8"))
    )
    for file in sorted((folder / "ms-swift/swift/model/models").glob("*.py")):
        yield from (("ms-swift", *row) for row in _read_swift(file.read_text("utf-8")))


def _read_registry(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and architecture of the models that vLLM tests; a drafter's architecture stands for its drafter."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and _called(value) == "_HfExamplesInfo":
                yield from ((name, str(key.value)) for name in _read_example(value))


def _read_example(call: ast.Call) -> Iterator[str]:
    given = {each.arg: each.value for each in call.keywords}
    if "speculative_model" in given or "hf_overrides" in given:
        return  # the first is the target of a drafter, the second no architecture of the checkpoint's own
    if call.args and isinstance(call.args[0], ast.Constant):
        yield str(call.args[0].value)
    extras = given.get("extras")
    if isinstance(extras, ast.Dict):
        yield from (str(each.value) for each in extras.values if isinstance(each, ast.Constant))


def _read_docs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if found := _CLASS.match(line):
            yield from ((name, found[1]) for name in _CELL.findall(line))


def _read_swift(text: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and _called(node) == "ModelMeta":
            given = {each.arg: each.value for each in node.keywords}
            names = given.get("architectures")
            if isinstance(names, ast.List) and len(names.elts) == 1 and isinstance(names.elts[0], ast.Constant):
                yield from ((name, str(names.elts[0].value)) for name in _read_group(node))


def _read_group(meta: ast.Call) -> Iterator[str]:
    """Yield the names on the Hugging Face hub, the second argument of each Model."""
    for node in ast.walk(meta):
        if isinstance(node, ast.Call) and _called(node) == "Model" and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def read_types(text: str) -> Mapping[str, str]:
    """Return architecture -> model_type, as far as one type alone has it, of transformers' modeling_auto.py."""
    types: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Tuple) and len(node.elts) == 2:
            values = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            if len(values) == 2 and all(isinstance(value, str) for value in values):
                types[str(values[1])].add(str(values[0]))
    return {name: next(iter(found)) for name, found in types.items() if len(found) == 1}


def settle(rows: list[tuple[str, str, str]], served: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield source, name and architecture of the names that the sources agree on; the others go to stderr."""
    said: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    spelled: dict[str, str] = {}
    for source, name, architecture in rows:
        if _ID.fullmatch(name) and architecture in served:
            said[name.lower()][source].add(architecture)
            spelled.setdefault(name.lower(), name)
    for lower, by_source in sorted(said.items()):
        source = next(each for each in SOURCES if each in by_source)
        agreed = set.intersection(*by_source.values()) or by_source[source]
        if len(agreed) == 1:
            yield source, spelled[lower], next(iter(agreed))
        else:
            print(f"left out: {spelled[lower]} {dict(by_source)}", file=sys.stderr)


def write(folder: Path) -> None:
    """Write the data file."""
    served = _find_served()
    types = read_types((folder / "transformers/models/auto/modeling_auto.py").read_text("utf-8"))
    whole = {name.lower() for model in read_models() for name in model.names}
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    settled = [*settle([*read_sources(folder)], served)]
    known = whole | {name.lower() for _, name, _ in settled}
    for source, name, architecture in settled:
        if name.lower() not in whole and not _is_copy(name, known):
            groups[architecture, source].append(name)
    lines = []
    for (architecture, source), names in sorted(groups.items()):
        row: dict[str, Any] = {"architectures": [architecture]}
        if architecture in types:
            row["model_type"] = types[architecture]
        lines.append(json.dumps({**row, "source": SOURCES[source], "models": sorted(names, key=str.lower)}))
    (_FOLDER / "model_names.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(sum(map(len, groups.values())), "names,", len({key for key, _ in groups}), "architectures")


def write_configs(folder: Path) -> None:
    """Write the whole rows: those of models that nobody wrote by hand."""
    known = {name.lower() for _, name, _ in read_sources(folder)}
    by_hand = {name.lower() for row in read_data("models") for name in (row["id"], *row.get("also", ()))}
    known |= by_hand
    served = _find_served()
    lines = {}
    for place, source in CONFIGS.items():
        for file in sorted((folder / place).rglob("*config.json")):
            given = file.parent.name if file.name == "config.json" else file.name[: -len("_config.json")]
            name = _STAND_FOR.get(given.replace("--", "/"), given.replace("--", "/"))
            if "/" not in name or name.lower() in by_hand or name in lines or name.endswith("_hf_quant"):
                continue
            config = _shorten(json.loads(file.read_text("utf-8")))
            if name != given.replace("--", "/"):
                config.pop("quantization_config", None)
            own = file.with_name(file.name.replace("config.json", "hf_quant_config.json"))
            if name == given.replace("--", "/") and "quantization_config" not in config and own.exists():
                config["quantization_config"] = _read_modelopt(json.loads(own.read_text("utf-8")))
            if name in _QUANTIZED_AS:
                config.pop("quantization_config", None)
                like = (folder / place / f"{_QUANTIZED_AS[name].replace('/', '--')}_config.json").read_text("utf-8")
                text = _shorten(json.loads(like))["text_config"]
                config["text_config"]["quantization_config"] = text["quantization_config"]
            # A class that no release has is one that the repository gave the model, not its publisher.
            is_served = not served.isdisjoint(config.get("architectures", ()))
            if is_served and not _is_copy(name, known) and len(json.dumps(config)) < _LONGEST:
                also = {"also": _ALSO[name]} if name in _ALSO else {}
                said = source + (_SAME_BITS if name in _QUANTIZED_AS else "")
                lines[name] = json.dumps({"id": name, **also, "source": said, "config": config})
    rows = [lines[name] for name in sorted(lines, key=str.lower)]
    (_FOLDER / "model_configs.json").write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    print(len(rows), "whole rows")


def _read_modelopt(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return the quantization that ModelOpt's own file states; how is unknown where it leaves out single layers."""
    given = file["quantization"]
    if any(re.search(r"\d+\.", each) for each in given.get("exclude_modules", ())):
        return dict(UNKNOWN)
    return {"quant_method": "modelopt", **_shorten(given)}


def _find_served() -> set[str]:
    """Return the classes that a config.json may name, of any release."""
    tables = [release.table("architectures") for release in releases()]
    return {name for table in tables for name, row in table.items() if row["group"] not in _NOT_SERVED}


def _is_copy(name: str, known: Set[str]) -> bool:
    """Say whether a name is that of another one, all in lower case, with an ending of copies behind it."""
    found = (re.search(f"(?:{row['ending']})$", name, re.IGNORECASE) for row in read_data("model_copies")["kinds"])
    return any(name[: match.start()].lower() in known for match in found if match is not None)


def _shorten(value: Any) -> Any:
    """Return a config.json without tokens, names of labels, and lists of single layers that are not quantized."""
    if isinstance(value, list):
        return [each for each in value if not (isinstance(each, str) and re.search(r"\d+\.", each))]
    if not isinstance(value, dict):
        return value
    return {key: _shorten(each) for key, each in value.items() if not _NOT_NEEDED.match(key) and each is not None}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write_configs(Path(sys.argv[1]))
    write(Path(sys.argv[1]))
