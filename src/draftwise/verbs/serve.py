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
    """Key that requests must bring, except those of probes and scrapers."""
    enable_auto_tool_choice: bool = False
    """Whether the model may choose to call tools."""
    tool_call_parser: str | None = None
    """Format of the model's tool calls: one of `TOOL_CALL_PARSERS`."""
    allow_remote: bool = False
    """Whether `host` may be reachable from other machines."""
    allowed_hosts: Sequence[str] = ()
    """Names by which clients reach the server, in addition to localhost; `*` allows any. A server that other machines
    can reach takes any unless one is given."""
    allowed_origins: Sequence[str] = ()
    """Web pages that may use the server, such as `https://example.com`; `*` allows all."""
    drain_seconds: Annotated[float, Range(0, 86400)] = 10
    """Seconds for running requests to end after SIGTERM or SIGINT; the rest then ends with an error."""
    max_waiting: Annotated[int, Range(0)] = 1024
    """Longest queue; 503 beyond."""
    kernel_cache: str | None = None
    """Folder of compiled kernels: taken from there, new ones kept there."""
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

    Phases of the start go to `progress.update`, and the line that says where it listens to `progress.status`. What a
    request leaves out is taken from the checkpoint's generation_config.json, as in vLLM. The engine runs in a process
    of its own; when that fails, the verb raises BackendError. More than one GPU is vLLM's job: the error names its
    command.
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
