"""What KServe's admission webhook and controllers make of an InferenceService beyond its schema.

The rules are those of `pkg/apis/serving/v1beta1/inference_service_validation.go` and of the storage initializer
(`pkg/webhook/admission/pod/storage_initializer_injector.go`), read in 0.16.0 to 0.20.0.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftwise.core import Finding

__all__ = ["find_refusals"]

_DEFAULT = "/mnt/models"
_CLAIM, _IMAGE = "pvc://", "oci"


def find_refusals(predictor: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Yield what of a predictor is refused, or not done.

    Args:
        predictor: of an InferenceService.
        where: it stands, for messages.
    """
    for finding in _find(predictor):
        yield replace(finding, where=where)


def _find(predictor: Mapping[str, Any]) -> Iterator[Finding]:
    given, model = predictor.get("storageUris"), predictor.get("model")
    entries = [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []
    if entries and isinstance(model, Mapping) and "storageUri" in model:
        yield _refused("storageUri and storageUris are given, and KServe takes one of them.", "Keep storageUris.")
    mounts = [(str(each.get("uri", "")), str(each.get("mountPath", _DEFAULT))) for each in entries]
    for uri, path in mounts:
        yield from _check_mount(uri, path)
    yield from _check_paths(mounts)


def _check_mount(uri: str, path: str) -> Iterator[Finding]:
    if not uri:
        yield _refused(f"The URI for {path} is empty.", "Give it.")
    if path == "/" or not path.startswith("/"):
        yield _refused(f"The path {path!r} is no directory below the root.", f"Choose one below {_DEFAULT}.")
    if ".." in path:
        yield _refused(f"The path {path!r} holds two dots.", "Write it without.")
    claim, _, inside = uri.removeprefix(_CLAIM).partition("/")
    if uri.startswith(_CLAIM) and inside:
        yield Finding.error(
            "claim-path-ignored",
            f"KServe mounts the whole claim {claim} at {path}, and ignores the path {inside!r} in the URI.",
            fix=f"Write {_CLAIM}{claim}, and let the arguments name {path}/{inside}.",
        )


def _check_paths(mounts: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    claims = [path for uri, path in mounts if uri.startswith(_CLAIM)]
    images = [path for uri, path in mounts if uri.partition("://")[0].split("+")[0] == _IMAGE]
    others = [path for uri, path in mounts if not uri.startswith(_CLAIM)]
    # KServe compares the claims' paths only where two URIs are downloaded; two volumes in one place start no pod.
    for path in _find_repeated(claims):
        yield _refused(f"Two claims are mounted at {path}.", "Give each a path of its own.")
    if len(others) > 1 and all(path.startswith("/") for path in others) and posixpath.commonpath(others) == "/":
        yield _refused(
            f"The paths {', '.join(others)} have no directory in common below the root.",
            f"Choose them below {_DEFAULT}.",
        )
    for parent in _find_repeated([posixpath.dirname(path.rstrip("/")) for path in images]):
        yield _refused(
            f"Two images are mounted below {parent}, where the one hides the other.",
            f"Give them different parents, e.g. {_DEFAULT}/a/target and {_DEFAULT}/b/draft, or build one image.",
        )


def _find_repeated(paths: Sequence[str]) -> Iterator[str]:
    return (path for path, count in Counter(paths).items() if count > 1)


def _refused(message: str, fix: str) -> Finding:
    return Finding.error("storage-refused", message, fix=fix)
