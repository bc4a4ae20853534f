"""Packed weights that processes share: the same bits as a private copy, and never those of another checkpoint."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwise.engine.models import checkpoint, load_model, packed
from draftwise.engine.models.causal_lm import CausalLM
from draftwise.engine.models.checkpoint import CheckpointReader

pytestmark = pytest.mark.skipif(
    not (packed._can_view() and packed.can_pack(torch.device("cpu"), torch.float32)), reason="torch cannot do it here"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, into which small checkpoints go too."""
    monkeypatch.setenv("DRAFTWISE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(packed, "_LEAST_BYTES", 0)
    return tmp_path / "cache" / "packed"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of tensors that were read from a checkpoint."""
    names: list[str] = []
    original = CheckpointReader.read

    def note(self, name, *args, **options):
        names.append(name)
        return original(self, name, *args, **options)

    monkeypatch.setattr(CheckpointReader, "read", note)
    return names


def load(path: Path, **options) -> CausalLM:
    return load_model(path, **{"dtype": "float32", "device": "cpu"} | options)


def logits(model: CausalLM, run_paged) -> torch.Tensor:
    ((hidden,),) = run_paged(model, [[1, 2, 3, 4, 5]], [[5]])
    return model.logits(hidden)


def written(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.exists() else []


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_first_and_the_next_model_compute_what_a_private_one_does(
    save_tiny, run_paged, cache, monkeypatch, family, dtype
):
    path, _ = save_tiny(family)
    first, second = (logits(load(path, dtype=dtype), run_paged) for _ in range(2))
    monkeypatch.setattr(packed, "_LEAST_BYTES", 2**60)
    private = logits(load(path, dtype=dtype), run_paged)
    assert len(written(cache)) == packed.can_pack(torch.device("cpu"), getattr(torch, dtype))
    assert torch.equal(first, private)
    assert torch.equal(second, private)


def test_matrices_are_read_once_and_mapped_from_then_on(save_tiny, cache, read):
    path, _ = save_tiny("llama")
    first = load(path)
    assert any(name.endswith("proj.weight") for name in read)
    read.clear()
    second = load(path)
    assert not [name for name in read if "proj" in name or "embed" in name]
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "weights.bin" in line]
    spans = [[int(address, 16) for address in line[0].split("-")] for line in lines]
    for model in (first, second):
        address = model.weights.embedding_VH.data_ptr()
        assert any(start <= address < end for start, end in spans)


def test_another_checkpoint_dtype_or_config_has_weights_of_its_own(save_tiny, run_paged, cache, edit_config):
    path, _ = save_tiny("llama")
    load(path)
    if packed.can_pack(torch.device("cpu"), torch.bfloat16):
        load(path, dtype="bfloat16")
    before = len(written(cache))
    file = path / "model.safetensors"
    os.utime(file, (time.time() + 5, time.time() + 5))
    load(path)
    edit_config(path, rms_norm_eps=1e-4)
    load(path)
    assert len(written(cache)) == before + 2


def test_a_checkpoint_that_is_incomplete_leaves_nothing_behind(save_tiny, cache, edit_config):
    path, _ = save_tiny("llama")
    edit_config(path, num_hidden_layers=9)
    with pytest.raises(ValueError, match="lacks"):
        load(path)
    assert written(cache) == []


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"])
def test_what_is_packed_is_checked_as_what_is_read(save_tiny, cache, monkeypatch, name):
    """Also where a cache was written before the check existed."""
    path, _ = save_tiny("llama")
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {name: tensors[name].to(torch.int8)}, path / "model.safetensors")
    with monkeypatch.context() as before:
        before.setattr(checkpoint, "_FLOATS", ("F32", "I8"))
        load(path)
    assert written(cache)
    with pytest.raises(ValueError, match=f"Tensor {name} has type I8"):
        load(path)


@pytest.mark.parametrize("damage", ["{", '{"a": {"start": 0, "bytes": 1000000000}}'])
def test_what_is_damaged_is_written_again(save_tiny, run_paged, cache, damage):
    path, _ = save_tiny("llama")
    expected = logits(load(path), run_paged)
    (folder,) = written(cache)
    (folder / "index.json").write_text(damage)
    assert torch.equal(logits(load(path), run_paged), expected)
    assert written(cache) == [folder]
    assert len(json.loads((folder / "index.json").read_text())) > 4


@pytest.mark.parametrize("call", ["_add", "disk_usage"])
def test_without_room_on_the_disk_the_weights_are_private(save_tiny, run_paged, cache, monkeypatch, call):
    path, _ = save_tiny("llama")
    if call == "_add":
        original = packed.PackedFile._add

        def fill(self, *args):
            if len(self._places) == 3:
                self._file.close()
                self._file = (self.folder / "weights.bin").open("rb")  # writing fails from now on
            return original(self, *args)

        monkeypatch.setattr(packed.PackedFile, "_add", fill)
    else:
        monkeypatch.setattr(packed.shutil, "disk_usage", lambda _: packed.shutil._ntuple_diskusage(1, 1, 0))
    model = load(path)
    assert written(cache) == []
    monkeypatch.setattr(packed, "_LEAST_BYTES", 2**60)
    assert torch.equal(logits(model, run_paged), logits(load(path), run_paged))


def test_where_nothing_can_be_written_or_shared_the_weights_are_private(save_tiny, cache, tmp_path, monkeypatch):
    path, _ = save_tiny("llama")
    load(path, quantization="fp8")
    load(path, load_format="dummy")
    load(path, dtype="float64")
    monkeypatch.setattr(packed, "_can_view", lambda: False)
    load(path)
    assert written(cache) == []
    (tmp_path / "file").write_text("")
    monkeypatch.undo()
    monkeypatch.setattr(packed, "_LEAST_BYTES", 0)
    monkeypatch.setenv("DRAFTWISE_CACHE_DIR", str(tmp_path / "file"))
    load(path)


def test_what_nobody_opened_for_long_is_removed(save_tiny, cache):
    path, _ = save_tiny("llama")
    load(path)
    (old,) = written(cache)
    for file in old.iterdir():
        os.utime(file, (1.0, 1.0))
    other, _ = save_tiny("qwen3")
    load(other)
    assert old not in written(cache)
    assert len(written(cache)) == 1


def test_of_processes_that_start_together_one_packs(save_tiny, cache):
    path, _ = save_tiny("llama")
    code = (
        "import sys\n"
        "from draftwise.engine.models import load_model, packed\n"
        "packed._LEAST_BYTES, calls, pack = 0, [], packed.pack\n"
        "packed.pack = lambda weight: (calls.append(1), pack(weight))[1]\n"
        "load_model(sys.argv[1], dtype='float32', device='cpu')\n"
        "print(len(calls))\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    calls = sorted(int(process.communicate()[0]) for process in processes)
    assert calls[0] == 0
    assert calls[1] > 4
