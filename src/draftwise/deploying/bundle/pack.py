"""Writes the folder of a bundle: weights under their names, what a platform needs to take them, and the sums of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from urllib.parse import urlsplit

from draftwise.core import Finding, InvalidSetup, Setup, Severity
from draftwise.deploying.bundle.artefacts import Artefact, find_artefacts, judge, list_checkpoints, list_files
from draftwise.deploying.bundle.copying import copy_all
from draftwise.deploying.files import CHECKSUMS, MODELCAR, STAGE, digest, prove, write_sums
from draftwise.deploying.record import SETUP
from draftwise.deploying.secrets import refuse_secrets
from draftwise.deploying.templating import dump_yaml, fill
from draftwise.deploying.verify.manifests import read_setup
from draftwise.knowledge.methods import find_method
from draftwise.setups.write import write_json

__all__ = ["MODELS", "Wanted", "pack", "verify_bundle"]

MODELS = "models"
_BASE = "busybox:1.37"
_MODELSCOPE = "modelscope"
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the place that the bundle is for looks like."""

    image: str = ""
    """Of the server, best with its digest; empty for vLLM's own of the release."""
    modelcar: str = "models:1"
    """How the image of the weights is to be called."""
    claim: str = "models"
    """On which the staging Job puts the weights."""
    wheels: Sequence[Path] = ()
    """Packages that the method needs and the image does not have."""
    mirror: str = ""
    """Where models come from there: the URL of a mirror of the hub, or `modelscope`; empty for nowhere."""


def pack(
    setup: Setup, sources: Mapping[str, Path], out: Path, wanted: Wanted, *, told: Callable[[int], None]
) -> tuple[Finding, ...]:
    """Write a bundle, and return what is to be known of it.

    Args:
        setup: whose weights it takes along.
        sources: directories of checkpoints, by their names.
        out: a folder that is not there yet.
        wanted: what the other place looks like.
        told: is given the bytes that were copied since it was called last.

    Raises:
        InvalidSetup: a checkpoint is not whole, or would not be found for what it is.
        StorageError: the folder cannot be written; the next call goes on from there.
    """
    refuse_secrets(setup)
    env = _list_env(wanted.mirror)
    artefacts = find_artefacts(setup, sources)
    findings = [*judge(setup, artefacts), *_find_absences(setup, wanted)]
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
        (folder / CHECKSUMS).write_text(write_sums(whole), encoding="utf-8")

    copy_all(files, out, finish, told=told)
    return tuple(findings)


def verify_bundle(folder: Path) -> tuple[Finding, ...]:
    """Return what of a bundle is not what was written, or no setup that a server could load.

    Raises:
        UnreadableSource: the folder is no bundle.
    """
    setup, changed = read_setup(folder / SETUP), tuple(prove(folder))
    if any(each.severity is Severity.ERROR for each in changed):
        return changed
    artefacts = tuple(
        Artefact(checkpoint=each, source=folder / MODELS / each.directory, tree=folder / MODELS)
        for each in list_checkpoints(setup)
    )
    return (*changed, *judge(setup, artefacts))


def _list_env(mirror: str) -> Mapping[str, str]:
    """Return the variables of a server that must ask nobody outside, or a mirror only."""
    parts = urlsplit(mirror)
    if not mirror:
        return {**_OFFLINE, **_QUIET}
    if mirror == _MODELSCOPE:
        return {"VLLM_USE_MODELSCOPE": "True", **_QUIET}
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise InvalidSetup.because(
            "mirror-unusable",
            "The mirror is no URL that could be written down: it needs http or https and a host, and may hold no "
            "user or password.",
            where="--mirror",
            fix="Write e.g. https://hub.example.org; give credentials to the server as a secret.",
        )
    return {"HF_ENDPOINT": mirror, **_QUIET}


def _find_absences(setup: Setup, wanted: Wanted) -> Iterator[Finding]:
    """Yield what the other place will lack."""
    method = find_method(setup.spec.method) if setup.spec is not None else None
    package = "" if method is None else method.package
    if package and not any(wheel.name.replace("_", "-").startswith(f"{package}-") for wheel in wanted.wheels):
        yield Finding.warning(
            "wheel-missing",
            f"The method needs the package {package}, which vLLM's image does not have and no wheel brings.",
            where="--wheel",
            fix=f"pip download --no-deps {package} for the image's Python, and name the file with --wheel.",
        )
    image = _name_image(setup, wanted)
    if "@sha256:" not in image:
        yield Finding.warning(
            "image-not-pinned",
            f"The image {image} has no digest: the place that loads it cannot tell whether it is the same.",
            where="--image",
            fix=f"docker pull {image}, and give what docker inspect --format '{{{{index .RepoDigests 0}}}}' says.",
        )


def _name_image(setup: Setup, wanted: Wanted) -> str:
    return wanted.image or f"vllm/vllm-openai:v{setup.engine_version}"


def _list_all(artefacts: Sequence[Artefact], wheels: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield what is copied, by its name in the bundle."""
    for artefact in artefacts:
        for name, path in list_files(artefact):
            yield f"{MODELS}/{artefact.checkpoint.directory}/{name}", path
    yield from ((f"wheels/{wheel.name}", wheel) for wheel in wheels)


def _write_modelcar(artefacts: Sequence[Artefact]) -> str:
    names = [f"{MODELS}/{each.checkpoint.directory}" for each in artefacts]
    copies = [dumps([name, f"/{name}"]) for name in (*names, f"{MODELS}/{CHECKSUMS}")]
    lines = ["# A layer for each checkpoint: a new drafter leaves the target's as it is.", f"FROM {_BASE}"]
    return "\n".join([*lines, *(f"COPY {copy}" for copy in copies), ""])


def _write_readme(artefacts: Sequence[Artefact], wanted: Wanted, setup: Setup) -> str:
    image = _name_image(setup, wanted)
    held = [f"- `{MODELS}/{each.checkpoint.directory}/`" for each in artefacts]
    steps = {
        "Prove it": f"sha256sum -c {CHECKSUMS}  # or: draftwise bundle verify .",
        "Bring the images (on a machine that reaches the registry)": (
            f"docker pull {image} && docker save {image} -o server-image.tar\n"
            f"docker pull {_BASE} && docker save {_BASE} -o {_BASE.partition(':')[0]}.tar"
        ),
        "Make the image of the weights": f"docker build -f {MODELCAR} -t {wanted.modelcar} .",
        f"Or put them onto the claim {wanted.claim}": f"kubectl apply -f {STAGE}",
        "Write the service for it (or --layout pvc:" + wanted.claim + ")": (
            f"draftwise deploy {SETUP} --to kserve --layout modelcar:{wanted.modelcar} --out service/"
        ),
        "Prove the weights in a pod": f"kubectl exec POD -- sh -c 'cd /mnt/models && sha256sum -c {CHECKSUMS}'",
    }
    blocks = [f"{text}:\n\n```sh\n{command}\n```\n" for text, command in steps.items()]
    env = "Servers start with the variables in `env`: they ask nobody outside for weights, and tell nobody.\n"
    return "\n".join(["# Weights of a setup\n", *held, "", env, *blocks])
