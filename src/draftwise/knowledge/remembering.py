"""Decides from a speculative config whether earlier answers could improve a server's drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import Arm, SpecConfig
from draftwise.knowledge.methods import Method, find_method, find_placeholder, methods_where
from draftwise.knowledge.spec_keys import read_spec_keys


def find_remembering(arms: Sequence[Arm]) -> dict[str, str]:
    """Return why candidates (all arms but the first) could remember answers, by name; those that cannot are left out.

    The operator's config of a running server is taken as its config; when the run is judged, it is compared with what
    the server reports.
    """
    reasons = {arm.name: find_memory(arm.spec) for arm in arms[1:]}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def find_memory(spec: SpecConfig | None) -> str | None:
    """Return why a server with this config could remember answers from request to request; None if it cannot.

    An unknown method, option or config (None) counts as one that could.
    """
    if spec is None:
        return "its speculative config is unknown"
    return next(_list_reasons(spec), None)


def _list_reasons(spec: SpecConfig) -> Iterator[str]:
    methods = _find_methods(spec)
    if not methods:
        yield f"it is unknown what {_quote(spec.method)} keeps from one request to the next"
    for method in methods:
        if method.remembers == "unknown":
            yield f"it is unknown what {method.name} keeps from one request to the next"
        elif method.remembers == "answers" and not _is_off(method, spec):
            off = ", ".join(f"{key} {value}" for key, value in method.forgets_with.items())
            yield f"{method.name} drafts from what it answered before" + (f"; {off} turns that off" if off else "")
    keys = read_spec_keys()
    for name, value in spec.options.items():
        if name not in keys:
            yield f"the effect of its option {_quote(name)} is unknown"
        elif keys[name].remembers != "nothing" and value:
            yield f"{name} may use what it saw in earlier requests"


def _find_methods(spec: SpecConfig) -> tuple[Method, ...]:
    """Return the method of a config, or those that it can come to be; none where nothing is known of it.

    Without the key `method`, vLLM goes by the model: a word that stands for a method, or a drafter's checkpoint.
    """
    if spec.method is not None:
        found = find_method(spec.method)
    elif (found := find_placeholder(spec.model)) is None and spec.model is not None:
        return tuple(method for method in methods_where().values() if method.has_weights)
    return () if found is None else (found,)


def _is_off(method: Method, spec: SpecConfig) -> bool:
    wanted = method.forgets_with
    return bool(wanted) and all(spec.options.get(key) == value for key, value in wanted.items())


def _quote(name: str | None) -> str:
    return "a config without a method" if name is None else repr(name)
