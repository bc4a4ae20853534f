"""`draftwise pick`: which method to start with, for a target, hardware, release and traffic."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from draftwise.cli._advice import advice_to_dict, show_advice
from draftwise.cli._console import open_console
from draftwise.cli._setups import nearest_option, open_release, tell_remarks
from draftwise.knowledge.advice import read_traffic_kinds
from draftwise.knowledge.gpus import get_gpu
from draftwise.knowledge.rules import find_doubts
from draftwise.knowledge.vllm import find_remarks
from draftwise.plan.pick import STRUCTURED_OUTPUT, Requirements, describe_traffic
from draftwise.plan.pick import pick as choose
from draftwise.runs.documents import read_calibration
from draftwise.setups.read import read_words

__all__ = ["pick"]


@click.command(short_help="Recommend methods for a model, hardware and traffic, with the config to paste.")
@click.argument("target")
@click.argument("engine_flags", nargs=-1, metavar="[-- ENGINE FLAGS]")
@click.option("--gpu", required=True, metavar="NAME", help="H200, H100, A100, L40S, B200, MI300X ...")
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="GPUs of the deployment.")
@click.option("--vllm", "version", default="newest", show_default=True, metavar="VERSION", help="Release to run.")
@nearest_option
@click.option("--workload", "kind", type=click.Choice(list(read_traffic_kinds())), help="Kind of requests.")
@click.option("--overlap", type=click.Choice(["none", "some", "high"]),
              help="How much of the output repeats the prompt  [default: the workload's]")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="Median of requests.")
@click.option("--mixed-temperatures", is_flag=True, help="Requests of different temperatures share a batch.")
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True,
              help="Requests that decode together, the median.")  # fmt: skip
@click.option("--peak-concurrency", type=click.IntRange(1), help="The maximum  [default: the median]")
@click.option("--prompt-tokens", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--output-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--slo-ttft-ms", type=click.FloatRange(0, min_open=True), help="Objective for the time to first token.")
@click.option("--slo-tpot-ms", type=click.FloatRange(0, min_open=True), help="Objective for the time per output token.")
@click.option("--uses", "parameters", multiple=True, metavar="PARAMETER",
              help=f"Sampling parameter in use: min_p, logit_bias, {STRUCTURED_OUTPUT} ...; repeatable.")  # fmt: skip
@click.option("--drafter", "drafters", multiple=True, metavar="DIR", help="A drafter that you have; repeatable.")
@click.option("--can-train", is_flag=True, help="Training a drafter is possible.")
@click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE",
              help="Of `calibrate`, on this hardware: measured times instead of the data sheet's.")  # fmt: skip
@click.option("--air-gapped", is_flag=True, help="The server cannot fetch models.")
@click.option("--why", is_flag=True, help="Show every rule behind the answer, and its source.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def pick(
    target: str, engine_flags: Sequence[str], version: str, nearest: bool, why: bool, as_json: bool, **asked: Any
) -> None:
    """Recommend drafting methods for TARGET: ranked, checked against the release, sized, and with reasons.

    TARGET is a directory with config.json, a well-known model id, or the JSON itself. Engine flags of the deployment
    go after `--`. Nothing is loaded and nothing is downloaded. The answer is a starting point for measurements and ends
    with the command for one. The exit code is 1 if nothing can be recommended.

    \b
    Examples:
      draftwise pick Qwen/Qwen3-8B --gpu H200 --workload code --concurrency 8
      draftwise pick ./my-model --gpu A100 --gpus 2 --vllm 0.19.1 --workload agentic --drafter ./my-eagle3 \\
          -- --max-model-len 16384
    """
    release = open_release(version, nearest=nearest)
    remarks = (*find_remarks(release), *find_doubts(release))
    advice = choose(_read_requirements(target, engine_flags, asked | {"version": str(release)}))
    if as_json:
        about_release = {"asked": release.asked or str(release), "remarks": [each.to_dict() for each in remarks]}
        click.echo(json.dumps(advice_to_dict(advice) | about_release, indent=1))
    else:
        tell_remarks(remarks)
        show_advice(open_console(stderr=False), advice, why=why)
    if advice.is_against or not advice.ranked:
        sys.exit(1)


def _read_requirements(target: str, engine_flags: Sequence[str], asked: Mapping[str, Any]) -> Requirements:
    direct = ("temperature", "mixed_temperatures", "concurrency", "prompt_tokens", "output_tokens")
    traffic = describe_traffic(
        asked["kind"],
        overlap=asked["overlap"],
        peak_concurrency=asked["peak_concurrency"],
        slo_ttft_s=asked["slo_ttft_ms"] and asked["slo_ttft_ms"] / 1e3,
        slo_tpot_s=asked["slo_tpot_ms"] and asked["slo_tpot_ms"] / 1e3,
        parameters=frozenset(asked["parameters"]),
        **{name: asked[name] for name in direct},
    )
    return Requirements(
        target=target,
        gpu=get_gpu(asked["gpu"]),
        gpus=asked["gpus"],
        version=asked["version"],
        traffic=traffic,
        args=_args(target, engine_flags, asked["version"]),
        drafters=tuple(asked["drafters"]),
        air_gapped=asked["air_gapped"],
        can_train=asked["can_train"],
        calibration=None if asked["calibration"] is None else read_calibration(asked["calibration"]),
    )


def _args(target: str, engine_flags: Sequence[str], version: str) -> Mapping[str, Any]:
    if not engine_flags:
        return {}
    return read_words(["vllm", "serve", target, *engine_flags], engine_version=version).require().args
