"""Headers are read as the safetensors library reads them, and what is wrong with a file is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.combinations import tries
from tests.support.crafted import BITS, BUNDLE, header_of, write_checkpoint, write_safetensors

from draftwise.checkpoints.headers import read_file, read_headers, role_of
from draftwise.core import InvalidSetup

QUICK = settings(max_examples=tries(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TENSORS = {"a.weight": ("BF16", (4, 3)), "b": ("I64", (2,)), "c": ("F4", (4, 2)), "empty": ("F32", (0, 7))}


def fault(folder: Path) -> str:
    with pytest.raises(InvalidSetup) as raised:
        read_headers(folder)
    (finding,) = raised.value.findings
    assert finding.fix
    return finding.code


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "model.safetensors", TENSORS)
    return tmp_path / "model.safetensors"


def test_names_types_shapes_and_bytes(file: Path) -> None:
    headers = read_headers(file.parent)
    assert {name: (t.dtype, t.shape) for name, t in headers.tensors.items()} == TENSORS
    assert headers.num_bytes == 24 + 16 + 4
    assert headers.bytes_by_dtype() == {"BF16": 24, "I64": 16, "F4": 4, "F32": 0}
    assert headers.files == ("model.safetensors",)


@pytest.mark.engine
@pytest.mark.parametrize("folder", sorted(path.parent for path in BUNDLE.glob("*/config.json")), ids=lambda p: p.name)
def test_bundled_files_are_read_as_the_library_reads_them(folder: Path) -> None:
    from safetensors import safe_open

    headers = read_headers(folder)
    seen = {}
    for name in headers.files:
        with safe_open(folder / name, framework="numpy") as library:
            seen |= {key: tuple(library.get_slice(key).get_shape()) for key in library.keys()}  # noqa: SIM118
        content = (folder / name).read_bytes()
        for tensor in (each for each in headers.tensors.values() if each.file == name and each.dtype == "I64"):
            there = np.frombuffer(content, np.int64, tensor.num_elements, tensor.start).reshape(tensor.shape)
            with safe_open(folder / name, framework="numpy") as library:
                assert np.array_equal(there, library.get_tensor(tensor.name))
    assert {name: tensor.shape for name, tensor in headers.tensors.items()} == seen
    overhead = sum(8 + struct.unpack("<Q", (folder / name).read_bytes()[:8])[0] for name in headers.files)
    assert headers.num_bytes + overhead == sum((folder / name).stat().st_size for name in headers.files)


def test_layers_beyond_the_decoder_are_mtp() -> None:
    assert role_of("model.layers.60.self_attn.o_proj.weight", 61) == "attention"
    assert role_of("model.layers.61.self_attn.o_proj.weight", 61) == "mtp"
    assert role_of("model.layers.3.mlp.experts.7.down_proj.weight", 61) == "experts"
    assert role_of("model.layers.3.mlp.down_proj.weight_scale_inv") == "quantization"
    assert role_of("visual.blocks.40.attn.qkv.weight", 28) == "other modality"


class TestWhichFilesCount:
    def test_the_index_decides(self, tmp_path: Path) -> None:
        for name in ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"):
            write_safetensors(tmp_path / name, {name: ("F32", (1,))})
        index = {"weight_map": {name: name for name in ("model-1.safetensors", "model-2.safetensors")}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert read_headers(tmp_path).files == ("model-1.safetensors", "model-2.safetensors")

    def test_without_one_all_do_but_a_consolidated_copy(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "consolidated.safetensors", {"w": ("F32", (1,))})
        assert read_headers(tmp_path).files == ("consolidated.safetensors",)
        write_safetensors(tmp_path / "model.safetensors", {"w": ("F32", (1,))})
        assert read_headers(tmp_path).files == ("model.safetensors",)

    def test_index_and_files_that_disagree_are_reported(self, file: Path) -> None:
        index = {"weight_map": dict.fromkeys([*TENSORS, "gone"], file.name)}
        (file.parent / "model.safetensors.index.json").write_text(json.dumps(index))
        (finding,) = read_headers(file.parent).findings
        assert finding.code == "indexed-tensors-missing"
        assert "gone" in finding.message

    def test_a_tensor_in_two_files_is_reported(self, file: Path) -> None:
        write_safetensors(file.with_name("other.safetensors"), {"b": ("I64", (2,))})
        (finding,) = read_headers(file.parent).findings
        assert finding.code == "tensors-twice"


class TestWhatIsWrong:
    def test_missing_directory_weights_and_shards(self, tmp_path: Path) -> None:
        assert fault(tmp_path / "nowhere") == "no-checkpoint"
        assert fault(tmp_path) == "no-weights"
        (tmp_path / "pytorch_model.bin").write_bytes(b"x")
        assert fault(tmp_path) == "not-safetensors"
        shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        index = {"weight_map": {"v": shards[0], "w": shards[1]}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert fault(tmp_path) == "not-safetensors"
        write_safetensors(tmp_path / shards[0], {"v": ("I64", (2,))})
        assert fault(tmp_path) == "shards-missing"

    @pytest.mark.parametrize(
        "index",
        ["[]", "{", '{"weight_map": []}', '{"weight_map": {"w": 3}}', '{"weight_map": {"w": "../model.safetensors"}}'],
    )
    def test_a_bad_index(self, tmp_path: Path, index: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(index)
        assert fault(tmp_path) in ("bad-index", "not-json", "not-an-object")

    def test_a_pointer_of_git_lfs(self, file: Path) -> None:
        file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
        assert fault(file.parent) == "lfs-pointer"

    def test_a_truncated_file(self, file: Path) -> None:
        whole = file.read_bytes()
        for length in (0, 7, 8, 30, len(whole) - 1):
            file.write_bytes(whole[:length])
            assert fault(file.parent) == "damaged-weights"

    def test_every_damaged_file_is_named(self, file: Path) -> None:
        file.write_bytes(b"")
        file.with_name("more.safetensors").write_bytes(b"")
        with pytest.raises(InvalidSetup) as raised:
            read_headers(file.parent)
        assert [Path(finding.where).name for finding in raised.value.findings] == [
            "model.safetensors",
            "more.safetensors",
        ]

    def test_a_header_that_claims_to_be_huge_is_not_read(self, file: Path) -> None:
        file.write_bytes(struct.pack("<Q", 2**63) + b"{}")
        assert fault(file.parent) == "damaged-weights"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NUMBERS = st.one_of(st.integers(-1, 40), st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, 10**400]), JSON)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "F4", "F6_E2M3", "Q4", ""]) | JSON,
        "shape": st.lists(NUMBERS, max_size=3) | JSON,
        "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2) | JSON,
    },
)


def read_ours(file: Path) -> dict[str, tuple[int, ...]] | None:
    try:
        return {name: tensor.shape for name, tensor in read_file(file).items()}
    except InvalidSetup:
        return None


def read_theirs(file: Path) -> dict[str, tuple[int, ...]] | None:
    from safetensors import SafetensorError, deserialize

    try:
        return {name: tuple(entry["shape"]) for name, entry in deserialize(file.read_bytes())}
    except SafetensorError:
        return None


@pytest.mark.engine
@QUICK
@given(header=st.dictionaries(st.text(), ENTRY | JSON, max_size=3) | JSON, extra=st.integers(0, 40))
def test_arbitrary_headers_are_refused_or_read_as_the_library_does(tmp_path: Path, header: Any, extra: int) -> None:
    text = json.dumps(header).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(extra))
    ours = read_ours(file)
    assert ours is None or ours == read_theirs(file)


@pytest.mark.engine
@QUICK
@given(
    tensors=st.dictionaries(
        st.text(min_size=1),
        st.tuples(
            st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 4).map(lambda n: 2 * n), max_size=3).map(tuple)
        ),
        max_size=4,
    )
)
def test_what_the_library_reads_is_read(tmp_path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    file = tmp_path / "model.safetensors"
    write_safetensors(file, {name: entry for name, entry in tensors.items() if entry != ("F4", ())})
    theirs = read_theirs(file)
    assert theirs is not None
    assert read_ours(file) == theirs


@pytest.mark.engine
@QUICK
@given(data=st.data())
def test_a_flipped_byte_is_refused_or_read_as_the_library_does(tmp_path: Path, data: st.DataObject) -> None:
    header, num_bytes = header_of({"a": ("BF16", (4, 3)), "b": ("I64", (2,))})
    text = json.dumps(header).encode()
    whole = bytearray(struct.pack("<Q", len(text)) + text + bytes(num_bytes))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path / "model.safetensors"
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    ours = read_ours(file)
    assert ours is None or ours == read_theirs(file)


def test_deep_nesting_is_refused(file: Path) -> None:
    text = b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    assert fault(file.parent) == "damaged-weights"


def test_an_unprintable_name_cannot_reach_the_terminal(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, {})
    header = {"\x1b[2J": {"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(3))
    with pytest.raises(InvalidSetup, match=r"\\x1b"):
        read_headers(tmp_path)
