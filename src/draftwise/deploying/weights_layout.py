"""Locates a server's weights: which directory holds which checkpoint, and how it gets there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from packaging.version import Version

from draftwise.core import Setup
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import find_method, find_placeholder
from draftwise.knowledge.models import find_model, names_directory
from draftwise.knowledge.stored import read_rows

LayoutKind = Literal["one", "storage-uris", "modelcar", "pvc", "mixed"]
_MODELS = "/mnt/models"
"""Where KServe puts what `storageUri` names."""
_CLAIM = "/mnt/claim"
"""Mount point of a claim, apart from the downloaded directories, which may lie on a volume of their own."""
_CLAIM_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
IMAGE = re.compile(
    r"[a-z0-9](?:[\w.-]*[a-zA-Z0-9])?(?::\d+)?(?:/[a-z0-9][a-z0-9._-]*)*(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
"""Reference of an image (distribution/reference): registry, path, tag and digest."""
MODEL_ROOTS = (_MODELS, _CLAIM)
"""Root directories of weights on the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """One kind of layout, a row of `knowledge/data/weights_layouts.json`."""

    kind: LayoutKind
    about: str
    leftovers: str
    """What remains after a rollback, as a sentence; `{directory}` and `{store}` are filled in."""
    store: str = ""
    """Placeholder for the name of the store of weights; empty if the layout needs none."""
    single_uri: bool = False
    """Whether it uses a single URI, which every release of KServe supports."""

    @property
    def shape(self) -> str:
        """The layout as an option value, such as `pvc:CLAIM`."""
        return f"{self.kind}:{self.store}" if self.store else self.kind


LAYOUTS: Mapping[LayoutKind, LayoutRow] = {row["kind"]: LayoutRow(**row) for row in read_rows("weights_layouts")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way of bringing the weights to the server."""

    kind: LayoutKind
    store: str = ""
    """The image of a modelcar, or the name of a claim."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.store}" if self.store else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory of the server and the URI that fills it."""

    uri: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """Weights of the target or of the drafter."""

    name: str
    """Name on the hub, or a local directory."""
    revision: str = ""
    """Revision on the hub; empty for the main branch."""

    @property
    def directory(self) -> str:
        """Return its directory below the models' root."""
        return name_directory(self.name)

    @property
    def uri(self) -> str:
        """Return the URI with which KServe downloads it."""
        return f"hf://{self.name}:{self.revision}" if self.revision else f"hf://{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPlacement:
    """Where the weights are; by default, the server fetches them by name."""

    target: str = ""
    """Directory that the target is loaded from; empty for the name in the setup."""
    whole: str = ""
    """One URI that fills the models' directory."""
    mounts: tuple[Mount, ...] = ()
    """Instead: a URI for the target's directory."""
    drafts: tuple[Mount, ...] = ()
    """And a URI for the drafter's directory."""
    staged: tuple[CheckpointRef, ...] = ()
    """Checkpoints that must be put into the image or onto the claim."""


def name_leftovers(layout: Layout, setup: Setup) -> str:
    """Return what remains of a layout after a rollback, as a sentence."""
    drafter = find_drafter(setup)
    row = LAYOUTS[layout.kind if drafter else "one"]
    return row.leftovers.format(directory=drafter, store=layout.store)


def read_layout(text: str) -> Layout:
    """Return the layout of an option value, such as `one` or `pvc:models`.

    Raises:
        InvalidSetup: there is no such layout, or it lacks its claim or image.
    """
    kind, _, store = text.partition(":")
    known = next((row for row in LAYOUTS.values() if row.kind == kind), None)
    # A claim is a DNS name; an image may have slashes, and neither leads to another directory.
    shape = IMAGE if kind == "modelcar" else _CLAIM_NAME
    if known is None or bool(store) != bool(known.store) or (store and not shape.fullmatch(store)):
        shapes = ", ".join(row.shape for row in LAYOUTS.values())
        raise refusal("no-such-layout", text=text, shapes=shapes)
    return Layout(kind=known.kind, store=store)


def choose_layout(setup: Setup, release: Version, *, several_since: str) -> Layout:
    """Return the layout that needs only the files: no image to build, no claim to fill.

    Raises:
        InvalidSetup: the release downloads one checkpoint, and the setup loads two.
    """
    if not find_drafter(setup):
        return Layout(kind="one")
    if release < Version(several_since):
        raise refusal("layout-not-chosen", release=release, several_since=several_since)
    return Layout(kind="storage-uris")


def find_drafter(setup: Setup) -> str:
    """Return the checkpoint of a setup's drafter; empty if it uses only the target's weights."""
    spec = setup.spec
    if spec is None or not spec.model or spec.model == setup.target or find_placeholder(spec.model) is not None:
        return ""
    method = find_method(spec.method) if spec.method else None
    return spec.model if method is None or method.weights in ("drafter", "either") else ""


def name_directory(checkpoint: str) -> str:
    """Return a checkpoint's directory below the models' root: its own name, from which vLLM infers methods."""
    return posixpath.basename(checkpoint.rstrip("/")) if names_directory(checkpoint) else checkpoint


def name_upstream(path: str) -> str:
    """Return the name elsewhere of the checkpoint at a path on the server; other names as they are."""
    root = next((each for each in MODEL_ROOTS if path.startswith(f"{each}/")), None)
    return path if root is None else path.removeprefix(f"{root}/")


def rename_upstream(setup: Setup) -> Setup:
    """Return a setup with the checkpoints' names elsewhere in place of their directories on the server."""
    spec = setup.spec
    if spec is not None and spec.model:
        spec = replace(spec, model=_name_on_hub(spec.model))
    return replace(setup, target=_name_on_hub(setup.target), spec=spec)


def _name_on_hub(path: str) -> str:
    """Return the hub's name of what a path on the server holds. A directory that somebody named stays a path."""
    name = name_upstream(path)
    known = find_model(name)
    is_known = known is not None and name in (known.id, *known.names)
    return name if name.count("/") == 1 or is_known else path


def place(setup: Setup, layout: Layout) -> tuple[Setup, WeightsPlacement]:
    """Return a setup for the server, with directories in place of names, and what fills these directories.

    Raises:
        InvalidSetup: the layout cannot hold everything that the setup loads.
    """
    target, drafter = _list_checkpoints(setup)
    _refuse(layout, target, drafter)
    root = _CLAIM if layout.kind == "mixed" else _MODELS
    path = _MODELS if layout.kind == "one" else f"{root}/{target.directory}"
    draft_path = f"{_MODELS}/{drafter.directory}" if drafter is not None else ""
    placement = replace(_fill(layout, path, target, drafter), target=path)
    if drafter is not None and layout.kind in ("storage-uris", "mixed"):
        placement = replace(placement, drafts=(Mount(uri=drafter.uri, path=draft_path),))
    is_named = layout.kind in ("one", "storage-uris")  # the URI still says which model of the hub it is
    own = path if setup.spec is not None and setup.spec.model == setup.target else ""  # drafts with its own modules
    return _rename(setup, setup.target if is_named else path, draft_path or own), placement


def _list_checkpoints(setup: Setup) -> tuple[CheckpointRef, CheckpointRef | None]:
    name = find_drafter(setup)
    revision = setup.spec.options.get("revision") if setup.spec is not None else None
    target = CheckpointRef(name=setup.target, revision=_to_text(setup.args.get("revision")))
    return target, CheckpointRef(name=name, revision=_to_text(revision)) if name else None


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _fill(layout: Layout, path: str, target: CheckpointRef, drafter: CheckpointRef | None) -> WeightsPlacement:
    both = (target,) if drafter is None else (target, drafter)
    match layout.kind:
        case "one":
            return WeightsPlacement(whole=target.uri)
        case "storage-uris":
            return WeightsPlacement(mounts=(Mount(uri=target.uri, path=path),))
        case "modelcar":
            return WeightsPlacement(whole=f"oci://{layout.store}", staged=both)
        case "pvc":
            return WeightsPlacement(whole=f"pvc://{layout.store}", staged=both)
        case "mixed":
            # KServe mounts the whole claim there, whatever path the URI goes on with.
            return WeightsPlacement(mounts=(Mount(uri=f"pvc://{layout.store}", path=_CLAIM),), staged=(target,))


def _refuse(layout: Layout, target: CheckpointRef, drafter: CheckpointRef | None) -> None:
    if drafter is not None and layout.kind == "one":
        raise refusal("layout-too-small", name=target.name, name2=drafter.name)
    if drafter is not None and drafter.directory == target.directory:
        raise refusal("layout-names-collide", name=target.name, name2=drafter.name, directory=target.directory)
    fetched = {"one": (target,), "storage-uris": (target, drafter), "mixed": (drafter,)}
    for checkpoint in fetched.get(layout.kind, ()):
        if checkpoint is not None and names_directory(checkpoint.name):
            raise refusal("layout-cannot-fetch", case="weights_layout", kind=layout.kind, name=checkpoint.name)


def _rename(setup: Setup, target: str, drafter: str) -> Setup:
    """Return a setup with directories for names. Requests go on naming the model as they did."""
    spec = setup.spec
    if spec is not None and drafter:
        spec = replace(spec, model=drafter)
    return replace(setup, target=target, spec=spec, args={"served_model_name": [setup.target], **setup.args})
