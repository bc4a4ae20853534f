"""`draftwise serve`: an OpenAI-compatible server over the embedded engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from draftwise.cli._console import open_console
from draftwise.core import InvalidSetup, Severity, SpecConfig
from draftwise.engine.config import DEVICES, DTYPES, KV_CACHE_DTYPES, LOAD_FORMATS, QUANTIZATIONS, EngineConfig
from draftwise.engine.parallelism import PARALLEL_SIZES, one_gpu_settings, vllm_setup

if TYPE_CHECKING:
    from draftwise.serve.messages import Phase

__all__ = ["serve"]


def _read_sizes(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> list[int] | None:
    """Read the sizes, each in a flag of its own or several with commas between."""
    try:
        return [int(each) for word in words for each in word.split(",")] or None
    except ValueError:
        raise click.BadParameter("give numbers, such as 1,2,4,8.") from None


_TOOL_CALL_PARSERS = ("hermes", "llama3_json")
"""`serve.tools.TOOL_CALL_PARSERS`, which needs the engine's packages."""

_LOADING = (
    click.option("--dtype", type=click.Choice(DTYPES), help="Of weights and KV."),
    click.option("--quantization", "-q", type=click.Choice(QUANTIZATIONS), help="Quantize the weights while loading."),
    click.option("--load-format", type=click.Choice(LOAD_FORMATS), help="dummy: random weights, to measure speed."),
    click.option("--skip-tokenizer-init", is_flag=True, default=None, help="Token ids only: no tokenizer, no text."),
    click.option("--device", type=click.Choice(DEVICES)),
    click.option("--enforce-eager", is_flag=True, default=None, help="Capture no CUDA graphs."),
    click.option("--cudagraph-capture-sizes", multiple=True, callback=_read_sizes, metavar="N,N,...",
                 help="Numbers of sequences to capture steps for  [default: 1, 2, 4, 8 ... max-num-seqs]"),
)  # fmt: skip
_LIMITS = (
    click.option("--max-model-len", type=click.IntRange(1), metavar="TOKENS", help="Prompt plus output."),
    click.option("--max-num-seqs", type=click.IntRange(1), metavar="N", help="Sequences decoded together."),
    click.option("--max-num-batched-tokens", type=click.IntRange(1), metavar="TOKENS", help="Computed in one step."),
    click.option("--gpu-memory-utilization", type=float, metavar="SHARE", help="Of the GPU's memory.  [default: 0.9]"),
    click.option("--kv-cache-memory-bytes", type=click.IntRange(1), metavar="BYTES", help="Of the page pool, instead."),
    click.option("--num-gpu-blocks-override", type=click.IntRange(1), metavar="N", help="Pages of the pool, instead."),
    click.option("--kv-cache-dtype", type=click.Choice(KV_CACHE_DTYPES), help="fp8: one byte a value."),
    click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a page."),
    click.option("--no-enable-prefix-caching", "enable_prefix_caching", is_flag=True, flag_value=False, default=None,
                 help="Compute every prompt from its start."),
    click.option("--hidden-states-folder", metavar="DIR", help="Where the method extract_hidden_states writes."),
    click.option("--seed", type=int, help="For requests that bring none."),
)  # fmt: skip
_PARALLEL = tuple(
    click.option(
        f"--{name.replace('_', '-')}",
        short,
        name,
        type=click.IntRange(1),
        metavar="N",
        help="More than 1 is vLLM's job.",
    )
    for name, short in zip(PARALLEL_SIZES, ("-tp", "-pp", "-dp"), strict=True)
)


def _engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of the engine's settings, with vLLM's names; one that is not given is None."""
    for option in reversed((*_LOADING, *_LIMITS, *_PARALLEL)):
        function = option(function)
    return function


@click.command(short_help="Serve a model over OpenAI-compatible HTTP.")
@click.argument("model")
@click.option("--speculative-config", "-sc", metavar="JSON", help="vLLM's JSON; leave it out for plain decoding.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free port.")
@click.option("--served-model-name", metavar="NAME", help="Name in the API and in metrics  [default: MODEL]")
@click.option(
    "--api-key", envvar="DRAFTWISE_API_KEY", metavar="KEY", help="Asked for under /v1.  [env: DRAFTWISE_API_KEY]"
)
@click.option("--enable-auto-tool-choice", is_flag=True, help="Let the model choose to call tools.")
@click.option("--tool-call-parser", type=click.Choice(_TOOL_CALL_PARSERS), help="What calls look like in its answers.")
@click.option("--allow-remote", is_flag=True, help="Allow a --host that other machines can reach.")
@click.option(
    "--max-waiting", default=1024, show_default=True, type=click.IntRange(0), help="Longest queue; 503 beyond."
)
@_engine_options
def serve(
    model: str,
    speculative_config: str | None,
    host: str,
    port: int,
    served_model_name: str | None,
    api_key: str | None,
    enable_auto_tool_choice: bool,
    tool_call_parser: str | None,
    allow_remote: bool,
    max_waiting: int,
    **settings: Any,
) -> None:
    """Serve MODEL, the directory of a Hugging Face checkpoint or a GGUF file, over OpenAI-compatible HTTP.

    Endpoints: /v1/completions, /v1/chat/completions, /v1/models, /health, /version and /metrics with vLLM's
    metric names. What a request leaves out is taken from the checkpoint's generation_config.json, as in vLLM.
    The engine runs in a process of its own. More than one GPU is vLLM's job: -tp 2 prints its command.
    """
    spec = SpecConfig.parse(speculative_config) if speculative_config is not None else None
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        config = EngineConfig.from_settings(model=model, **one_gpu_settings(model, spec, given))
    except InvalidSetup as error:
        raise _judged_by_vllm(error, model, spec, given) from None
    try:
        from draftwise.serve import server
    except ModuleNotFoundError as error:
        from draftwise.serve.launch import make_missing_error

        raise make_missing_error(error) from None
    if enable_auto_tool_choice and tool_call_parser is None:
        raise click.UsageError("--enable-auto-tool-choice needs --tool-call-parser.")
    options = server.ServerOptions(
        host=host,
        port=port,
        served_model_name=served_model_name,
        api_key=api_key,
        tool_call_parser=tool_call_parser if enable_auto_tool_choice else None,
        allow_remote=allow_remote,
        max_waiting=max_waiting,
    )
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    with _PhaseLines() as phases:
        server.serve(config, spec, options, on_ready=click.echo, on_phase=phases.show)


def _judged_by_vllm(error: InvalidSetup, model: str, spec: SpecConfig | None, given: Mapping[str, Any]) -> InvalidSetup:
    """Return the error with what the newest vLLM would say of the command it names, if it names one."""
    if not any(finding.code == "more-than-one-gpu" for finding in error.findings):
        return error
    from draftwise.plan.check import check

    report = check(vllm_setup(model, spec, given))
    serious = [each for each in report.findings if each.severity is Severity.ERROR]
    return InvalidSetup([*error.findings, *serious])


class _PhaseLines:
    """Shows the phases of the start-up on stderr: a line for each, drawn while it lasts where there is a terminal."""

    def __init__(self) -> None:
        self._console = open_console(stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> _PhaseLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    def show(self, phase: Phase) -> None:
        """Draw a phase that begins, or write down one that is over."""
        if phase.seconds is not None:
            self._hide()
            self._console.print(f"{phase.name}: {phase.seconds:.1f} s", highlight=False)
        elif self._status is not None:
            self._status.update(phase.name)
            self._status.start()

    def _hide(self) -> None:
        if self._status is not None:
            self._status.stop()
