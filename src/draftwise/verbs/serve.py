"""`serve`: runs an OpenAI-compatible server over the embedded engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from typing import Annotated, Any, ClassVar

from draftwise.core import SpecConfig
from draftwise.core.grouping import copy_fields
from draftwise.core.progress import Progress
from draftwise.verbs.engine import make_config, parse_spec
from draftwise.verbs.field_types import Range
from draftwise.verbs.verb import Result, refuse, verb

TOOL_CALL_PARSERS = ("hermes", "llama3_json")
"""`serve.tools.TOOL_CALL_PARSERS`, which needs the engine's packages."""


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """A model to serve."""

    model: str | PathLike[str]
    """Directory of a Hugging Face checkpoint, or a GGUF file."""
    _: KW_ONLY
    speculative_config: SpecConfig | Mapping[str, Any] | str | None = None
    """vLLM's JSON; None for plain decoding."""
    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8000
    """0 takes a free port."""
    served_model_name: str | None = None
    """Name in the API and in metrics; default: the model."""
    api_key: str | None = None
    """API key that requests need; paths for probes and scrapers, such as /health and /metrics, stay open."""
    enable_auto_tool_choice: bool = False
    """Whether the model may choose to call tools."""
    tool_call_parser: str | None = None
    """Format of the model's tool calls: one of `TOOL_CALL_PARSERS`."""
    allow_remote: bool = False
    """Whether `host` may be reachable from other machines."""
    allowed_hosts: Sequence[str] = ()
    """Names by which clients reach the server, in addition to localhost; `*` allows any. A server that other machines
    can reach accepts any name unless you give one."""
    allowed_origins: Sequence[str] = ()
    """Web pages that may use the server, such as `https://example.com`; `*` allows all."""
    drain_seconds: Annotated[float, Range(0, 86400)] = 10
    """Seconds that running requests get after SIGTERM or SIGINT; those left then end with an error."""
    max_waiting: Annotated[int, Range(0)] = 1024
    """Maximum number of waiting requests; further ones get status 503."""
    kernel_cache: str | None = None
    """Folder of compiled kernels: the server loads kernels from it and adds new ones."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Engine flags of vLLM by their long name with underscores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeResult(Result):
    """A server that has stopped on request."""

    VERB: ClassVar[str] = "serve"
    model: str


@verb(ServeRequest)
def serve(request: ServeRequest, progress: Progress) -> ServeResult:
    """Serve a model over OpenAI-compatible HTTP until SIGINT or SIGTERM.

    Start-up phases go to `progress.update`, the line with the address to `progress.status`. Defaults of requests come
    from the checkpoint's generation_config.json, as in vLLM. The engine runs in its own process; if that fails, this
    raises BackendError. More than one GPU is vLLM's job: the error names its command.
    """
    spec = parse_spec(request.speculative_config)
    config = make_config(str(request.model), spec, request.settings)
    try:
        from draftwise.serve import http_server
    except ModuleNotFoundError as error:
        from draftwise.serve.engine_process import make_missing_error

        raise make_missing_error(error) from None
    if request.enable_auto_tool_choice and request.tool_call_parser is None:
        refuse("--enable-auto-tool-choice needs --tool-call-parser.")
    parser = request.tool_call_parser if request.enable_auto_tool_choice else None
    options = copy_fields(http_server.ServerOptions, request, tool_call_parser=parser)
    http_server.serve(config, spec, options, on_ready=progress.status, on_phase=progress.update)
    return ServeResult(model=str(request.model))
