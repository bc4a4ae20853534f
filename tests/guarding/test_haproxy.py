"""HAProxy's runtime API: what is read and ordered, against a socket that keeps servers as HAProxy does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwise.core import BackendError
from draftwise.core.action import Action, Step
from draftwise.guarding.executors import HAProxy, parse_servers

HEADER = (
    "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight "
    "srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state "
    "bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr"
)


class FakeProxy:
    """Answers one order a connection, as the socket without `prompt` does."""

    def __init__(self, path: Path) -> None:
        self.servers = {
            "llm/spec": {"addr": "127.0.0.1", "port": 8100, "op": 2, "admin": 0, "weight": 100, "initial": 100},
            "llm/plain": {"addr": "127.0.0.1", "port": 8101, "op": 2, "admin": 0, "weight": 100, "initial": 100},
        }
        self.orders: list[str] = []
        self.obeys = True
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.sendall(self._answer(connection.recv(4096).decode().strip()).encode())

    def _answer(self, order: str) -> str:
        if order == "show servers state":
            rows = (
                f"3 {name.split('/')[0]} 1 {name.split('/')[1]} {s['addr']} {s['op']} {s['admin']} {s['weight']} "
                f"{s['initial']} 9 6 3 4 6 0 0 0 - {s['port']} - 0 0 -"
                for name, s in self.servers.items()
            )
            return "\n".join(["1", HEADER, *rows, "", ""])
        self.orders.append(order)
        words = order.split()
        if words[:2] != ["set", "server"] or words[2] not in self.servers:
            return "No such server.\n\n"
        server = self.servers[words[2]]
        if self.obeys and words[3] == "state":
            server["admin"] = {"drain": 8, "ready": 0, "maint": 1}[words[4]]
        elif self.obeys:
            share = words[4].removesuffix("%")
            server["weight"] = int(share) * server["initial"] // 100 if words[4].endswith("%") else int(share)
        return "\n"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FakeProxy]:
    fake = FakeProxy(tmp_path / "socket")
    yield fake
    fake.close()


def do(tmp_path: Path, step: Step, *replicas: str) -> None:
    executor = HAProxy("haproxy", str(tmp_path / "socket"))
    executor.carry_out(Action(step=step, replicas=replicas or ("http://127.0.0.1:8100",), cause="c", reason="r"))


@pytest.mark.parametrize(("step", "weight", "admin"), [(Step.SHIFT, 0, 0), (Step.DRAIN, 100, 8)])
def test_it_takes_out_and_puts_back(tmp_path, proxy, step, weight, admin):
    executor = HAProxy("haproxy", str(tmp_path / "socket"))
    assert executor.is_out("http://127.0.0.1:8100") is False
    for _ in range(2):  # to do it again changes nothing
        do(tmp_path, step)
        assert (proxy.servers["llm/spec"]["weight"], proxy.servers["llm/spec"]["admin"]) == (weight, admin)
        assert executor.is_out("http://127.0.0.1:8100") is True
    do(tmp_path, Step.RELEASE)
    assert (proxy.servers["llm/spec"]["weight"], proxy.servers["llm/spec"]["admin"]) == (100, 0)
    assert not any("plain" in order for order in proxy.orders)


def test_a_trickle_is_a_twentieth(tmp_path, proxy):
    do(tmp_path, Step.SHIFT)
    do(tmp_path, Step.TRICKLE)
    assert proxy.servers["llm/spec"]["weight"] == 5


def test_a_trickle_needs_weights_that_can_be_divided(tmp_path, proxy):
    proxy.servers["llm/spec"] |= {"initial": 1, "weight": 0}
    with pytest.raises(BackendError, match="only if every server has `weight 20` or more"):
        do(tmp_path, Step.TRICKLE)
    assert not proxy.orders


@pytest.mark.parametrize("other", [{"op": 0}, {"admin": 1}, {"weight": 0}])
def test_the_last_server_of_a_backend_stays(tmp_path, proxy, other):
    """The guard saw a plain replica answer; the proxy knows that it is not in the traffic."""
    proxy.servers["llm/plain"] |= other
    with pytest.raises(BackendError, match="without a server"):
        do(tmp_path, Step.DRAIN)
    assert not proxy.orders


def test_maintenance_of_others_is_left_alone(tmp_path, proxy):
    proxy.servers["llm/spec"]["admin"] = 1
    with pytest.raises(BackendError, match="into maintenance"):
        do(tmp_path, Step.RELEASE)
    assert not proxy.orders


def test_a_server_that_the_configuration_disabled_and_somebody_enabled_is_in_the_traffic(tmp_path, proxy):
    proxy.servers["llm/spec"]["admin"] = 4
    assert HAProxy("haproxy", str(tmp_path / "socket")).is_out("http://127.0.0.1:8100") is False


def test_what_was_not_followed_is_no_success(tmp_path, proxy):
    proxy.obeys = False
    with pytest.raises(BackendError, match="it had no effect"):
        do(tmp_path, Step.SHIFT)


def test_a_replica_it_does_not_know_is_refused_before_anything_is_wrong(tmp_path, proxy):
    executor = HAProxy("haproxy", str(tmp_path / "socket"))
    executor.prove(["http://localhost:8100", "http://127.0.0.1:8101/"])
    with pytest.raises(BackendError, match="no server at http://127"):
        executor.prove(["http://127.0.0.1:8102"])
    assert executor.is_out("http://127.0.0.1:8102") is None


def test_a_socket_that_is_not_there(tmp_path):
    executor = HAProxy("haproxy", str(tmp_path / "none"))
    assert executor.is_out("http://127.0.0.1:8100") is None
    with pytest.raises(BackendError, match="level admin"):
        executor.prove(["http://127.0.0.1:8100"])


def test_a_socket_of_something_else():
    with pytest.raises(BackendError, match="Is this its socket"):
        list(parse_servers("Unknown command.\n"))


def test_a_server_in_several_backends_is_taken_out_of_all(tmp_path, proxy):
    proxy.servers |= {"chat/s": {**proxy.servers["llm/spec"]}, "chat/p": {**proxy.servers["llm/plain"]}}
    do(tmp_path, Step.SHIFT)
    assert [proxy.servers[name]["weight"] for name in ("llm/spec", "chat/s", "llm/plain", "chat/p")] == [0, 0, 100, 100]
