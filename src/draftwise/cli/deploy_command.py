"""`draftwise deploy`: the files that put a setup into production, and its twin without speculation to go back to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console

from draftwise.cli._results import json_option, show
from draftwise.cli._setups import nearest_option, setup_command
from draftwise.verbs.deploy import TARGETS, DeployRequest, DeployResult, EditedFile, Mode, ProxyKind
from draftwise.verbs.deploy import deploy as run_deploy

__all__ = ["deploy", "render"]


@setup_command(short_help="Write the files that put a setup into production, and those that undo it.")
@click.option("--to", type=click.Choice(list(TARGETS)), help="The platform.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="A new folder.")
@click.option("--edit",  type=click.Path(path_type=Path), metavar="FILE",
              help="Instead of --to and --out: a file whose server is to speculate as SOURCE does.")  # fmt: skip
@click.option("--select", default="", metavar="NAME",
              help="With --edit: the container, object or service to change, where FILE has several.")  # fmt: skip
@click.option("--write", is_flag=True, help="With --edit: change the file, after showing how.")
@click.option("--candidate", metavar="NAME", help="Of a run: which candidate  [default: the one that was adopted]")
@click.option("--vllm", metavar="VERSION", help="Release to run  [default: the source's]")
@nearest_option
@click.option("--name", default="", metavar="NAME", help="Of the service  [default: after the model]")
@click.option("--owner", default="", metavar="NAME", help="Who answers for it, for the memo and the objects.")
@click.option("--image", default="", metavar="IMAGE", help="[default: vllm/vllm-openai of the release]")
@click.option("--cold-start-s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="What a start from nothing was seen to take; 1.5 times that is allowed for.")  # fmt: skip
@click.option("--start-log", type=click.Path(path_type=Path), metavar="FILE",
              help="Instead of --cold-start-s: a vLLM log of a cold start.")  # fmt: skip
@click.option("--kserve", default="", metavar="VERSION", help="Release of KServe  [default: the newest known]")
@click.option("--mode", default="Standard", show_default=True, type=click.Choice(get_args(Mode), case_sensitive=False),
              help="KServe deployment mode.")  # fmt: skip
@click.option("--layout", metavar="LAYOUT", help="Of the weights on KServe: one, storage-uris, modelcar:IMAGE, "
              "pvc:CLAIM or mixed:CLAIM  [default: by what is loaded]")  # fmt: skip
@click.option(
    "--service-account",
    default="",
    metavar="NAME",
    help="KServe service account whose secrets give access to the weights.",
)
@click.option("--max-replicas", type=click.IntRange(min=2), metavar="N",
              help="Write what scales both twins up to N replicas, by requests in flight (KEDA, Knative).")  # fmt: skip
@click.option("--requests-per-replica", type=click.IntRange(min=1), metavar="N",
              help="In-flight requests per replica  [default: the highest load with a measured gain]")  # fmt: skip
@click.option("--observe/--no-observe", default=True, show_default=True,
              help="Write what watches it: rules, alerts, a dashboard, the analysis of a canary.")  # fmt: skip
@click.option("--metrics-prefix", default="", metavar="PREFIX",
              help="How its metrics' names begin  [default: vllm:, or as on the platform]")  # fmt: skip
@click.option("--verifier", default="", metavar="IMAGE",
              help="With draftwise in it: the analysis of a canary runs `draftwise verify` there.")  # fmt: skip
@click.option("--proxy", type=click.Choice(get_args(ProxyKind)),
              help="Write a proxy in front of both twins, which keeps from each what it must not get.")  # fmt: skip
@click.option("--share", type=click.IntRange(0, 100), default=10, show_default=True, metavar="PERCENT",
              help="Of the proxy's requests, for the pool that speculates.")  # fmt: skip
@click.option("--spec-address", default="", metavar="HOST:PORT", help="Where the proxy reaches that pool.")
@click.option("--plain-address", default="", metavar="HOST:PORT", help="And its twin  [default: the platform's names]")
@click.option("--probe", metavar="URL",
              help="A server of this setup that runs: its answers to a few prompts go into baseline.json.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
              help="Sent to that URL; ${VARIABLE} is replaced.")  # fmt: skip
@click.option("--api-key-env", "key_variables", multiple=True, metavar="NAME",
              help="Variable that holds the key of that URL.")  # fmt: skip
@json_option
def deploy(as_json: bool, **given: Any) -> None:
    """Write the files that serve SOURCE on a platform, and its twin without speculation.

    SOURCE is the directory of a run of `draftwise decide`, whose adopted candidate is deployed, or a setup as `check`
    reads it: a model, a manifest, a command line. What vLLM would refuse is not written. Nothing is applied: MEMO.md in
    the folder has the commands.

    \b
    Examples:
      draftwise deploy decide-runs/2026-11-22 --to kserve --kserve 0.20 --layout pvc:models --out deploy/
      draftwise deploy decide-runs/2026-11-22 --to kubernetes --out deploy/ --vllm 0.26.0
      draftwise deploy meta-llama/Llama-3.1-8B-Instruct --vllm 0.26.0 --gpu H200 --to compose --out deploy/ \\
          -sc '{"method": "ngram", "num_speculative_tokens": 5}'
      draftwise deploy decide-runs/2026-11-22 --edit my-deployment.yaml --write
    """
    show(run_deploy.run(DeployRequest(**given)), render, as_json=as_json, indent=None)


def render(console: Console, result: DeployResult) -> None:
    """Print what was written, or how a file changes."""
    answer = result.answer
    if isinstance(answer, EditedFile):
        lines = [answer.difference.removesuffix("\n") or f"{answer.file} starts that already."]
        lines += [f"{each.severity} {each.code}: {each}" for each in answer.findings]
        if answer.difference:
            lines.append(f"Written: {answer.file}" if answer.written else "Nothing is written yet: --write does it.")
    else:
        lines = [f"Written: {answer.out} ({', '.join(answer.files)})"]
        lines += [f"{each.severity} {each.code}: {each}" for each in answer.limits]
        lines += [f"not measured: {gap}" for gap in answer.not_measured]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
