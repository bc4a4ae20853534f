"""A server on several hosts: a group of pods in which each has its part, and one answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftwise.core import Device, InvalidSetup, Setup, SpecConfig
from draftwise.deploying import TARGETS, deploy, make_order
from draftwise.deploying.edit import edit_as
from draftwise.setups.read import SourceText, read_setups

SETUP = Setup(
    target="meta-llama/Llama-3.1-70B-Instruct",
    engine="vllm",
    engine_version="0.26.0",
    device=Device(name="NVIDIA-H200", kind="cuda"),
    spec=SpecConfig(method="ngram", num_speculative_tokens=5),
    args={"nnodes": 2, "tensor_parallel_size": 4},
)


def render(**changes: Any) -> str:
    setup = replace(SETUP, args={**SETUP.args, **changes})
    return deploy(make_order(setup), "leaderworkerset").files["spec.yaml"]


def read_containers(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the containers of the pod that answers and of the others."""
    template = next(yaml.safe_load_all(text))["spec"]["leaderWorkerTemplate"]
    return tuple(template[f"{role}Template"]["spec"]["containers"][0] for role in ("leader", "worker"))


def test_each_host_starts_its_part_and_the_first_one_answers() -> None:
    group, service = yaml.safe_load_all(text := render())
    leader, worker = read_containers(text)
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert leader["args"][-1] == "--master-addr=$(POD_IP)"
    assert worker["args"] == [
        *leader["args"][:-1],
        *("--node-rank=$(LWS_WORKER_INDEX)", "--master-addr=$(LWS_LEADER_ADDRESS)", "--headless"),
    ]
    assert [each["resources"]["limits"]["nvidia.com/gpu"] for each in (leader, worker)] == ["2", "2"]
    assert "ports" in leader
    assert "ports" not in worker
    assert not any(name.endswith("Probe") for name in worker)
    # The controller makes a Service of the set's own name.
    assert service["metadata"]["name"] != group["metadata"]["name"]
    pods = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["metadata"]["labels"]
    stays = {name: pods[name] for name in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}
    assert service["spec"]["selector"] == {**stays, "leaderworkerset.sigs.k8s.io/worker-index": "0"}


def test_data_parallel_ranks_meet_at_the_same_place() -> None:
    leader, worker = read_containers(render(tensor_parallel_size=2, data_parallel_size=2, api_server_count=4))
    assert "--data-parallel-address=$(POD_IP)" in leader["args"]
    assert "--data-parallel-address=$(LWS_LEADER_ADDRESS)" in worker["args"]
    # A worker without an API refuses to be given several.
    assert [any(arg.startswith("--api-server-count") for arg in each["args"]) for each in (leader, worker)] == [
        True,
        False,
    ]


def test_a_server_of_one_host_is_a_group_of_one() -> None:
    (group, _) = yaml.safe_load_all(render(nnodes=1))
    template = group["spec"]["leaderWorkerTemplate"]
    assert (template["size"], "leaderTemplate" in template) == (1, False)
    assert "ports" in template["workerTemplate"]["spec"]["containers"][0]


def test_what_the_files_leave_to_the_cluster_is_said() -> None:
    folder = deploy(make_order(SETUP), "leaderworkerset")
    assert "hosts-over-pod-network" in [limit.code for limit in folder.limits]
    assert "Each of its 2 hosts needs 2 GPUs" in folder.files["MEMO.md"]


@pytest.mark.parametrize(
    ("flag", "args"),
    [
        ("--node-rank", {"node_rank": 1}),
        ("--node-rank", {"node_rank": 0}),
        ("--master-addr", {"master_addr": "10.0.0.7"}),
        ("--headless", {"headless": True}),
        ("--data-parallel-size-local", {"data_parallel_size": 2, "data_parallel_size_local": 2}),
    ],
)
def test_what_one_host_is_told_is_not_told_to_all(flag: str, args: dict[str, Any]) -> None:
    order = make_order(replace(SETUP, args={**SETUP.args, **args}))
    with pytest.raises(InvalidSetup, match=f"{flag} is the rank of one host"):
        TARGETS["leaderworkerset"].prepare(order)


@pytest.mark.parametrize("flag", ["data_parallel_external_lb", "data_parallel_hybrid_lb"])
def test_a_server_whose_hosts_all_answer_is_no_group_of_which_one_does(flag: str) -> None:
    args = {**SETUP.args, "data_parallel_size": 2, flag: True}
    with pytest.raises(InvalidSetup, match="makes each host answer"):
        TARGETS["leaderworkerset"].prepare(replace(make_order(SETUP), setup=replace(SETUP, args=args)))


def test_ranks_elsewhere_without_a_number_of_hosts_are_asked_for_it() -> None:
    args = {"data_parallel_size": 4, "data_parallel_size_local": 2}
    with pytest.raises(InvalidSetup, match="set the number of hosts"):
        TARGETS["leaderworkerset"].prepare(make_order(replace(SETUP, device=None, args=args)))


def test_a_group_is_read_as_the_one_server_that_it_is() -> None:
    (reading,) = read_setups(SourceText(text=render(), name="spec.yaml"))
    assert dict(reading.setup.args) == {"nnodes": 2, "tensor_parallel_size": 4}
    assert reading.findings == ()


def test_a_worker_that_differs_from_its_leader_does_not_pass_for_one() -> None:
    head, worker, tail = render().partition("workerTemplate:")
    other = head + worker + tail.replace('"num_speculative_tokens":5', '"num_speculative_tokens":4', 1)
    assert len(read_setups(SourceText(text=other, name="spec.yaml"))) == 2


def test_a_group_whose_shells_fill_in_the_place_of_each_pod_is_one_server() -> None:
    shared = (
        "vllm serve m --nnodes $LWS_GROUP_SIZE -tp 16 --node-rank ${LWS_WORKER_INDEX} --master-addr $LWS_LEADER_ADDRESS"
    )
    group = next(yaml.safe_load_all(render()))
    template = group["spec"]["leaderWorkerTemplate"]
    for role, more in (("leader", ""), ("worker", " --headless")):
        container = template[f"{role}Template"]["spec"]["containers"][0]
        container |= {"command": ["bash", "-c", f"sleep 1; exec {shared}{more}"], "args": []}
    (reading,) = read_setups(SourceText(text=yaml.safe_dump(group), name="spec.yaml"))
    assert dict(reading.setup.args) == {"nnodes": 2, "tensor_parallel_size": 16}
    assert reading.unknown == {}


@pytest.mark.parametrize(
    ("size", "hosts", "codes"),
    [
        ("size: 3", "--nnodes=2", ["group-of-other-size"]),
        ("subGroupPolicy: {}", "--nnodes=2", ["group-of-other-size"]),  # one pod, where nothing says how many
        ("size: yes", "--nnodes=2", []),
        ("size: 3", "--nnodes=$(LWS_GROUP_SIZE)", []),
    ],
)
def test_a_group_that_is_not_as_large_as_the_server_wants_is_an_error(size: str, hosts: str, codes: list[str]) -> None:
    text = render().replace("size: 2", size).replace("--nnodes=2", hosts)
    (reading,) = read_setups(SourceText(text=text, name="spec.yaml"))
    assert [finding.code for finding in reading.findings] == codes
    assert reading.setup.args["nnodes"] == (3 if "LWS" in hosts else 2)


def test_no_file_of_one_host_among_several_is_edited(tmp_path: Path) -> None:
    source = SourceText(text=render(), name=str(tmp_path / "spec.yaml"))
    with pytest.raises(InvalidSetup, match="--nnodes puts ranks on other hosts"):
        edit_as(source, replace(SETUP, spec=None))
