"""Feeds what `deploy` writes to a real API server: is it taken, and does it come back whole?

    python -m catalogue.api_server TOOLS CRDS > ci/platform/api_server.json

TOOLS holds the programs that `ci/platform/crd_server.sh` builds. CRDS keeps the CustomResourceDefinitions of the
projects, as they are at the commits of `catalogue.schemas`; those that are not there are fetched. Documents of kinds
that Kubernetes itself defines are left out: this server has none of them.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import yaml
from tests.support.golden import Golden, make_golden
from tests.support.planted_faults import FAULTS, plant

from catalogue.schemas import SOURCES, Source, load_documents
from draftwise.core import InvalidSetup
from draftwise.deploy.validate import validate
from draftwise.deploy.verify.returned import compare_returned
from draftwise.setups.read import SourceText

__all__ = [
    "ApiServer",
    "check_all",
    "find_faults",
    "list_fields",
    "list_rendered",
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
_RELEASES = ("0.15", "0.16", "0.17", "0.20")
"""Of KServe, which its definitions are of."""
_CHOSEN = frozenset(["labels", "annotations", "matchLabels", "matchAnnotations"])
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
    """An API server for custom kinds with its store, on loopback; it ends with the block that it is entered for."""

    def __init__(self, tools: Path) -> None:
        self._tools = tools
        self._stack = ExitStack()
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def __enter__(self) -> ApiServer:
        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="draftwise-api-server-")))
        self._context = _make_certificates(folder)
        store, peers, port = (_free_port() for _ in range(3))
        self._start(folder, "etcd", *_etcd_flags(store, peers))
        self._start(folder, "apiextensions-apiserver", *_server_flags(store, port))
        self._url = f"https://127.0.0.1:{port}"
        self._await(lambda: self.call("GET", "/apis/apiextensions.k8s.io/v1")[0] == 200)
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    def _start(self, folder: Path, program: str, *flags: str) -> None:
        log = self._stack.enter_context((folder / f"{program}.log").open("wb"))
        process = subprocess.Popen([str(self._tools / program), *flags], cwd=folder, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def _await(self, is_so: Any) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not is_so():
            if time.monotonic() > end:
                raise TimeoutError("the API server does not answer")
            time.sleep(0.1)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Return status and answer; 0 where nobody listens yet."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            return error.code, json.loads(text) if text.startswith("{") else {"message": text}
        except urllib.error.URLError:
            return 0, {}

    def define(self, definition: Mapping[str, Any]) -> None:
        """Add a kind, or put another release of it in its place; return when the server knows it."""
        spec = {**definition["spec"], "conversion": {"strategy": "None"}}  # no webhook runs here that would convert
        body, path = {**definition, "spec": spec}, f"{_DEFINITIONS}/{definition['metadata']['name']}"
        status, found = self.call("GET", path)
        if status == 200:
            metadata = {**definition["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
            status, answer = self.call("PUT", path, {**body, "metadata": metadata})
        else:
            status, answer = self.call("POST", _DEFINITIONS, body)
        if status not in (200, 201):
            raise RuntimeError(f"{definition['metadata']['name']}: {answer.get('message')}")
        names = spec["names"]
        for version in spec["versions"]:
            group = f"{spec['group']}/{version['name']}"
            self._plurals[group, names["kind"]] = names["plural"], spec["scope"] == "Namespaced"
            if version["served"]:
                self._await(lambda group=group: self.call("GET", f"/apis/{group}")[0] == 200)

    def knows(self, document: Mapping[str, Any]) -> bool:
        """Return whether a document is of a kind that was added."""
        return (document.get("apiVersion"), document.get("kind")) in self._plurals

    def post(self, document: Mapping[str, Any], *, strict: bool = False) -> tuple[bool, dict[str, Any]]:
        """Return whether the server would take a document, and what it makes of it or why it does not; as a dry run."""
        plural, is_namespaced = self._plurals[document["apiVersion"], document["kind"]]
        place = "/namespaces/default" if is_namespaced else ""
        query = "dryRun=All" + ("&fieldValidation=Strict" if strict else "")
        status, answer = self.call("POST", f"/apis/{document['apiVersion']}{place}/{plural}?{query}", document)
        return status in (200, 201), answer


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


def _server_flags(store: int, port: int) -> list[str]:
    flags = {
        "etcd-servers": f"http://127.0.0.1:{store}",
        "bind-address": "127.0.0.1",
        "secure-port": str(port),
        "cert-dir": "certificates",
        "client-ca-file": "ca.crt",
        "authentication-kubeconfig": "none.kubeconfig",
        "authorization-kubeconfig": "none.kubeconfig",
        "kubeconfig": "none.kubeconfig",
        "enable-priority-and-fairness": "false",
        "disable-admission-plugins": _NEEDS_CORE,
    }
    return [*(f"--{name}={value}" for name, value in flags.items()), "--authentication-skip-lookup"]


def _make_certificates(folder: Path) -> ssl.SSLContext:
    """Return the context of a client that may do everything, with what the server proves it by."""
    commands = (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=ca -days 2",
        "req -newkey rsa:2048 -nodes -keyout client.key -out client.csr -subj /O=system:masters/CN=client",
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
    with ApiServer(tools) as server:
        started = time.monotonic()
        rows: list[dict[str, Any]] = []
        asked: set[str] = set()
        fields: dict[str, set[str]] = {}
        for release in ("", *_RELEASES):
            for source in (each for each in SOURCES if each.since == release):
                for definition in read_definitions(source, folder):
                    server.define(definition)
            for golden, document in list_rendered(release, server.knows) if release else ():
                if (text := json.dumps(document)) not in asked:
                    asked.add(text)
                    rows.append(_check_one(server, golden, document))
                    fields.setdefault(name_kind(document), set()).update(list_fields(document))
        faults = [_check_fault(server, name) for name in FAULTS]
    kinds = Counter(row["kind"] for row in rows)
    return {
        "server": "k8s.io/apiextensions-apiserver, from Debian's packages",
        "documents": len(rows),
        "kinds": dict(sorted(kinds.items())),
        "fields": {kind: sorted(each) for kind, each in sorted(fields.items())},
        "refused_or_changed": [row for row in rows if row["found"]],
        "faults": faults,
        "start_s": round(started - began, 1),
        "total_s": round(time.monotonic() - began, 1),
    }


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


def list_rendered(release: str, knows: Callable[[Mapping[str, Any]], bool]) -> Iterator[tuple[Golden, dict[str, Any]]]:
    """Yield the documents that `deploy` writes for a release of KServe, of the kinds that somebody knows."""
    for golden in make_golden(release):
        for document in yaml.safe_load_all(golden.text):
            if isinstance(document, Mapping) and knows(document):
                yield golden, dict(document)


def _check_one(server: ApiServer, golden: Golden, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was found of a document."""
    found = [*_ask(server, document), *(f"schema: {each}" for each in validate(document, golden.release))]
    return {"file": golden.name, "kind": document["kind"], "found": found}


def name_kind(document: Mapping[str, Any]) -> str:
    """Return the kind of a document with its version."""
    return f"{document.get('apiVersion')} {document.get('kind')}"


def _ask(server: ApiServer, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the server refuses a document, asked to be strict, or what it takes it without."""
    is_taken, answer = server.post(document, strict=True)
    if not is_taken:
        yield f"refused: {answer.get('message')}"
    yield from _find_lost(server, document)


def _find_lost(server: ApiServer, document: Mapping[str, Any]) -> list[str]:
    """Return what the product says of a document that went to the server and back; the server is not strict."""
    sent = SourceText(text=yaml.safe_dump(document), name="sent.yaml")
    _, answer = server.post(document)
    try:
        return [str(each) for each in compare_returned(sent, replace(sent, text=json.dumps(answer)))]
    except InvalidSetup as error:
        return [str(error)]


def _check_fault(server: ApiServer, name: str) -> dict[str, Any]:
    document = plant(name)
    is_taken, _ = server.post(document)
    return {
        "fault": name,
        "kind": document["kind"],
        "taken_by_the_server": is_taken,
        "found_by_what_came_back": _find_lost(server, document),
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
