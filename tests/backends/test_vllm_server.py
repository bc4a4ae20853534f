"""The life of a `vllm serve` child, with a pretend vLLM that prints real logs."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.support.clocks import skip_time

from draftwise.backends import VllmBackend
from draftwise.backends.gpu_placement import GpuPlacement
from draftwise.core import BackendError, InvalidSetup, Setup, SpecConfig

VLLM = f"{sys.executable} {Path(__file__).parents[1] / 'support' / 'fake_vllm.py'}"
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=3)


def make(tmp_path: Path, *args: str, **settings) -> VllmBackend:
    setup = Setup(target="/models/target", engine="vllm", spec=settings.pop("spec", NGRAM), extra_args=args)
    return VllmBackend("arm", setup, **{"vllm": VLLM, "log": tmp_path / "arm.log", **settings})


def fail(tmp_path: Path, *args: str, **settings) -> str:
    backend = make(tmp_path, *args, **settings)

    async def start() -> None:
        try:
            await backend.start()
        finally:
            await backend.stop()

    with pytest.raises(BackendError) as caught:
        asyncio.run(start())
    return str(caught.value)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return state(pid) != "Z"
    return False


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def comes_to(pid: int, wanted: str) -> bool:
    for _ in range(3000):
        if state(pid) == wanted:
            return True
        await asyncio.sleep(0.02)
    return False


def wait_until_gone(pids: list[int]) -> bool:
    for _ in range(1200):
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.05)
    return False


def test_it_says_how_it_came_up_and_how_its_settings_resolved(tmp_path: Path) -> None:
    phases: list[str] = []

    async def body() -> None:
        backend = make(tmp_path, "--max-model-len", "1024", on_wait=phases.append)
        await backend.start()
        try:
            info = await backend.describe()
            assert info.version == {
                "version": "0.32.0",
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
                "runner": "V1",
            }
            assert info.started["kv_cache_tokens"] == 8192
            assert info.started["counts_drafts"] is True
            assert list(info.started["seconds"])[:3] == ["importing vLLM", "starting the engine", "loading weights"]
        finally:
            await backend.stop()

    asyncio.run(body())
    assert phases[-1] == "", "it is not waited for any more"
    assert phases[-2].startswith(("importing vLLM", "starting the API", "ready"))


def test_its_command_is_what_an_operator_would_type(tmp_path: Path) -> None:
    command = make(tmp_path, "--max-model-len", "1024").command
    assert command == (
        f"{VLLM} serve /models/target "
        """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}' --max-model-len 1024"""
    )


CONFIG = {
    "method": "eagle3",
    "num_speculative_tokens": 3,
    "quantization": None,
    "target_model_config": {"hf_token": "x"},
}


@pytest.mark.parametrize(
    ("answer", "resolved"),
    [
        ({"vllm_config": {"speculative_config": CONFIG}}, {"method": "eagle3", "num_speculative_tokens": 3}),
        ({"vllm_config": {"speculative_config": None}}, {}),
        ({"vllm_config": "speculative_config=SpeculativeConfig(...)"}, None),
    ],
)
def test_a_server_in_development_mode_tells_its_whole_config(
    tmp_path: Path, answer: dict, resolved: dict | None
) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/server_info":
            return httpx.Response(200, json=answer)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return httpx.Response(200, json={"version": "0.32.0"})

    async def body() -> None:
        backend = make(tmp_path)
        backend._open(httpx.MockTransport(reply))
        assert (await backend.describe()).version.get("speculative_config") == resolved
        await backend.stop()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("kv_too_small", "ValueError: No available memory for the cache blocks"),
        ("worker_failed", "ValueError: Following weights were not initialized from checkpoint"),
        ("unknown_key", "Unexpected keyword argument"),
        ("unknown_flag", "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_failed_start_names_the_exception_that_began_it(tmp_path: Path, log: str, cause: str) -> None:
    said = fail(tmp_path, "--fake-fails", "--fake-log", log)
    assert "arm: the server ended with status 1. Its log: " in said
    assert cause in said.partition("Its last lines")[0]
    assert "Try it alone: " in said


def test_what_the_rules_foresaw_is_added(tmp_path: Path) -> None:
    spec = SpecConfig(method="ngram", num_speculative_tokens=3, options={"foo": 1})
    said = fail(tmp_path, "--fake-fails", "--fake-log", "unknown_key", spec=spec)
    assert "`draftwise check` says of this setup:" in said
    assert "foo" in said.rpartition("says of this setup:")[2].partition("Its last lines")[0]


def test_a_port_that_others_took_is_replaced(tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.write_text("xx")

    async def body() -> None:
        backend = make(tmp_path, "--fake-taken", str(again))
        await backend.start()
        await backend.stop()

    asyncio.run(body())
    assert again.read_text() == ""
    again.write_text("xxx")
    assert "taken" in fail(tmp_path, "--fake-taken", str(again))


def test_one_that_hangs_is_ended_and_its_log_pointed_at(tmp_path: Path) -> None:
    backend, log = make(tmp_path, "--fake-hangs", timeout_s=1000.0), tmp_path / "arm.log"

    async def body() -> None:
        starting = asyncio.create_task(backend.start())
        while not (log.exists() and "Waiting for application startup" in log.read_text()):
            await asyncio.sleep(0.01)
        skip_time(1000)
        await starting

    with pytest.raises(BackendError, match="was not ready after 1000 s") as caught:
        asyncio.run(body())
    assert f"Its last lines ({log})" in str(caught.value)


@pytest.mark.parametrize("flag", ["--port", "--speculative_config", "--host=0.0.0.0"])
def test_what_draftwise_decides_cannot_be_given(tmp_path: Path, flag: str) -> None:
    with pytest.raises(InvalidSetup, match="cannot be given"):
        make(tmp_path, flag, "x")


def test_a_command_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    said = r"^--vllm-command names '/no/such/vllm', but this machine has no such command\."
    with pytest.raises(InvalidSetup, match=said):
        make(tmp_path, vllm="/no/such/vllm")


def test_where_it_runs_is_told(tmp_path: Path) -> None:
    placement = GpuPlacement(gpus=("0",), sharing=2, utilization=0.45)

    async def body() -> None:
        backend = make(tmp_path, placement=placement)
        assert backend.command is not None
        assert "--gpu-memory-utilization 0.45" in backend.command
        await backend.start()
        try:
            started = (await backend.describe()).started
            assert (started["gpus"], started["servers_on_these_gpus"]) == ("0", 2)
        finally:
            await backend.stop()

    asyncio.run(body())


def test_one_that_does_not_say_that_it_is_ready_is_found_to_be(tmp_path: Path) -> None:
    async def body() -> None:
        backend = make(tmp_path, "--fake-quiet")
        await backend.start()
        assert (await backend.describe()).model == "/models/target"
        await backend.stop()

    asyncio.run(body())


def test_servers_in_turn_start_one_after_another(tmp_path: Path) -> None:
    async def body() -> None:
        turn = asyncio.Lock()
        await turn.acquire()
        backend = make(tmp_path, in_turn=turn)
        starting = asyncio.create_task(backend.start())
        await asyncio.sleep(0.05)
        assert not (tmp_path / "arm.log").exists()
        turn.release()
        await starting
        assert not turn.locked()
        await backend.stop()

    asyncio.run(body())


needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc")


@needs_proc
def test_a_resting_server_burns_nothing_and_still_answers_when_awake(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def body() -> None:
        backend = make(tmp_path, "--fake-pids", str(pids), "--fake-busy")
        await backend.start()
        server, engine, worker = map(int, pids.read_text().split())
        try:
            await backend.rest()
            assert await comes_to(worker, "T")
            assert "T" not in (state(server), state(engine))
            await backend.wake()
            assert await comes_to(worker, "R")
            assert (await backend.describe()).model == "/models/target"
            await backend.rest()
        finally:
            await backend.stop()
        assert not any(map(is_alive, (server, engine, worker))), "stopped processes end too"

    asyncio.run(body())


@needs_proc
@pytest.mark.parametrize(
    ("placement", "cores", "stopped"),
    [(GpuPlacement(gpus=("0",)), 4, True), (GpuPlacement(gpus=("0",)), 64, False), (None, 64, True)],
)
def test_a_gpu_server_is_only_stopped_where_cores_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: GpuPlacement | None, cores: int, stopped: bool
) -> None:
    pids = tmp_path / "pids"

    async def body() -> None:
        backend = make(tmp_path, "--fake-pids", str(pids), "--fake-busy", placement=placement)
        await backend.start()
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        try:
            await backend.rest()
            worker = int(pids.read_text().split()[-1])
            assert await comes_to(worker, "T" if stopped else "R")
        finally:
            await backend.stop()

    asyncio.run(body())


@needs_proc
@pytest.mark.parametrize("killed", ["draftwise", "server"])
def test_nothing_is_left_when_one_is_killed(tmp_path: Path, killed: str) -> None:
    pids = tmp_path / "pids"
    code = (
        "import asyncio, pathlib\n"
        "from draftwise.backends import VllmBackend\n"
        "from draftwise.core import Setup\n"
        f"setup = Setup(target='/models/target', engine='vllm', extra_args=('--fake-pids', {str(pids)!r}))\n"
        f"backend = VllmBackend('arm', setup, vllm={VLLM!r}, log=pathlib.Path({str(tmp_path / 'arm.log')!r}))\n"
        "async def main():\n"
        "    await backend.start()\n"
        "    print('up', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        server, engine, worker = map(int, pids.read_text().split())
        assert all(map(is_alive, (server, engine, worker)))
        os.kill(parent.pid if killed == "draftwise" else server, signal.SIGKILL)
        assert wait_until_gone([server, engine, worker])
        parent.kill()
