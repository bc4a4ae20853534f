"""A setup's weights and everything that they need, in one folder for machines that cannot reach the hub."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from urllib.parse import urlsplit

from draftwise.checkpoints.inspect import Inspection, inspect_checkpoint
from draftwise.checkpoints.pair import inspect_pair
from draftwise.checkpoints.text_files import POINTER_BYTES, refuse_pointer
from draftwise.core import Finding, InvalidSetup, Setup, Severity, StorageError, cause_of
from draftwise.deploying.deployment_folder import (
    CHECKSUMS,
    MODELCAR,
    SEAL,
    SETUP,
    STAGE,
    digest,
    prove,
    write_proof,
    write_sums,
)
from draftwise.deploying.secrets import refuse_secrets
from draftwise.deploying.templating import dump_yaml, fill
from draftwise.deploying.verify.manifest_files import read_setup
from draftwise.deploying.weights_layout import CheckpointRef, find_drafter, name_upstream
from draftwise.knowledge.messages import fault, note, refusal, text_of, warning
from draftwise.knowledge.methods import find_method
from draftwise.knowledge.vllm import get_release
from draftwise.plan.check import check
from draftwise.setups.write import write_json

_MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedCheckpoint:
    """A checkpoint of a setup."""

    checkpoint: CheckpointRef
    source: Path
    """Directory of the checkpoint on this machine."""
    tree: Path
    """Folder that its links may point into: the directory itself, or its folder in the hub's cache."""


def list_checkpoints(setup: Setup) -> tuple[CheckpointRef, ...]:
    """Return the target and, if it has its own weights, the drafter, by their names elsewhere."""
    found = [CheckpointRef(name=name_upstream(setup.target), revision=_get_text(setup.args))]
    if (drafter := find_drafter(setup)) and setup.spec is not None:
        found.append(CheckpointRef(name=name_upstream(drafter), revision=_get_text(setup.spec.options)))
    return tuple(found)


def _get_text(options: Mapping[str, object]) -> str:
    revision = options.get("revision")
    return revision if isinstance(revision, str) else ""


def locate_checkpoints(setup: Setup, sources: Mapping[str, Path]) -> tuple[LocatedCheckpoint, ...]:
    """Return the checkpoints that a setup loads, with their directories.

    Raises:
        InvalidSetup: one of them is not on this machine, or a source is for another checkpoint.
    """
    checkpoints = list_checkpoints(setup)
    names = [each.name for each in checkpoints]
    if foreign := [name for name in sources if name not in names]:
        raise refusal("artefact-not-loaded", foreign=foreign[0], names=" and ".join(names))
    return tuple(_find(each, sources) for each in checkpoints)


def _find(checkpoint: CheckpointRef, sources: Mapping[str, Path]) -> LocatedCheckpoint:
    given = sources.get(checkpoint.name, Path(checkpoint.name))
    if given.is_dir():
        return LocatedCheckpoint(checkpoint=checkpoint, source=given, tree=given)
    tree = _hub_cache() / f"models--{checkpoint.name.replace('/', '--')}"
    revision = checkpoint.revision or _MAIN
    reference = tree / "refs" / revision
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    if checkpoint.name not in sources and (source := tree / "snapshots" / commit).is_dir():
        return LocatedCheckpoint(checkpoint=checkpoint, source=source, tree=tree)
    raise refusal(
        "artefact-not-here", what=given if checkpoint.name in sources else checkpoint.name, name=checkpoint.name
    )


def _hub_cache() -> Path:
    """Return where the hub's own library keeps what it downloaded (huggingface_hub/constants.py)."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def _list_files(artefact: LocatedCheckpoint) -> Iterator[tuple[str, Path]]:
    """Yield the files of a checkpoint: the name inside it, and what is to be copied. Hidden ones stay behind."""
    tree = artefact.tree.resolve()
    for folder, folders, names in os.walk(artefact.source):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        links = [each for each in folders if (Path(folder) / each).is_symlink()]
        for name in sorted([*links, *(each for each in names if not each.startswith("."))]):
            path = Path(folder) / name
            real = path.resolve()
            if not real.is_file() or not real.is_relative_to(tree):
                raise refusal("link-leaves-tree", path=path, real=real)
            with real.open("rb") as file:
                refuse_pointer(path, file.read(POINTER_BYTES))
            yield path.relative_to(artefact.source).as_posix(), real


def _judge(setup: Setup, artefacts: tuple[LocatedCheckpoint, ...]) -> Iterator[Finding]:
    """Yield what is wrong with the checkpoints, alone and together, and what they lack."""
    version = get_release(setup.engine_version, nearest=True).version
    target, *drafters = artefacts
    if drafters:
        pair = inspect_pair(drafters[0].source, target.source, version=version)
        yield from pair.findings
        yield from _find_lost_name(setup, drafters[0], pair.drafter)
        of_target = pair.target
    else:
        of_target = inspect_checkpoint(target.source, version=version)
        yield from of_target.findings
    if of_target.vocabulary is None:
        yield fault("tokenizer-absent", source=target.source)
    if not (target.source / "generation_config.json").is_file():
        yield note("generation-config-absent", source=target.source)


def _find_lost_name(setup: Setup, artefact: LocatedCheckpoint, found: Inspection) -> Iterator[Finding]:
    """Yield that nothing tells the method any more where the directory's name does not, and the config does not."""
    spec = setup.spec
    if spec is None or spec.method is not None or not found.drafter.is_head:
        return
    resolved = check(replace(setup, spec=replace(spec, model=artefact.checkpoint.directory))).resolved
    if resolved is None or resolved.method != found.drafter.method:
        yield fault("method-not-told", source=artefact.source, method=found.drafter.method)


_CHUNK = 8 << 20
_DONE = ".done"
"""One line of JSON for each file that was copied: what it was copied from, and its sum."""


def _copy_all(
    files: Mapping[str, Path],
    out: Path,
    finish: Callable[[Path, Mapping[str, str]], None],
    *,
    told: Callable[[int], None],
) -> None:
    """Copy files, let the rest be written, and put the folder in its place."""
    if out.exists():
        raise refusal("folder-exists", case="bundle", out=out)
    part = out.parent / f".{out.name}.part"
    try:
        part.mkdir(parents=True, exist_ok=True)
        done = _read_done(part / _DONE)
        _check_room(part, [path for name, path in files.items() if _identify(name, path) not in done])
        sums = {name: _copy(name, path, part, done, told) for name, path in files.items()}
        _remove_strays(part, files)
        finish(part, sums)
        (part / _DONE).unlink(missing_ok=True)
        part.rename(out)
    except OSError as error:
        raise StorageError(text_of("bundle-not-kept", out=out, cause=cause_of(error), part=part)) from None


def _identify(name: str, source: Path) -> str:
    state = source.stat()
    return json.dumps([name, str(source), state.st_size, state.st_mtime_ns])


def _read_done(journal: Path) -> Mapping[str, str]:
    """Return the sums of what was copied, by what it was copied from. A line that was cut off counts for nothing."""
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else []
    pairs = (line.split(" ", 1) for line in lines)
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and len(pair[0]) == 64 and pair[1].endswith("]")}


def _check_room(part: Path, missing: list[Path]) -> None:
    needed, free = sum(path.stat().st_size for path in missing), shutil.disk_usage(part).free
    if needed > free:
        raise OSError(f"the copy needs {needed >> 20} MiB, but only {free >> 20} MiB are free")


def _copy(name: str, source: Path, part: Path, done: Mapping[str, str], told: Callable[[int], None]) -> str:
    """Copy a file unless that was done before, and return its sum."""
    target, identity = part / name, _identify(name, source)
    if identity in done and target.is_file() and target.stat().st_size == source.stat().st_size:
        told(source.stat().st_size)
        return done[identity]
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as come, target.open("wb") as go:
        while chunk := come.read(_CHUNK):
            digest.update(chunk)
            go.write(chunk)
            told(len(chunk))
        go.flush()
        os.fsync(go.fileno())
    with (part / _DONE).open("a", encoding="utf-8") as journal:
        journal.write(f"{digest.hexdigest()} {identity}\n")
    return digest.hexdigest()


def _remove_strays(part: Path, files: Mapping[str, Path]) -> None:
    """Remove what an earlier command, of another setup, left in the folder."""
    for path in part.rglob("*"):
        if path.is_file() and path.relative_to(part).as_posix() not in files and path.name != _DONE:
            path.unlink()


MODELS = "models"
_BASE = "busybox:1.37"
_MODELSCOPE = "modelscope"
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """The environment that the bundle is for."""

    image: str = ""
    """Server image, preferably with its digest; empty for vLLM's own image of the release."""
    modelcar: str = "models:1"
    """Name of the image for the weights."""
    claim: str = "models"
    """Claim that the staging Job copies the weights to."""
    wheels: Sequence[Path] = ()
    """Wheels of packages that the method needs and the image lacks."""
    mirror: str = ""
    """Source of models there: the URL of a mirror of the hub, or `modelscope`; empty for none."""


def pack(
    setup: Setup, sources: Mapping[str, Path], out: Path, wanted: BundleOptions, *, told: Callable[[int], None]
) -> tuple[Finding, ...]:
    """Write a bundle, and return findings about it.

    Args:
        setup: setup whose weights to pack.
        sources: directories of checkpoints, by name.
        out: new folder.
        wanted: environment that the bundle is for.
        told: called with the number of bytes copied since the last call.

    Raises:
        InvalidSetup: a checkpoint is incomplete, or would not be recognized.
        StorageError: the folder cannot be written; repeat the call to continue.
    """
    refuse_secrets(setup)
    env = _list_env(wanted.mirror)
    artefacts = locate_checkpoints(setup, sources)
    findings = [*_judge(setup, artefacts), *_find_absences(setup, wanted)]
    if errors := [each for each in findings if each.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    files = dict(_list_all(artefacts, wanted.wheels))
    script = f"cp -r /{MODELS}/. /claim/ && cd /claim && sha256sum -c {CHECKSUMS}"
    job = {"image": wanted.modelcar, "claim": wanted.claim, "script": script}
    texts = {
        SETUP: write_json(setup),
        "images.txt": "".join(f"{image}\n" for image in (_name_image(setup, wanted), _BASE)),
        "env": "".join(f"{name}={value}\n" for name, value in env.items()),
        MODELCAR: _write_modelcar(artefacts),
        STAGE: dump_yaml(*fill("bundle.yaml", None, job)),
        "README.md": _write_readme(artefacts, wanted, setup),
    }

    def finish(folder: Path, sums: Mapping[str, str]) -> None:
        of_models = {name: value for name, value in sums.items() if name.startswith(f"{MODELS}/")}
        inner = {name.removeprefix(f"{MODELS}/"): value for name, value in of_models.items()}
        written = {f"{MODELS}/{CHECKSUMS}": write_sums(inner), **texts}
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
        whole = {**sums, **{name: digest(folder / name) for name in written}}
        for name, text in write_proof(whole).items():
            (folder / name).write_text(text, encoding="utf-8")

    _copy_all(files, out, finish, told=told)
    return tuple(findings)


def verify_bundle(folder: Path) -> tuple[Finding, ...]:
    """Return the files of a bundle that differ from its manifest, and what prevents a server from loading its setup.

    Raises:
        UnreadableSource: the folder is not a bundle.
    """
    changed = tuple(prove(folder, needed=(SETUP, f"{MODELS}/{CHECKSUMS}", MODELCAR, STAGE, "env", "images.txt")))
    if changed:
        return changed
    setup = read_setup(folder / SETUP)
    if differing := tuple(_compare_lists(folder)):
        return differing
    artefacts = tuple(
        LocatedCheckpoint(checkpoint=each, source=folder / MODELS / each.directory, tree=folder / MODELS)
        for each in list_checkpoints(setup)
    )
    return tuple(_judge(setup, artefacts))


def _compare_lists(folder: Path) -> Iterator[Finding]:
    """Yield that the list of the weights, which goes with them to a claim or an image, is not part of the whole one."""
    whole, inner = ((folder / name / CHECKSUMS).read_text(encoding="utf-8") for name in ("", MODELS))
    prefix = f"{MODELS}/"
    pairs = (line.split("  ", 1) for line in whole.splitlines())
    of_models = {name.removeprefix(prefix): value for value, name in pairs if name.startswith(prefix)}
    of_models.pop(CHECKSUMS, None)
    if inner != write_sums(of_models):
        yield fault("sums-changed", folder=folder / MODELS, what=f"it differs from {folder / CHECKSUMS}")


def _list_env(mirror: str) -> Mapping[str, str]:
    """Return the variables of a server that must ask nobody outside, or a mirror only."""
    parts = urlsplit(mirror)
    if not mirror:
        return {**_OFFLINE, **_QUIET}
    if mirror == _MODELSCOPE:
        return {"VLLM_USE_MODELSCOPE": "True", **_QUIET}
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise refusal("mirror-unusable")
    return {"HF_ENDPOINT": mirror, **_QUIET}


def _find_absences(setup: Setup, wanted: BundleOptions) -> Iterator[Finding]:
    method = find_method(setup.spec.method) if setup.spec is not None else None
    package = "" if method is None else method.package
    if package and not any(wheel.name.replace("_", "-").startswith(f"{package}-") for wheel in wanted.wheels):
        yield warning("wheel-missing", package=package)
    image = _name_image(setup, wanted)
    if "@sha256:" not in image:
        yield warning("image-not-pinned", image=image)


def _name_image(setup: Setup, wanted: BundleOptions) -> str:
    return wanted.image or f"vllm/vllm-openai:v{setup.engine_version}"


def _list_all(artefacts: Sequence[LocatedCheckpoint], wheels: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for artefact in artefacts:
        for name, path in _list_files(artefact):
            yield f"{MODELS}/{artefact.checkpoint.directory}/{name}", path
    yield from ((f"wheels/{wheel.name}", wheel) for wheel in wheels)


def _write_modelcar(artefacts: Sequence[LocatedCheckpoint]) -> str:
    names = [f"{MODELS}/{each.checkpoint.directory}" for each in artefacts]
    copies = [dumps([name, f"/{name}"]) for name in (*names, f"{MODELS}/{CHECKSUMS}")]
    lines = ["# One layer per checkpoint: a new drafter does not change the target's layer.", f"FROM {_BASE}"]
    return "\n".join([*lines, *(f"COPY {copy}" for copy in copies), ""])


def _write_readme(artefacts: Sequence[LocatedCheckpoint], wanted: BundleOptions, setup: Setup) -> str:
    image = _name_image(setup, wanted)
    held = [f"- `{MODELS}/{each.checkpoint.directory}/`" for each in artefacts]
    steps = {
        "Prove it": f"sha256sum -c --strict {SEAL} {CHECKSUMS}  # or: draftwise bundle verify .",
        "Fetch the images on a machine that reaches the registry": (
            f"docker pull {image} && docker save {image} -o server-image.tar\n"
            f"docker pull {_BASE} && docker save {_BASE} -o {_BASE.partition(':')[0]}.tar"
        ),
        "Build the image of the weights": f"docker build -f {MODELCAR} -t {wanted.modelcar} .",
        f"Or copy them to the claim {wanted.claim}": f"kubectl apply -f {STAGE}",
        "Write the service for it (or --layout pvc:" + wanted.claim + ")": (
            f"draftwise deploy {SETUP} --to kserve --layout modelcar:{wanted.modelcar} --out service/"
        ),
        "Verify the weights in a pod": f"kubectl exec POD -- sh -c 'cd /mnt/models && sha256sum -c {CHECKSUMS}'",
    }
    blocks = [f"{text}:\n\n```sh\n{command}\n```\n" for text, command in steps.items()]
    env = "Start servers with the variables in `env`: they then contact no outside host.\n"
    return "\n".join(["# Weights of a setup\n", *held, "", env, *blocks])
