"""`draftwise serve`: an OpenAI-compatible server over the embedded engine."""

from __future__ import annotations

import logging
from typing import Any

import click

from draftwise.core import InvalidSetup, SpecConfig

__all__ = ["serve"]


@click.command(short_help="Serve a model over OpenAI-compatible HTTP.")
@click.argument("model")
@click.option("--speculative-config", metavar="JSON", help="vLLM's JSON; leave it out for plain decoding.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free port.")
@click.option("--served-model-name", metavar="NAME", help="Name in the API and in metrics  [default: MODEL]")
@click.option(
    "--api-key", envvar="DRAFTWISE_API_KEY", metavar="KEY", help="Asked for under /v1.  [env: DRAFTWISE_API_KEY]"
)
@click.option("--allow-remote", is_flag=True, help="Allow a --host that other machines can reach.")
@click.option(
    "--max-waiting", default=1024, show_default=True, type=click.IntRange(0), help="Longest queue; 503 beyond."
)
@click.option(
    "--dtype", type=click.Choice(["auto", "bfloat16", "float16", "float32", "float64"]), help="Of weights and KV."
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--max-model-len", type=click.IntRange(1), metavar="TOKENS", help="Prompt plus output.")
@click.option("--max-num-seqs", type=click.IntRange(1), metavar="N", help="Sequences decoded together.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), metavar="TOKENS", help="Tokens computed in one step.")
@click.option("--kv-cache-memory-bytes", type=click.IntRange(1), metavar="BYTES", help="Size of the page pool.")
@click.option("--num-gpu-blocks-override", type=click.IntRange(1), metavar="N", help="Pages of the pool, instead.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a page.")
@click.option("--no-enable-prefix-caching", is_flag=True, help="Compute every prompt from its start.")
@click.option("--hidden-states-folder", metavar="DIR", help="Where the method extract_hidden_states writes.")
@click.option("--seed", type=int, help="For requests that bring none.")
def serve(
    model: str,
    speculative_config: str | None,
    host: str,
    port: int,
    served_model_name: str | None,
    api_key: str | None,
    allow_remote: bool,
    max_waiting: int,
    no_enable_prefix_caching: bool,
    **settings: Any,
) -> None:
    """Serve MODEL, the directory of a Hugging Face checkpoint, over OpenAI-compatible HTTP.

    Endpoints: /v1/completions, /v1/chat/completions, /v1/models, /health, /version and /metrics with vLLM's
    metric names. What a request leaves out is taken from the checkpoint's generation_config.json, as in vLLM.
    """
    spec = SpecConfig.parse(speculative_config) if speculative_config is not None else None
    try:
        from draftwise.engine.config import EngineConfig
        from draftwise.serve import server
    except ModuleNotFoundError as error:
        raise InvalidSetup.because(
            "engine-not-installed",
            f"the engine needs {error.name}, which is not installed.",
            fix="Run: pip install 'draftwise[engine]'.",
        ) from None
    given = {name: value for name, value in settings.items() if value is not None}
    config = EngineConfig.from_settings(model=model, enable_prefix_caching=not no_enable_prefix_caching, **given)
    options = server.ServerOptions(
        host=host,
        port=port,
        served_model_name=served_model_name,
        api_key=api_key,
        allow_remote=allow_remote,
        max_waiting=max_waiting,
    )
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    server.serve(config, spec, options, tell=click.echo)
