"""The embedded server as a child: its failures are explained."""

import asyncio
from pathlib import Path

import pytest

from draftwise.backends import EmbeddedBackend
from draftwise.backends.gpu_placement import GpuPlacement
from draftwise.core import BackendError, InvalidSetup, Setup, SpecConfig

NGRAM = SpecConfig(method="ngram", num_speculative_tokens=2)


def start(tmp_path: Path, target: str, **settings) -> None:
    setup = Setup(target=target, spec=NGRAM, extra_args=tuple(settings.pop("args", ())))
    backend = EmbeddedBackend("arm", setup, log=tmp_path / "arm.log", **settings)
    try:
        asyncio.run(backend.start())
    finally:
        asyncio.run(backend.stop())


def test_the_users_mistake_is_told_as_the_server_tells_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup, match=r"^arm: .*nowhere.* is not a directory") as caught:
        start(tmp_path, str(tmp_path / "nowhere"))
    assert "Traceback" not in str(caught.value)


def test_it_runs_on_the_gpu_that_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placement = GpuPlacement(gpus=("3",), sharing=2, utilization=0.45)
    backend = EmbeddedBackend("arm", Setup(target="t", spec=NGRAM), log=tmp_path / "arm.log", placement=placement)
    seen = {}

    def spawn(command: list[str], environment: dict[str, str]) -> None:
        seen.update(environment, command=" ".join(command))
        raise BackendError("looked at")

    monkeypatch.setattr(backend, "_spawn", spawn)
    with pytest.raises(BackendError, match="looked at"):
        asyncio.run(backend.start())
    assert seen["CUDA_VISIBLE_DEVICES"] == "3"
    assert "--gpu-memory-utilization 0.45" in seen["command"]


def test_any_other_end_shows_the_last_lines_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="the server ended with status 2") as caught:
        start(tmp_path, "target", args=["--no-such-flag"])
    assert "No such option" in str(caught.value)
    assert "Try it alone: draftwise serve target" in str(caught.value)


def test_a_server_that_is_not_ready_in_time_is_ended(tmp_path: Path, tiny_target: Path) -> None:
    with pytest.raises(BackendError, match="was not ready after 0 s"):
        start(tmp_path, str(tiny_target), timeout_s=0.3)
