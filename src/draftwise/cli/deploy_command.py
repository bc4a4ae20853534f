"""`draftwise deploy`: writes the files that put a setup into production, and those that undo it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console

from draftwise.cli._options import Duration
from draftwise.cli._results import json_option, show
from draftwise.cli._setups import config_options, nearest_option, setup_command
from draftwise.verbs.deploy import TARGETS, DeployRequest, DeployResult, EditedFile, Mode, ProxyKind
from draftwise.verbs.deploy import deploy as run_deploy


@setup_command(short_help="Write the files that put a setup into production, and those that undo it.")
@click.option("--to", type=click.Choice(list(TARGETS)), help="Platform.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="New folder for the files.")
@click.option("--edit",  type=click.Path(path_type=Path), metavar="FILE",
              help="Give FILE's server the config of SOURCE, instead of writing new files (--to, --out).")  # fmt: skip
@click.option("--select", default="", metavar="NAME",
              help="With --edit: the container, object or service to change, if FILE has several.")  # fmt: skip
@click.option("--write", is_flag=True, help="With --edit: show the change and write it.")
@click.option("--candidate", metavar="NAME", help="Candidate of a run  [default: the adopted one]")
@click.option("--vllm", metavar="VERSION", help="vLLM release to run  [default: SOURCE's]")
@nearest_option
@config_options
@click.option("--name", default="", metavar="NAME", help="Name of the service  [default: from the model's name]")
@click.option("--owner", default="", metavar="NAME", help="Owner of the service, for the memo and the objects.")
@click.option(
    "--image", default="", metavar="IMAGE", help="Container image  [default: vllm/vllm-openai of the release]"
)
@click.option("--cold-start-s", type=Duration(0, min_open=True), metavar="SECONDS",
              help="Seconds of a measured cold start; the files allow 1.5 times that.")  # fmt: skip
@click.option("--start-log", type=click.Path(path_type=Path), metavar="FILE",
              help="vLLM log of a cold start, instead of --cold-start-s.")  # fmt: skip
@click.option("--kserve", default="", metavar="VERSION", help="KServe release  [default: the newest known]")
@click.option("--mode", default="Standard", show_default=True, type=click.Choice(get_args(Mode), case_sensitive=False),
              help="KServe deployment mode.")  # fmt: skip
@click.option("--layout", metavar="LAYOUT", help="Layout of the weights on KServe: one, storage-uris, modelcar:IMAGE, "
              "pvc:CLAIM or mixed:CLAIM  [default: by the checkpoints]")  # fmt: skip
@click.option(
    "--service-account",
    default="",
    metavar="NAME",
    help="KServe service account whose secrets give access to the weights.",
)
@click.option("--max-replicas", type=click.IntRange(min=2), metavar="N",
              help="Scale both twins up to N replicas, by requests in flight (KEDA, Knative).")  # fmt: skip
@click.option("--requests-per-replica", type=click.IntRange(min=1), metavar="N",
              help="In-flight requests per replica  [default: the highest load with a measured gain]")  # fmt: skip
@click.option("--observe/--no-observe", default=True, show_default=True,
              help="Write rules, alerts, a dashboard and the analysis of a canary.")  # fmt: skip
@click.option("--metrics-prefix", default="", metavar="PREFIX",
              help="Prefix of metric names  [default: vllm:, or the platform's]")  # fmt: skip
@click.option("--verifier", default="", metavar="IMAGE",
              help="Image with draftwise, in which a canary's analysis runs `draftwise verify`.")  # fmt: skip
@click.option("--proxy", type=click.Choice(get_args(ProxyKind)),
              help="Write a proxy that routes to each twin only the requests it can serve.")  # fmt: skip
@click.option("--share", type=click.IntRange(0, 100), default=10, show_default=True, metavar="PERCENT",
              help="Share of the proxy's requests for the speculative pool.")  # fmt: skip
@click.option("--spec-address", default="", metavar="HOST:PORT", help="Address of the speculative pool, for the proxy.")
@click.option(
    "--plain-address", default="", metavar="HOST:PORT", help="Address of its twin  [default: the platform's names]"
)
@click.option("--probe", metavar="URL",
              help="Running server of this setup, whose answers to a few prompts go into baseline.json.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
              help="Header for that URL; ${VARIABLE} is expanded.")  # fmt: skip
@click.option("--api-key-env", "key_variables", multiple=True, metavar="NAME",
              help="Environment variable with the API key of that URL.")  # fmt: skip
@json_option
def deploy(as_json: bool, **given: Any) -> None:
    """Write the files that serve SOURCE on a platform, and its twin without speculation.

    SOURCE is a run directory of `draftwise decide`, whose adopted candidate is deployed, or a setup as for `check`: a
    model, a manifest, a command line. draftwise writes no setup that vLLM would reject, and applies nothing: MEMO.md in
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
        lines = [answer.difference.removesuffix("\n") or f"{answer.file} already starts this setup."]
        lines += [f"{each.severity} {each.code}: {each}" for each in answer.findings]
        if answer.difference:
            lines.append(
                f"Written: {answer.file}" if answer.written else "Nothing is written yet. To write it, add --write."
            )
    else:
        lines = [f"Written: {answer.out} ({', '.join(answer.files)})"]
        lines += [f"{each.severity} {each.code}: {each}" for each in answer.limits]
        lines += [f"not measured: {gap}" for gap in answer.not_measured]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
