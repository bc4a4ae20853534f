"""Feeds what `deploy` writes to a real API server: is it taken, and does it come back whole?

    python -m catalogue.api_server TOOLS CRDS > catalogue/platform/api_server.json

TOOLS holds the programs that `catalogue/platform/crd_server.sh` builds. CRDS keeps the CustomResourceDefinitions of the
projects, as they are at the commits of `catalogue.schemas`; those that are not there are fetched. Documents of kinds
that Kubernetes itself defines are left out: this server has none of them.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import local
from types import TracebackType
from typing import Any

import yaml
from tests.support.golden import Golden, make_golden
from tests.support.planted_faults import FAULTS, plant

from catalogue.schemas import SOURCES, Source, load_documents
from draftwise.core import InvalidSetup
from draftwise.deploying import TARGETS
from draftwise.deploying.api_server import compare_returned, validate
from draftwise.knowledge.kinds import find_kind
from draftwise.setups.read import SourceText

__all__ = [
    "ApiServer",
    "check_all",
    "check_one",
    "find_faults",
    "is_custom",
    "list_documents",
    "list_fields",
    "locate",
    "name_kind",
    "read_definitions",
]

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: none, user: {}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
current-context: none
"""
"""The server asks another one who is allowed what; a client of system:masters is never asked about."""
_NEEDS_CORE = (
    "NamespaceLifecycle,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,ValidatingAdmissionPolicy,"
    "MutatingAdmissionPolicy"
)
_PATIENCE_S = 60.0
_AT_ONCE = 4
"""Requests on their way: more than the cores that it is run on, so that the server is never idle."""
_MEMORY = {"GOGC": "400", "GOMEMLIMIT": "2GiB"}
"""Definitions leave much garbage behind: collected less often, they cost a third less."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RELEASES = ("0.15", "0.16", "0.17", "0.20")
"""Of KServe, which its definitions are of."""
_CHOSEN = frozenset(["labels", "annotations", "podAnnotations", "matchLabels", "matchAnnotations"])
"""Fields whose own fields are names that people choose."""


def locate(source: Source, folder: Path) -> Path:
    """Return where a folder keeps a file of definitions."""
    return folder / source.commit[:12] / Path(source.path).name


def read_definitions(source: Source, folder: Path) -> Sequence[Mapping[str, Any]]:
    """Return the definitions of a file, from a folder that keeps them or else from where its project has them.

    They are kept as JSON, too: megabytes of YAML take longer to read than the server takes for all that it is asked.
    """
    file = locate(source, folder)
    kept = file.with_suffix(".json")
    if kept.is_file():
        found: list[Mapping[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    if not file.is_file():
        url = f"https://raw.githubusercontent.com/{source.repository}/{source.commit}/{source.path}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    documents = load_documents(file.read_text(encoding="utf-8"))
    found = [each for each in documents if (each or {}).get("kind") == "CustomResourceDefinition"]
    scratch = kept.with_suffix(".part")
    scratch.write_text(json.dumps(found), encoding="utf-8")
    scratch.replace(kept)
    return found


class ApiServer:
    """An API server for custom kinds with its store, on loopback; it ends with the block that it is entered for.

    Definitions of one kind for several releases of its project stand beside each other, each in a group of its own.
    """

    program = "apiextensions-apiserver"

    def __init__(self, tools: Path) -> None:
        self._tools = tools
        self._stack = ExitStack()
        self._connections = local()
        self._plurals: dict[tuple[str, str, str], tuple[str, bool]] = {}

    def __enter__(self) -> ApiServer:
        self.folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="draftwise-api-server-")))
        store, peers, self.port = (_free_port() for _ in range(3))
        self.start("etcd", *_etcd_flags(store, peers))
        self._context = _make_certificates(self.folder)
        self.start(self.program, *self.list_flags(store))
        self.await_that(self.is_ready)
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    def list_flags(self, store: int) -> list[str]:
        """Return the server's flags; `store` is the port of its etcd."""
        own = {
            "authentication-kubeconfig": "none.kubeconfig",
            "authorization-kubeconfig": "none.kubeconfig",
            "kubeconfig": "none.kubeconfig",
            "disable-admission-plugins": _NEEDS_CORE,
        }
        return [*self.write_flags(store, own), "--authentication-skip-lookup"]

    def write_flags(self, store: int, own: Mapping[str, str]) -> list[str]:
        """Return the flags of any API server here, and its own."""
        flags = {
            "etcd-servers": f"http://127.0.0.1:{store}",
            "bind-address": "127.0.0.1",
            "secure-port": str(self.port),
            "cert-dir": "certificates",
            "client-ca-file": "ca.crt",
            "enable-priority-and-fairness": "false",
            **own,
        }
        return [f"--{name}={value}" for name, value in flags.items()]

    def is_ready(self) -> bool:
        """Say whether the server answers."""
        return self.call("GET", "/apis/apiextensions.k8s.io/v1")[0] == 200

    def start(self, program: str, *flags: str) -> None:
        """Start a program that ends with the server."""
        log = self._stack.enter_context((self.folder / f"{program}.log").open("wb"))
        command = [str(self._tools / program), *flags]
        process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **_MEMORY})
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def await_that(self, is_so: Callable[[], Any]) -> None:
        """Return when something is so."""
        end = time.monotonic() + _PATIENCE_S
        while not is_so():
            if time.monotonic() > end:
                raise TimeoutError("the API server does not answer")
            time.sleep(0.05)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Return status and answer; 0 where nobody listens yet. Each thread keeps a connection of its own."""
        connection: HTTPSConnection | None = getattr(self._connections, "own", None)
        if connection is None:
            connection = HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self._context)
            self._connections.own = connection
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, HTTPException):
            connection.close()
            return 0, {}
        return answer.status, json.loads(text) if text.startswith("{") else {"message": text}

    def define(self, definitions: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Add kinds, and return when the server knows all of them.

        Args:
            definitions: each behind the release of its project from which on it holds; empty for all releases.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            paths = {path for found in pool.map(self._add, definitions) for path in found}
        for path in sorted(paths):
            self.await_that(partial(self._has, path))

    def _has(self, path: str) -> bool:
        return self.call("GET", path)[0] == 200

    def _add(self, definition: tuple[str, Mapping[str, Any]]) -> list[str]:
        """Add a kind, and return the paths of its objects."""
        since, given = definition
        spec = {**given["spec"], "conversion": {"strategy": "None"}}  # no webhook runs here that would convert
        spec["group"], names = _name_group(spec["group"], since), spec["names"]
        metadata = {**given["metadata"], "name": f"{names['plural']}.{spec['group']}"}
        status, answer = self.call("POST", _DEFINITIONS, {**given, "metadata": metadata, "spec": spec})
        if status != 201:
            raise RuntimeError(f"{metadata['name']}: {answer.get('message')}")
        for version in spec["versions"]:
            key = since, f"{given['spec']['group']}/{version['name']}", names["kind"]
            self._plurals[key] = names["plural"], spec["scope"] == "Namespaced"
        served = (each["name"] for each in spec["versions"] if each["served"])
        return [f"/apis/{spec['group']}/{version}/{names['plural']}?limit=1" for version in served]

    def post(
        self, document: Mapping[str, Any], *, release: str = "", strict: bool = False
    ) -> tuple[bool, dict[str, Any]]:
        """Return whether the server would take a document, and what it makes of it or why it does not; as a dry run.

        Args:
            document: of a kind that was added.
            release: of its project; by default the newest of those that were added.
            strict: whether the server shall refuse fields that the kind does not have.
        """
        api_version, place = self.locate(document, release)
        query = "dryRun=All" + ("&fieldValidation=Strict" if strict else "")
        status, answer = self.call("POST", f"{place}?{query}", {**document, "apiVersion": api_version})
        is_taken = status == 201
        return is_taken, {**answer, "apiVersion": document["apiVersion"]} if is_taken else answer

    def locate(self, document: Mapping[str, Any], release: str) -> tuple[str, str]:
        """Return the apiVersion under which the server has a document's kind, and the path of its objects."""
        kind = find_kind(document["apiVersion"], document["kind"], release)
        since = "" if kind is None else kind.since
        plural, is_namespaced = self._plurals[since, document["apiVersion"], document["kind"]]
        group, _, version = document["apiVersion"].partition("/")
        api_version = f"{_name_group(group, since)}/{version}"
        return api_version, f"/apis/{api_version}{'/namespaces/default' if is_namespaced else ''}/{plural}"


def _name_group(group: str, since: str) -> str:
    """Return the group in which a definition stands that holds from a release of its project on."""
    return f"from-{since.replace('.', '-')}.{group}" if since else group


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _etcd_flags(port: int, peers: int) -> list[str]:
    url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    flags = {
        "data-dir": "data",
        "listen-client-urls": url,
        "advertise-client-urls": url,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "max-request-bytes": str(16 << 20),  # definitions of 2026 are larger than its default takes
    }
    return [*(f"--{name}={value}" for name, value in flags.items()), "--unsafe-no-fsync"]


def _make_certificates(folder: Path) -> ssl.SSLContext:
    """Return the context of a client that may do everything, with what the server proves it by."""
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    commands = (
        f"req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=ca -days 2",
        f"req {key} -keyout client.key -out client.csr -subj /O=system:masters/CN=client",
        "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out client.crt -days 2",
    )
    for command in commands:
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    (folder / "none.kubeconfig").write_text(_KUBECONFIG, encoding="utf-8")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the server's own certificate is made anew
    context.load_cert_chain(folder / "client.crt", folder / "client.key")
    return context


def check_all(tools: Path, folder: Path) -> dict[str, Any]:
    """Return what the server makes of all that `deploy` writes, release by release of KServe, and of planted faults."""
    began = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        rendering = beside.submit(list_documents, _RELEASES)  # while the server starts
        with ApiServer(tools) as server:
            started = time.monotonic()
            documents, faulty = rendering.result(), {name: plant(name) for name in FAULTS}
            kinds = {name_kind(each) for each in (*(document for _, document in documents), *faulty.values())}
            server.define([*_list_definitions(folder, kinds)])
            defined = time.monotonic()
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                rows = list(pool.map(partial(check_one, server), documents))
                faults = list(pool.map(partial(_check_fault, server), faulty.items()))
    fields: dict[str, set[str]] = {}
    for _, document in documents:
        fields.setdefault(name_kind(document), set()).update(list_fields(document))
    return {
        "server": "k8s.io/apiextensions-apiserver, from Debian's packages",
        "documents": len(rows),
        "kinds": dict(sorted(Counter(row["kind"] for row in rows).items())),
        "fields": {kind: sorted(each) for kind, each in sorted(fields.items())},
        "refused_or_changed": [row for row in rows if row["found"]],
        "faults": faults,
        "start_s": round(started - began, 1),
        "define_s": round(defined - started, 1),
        "total_s": round(time.monotonic() - began, 1),
    }


def _list_definitions(folder: Path, kinds: Container[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the definitions of kinds, each behind the release from which on it holds, with the versions asked about."""
    for source in SOURCES:
        for each in read_definitions(source, folder):
            spec = each["spec"]
            kind = spec["names"]["kind"]
            wanted = [one for one in spec["versions"] if f"{spec['group']}/{one['name']} {kind}" in kinds]
            if wanted:
                kept = [{**one, "storage": one is wanted[-1]} for one in wanted]
                yield source.since, {**each, "spec": {**spec, "versions": kept}}


def list_fields(document: Any, path: str = "") -> Iterator[str]:
    """Yield each field of a document with the type of its value; names that people choose are not told apart."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            is_chosen = path.rpartition(".")[2] in _CHOSEN
            yield from list_fields(value, f"{path}.{'*' if is_chosen else name}".lstrip("."))
    elif isinstance(document, list):
        for value in document:
            yield from list_fields(value, f"{path}[]")
    else:
        yield f"{path}: {type(document).__name__}"


def is_custom(document: Mapping[str, Any]) -> bool:
    """Return whether a document is of a kind that a definition brings: not Kubernetes' own, and no file's."""
    kind = find_kind(str(document.get("apiVersion")), str(document.get("kind")))
    return kind is not None and "." in kind.api_version.partition("/")[0]


def list_documents(
    releases: Sequence[str], is_wanted: Callable[[Mapping[str, Any]], bool] = is_custom
) -> list[tuple[Golden, dict[str, Any]]]:
    """Return the documents that `deploy` writes for some releases of KServe, of the kinds that are wanted."""
    found: dict[str, tuple[Golden, dict[str, Any]]] = {}
    for release in releases:
        for golden in make_golden(release, ["kserve"] if found else TARGETS):
            for document in yaml.load_all(golden.text, _LOADER):
                if isinstance(document, Mapping) and is_wanted(document):
                    found.setdefault(json.dumps(document), (golden, dict(document)))
    return list(found.values())


def name_kind(document: Mapping[str, Any]) -> str:
    """Return the kind of a document with its version."""
    return f"{document.get('apiVersion')} {document.get('kind')}"


def check_one(server: ApiServer, found: tuple[Golden, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what was found of a document: why the server, asked to be strict, refuses it, and what it drops else."""
    golden, document = found
    is_taken, answer = server.post(document, release=golden.release, strict=True)
    refused = [] if is_taken else [f"refused: {answer.get('message')}"]
    lost = _find_lost(server, document, golden.release)
    by_schema = [f"schema: {each}" for each in validate(document, golden.release)]
    return {"file": golden.name, "kind": document["kind"], "found": [*refused, *lost, *by_schema]}


def _find_lost(server: ApiServer, document: Mapping[str, Any], release: str) -> list[str]:
    """Return what the product says of a document that went to the server and back; the server is not strict."""
    sent = SourceText(text=yaml.safe_dump(document), name="sent.yaml")
    _, answer = server.post(document, release=release)
    try:
        return [str(each) for each in compare_returned(sent, replace(sent, text=json.dumps(answer)))]
    except InvalidSetup as error:
        return [str(error)]


def _check_fault(server: ApiServer, planted: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    name, document = planted
    is_taken, _ = server.post(document)
    return {
        "fault": name,
        "kind": document["kind"],
        "taken_by_the_server": is_taken,
        "found_by_what_came_back": _find_lost(server, document, ""),
        "found_by_the_reduced_schema": [str(each) for each in validate(document)],
    }


def find_faults(results: Mapping[str, Any]) -> list[str]:
    """Return what is not as it should be: a file that is not taken whole, or a fault that one of both passes over."""
    passed_over = [
        f"{row['fault']}: not found by the {name}"
        for row in results["faults"]
        for name, key in (("server", "found_by_what_came_back"), ("reduced schema", "found_by_the_reduced_schema"))
        if not row[key]
    ]
    return [*(f"{row['file']}: {row['found']}" for row in results["refused_or_changed"]), *passed_over]


if __name__ == "__main__":
    found = check_all(Path(sys.argv[1]), Path(sys.argv[2]))
    json.dump(found, sys.stdout, indent=1)
    print()
    sys.exit("\n".join(find_faults(found)) or 0)
