"""A folder of compiled kernels to ship: filled on one machine, read on identical ones.

It holds Triton's kernels (GPU) and numba's (CPU). `kernels.json` names their processor and versions; any other machine
rejects them. Uses no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from draftwise.core import InvalidSetup, cause_of
from draftwise.engine.engine_config import EngineConfig
from draftwise.knowledge.messages import refusal
from draftwise.machine.whole_files import write_whole
from draftwise.version import __version__

KERNEL_CACHE = "DRAFTWISE_KERNEL_CACHE"
"""Environment variable that names the folder."""
SHIPPED = "DRAFTWISE_SHIPPED_KERNELS"
"""Environment variable that names Triton's part of a read-only folder."""
_MANIFEST = "kernels.json"
_OURS = frozenset({"triton", "numba"})
"""Subfolders that compilers create, one per version."""
_MADE_WITH = {"cuda": ("torch", "triton"), "cpu": ("torch", "numba", "llvmlite")}


def make_environment(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the environment variables for a process that uses a kernel folder.

    A read-only folder is only read. New kernels then go to their default place.

    Raises:
        InvalidSetup: the folder does not exist and cannot be created.
    """
    path = Path(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal("kernels-not-writable", path=path, cause=cause_of(error)) from None
    manager = "draftwise.engine.kernels.cuda.kernel_store:KernelStore"
    made = {KERNEL_CACHE: str(path), "TRITON_CACHE_MANAGER": manager}
    if os.access(path, os.W_OK):
        return made | {"TRITON_CACHE_DIR": str(path / "triton"), "NUMBA_CACHE_DIR": str(path / "numba")}
    return made | {SHIPPED: str(path / "triton")}


def describe_platform(device: str) -> dict[str, str]:
    """Return the platform for compiled kernels: the processor, and the versions that they depend on.

    Args:
        device: `cuda` or `cpu`, as torch names it.
    """
    found = {"draftwise": __version__, "python": ".".join(platform.python_version_tuple()[:2]), "device": device}
    for package in _MADE_WITH[device]:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    if device == "cuda":
        import torch

        major, minor = torch.cuda.get_device_capability()
        return found | {"processor": torch.cuda.get_device_name(), "capability": f"{major}.{minor}"}
    from llvmlite import binding

    features = hashlib.sha256(binding.get_host_cpu_features().flatten().encode()).hexdigest()[:12]
    return found | {"processor": binding.get_host_cpu_name(), "features": features}


def name_setup(config: EngineConfig, spec_json: str | None) -> str:
    """Return a name for all settings that determine which kernels are compiled."""
    drafter = json.loads(spec_json).get("model") if spec_json else None
    files = [Path(model) / "config.json" for model in (config.model, drafter) if model]
    files += sorted((Path(__file__).parent / "kernels").rglob("*.py"))  # two of one version may differ in development
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()]
    settings = replace(config, model="", hidden_states_folder="", load_format="", seed=0, skip_tokenizer_init=False)
    told = json.dumps([asdict(settings), spec_json, sums], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def known_setups(folder: str | None) -> tuple[str, ...]:
    """Return the setups listed in a kernel folder, for any machine; empty without a folder."""
    try:
        return tuple(json.loads((Path(folder) / _MANIFEST).read_text("utf-8"))["setups"]) if folder else ()
    except (OSError, ValueError, TypeError, KeyError):
        return ()


def may_have_gpu(device: str) -> bool:
    """Return whether an engine with this device setting may find a GPU. Uses no torch."""
    if device == "cpu" or find_spec("triton") is None:
        return False
    return device == "cuda" or Path("/dev/nvidiactl").exists() or which("nvidia-smi") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCache:
    """A kernel folder of this platform."""

    folder: Path
    platform: Mapping[str, str]
    setups: tuple[str, ...] = ()
    """Names of setups with complete kernels."""

    @classmethod
    def open(cls, folder: str | os.PathLike[str], platform: Mapping[str, str]) -> KernelCache:
        """Open a folder. An empty folder becomes this platform's.

        Raises:
            InvalidSetup: the kernels belong to another platform, or the folder is not a kernel folder.
        """
        path = Path(folder)
        try:
            manifest = json.loads((path / _MANIFEST).read_text("utf-8"))
            theirs, setups = dict(manifest["platform"]), tuple(map(str, manifest["setups"]))
        except FileNotFoundError:
            if path.is_dir() and not {each.name for each in path.iterdir()} <= _OURS:  # compilers may be ahead
                raise _refuse(
                    "not-kernels", path, f"holds files, but no {_MANIFEST}: it is no folder of kernels."
                ) from None
            new = cls(folder=path, platform=platform)
            try:
                new._write()
            except OSError as error:
                raise refusal("kernels-not-writable", case="empty", path=path, cause=cause_of(error)) from None
            return new
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise _refuse("not-kernels", path, f"has a {_MANIFEST} that cannot be read ({cause_of(error)}).") from None
        if differing := [name for name in sorted({*theirs, *platform}) if theirs.get(name) != platform.get(name)]:
            told = "; ".join(f"{name} {theirs.get(name)} there, {platform.get(name)} here" for name in differing)
            raise _refuse("kernels-of-another", path, f"was made for another machine: {told}.")
        return cls(folder=path, platform=platform, setups=setups)

    def add(self, setup: str) -> KernelCache:
        """Record that a setup's kernels are complete, on disk if the folder is writable."""
        if setup in self.setups:
            return self
        grown = replace(self, setups=(*self.setups, setup))
        with suppress(OSError):
            grown._write()
        return grown

    def _write(self) -> None:
        content = {"platform": dict(self.platform), "setups": list(self.setups)}
        write_whole(self.folder / _MANIFEST, json.dumps(content, indent=1) + "\n")


def count_kernels(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """Return the number of kernels in a folder, and the bytes of all its files."""
    files = [each for each in Path(folder).rglob("*") if each.is_file()]
    return sum(each.suffix in (".cubin", ".nbc") for each in files), sum(each.stat().st_size for each in files)


def _refuse(code: str, path: Path, predicate: str) -> InvalidSetup:
    return InvalidSetup.because(
        code,
        f"{path} {predicate}",
        fix="Give an empty folder, or fill one here with: draftwise warm-up MODEL --out DIR.",
    )
