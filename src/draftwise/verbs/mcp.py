"""`mcp`: serves the verbs as tools of an agent, over the Model Context Protocol."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, ClassVar

from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.machine.confinement import Confinement
from draftwise.verbs.field_types import Range
from draftwise.verbs.verb import Result, refuse, verb
from draftwise.version import tell_install

TOKEN = "DRAFTWISE_MCP_TOKEN"
"""Environment variable that holds the token of the HTTP server."""


@dataclass(frozen=True, slots=True)
class McpRequest:
    """What agents are allowed, and how they reach the server."""

    _: KW_ONLY
    http: Annotated[int, Range(0, 65535)] | None = None
    """Port on 127.0.0.1, 0 for a free one; None serves one client over standard input and output."""
    read: Sequence[str | PathLike[str]] = ()
    """Folders whose files may be read; default: the current folder."""
    write: str | PathLike[str] | None = None
    """Folder below which files may be written; without one, deploy, replay, decide and calibrate refuse."""
    variables: Sequence[str] = ()
    """Environment variables whose values may be sent to servers in headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpResult(Result):
    """Where clients reach the server."""

    VERB: ClassVar[str] = "mcp"
    transport: str
    """`stdio`, or the address."""
    token: str | None = None
    """Bearer token for requests; null for stdio, or if the environment holds it."""


@verb(McpRequest)
def mcp(request: McpRequest, progress: Progress) -> McpResult:
    """Serve the verbs as tools over the Model Context Protocol until the client disconnects, or a signal stops it.

    Reads only files below the folders of the request. Writes files and starts programs only if you give a folder to
    write to. Over HTTP, every request needs a token: that of the variable DRAFTWISE_MCP_TOKEN, or a new one, which goes
    to `progress.status` and `progress.update` with the address. SIGINT and SIGTERM stop it.
    """
    from draftwise.verbs.tool_calls import Permissions

    folder = None if request.write is None else Path(request.write).resolve()
    read = [Path(each) for each in request.read] or [Path.cwd()]
    for each in read:
        if not each.is_dir():
            refuse(f"{each} is not a folder.", where="--read")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    permissions = Permissions(
        files=Confinement.of(read=read, write=() if folder is None else (folder,)),
        folder=folder,
        variables=frozenset(request.variables),
    )
    try:
        from draftwise.verbs.mcp_server import serve_http, serve_stdio
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name == "draftwise":
            raise
        raise refusal("extra-not-installed", name=name, install=tell_install("mcp")) from None
    if request.http is None:
        serve_stdio(permissions)
        return McpResult(transport="stdio")
    given = os.environ.pop(TOKEN, "")
    token = given or secrets.token_urlsafe(32)

    def tell(address: str) -> None:
        progress.status(address if given else f"{address}\nAuthorization: Bearer {token}")
        progress.update(McpResult(transport=address, token=None if given else token))

    return McpResult(transport=serve_http(permissions, port=request.http, token=token, tell=tell))
