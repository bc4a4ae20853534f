"""`draftwise bundle`: what goes into it, what it refuses, and that it is whole or not there."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator

from draftwise.cli import main
from draftwise.core import InvalidSetup, Setup, SpecConfig, StorageError
from draftwise.deploying import deploy, make_order, read_layout
from draftwise.deploying.order import Platform
from draftwise.deploying.weights_bundle import BundleOptions, list_checkpoints, locate_checkpoints, pack
from draftwise.knowledge.methods import methods_where

MODELS = Path(__file__).parents[3] / "bundle"
HUB = "meta-llama/Llama-3.1-8B-Instruct"
HEAD = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"


def make_setup(target: str | Path, model: str | Path, method: str | None = "eagle3") -> Setup:
    spec = SpecConfig(method=method, model=str(model), num_speculative_tokens=3)
    return Setup(target=str(target), engine="vllm", engine_version="0.26.0", spec=spec)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Setup:
    """Return a setup whose checkpoints are copies that a test may damage."""
    for name in ("target", "eagle3"):
        shutil.copytree(MODELS / name, tmp_path / name)
    return make_setup(tmp_path / "target", tmp_path / "eagle3")


def write(
    setup: Setup, out: Path, wanted: BundleOptions | None = None, told: Callable[[int], None] = lambda count: None
) -> Any:
    return pack(setup, {}, out, wanted or BundleOptions(), told=told)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["bundle", *map(str, words)], catch_exceptions=False)


def test_a_bundle_proves_itself_with_and_without_draftwise(checkpoints: Setup, tmp_path: Path) -> None:
    (tmp_path / "setup.json").write_text(
        json.dumps({"target": checkpoints.target, "engine_version": "0.26.0", "args": {},
                    "speculative_config": checkpoints.spec.to_dict() if checkpoints.spec else None})
    )  # fmt: skip
    out = tmp_path / "out"
    written = run(tmp_path / "setup.json", "--out", out)
    assert written.exit_code == 0, written.output
    assert "image-not-pinned" in written.output
    assert run("verify", out).exit_code == 0
    for folder in (out, out / "models"):
        proved = subprocess.run(["sha256sum", "--check", "--quiet", "CHECKSUMS"], cwd=folder, check=False)
        assert proved.returncode == 0
    assert {path.relative_to(out).as_posix() for path in out.glob("*")} == {
        *(
            "CHECKSUMS",
            "CHECKSUMS.sum",
            "Dockerfile.modelcar",
            "README.md",
            "env",
            "images.txt",
            "models",
            "setup.json",
        ),
        "stage-job.yaml",
    }
    assert "HF_HUB_OFFLINE=1\nTRANSFORMERS_OFFLINE=1\n" in (out / "env").read_text()
    job = yaml.safe_load((out / "stage-job.yaml").read_text())
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "models:1"


def test_one_flipped_byte_is_found(checkpoints: Setup, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(checkpoints, out)
    weights = out / "models" / "eagle3" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    found = run("verify", out, "--json")
    assert found.exit_code == 1
    schema = json.loads(CliRunner().invoke(main, ["schema", "bundle"]).stdout)
    assert not list(Draft7Validator(schema).iter_errors(json.loads(found.stdout)))
    (finding,) = json.loads(found.stdout)["findings"]
    assert (finding["code"], finding["where"]) == ("file-changed", str(weights))
    proved = subprocess.run(["sha256sum", "--check", "--quiet", "CHECKSUMS"], cwd=out, check=False, capture_output=True)
    assert b"eagle3/model.safetensors: FAILED" in proved.stdout


def damage(setup: Setup, kind: str, outside: Path) -> Setup:
    target, head = Path(setup.target), Path(setup.spec.model or "") if setup.spec else Path()
    shard = target / "model-00002-of-00004.safetensors"
    match kind:
        case "lfs-pointer":
            shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 12\n")
        case "link-leaves-tree":
            shutil.move(head / "model.safetensors", outside / "weights")
            (head / "model.safetensors").symlink_to(outside / "weights")
        case "link to a folder":
            (head / "more").symlink_to(outside)
        case "tokenizer-absent":
            (target / "tokenizer.json").unlink()
        case "shard":
            shard.unlink()
        case "method-not-told":
            head.rename(head.with_name("renamed"))
            return make_setup(target, head.with_name("renamed"), None)
    return setup


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("lfs-pointer", "lfs-pointer"),
        ("link-leaves-tree", "link-leaves-tree"),
        ("link to a folder", "link-leaves-tree"),
        ("tokenizer-absent", "tokenizer-absent"),
        ("shard", "shards-missing"),
        ("method-not-told", "method-not-told"),
    ],
)
def test_what_would_not_serve_at_the_other_place_is_refused(
    checkpoints: Setup, tmp_path: Path, kind: str, code: str
) -> None:
    (tmp_path / "outside").mkdir()
    setup = damage(checkpoints, kind, tmp_path / "outside")
    with pytest.raises(InvalidSetup) as raised:
        write(setup, tmp_path / "out")
    assert code in {finding.code for finding in raised.value.findings}
    assert not (tmp_path / "out").exists()


def test_a_head_whose_name_tells_its_method_needs_no_more(checkpoints: Setup, tmp_path: Path) -> None:
    named = tmp_path / "EAGLE3-tiny"
    (tmp_path / "eagle3").rename(named)
    write(make_setup(checkpoints.target, named, None), tmp_path / "out")
    assert (tmp_path / "out" / "models" / "EAGLE3-tiny" / "config.json").is_file()


def test_absent_defaults_of_generation_are_a_note(checkpoints: Setup, tmp_path: Path) -> None:
    (Path(checkpoints.target) / "generation_config.json").unlink()
    assert "generation-config-absent" in {each.code for each in write(checkpoints, tmp_path / "out")}


def test_an_interrupted_bundle_goes_on_where_it_was(checkpoints: Setup, tmp_path: Path) -> None:
    out, copied = tmp_path / "out", list[int]()

    def interrupt(count: int) -> None:
        copied.append(count)
        if len(copied) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(checkpoints, out, told=interrupt)
    assert not out.exists()
    (part,) = tmp_path.glob(".out.part")
    before = {path: path.stat().st_mtime_ns for path in part.rglob("*.safetensors")}
    write(checkpoints, out)
    kept = [path for path, time in before.items() if (out / path.relative_to(part)).stat().st_mtime_ns == time]
    assert kept
    assert run("verify", out).exit_code == 0
    assert not part.exists()
    assert not list(out.rglob(".done"))


def test_a_source_that_changed_meanwhile_is_copied_again(checkpoints: Setup, tmp_path: Path) -> None:
    count = 0

    def interrupt(_: int) -> None:
        nonlocal count
        count += 1
        if count == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(checkpoints, tmp_path / "out", told=interrupt)
    config = Path(checkpoints.target) / "generation_config.json"
    config.write_text('{"temperature": 0.5}')
    write(checkpoints, tmp_path / "out")
    assert (tmp_path / "out/models/target/generation_config.json").read_text() == config.read_text()


def test_a_full_disk_is_told_before_anything_is_copied(
    checkpoints: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(StorageError, match="MiB are free"):
        write(checkpoints, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_hubs_cache_is_read_through_its_links(
    checkpoints: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, source in ((HUB, "target"), (HEAD, "eagle3")):
        tree = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        shutil.move(tmp_path / source, tree / "blobs")
        (tree / "refs").mkdir()
        (tree / "refs" / "main").write_text("abc")
        (tree / "snapshots" / "abc").mkdir(parents=True)
        for blob in (tree / "blobs").iterdir():
            (tree / "snapshots" / "abc" / blob.name).symlink_to(Path("../../blobs") / blob.name)
    write(make_setup(HUB, HEAD), tmp_path / "out")
    assert (tmp_path / "out" / "models" / HEAD / "model.safetensors").is_file()
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


def test_hidden_files_stay_behind(checkpoints: Setup, tmp_path: Path) -> None:
    (Path(checkpoints.target) / ".netrc").write_text("password")
    (Path(checkpoints.target) / ".cache").mkdir()
    (Path(checkpoints.target) / ".cache" / "token").write_text("password")
    write(checkpoints, tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name in (".netrc", "token")]


def test_a_checkpoint_that_is_not_here_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup, match=f"hf download {HUB}"):
        locate_checkpoints(make_setup(HUB, HEAD), {})
    with pytest.raises(InvalidSetup, match="does not load gpt2"):
        locate_checkpoints(make_setup(HUB, HEAD), {"gpt2": tmp_path})


@pytest.mark.parametrize("layout", ["storage-uris", "pvc:models", "mixed:models", "modelcar:registry.local/llama:1"])
def test_the_setup_of_a_deployment_names_the_same_checkpoints(layout: str) -> None:
    order = make_order(make_setup(HUB, HEAD))
    folder = deploy(replace(order, platform=Platform(layout=read_layout(layout))), "kserve")
    given = json.loads(folder.files["setup.json"])
    setup = make_setup(given["target"], given["speculative_config"]["model"])
    assert [each.directory for each in list_checkpoints(setup)] == [HUB, HEAD]


@pytest.mark.parametrize("method", sorted(methods_where()))
def test_every_method_takes_along_what_it_loads(method: str) -> None:
    row = methods_where()[method]
    names = [each.name for each in list_checkpoints(make_setup(HUB, HEAD, method))]
    assert names == ([HUB, HEAD] if row.weights in ("drafter", "either") else [HUB])


def test_what_the_other_place_lacks_is_said(checkpoints: Setup, tmp_path: Path) -> None:
    setup = replace(checkpoints, spec=SpecConfig(method="suffix"))
    codes = {finding.code for finding in write(setup, tmp_path / "out")}
    assert {"wheel-missing", "image-not-pinned"} <= codes
    wheel = tmp_path / "arctic_inference-0.1.1-cp312-none-any.whl"
    wheel.write_bytes(b"wheel")
    wanted = BundleOptions(image="vllm/vllm-openai@sha256:" + 64 * "1", wheels=[wheel])
    assert {"wheel-missing", "image-not-pinned"}.isdisjoint(
        finding.code for finding in write(setup, tmp_path / "again", wanted)
    )
    assert (tmp_path / "again" / "wheels" / wheel.name).is_file()


@pytest.mark.parametrize(
    ("mirror", "line"),
    [("https://hub.example.org", "HF_ENDPOINT=https://hub.example.org"), ("modelscope", "VLLM_USE_MODELSCOPE=True")],
)
def test_a_mirror_stands_for_the_hub(checkpoints: Setup, tmp_path: Path, mirror: str, line: str) -> None:
    write(checkpoints, tmp_path / "out", BundleOptions(mirror=mirror))
    assert line in (tmp_path / "out" / "env").read_text().splitlines()


@pytest.mark.parametrize("mirror", ["https://user:word@hub.example.org", "hub.example.org"])
def test_no_secret_is_written(checkpoints: Setup, tmp_path: Path, mirror: str) -> None:
    with pytest.raises(InvalidSetup, match="must not hold a user or password"):
        write(checkpoints, tmp_path / "out", BundleOptions(mirror=mirror))
    assert not (tmp_path / "out").exists()


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    assert run("verify", tmp_path).exit_code == 2
