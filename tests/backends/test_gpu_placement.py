"""Arms get GPUs of their own while there are enough, else equal shares of memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from draftwise.backends.gpu_placement import GpuPlacement, ask_driver, count_gpus_per_arm, find_gpus, place_arms
from draftwise.core import InvalidSetup, Setup


def test_arms_have_gpus_of_their_own_while_there_are_enough() -> None:
    assert place_arms(2, ["0", "1", "2"], {}) == (GpuPlacement(gpus=("0",)), GpuPlacement(gpus=("1",)))
    assert [each.gpus for each in place_arms(2, ["4", "5", "6", "7"], {"tensor_parallel_size": 2})] == [
        ("4", "5"),
        ("6", "7"),
    ]
    setup = Setup(target="m", args={"seed": 1})
    assert place_arms(1, ["0"], {})[0].apply(setup) == setup


def test_arms_that_share_get_equal_parts_of_the_memory() -> None:
    found = place_arms(3, ["0"], {})
    setup = Setup(target="m", args={"seed": 1, "gpu_memory_utilization": 0.9})
    assert found[2].apply(setup).args == {"seed": 1, "gpu_memory_utilization": 0.3}
    assert {each.sharing for each in found} == {3}
    assert found[0].env == {"CUDA_VISIBLE_DEVICES": "0"}


def test_an_arm_alone_on_its_gpu_gets_no_more_than_the_others() -> None:
    found = place_arms(3, ["0", "1"], {})
    assert [each.gpus for each in found] == [("0",), ("1",), ("0",)]
    assert [each.sharing for each in found] == [2, 1, 2]
    assert {each.utilization for each in found} == {0.45}


def test_the_operators_share_is_what_is_divided() -> None:
    args = {"gpu_memory_utilization": 0.8, "max_model_len": 4096}
    assert {each.utilization for each in place_arms(2, ["0"], args)} == {0.4}


@pytest.mark.parametrize("num_arms", range(1, 12))
@pytest.mark.parametrize("num_gpus", range(1, 5))
def test_no_gpu_is_given_away_twice(num_arms: int, num_gpus: int) -> None:
    found = place_arms(num_arms, [str(number) for number in range(num_gpus)], {})
    assert len(found) == num_arms
    for gpu in {each.gpus for each in found}:
        on_it = [each for each in found if each.gpus == gpu]
        assert {each.sharing for each in on_it} == {len(on_it)}
        assert sum(each.utilization or 0.9 for each in on_it) <= 0.9 + 1e-9
    assert max(each.sharing for each in found) - min(each.sharing for each in found) <= 1


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(InvalidSetup, match="takes 4 GPUs, but only 2 may be used"):
        place_arms(2, ["0", "1"], {"tensor_parallel_size": 2, "pipeline_parallel_size": 2})


def test_all_kinds_of_parallelism_take_gpus() -> None:
    sizes = {"tensor_parallel_size": 2, "data_parallel_size": 3, "pipeline_parallel_size": 2}
    assert count_gpus_per_arm(sizes) == 12
    assert count_gpus_per_arm({}) == 1


def test_what_is_visible_here_is_what_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-abc")
    assert find_gpus() == ("2", "GPU-abc")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus() == ()


@pytest.fixture
def write_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that puts a script in the place of the driver's tool."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(body: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)

    return write


@pytest.mark.parametrize(("body", "lines"), [("echo 0\necho 1", ["0", "1"]), ("echo failed; exit 9", [])])
def test_the_driver_names_its_gpus(write_driver: Callable[[str], None], body: str, lines: list[str]) -> None:
    write_driver(body)
    assert ask_driver("index") == lines


def test_a_driver_that_hangs_has_no_gpus(write_driver: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.backends.gpu_placement._DRIVER_S", 0.05)
    write_driver("exec sleep 30")
    assert ask_driver("index") == []


def test_without_a_driver_there_are_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_driver("index") == []
