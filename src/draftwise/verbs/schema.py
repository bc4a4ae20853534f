"""`schema`: JSON Schemas of `--speculative-config` in a release and of the verbs' JSON output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from draftwise.core.document_schema import json_schema
from draftwise.core.progress import Progress
from draftwise.plan.spec_schema import make_schema
from draftwise.verbs import VERBS
from draftwise.verbs.error_documents import ErrorDocument
from draftwise.verbs.sources import open_release
from draftwise.verbs.verb import Result, load_verb, refuse, verb


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A verb whose JSON to describe, or a release whose speculative config to describe."""

    verb: str | None = None
    """Verb, or `error` for what every verb prints when it has no answer; None for the speculative config."""
    vllm: str = "newest"
    nearest: bool = False
    """Whether an unknown release is described by the nearest known one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaResult(Result):
    """A JSON Schema, draft 7."""

    VERB: ClassVar[str] = "schema"
    JSON_OF: ClassVar[str] = "schema"
    schema: Mapping[str, Any]


@verb(SchemaRequest)
def schema(request: SchemaRequest, _progress: Progress) -> SchemaResult:
    """Return the JSON Schema of --speculative-config in a vLLM release, or of what a verb prints with --json."""
    if request.verb is not None:
        if request.verb == "error":
            return SchemaResult(schema=json_schema(ErrorDocument, title="draftwise VERB --json, without an answer"))
        if request.verb not in VERBS:
            refuse(f"Unknown verb {request.verb!r}.", where="VERB")
        return SchemaResult(
            schema=json_schema(load_verb(request.verb).result, title=f"draftwise {request.verb} --json")
        )
    release = open_release(request.vllm, nearest=request.nearest)
    made = make_schema(release)
    if release.asked:
        made["description"] = f"Asked for {release.asked}, made of {release}."
    return SchemaResult(schema=made)
