"""Reads KServe: InferenceService with its runtime and the admission webhook's changes, and LLMInferenceService.

The rules come from `pkg/apis/serving/v1beta1/inference_service_validation.go` and the storage initializer
(`pkg/webhook/admission/pod/storage_initializer_injector.go`), read in 0.16.0 to 0.20.0.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftwise.core import Finding
from draftwise.knowledge.images import find_release
from draftwise.knowledge.messages import fault
from draftwise.knowledge.rules import get_rule
from draftwise.setups.read.manifests.containers import (
    Stores,
    get_container_words,
    get_gpu_product,
    get_volumes,
    read_container,
)
from draftwise.setups.read.manifests.parts import Findings, get_gpus, get_mapping
from draftwise.setups.read.manifests.yaml_text import Path, YamlDocument, get_text
from draftwise.setups.read.place import Place
from draftwise.setups.read.shell.environment import NOTHING_SET, Environment
from draftwise.setups.read.shell.launch import Launch, run_image
from draftwise.setups.read.shell.script import evaluate_words
from draftwise.setups.read.shell.words import Word

_DEFAULT = "/mnt/models"
_CLAIM, _IMAGE = "pvc://", "oci"


def find_refusals(predictor: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Yield what KServe rejects or ignores in a predictor."""
    for finding in _find(predictor):
        yield replace(finding, where=where)


def _find(predictor: Mapping[str, Any]) -> Iterator[Finding]:
    given, model = predictor.get("storageUris"), predictor.get("model")
    entries = [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []
    if entries and isinstance(model, Mapping) and "storageUri" in model:
        yield _refused(
            "storageUri and storageUris are both set, but KServe takes only one of them.", "Keep storageUris."
        )
    mounts = [(str(each.get("uri", "")), str(each.get("mountPath", _DEFAULT))) for each in entries]
    for uri, path in mounts:
        yield from _check_mount(uri, path)
    yield from _check_paths(mounts)


def _check_mount(uri: str, path: str) -> Iterator[Finding]:
    if not uri:
        yield _refused(f"The URI for {path} is empty.", "Give it.")
    if path == "/" or not path.startswith("/"):
        yield _refused(f"The path {path!r} is not a directory below the root.", f"Choose one below {_DEFAULT}.")
    if ".." in path:
        yield _refused(f"The path {path!r} contains two dots.", "Write it without them.")
    claim, _, inside = uri.removeprefix(_CLAIM).partition("/")
    if uri.startswith(_CLAIM) and inside:
        yield fault("claim-path-ignored", claim=claim, path=path, inside=inside, scheme=_CLAIM)


def _check_paths(mounts: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    claims = [path for uri, path in mounts if uri.startswith(_CLAIM)]
    images = [path for uri, path in mounts if uri.partition("://")[0].split("+")[0] == _IMAGE]
    others = [path for uri, path in mounts if not uri.startswith(_CLAIM)]
    # KServe compares the claims' paths only where two URIs are downloaded; two volumes in one place start no pod.
    for path in _find_repeated(claims):
        yield _refused(f"Two claims are mounted at {path}.", "Give each its own path.")
    if len(others) > 1 and all(path.startswith("/") for path in others) and posixpath.commonpath(others) == "/":
        yield _refused(
            f"The paths {', '.join(others)} have no common directory below the root.", f"Choose them below {_DEFAULT}."
        )
    for parent in _find_repeated([posixpath.dirname(path.rstrip("/")) for path in images]):
        yield _refused(
            f"Two images are mounted below {parent}, so one hides the other.",
            f"Give them different parents, e.g. {_DEFAULT}/a/target and {_DEFAULT}/b/draft, or build one image.",
        )


def _find_repeated(paths: Sequence[str]) -> Iterator[str]:
    return (path for path, count in Counter(paths).items() if count > 1)


def _refused(message: str, fix: str) -> Finding:
    return Finding.error("storage-refused", message, fix=fix)


_MODELS = "/mnt/models"
_CONTAINER = "kserve-container"
_ADDITIONAL = "VLLM_ADDITIONAL_ARGS"
_BUILT_IN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "vllm": ("vllm/vllm-openai", ("--port=8080", f"--model={_MODELS}")),
    "huggingface": ("kserve/huggingfaceserver", (f"--model_dir={_MODELS}",)),
}
"""Model format -> image and arguments of the runtime that KServe chooses (config/runtimes, v0.20.0)."""


@dataclass(frozen=True, slots=True)
class _Runtime:
    """The container of a ServingRuntime in the same file."""

    document: YamlDocument
    path: Path
    container: Mapping[str, Any]


Runtimes = Mapping[str, _Runtime]


def get_runtimes(documents: Sequence[YamlDocument]) -> Runtimes:
    """Return the runtimes of a file by name."""
    runtimes: dict[str, _Runtime] = {}
    for document in documents:
        value = get_mapping(document.value)
        containers = get_mapping(value, "spec").get("containers")
        if value.get("kind") not in ("ServingRuntime", "ClusterServingRuntime") or not isinstance(containers, list):
            continue
        index = _main(containers)
        if index is not None:
            name = str(get_mapping(value, "metadata").get("name"))
            runtimes[name] = _Runtime(document, ("spec", "containers", index), containers[index])
    return runtimes


def _main(containers: Sequence[Any]) -> int | None:
    """Return which container serves: the one of KServe's name, else the first."""
    mappings = [index for index, each in enumerate(containers) if isinstance(each, Mapping)]
    named = (index for index in mappings if containers[index].get("name") in (_CONTAINER, "main"))
    return next(named, mappings[0] if mappings else None)


def find_predictors(document: YamlDocument, runtimes: Runtimes, stores: Stores) -> Iterator[Launch]:
    """Yield the servers of an InferenceService: its predictor and its canaries."""
    spec = get_mapping(document.value, "spec")
    canaries = spec.get("canary") if isinstance(spec.get("canary"), list) else []
    predictors: list[tuple[Path, Any]] = [(("spec", "predictor"), spec.get("predictor"))]
    predictors += [
        (("spec", "canary", index, "predictor"), get_mapping(canary).get("predictor"))
        for index, canary in enumerate(canaries or ())
    ]
    for path, predictor in predictors:
        if isinstance(predictor, Mapping):
            yield from _read_predictor(document, path, predictor, runtimes, stores)


def _read_predictor(
    document: YamlDocument, path: Path, predictor: Mapping[str, Any], runtimes: Runtimes, stores: Stores
) -> Iterator[Launch]:
    mounts = _mounts(predictor)
    model = predictor.get("model")
    if isinstance(model, Mapping):
        launch = _read_model(document, (*path, "model"), model, runtimes, stores)
        wrong = [
            *_find_misplaced(document, (*path, "model"), model),
            *find_refusals(predictor, f"line {document.line(path)} {get_text(path)}"),
        ]
        if launch is not None:
            yield replace(
                launch,
                num_gpus=None if predictor.get("workerSpec") else launch.num_gpus,  # ranks of several hosts
                mounts=_mounts(model) | mounts,
                gpu=get_gpu_product(predictor),
                findings=(*wrong, *launch.findings),
            )
    containers = predictor.get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, Mapping):
            launch = read_container(document, (*path, "containers", index), container, stores, predictor)
            if launch is not None:
                yield replace(launch, mounts=mounts | _mounts({}, env=launch.env.values))


def _find_misplaced(document: YamlDocument, path: Path, model: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield keys inside `model` that belong next to it."""
    if "storageUris" in model:
        here = (*path, "storageUris")
        yield get_rule("storage-uris-in-model").ruling(line=document.line(here), path=get_text(here))


def _mounts(predictor: Mapping[str, Any], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return which directory KServe fills from which URI."""
    mounts: dict[str, str] = {}
    model = get_mapping(predictor, "model")
    uri = model.get("storageUri") or (env or {}).get("STORAGE_URI") or ("" if "storage" in model else None)
    if isinstance(uri, str):
        mounts[_MODELS] = uri
    entries = predictor.get("storageUris")
    for entry in entries if isinstance(entries, list) else ():
        uri = get_mapping(entry).get("uri")
        if isinstance(uri, str):
            mounts[str(get_mapping(entry).get("mountPath") or _MODELS).rstrip("/")] = uri
    return mounts


def _read_model(
    document: YamlDocument, path: Path, model: Mapping[str, Any], runtimes: Runtimes, stores: Stores
) -> Launch | None:
    found: Findings = []
    where = f"line {document.line(path)} {get_text(path)}"
    runtime = runtimes.get(str(model.get("runtime")))
    env = NOTHING_SET if runtime is None else stores.read_env(runtime.document, runtime.path, runtime.container)
    env |= stores.read_env(document, path, model)
    own, command = (get_container_words(document, (*path, key), model, env, found) for key in ("args", "command"))
    if runtime is None:
        image, before = _built_in(model, where, found)
    else:
        image = str(runtime.container.get("image") or "")
        before, runtime_command = (
            get_container_words(runtime.document, (*runtime.path, key), runtime.container, env, found)
            for key in ("args", "command")
        )
        command = command or runtime_command
    image = _image(model, image)
    launch = run_image(Word(image), command, (*before, *own), env=env)
    if launch is None:
        return None
    return replace(
        launch,
        num_gpus=get_gpus(model) or (None if runtime is None else get_gpus(runtime.container)),
        volumes=_get_model_volumes(model, runtime),
        where=where,
        findings=(*found, *launch.findings),
        place=Place(form="object", value=document.value, path=path),
    )


def _get_model_volumes(model: Mapping[str, Any], runtime: _Runtime | None) -> tuple[str, ...] | None:
    """Return where the model's container has volumes. None for a runtime that is named and not in the file."""
    if runtime is None and model.get("runtime"):
        return None
    return (*get_volumes(model), *(() if runtime is None else get_volumes(runtime.container)))


def _built_in(model: Mapping[str, Any], where: str, found: Findings) -> tuple[str, tuple[Word, ...]]:
    """Return what KServe's own runtime for the model format brings along."""
    name = str(get_mapping(model, "modelFormat").get("name") or "").lower()
    image, args = _BUILT_IN.get(name, ("", ()))
    if image and not model.get("image"):
        found.append(
            get_rule("runtime-not-in-file").ruling(
                runtime=model.get("runtime") or "chosen by KServe", name=name, where=where
            )
        )
    return image, tuple(Word(text, place="runtime") for text in args)


def _image(model: Mapping[str, Any], image: str) -> str:
    """Return the image that runs: the service's own, or the runtime's with the tag that the service asks for."""
    if model.get("image"):
        return str(model["image"])
    version = model.get("runtimeVersion")
    if not version or not image:
        return image
    head, separator, tag = image.rpartition(":")
    return f"{head if separator and '/' not in tag else image}:{version}"


def find_llm_services(document: YamlDocument, stores: Stores) -> Iterator[Launch]:
    """Yield the servers of an LLMInferenceService.

    Its template passes all arguments to `eval`, so a shell reads them again.
    """
    spec = get_mapping(document.value, "spec")
    uri = str(get_mapping(spec, "model").get("uri") or "")
    model = Word(uri.removeprefix("hf://"), document.line(("spec", "model", "uri")), "spec.model.uri")
    for keys in (("template",), ("prefill", "template")):
        containers = get_mapping(spec, *keys).get("containers")
        index = _main(containers) if isinstance(containers, list) else None
        if index is None and keys != ("template",):
            continue
        container = containers[index] if isinstance(containers, list) and index is not None else {}
        launch = _read_llm_container(document, ("spec", *keys, "containers", index or 0), container, model, stores)
        if launch is not None:
            yield launch


_READ = frozenset({
    "annotations", "labels", "model", "parallelism", "prefill", "replicas", "router", "scaling", "storageInitializer",
    "template", "worker",
})  # fmt: skip
"""Fields of an LLMInferenceService that are read here, or that change no argument of vLLM."""


def _find_unread(document: YamlDocument) -> Iterator[Finding]:
    """Yield a finding about fields from which KServe takes arguments, an image or variables."""
    names = [f"spec.{name}" for name in get_mapping(document.value, "spec") if name not in _READ]
    if names:
        yield get_rule("service-fields-unread").ruling(names=names, where=f"line {document.line(('spec',))} spec")


def _evaluate(args: Sequence[Word], env: Environment, line: int, place: str) -> tuple[Word, ...]:
    additional = f"${_ADDITIONAL}" if _ADDITIONAL in env.unknown else env.values.get(_ADDITIONAL, "")
    text = " ".join([additional, *(word.text for word in args)])
    return tuple(replace(word, place=place) for word in evaluate_words(text, line=line, env=env))


def _read_parallelism(workload: Mapping[str, Any], line: str, found: Findings) -> tuple[Word, ...]:
    """Return the flags that KServe's template makes of a workload's parallelism, and add what it refuses or ignores.

    Read in KServe's main branch of August 2026: config/llmisvcconfig, llm_inference_service_validation.go.
    """
    given = {key: each for key, each in get_mapping(workload, "parallelism").items() if each not in (None, False)}
    of_data, where = given.keys() & {"data", "dataLocal"}, f"{line} parallelism"
    words = ["--tensor-parallel-size", str(given["tensor"])] if "tensor" in given else []
    if "worker" not in workload:
        if idle := [f"parallelism.{key}" for key in given if key != "tensor"]:
            found.append(get_rule("service-parallelism-ignored").ruling(names=idle, where=where))
    elif of_data and "pipeline" in given:
        found.append(
            get_rule("service-parallelism-refused").ruling(cause="pipeline and data are both set", where=where)
        )
    elif of_data:
        words += ["--data-parallel-size", str(given.get("data", 1))]
        words += ["--data-parallel-size-local", str(given.get("dataLocal", 1))]
        words += ["--enable-expert-parallel"] if "expert" in given else []
    elif "pipeline" in given:  # a template of that name is not among KServe's own
        found.append(get_rule("service-fields-unread").ruling(names=["parallelism.pipeline"], where=where))
    else:
        cause = "worker is set, but neither data nor pipeline parallelism"
        found.append(get_rule("service-parallelism-refused").ruling(cause=cause, where=where))
    if len(of_data) == 1:
        cause = "data and dataLocal must be set together"
        found.append(get_rule("service-parallelism-refused").ruling(cause=cause, where=where))
    return tuple(Word(each, place=where) for each in words)


def _read_llm_container(
    document: YamlDocument, path: Path, container: Mapping[str, Any], model: Word, stores: Stores
) -> Launch | None:
    """Return the server of an LLMInferenceService's container. None where its own command starts none."""
    found: Findings = [*_find_unread(document)]
    env = stores.read_env(document, path, container)
    args = get_container_words(document, (*path, "args"), container, env, found)
    command = get_container_words(document, (*path, "command"), container, env, found)
    uri = str(get_mapping(document.value, "spec", "model").get("uri") or "")
    image = str(container.get("image") or "")
    where = f"line {document.line(path)} {get_text(path)}"
    has_workers = "worker" in get_mapping(document.value, "spec")  # ranks of several hosts
    num_gpus = None if has_workers else get_gpus(container)
    if command:  # takes the place of the template's, and with it the model and the parallelism that this one adds
        launch = run_image(Word(image), command, args, env=env)
        if launch is None:
            return None
        mounts = {_MODELS: uri} if uri else {}
        findings, place = (*found, *launch.findings), Place(form="object", value=document.value, path=path)
        return replace(
            launch, mounts=mounts, num_gpus=num_gpus or launch.num_gpus, where=where, findings=findings, place=place
        )
    words = _evaluate(args, env, document.line(path), get_text(path))
    of_role = path[: path.index("template")]
    parallel = _read_parallelism(
        get_mapping(document.value, *map(str, of_role)), f"line {document.line(of_role)}", found
    )
    return Launch(
        words=(model, *parallel, *words),
        entry="serve",
        env=env,
        image=image,
        version=find_release(image),
        num_gpus=num_gpus,
        where=where,
        findings=tuple(found),
        place=Place(form="object", value=document.value, path=path),
    )
