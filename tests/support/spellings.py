"""vLLM's metric names as recording rules, relabeling, OpenTelemetry's and Ray's exporters spell them."""

import re
from collections.abc import Callable, Mapping

SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "no total": lambda name: name.removesuffix("_total"),
    "underscore": lambda name: name.replace(":", "_"),
    "underscore, no total": lambda name: name.replace(":", "_").replace("_total", ""),
    "total twice": lambda name: name.replace(":", "_").replace("_total", "_total_total"),
    "ratio": lambda name: name.replace(":", "_").replace("_perc", "_perc_ratio"),
    "namespace": lambda name: f"llm_{name.replace(':', '_')}",
    "level": lambda name: f"prod:{name.removesuffix('_total')}",
    "Ray": lambda name: f"ray_{name.replace(':', '_').removesuffix('_total')}",
    "dot": lambda name: name.replace(":", ".").removesuffix("_total"),
    "dots": lambda name: re.sub("[:_]", ".", name),
}


def respell(page: str, spelling: str) -> str:
    """Return a page in another spelling; names with dots are quoted, as Prometheus 3 has it."""

    def change(found: re.Match[str]) -> str:
        name = SPELLINGS[spelling](found[2])
        if "." not in name:
            return f"{found[1] or ''}{name}{found[3]}"
        return f'{found[1]}"{name}"{found[3]}' if found[1] else f'{{"{name}",{found[3][1:]}'

    return re.sub(r"^(# \w+ )?(vllm:\w+)([ {])", change, page, flags=re.MULTILINE)
