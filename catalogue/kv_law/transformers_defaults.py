"""Writes the config.json that transformers' classes make by themselves, for each architecture that vLLM registers.

VLLM_PYTHON transformers_defaults.py ARCHITECTURES.json OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(names: Path, out: Path) -> None:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    types: dict[str, str] = {}
    for name in dir(modeling_auto):
        if name.endswith("_MAPPING_NAMES"):
            for model_type, classes in getattr(modeling_auto, name).items():
                for each in (classes,) if isinstance(classes, str) else classes:
                    types.setdefault(each, model_type)
    found = {}
    for arch in json.loads(names.read_text()):
        if arch not in types:
            continue
        try:
            config = CONFIG_MAPPING[types[arch]]().to_dict()
        except Exception as error:
            print(f"{arch}: {type(error).__name__}", file=sys.stderr)
            continue
        config.pop("transformers_version", None)
        found[arch] = config | {"architectures": [arch], "torch_dtype": "bfloat16"}
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
