"""Which checkpoints a setup loads, where they lie here, and whether they may go on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from draftwise.checkpoints.inspect import Inspection, inspect_checkpoint
from draftwise.checkpoints.pair import inspect_pair
from draftwise.checkpoints.text_files import POINTER_BYTES, refuse_pointer
from draftwise.core import Finding, InvalidSetup, Setup
from draftwise.deploying.weights_layout import Checkpoint, find_drafter, name_upstream
from draftwise.knowledge.vllm import get_release
from draftwise.plan.check import check

__all__ = ["Artefact", "find_artefacts", "judge", "list_checkpoints", "list_files"]

_MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A checkpoint of a setup."""

    checkpoint: Checkpoint
    source: Path
    """The directory that holds it here."""
    tree: Path
    """What links in it may point into: the directory itself, or the folder of the hub's cache that it is part of."""


def list_checkpoints(setup: Setup) -> tuple[Checkpoint, ...]:
    """Return the target and, where it has weights of its own, the drafter, as they are named elsewhere."""
    found = [Checkpoint(name=name_upstream(setup.target), revision=_get_text(setup.args))]
    if (drafter := find_drafter(setup)) and setup.spec is not None:
        found.append(Checkpoint(name=name_upstream(drafter), revision=_get_text(setup.spec.options)))
    return tuple(found)


def _get_text(options: Mapping[str, object]) -> str:
    revision = options.get("revision")
    return revision if isinstance(revision, str) else ""


def find_artefacts(setup: Setup, sources: Mapping[str, Path]) -> tuple[Artefact, ...]:
    """Return the checkpoints that a setup loads, where they lie.

    Args:
        setup: that loads them.
        sources: directories by name, for those that are neither a directory nor in the hub's cache.

    Raises:
        InvalidSetup: one of them is not here, or a source is of neither.
    """
    checkpoints = list_checkpoints(setup)
    names = [each.name for each in checkpoints]
    if foreign := [name for name in sources if name not in names]:
        raise InvalidSetup.because(
            "artefact-not-loaded",
            f"The setup does not load {foreign[0]}.",
            where="--from",
            fix=f"It loads {' and '.join(names)}.",
        )
    return tuple(_find(each, sources) for each in checkpoints)


def _find(checkpoint: Checkpoint, sources: Mapping[str, Path]) -> Artefact:
    given = sources.get(checkpoint.name, Path(checkpoint.name))
    if given.is_dir():
        return Artefact(checkpoint=checkpoint, source=given, tree=given)
    tree = _hub_cache() / f"models--{checkpoint.name.replace('/', '--')}"
    revision = checkpoint.revision or _MAIN
    reference = tree / "refs" / revision
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    if checkpoint.name not in sources and (source := tree / "snapshots" / commit).is_dir():
        return Artefact(checkpoint=checkpoint, source=source, tree=tree)
    raise InvalidSetup.because(
        "artefact-not-here",
        f"{given if checkpoint.name in sources else checkpoint.name} is no directory, and the hub's cache does not "
        "have it.",
        where="--from",
        fix=f"Download it (hf download {checkpoint.name} --local-dir DIR) and name it: --from {checkpoint.name}=DIR.",
    )


def _hub_cache() -> Path:
    """Return where the hub's own library keeps what it downloaded (huggingface_hub/constants.py)."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def list_files(artefact: Artefact) -> Iterator[tuple[str, Path]]:
    """Yield the files of a checkpoint: the name inside it, and what is to be copied. Hidden ones stay behind.

    Raises:
        InvalidSetup: a link leaves the tree, or a file is a pointer to what Git did not fetch.
    """
    tree = artefact.tree.resolve()
    for folder, folders, names in os.walk(artefact.source):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        links = [each for each in folders if (Path(folder) / each).is_symlink()]
        for name in sorted([*links, *(each for each in names if not each.startswith("."))]):
            path = Path(folder) / name
            real = path.resolve()
            if not real.is_file() or not real.is_relative_to(tree):
                raise InvalidSetup.because(
                    "link-leaves-tree",
                    f"{path} is a link to {real}, which is no file of this checkpoint.",
                    where=str(path),
                    fix="Put the file itself there: cp --dereference.",
                )
            with real.open("rb") as file:
                refuse_pointer(path, file.read(POINTER_BYTES))
            yield path.relative_to(artefact.source).as_posix(), real


def judge(setup: Setup, artefacts: tuple[Artefact, ...]) -> Iterator[Finding]:
    """Yield what is wrong with the checkpoints, alone and together, and what they lack.

    Raises:
        InvalidSetup: config.json or weights are missing or damaged: with every fault of both.
    """
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
        yield Finding.error(
            "tokenizer-absent",
            f"{target.source} has no tokenizer: the server would look for it on the hub.",
            where=str(target.source),
            fix="Download the checkpoint with its tokenizer files.",
        )
    if not (target.source / "generation_config.json").is_file():
        yield Finding.info(
            "generation-config-absent",
            f"{target.source} has no generation_config.json: the server starts with its own sampling defaults.",
            where=str(target.source),
        )


def _find_lost_name(setup: Setup, artefact: Artefact, found: Inspection) -> Iterator[Finding]:
    """Yield that nothing tells the method any more where the directory's name does not, and the config does not."""
    spec = setup.spec
    if spec is None or spec.method is not None or not found.drafter.is_head:
        return
    resolved = check(replace(setup, spec=replace(spec, model=artefact.checkpoint.directory))).resolved
    if resolved is None or resolved.method != found.drafter.method:
        yield Finding.error(
            "method-not-told",
            f"{artefact.source} is a head of {found.drafter.method}, which neither its name nor the "
            "speculative config tells: vLLM would take it for a model.",
            where="speculative_config",
            fix=f'Add "method": "{found.drafter.method}", or give the directory its name back.',
        )
