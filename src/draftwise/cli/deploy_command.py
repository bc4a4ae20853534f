"""`draftwise deploy`: writes the files that put a setup into production, and those that undo it."""

from __future__ import annotations

from typing import Any, get_args

import click
from rich.console import Console

from draftwise.cli._options import PATH, Duration, option
from draftwise.cli._results import json_option, show
from draftwise.cli._setups import config_options, nearest_option, setup_command
from draftwise.verbs.deploy import TARGETS, DeployRequest, DeployResult, EditedFile, Mode, ProxyKind
from draftwise.verbs.deploy import deploy as run_deploy


@setup_command(short_help="Write the files that put a setup into production, and those that undo it.")
@option("--to", "Platform.", type=click.Choice(list(TARGETS)))
@option("--out DIR", "New folder for the files.", type=PATH)
@option("--edit FILE", "Give FILE's server the config of SOURCE, instead of writing new files (--to, --out).",
        type=PATH)  # fmt: skip
@option("--select NAME", "With --edit: the container, object or service to change, if FILE has several.", default="")
@option("--write", "With --edit: show the change and write it.", is_flag=True)
@option("--candidate NAME", "Candidate of a run  [default: the adopted one]")
@option("--vllm VERSION", "vLLM release to run  [default: SOURCE's]")
@nearest_option
@config_options
@option("--name NAME", "Name of the service  [default: from the model's name]", default="")
@option("--owner NAME", "Owner of the service, for the memo and the objects.", default="")
@option("--image IMAGE", "Container image  [default: vllm/vllm-openai of the release]", default="")
@option("--cold-start-s SECONDS", "Seconds of a measured cold start; the files allow 1.5 times that.",
        type=Duration(0, min_open=True))  # fmt: skip
@option("--start-log FILE", "vLLM log of a cold start, instead of --cold-start-s.", type=PATH)
@option("--kserve VERSION", "KServe release  [default: the newest known]", default="")
@option("--mode", "KServe deployment mode.",
        default="Standard", show_default=True, type=click.Choice(get_args(Mode), case_sensitive=False))  # fmt: skip
@click.option("--layout", metavar="LAYOUT", help="Layout of the weights on KServe: one, storage-uris, modelcar:IMAGE, "
              "pvc:CLAIM or mixed:CLAIM  [default: by the checkpoints]")  # fmt: skip
@option("--service-account NAME", "KServe service account whose secrets give access to the weights.", default="")
@option("--max-replicas N", "Scale both twins up to N replicas, by requests in flight (KEDA, Knative).",
        type=click.IntRange(min=2))  # fmt: skip
@option("--requests-per-replica N", "In-flight requests per replica  [default: the highest load with a measured gain]",
        type=click.IntRange(min=1))  # fmt: skip
@option("--observe/--no-observe", "Write rules, alerts, a dashboard and the analysis of a canary.",
        default=True, show_default=True)  # fmt: skip
@option("--metrics-prefix PREFIX", "Prefix of metric names  [default: vllm:, or the platform's]", default="")
@option("--verifier IMAGE", "Image with draftwise, in which a canary's analysis runs `draftwise verify`.", default="")
@option("--proxy", "Write a proxy that routes to each twin only the requests it can serve.",
        type=click.Choice(get_args(ProxyKind)))  # fmt: skip
@option("--share PERCENT", "Share of the proxy's requests for the speculative pool.",
        type=click.IntRange(0, 100), default=10, show_default=True)  # fmt: skip
@option("--spec-address HOST:PORT", "Address of the speculative pool, for the proxy.", default="")
@option("--plain-address HOST:PORT", "Address of its twin  [default: the platform's names]", default="")
@option("--probe URL", "Running server of this setup, whose answers to a few prompts go into baseline.json.")
@option("--header 'NAME: VALUE'", "headers", "Header for that URL; ${VARIABLE} is expanded.", multiple=True)
@option("--api-key-env NAME", "key_variables", "Environment variable with the API key of that URL.", multiple=True)
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
