"""Whose release a tag is, what a group of pods starts, and which mapping is a config."""

from pathlib import Path

import pytest
import yaml
from catalogue.images import SOURCES

from draftwise.core import CheckOutcome
from draftwise.knowledge.images import carries_own_tags, find_release
from draftwise.knowledge.stored import read_data
from draftwise.plan.check import judge
from draftwise.setups.read import SetupReading, read_setups
from draftwise.setups.read.setup_reading import NoServer

FOREIGN = (
    "ghcr.io/llm-d/llm-d-cuda:v0.10.0",
    "ghcr.io/llm-d/llm-d-xpu:v0.9.0",
    "nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8.4",
    "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.9.2",
    "intel/vllm:0.10.2-xpu",
    "rocm/vllm:latest",
    "lmcache/vllm-openai:v0.3.9",
    "registry.local/team/vllm:v0.20.0",
)
MOVING = ("", ":latest", ":nightly", ":main", ":stable", ":nightly-0a1b2c3d", ":latest-cu129", "@sha256:00ff")
"""What stands behind the name of an image and names no release."""


def read_pod(image: str, *words: str) -> SetupReading:
    (reading,) = read_setups(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n"
        f"  - {{name: a, image: '{image}', command: [vllm, serve, Qwen/Qwen3-8B, {', '.join(words)}]}}\n"
    )
    return reading


@pytest.mark.parametrize("image", FOREIGN)
def test_another_products_tag_is_no_release(image: str):
    reading = read_pod(image, "--seed", "'1'")
    assert (find_release(image), reading.setup.engine_version) == ("", "")
    assert judge(reading).outcome is CheckOutcome.NOT_JUDGED
    assert [each.code for each in reading.findings] == ["image-release-unknown"]


@pytest.mark.parametrize("tag", MOVING)
@pytest.mark.parametrize("name", ["vllm/vllm-openai", "registry.local/mirror/vllm-openai-cpu"])
def test_a_tag_that_moves_is_no_release(name: str, tag: str):
    reading = read_pod(name + tag, "--seed", "'1'")
    report = judge(reading)
    assert (report.outcome, report.version) == (CheckOutcome.NOT_JUDGED, "")
    assert [each.code for each in report.findings] == ["image-release-unknown"]
    assert judge(read_pod(f"{name}:v0.32.0-cu129", "--seed", "'1'")).outcome is CheckOutcome.ACCEPTED


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        (("--speculative-config", "\"{'method':'ngram'}\""), CheckOutcome.REJECTED),
        (("--seed", "'1'"), CheckOutcome.NOT_JUDGED),
    ],
)
def test_what_every_release_refuses_is_refused_where_nobody_knows_the_release(
    flags: tuple[str, ...], outcome: CheckOutcome
):
    report = judge(read_pod("registry.local/ml/vllm:stable", *flags))
    assert report.outcome is outcome
    assert report.fails("error") is (outcome is CheckOutcome.REJECTED)


@pytest.mark.parametrize("tag", [":v0.33", ":0.33", ":v0.33-cu130", ":v0.19"])
@pytest.mark.parametrize("name", ["vllm/vllm-openai", "registry.local/mirror/vllm-openai-cpu"])
def test_two_numbers_are_no_release(name: str, tag: str):
    reading = read_pod(name + tag, "--seed", "'1'")
    assert (find_release(name + tag), judge(reading).outcome) == ("", CheckOutcome.NOT_JUDGED)
    assert [each.code for each in reading.findings] == ["image-tag-no-release"]


def test_nothing_of_the_newest_release_is_said_of_it():
    reading = read_pod(FOREIGN[0], "--swap-space", "'4'")
    assert [each.code for each in reading.findings] == ["image-release-unknown"]


def test_every_row_has_its_product_and_its_source():
    data = read_data("images")
    names = {image for source in SOURCES for image in source.images}
    assert {row["image"] for row in data["rows"]} == names
    assert all(find_release(f"{row['image']}:{row['tag']}") == row["vllm"] for row in data["rows"])
    rows = [*data["rows"], *data["documented"]]
    assert all(find_release(f"registry.local/{row['image']}:{row['tag']}") == row["vllm"] for row in rows)
    assert not any(carries_own_tags(f"{row['image']}:{row['tag']}") for row in rows)
    assert all(row["source"] for row in (*rows, *data["own_tags"]))


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("ghcr.io/llm-d/llm-d-cuda:v0.8.0", "0.23.0"),
        ("763104351884.dkr.ecr.us-west-2.amazonaws.com/djl-inference:0.36.0-lmi18.0.0-cu128", "0.12.0"),
        ("nvcr.io/nim/meta/llama-3.1-8b-instruct:2.0.5", "0.20.2"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.1.0", "0.19.0"),
    ],
)
def test_the_releases_of_products_are_looked_up(image: str, release: str):
    assert find_release(image) == release
    assert find_release(image.replace(":", ":9")) == ""


GROUP = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {{name: vllm}}
spec:
  leaderWorkerTemplate:
    size: {size}
    leaderTemplate:
      spec:
        containers:
        - name: leader
          image: vllm/vllm-openai:v0.10.2
          command: [sh, -c, 'bash multi-node-serving.sh leader --ray_cluster_size=$(LWS_GROUP_SIZE);
            vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 8 --pipeline_parallel_size 2']
          resources: {{limits: {{nvidia.com/gpu: '8'}}}}
    workerTemplate: {{spec: {{containers: []}}}}
"""


@pytest.mark.parametrize(("size", "expected"), [(2, []), (1, ["fewer-gpus-than-ranks"])])
def test_ranks_are_counted_over_the_group(size: int, expected: list[str]):
    (reading,) = read_setups(GROUP.format(size=size))
    assert [each.code for each in reading.findings] == expected


SERVICE = """apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {{name: q}}
spec:
  model: {{uri: hf://Qwen/Qwen3-8B, name: q}}
  template:
    containers:
    - name: main
      image: vllm/vllm-openai:v0.20.0
      {container}
"""


def test_the_command_of_an_llm_service_counts():
    text = "command: [bash, -c]\n      args: ['export A=b; exec vllm serve /mnt/models --max-model-len 8192']"
    (reading,) = read_setups(SERVICE.format(container=text))
    assert (reading.setup.target, dict(reading.setup.args), reading.findings) == (
        "Qwen/Qwen3-8B", {"max_model_len": 8192}, (),
    )  # fmt: skip
    (reading,) = read_setups(SERVICE.format(container="args: [--seed, '1']"))
    assert (reading.setup.target, dict(reading.setup.args)) == ("Qwen/Qwen3-8B", {"seed": 1})


@pytest.mark.parametrize(
    ("name", "text", "is_config"),
    [
        ("a.yaml", "model: m\nseed: 1\n", True),
        ("a.yaml", "model: m\ntitle: A recipe\nhardware: H100\nseed: 1\n", False),
        ("a.yaml", "model: m\nvariants: [{dtype: auto}]\n", False),
        ("vllm-config.yaml", "model: m\nseed: 1\nlog-level: x\n", True),
        ("config.yaml", "model: m\ntitle: x\nguide: y\nlinks: []\n", False),
    ],
)
def test_which_mapping_is_a_config(name: str, text: str, is_config: bool, tmp_path: Path):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    if is_config:
        assert read_setups(path)[0].setup.target == "m"
    else:
        with pytest.raises(NoServer):
            read_setups(path)


@pytest.mark.parametrize(
    ("version", "flags", "outcome"),
    [
        ("0.11.0", "", CheckOutcome.ACCEPTED),
        ("0.11.1", "", CheckOutcome.REJECTED),
        ("0.33.0", "", CheckOutcome.REJECTED),
        ("0.17.1", " --distributed-executor-backend ray", CheckOutcome.ACCEPTED),
        ("0.33.0", " --distributed-executor-backend ray", CheckOutcome.NOT_JUDGED),  # which no longer installs Ray
    ],
)
def test_a_group_joined_by_ray_alone_is_refused_from_the_release_that_counts_the_node(
    version: str, flags: str, outcome: CheckOutcome
):
    """The example of vLLM's docs for LeaderWorkerSet names no backend."""
    serve = f"multi-node-serving.sh leader; vllm serve Qwen/Qwen3-8B -tp 8 -pp 2{flags}"
    container = (
        f"- {{name: a, image: 'vllm/vllm-openai:v{version}', command: [sh, -c, '{serve}'], "
        "resources: {limits: {nvidia.com/gpu: '8'}}}"
    )
    (reading,) = read_setups(
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: a}\nspec:\n"
        "  leaderWorkerTemplate:\n    size: 2\n    leaderTemplate:\n      spec:\n        containers:\n"
        f"        {container}\n    workerTemplate:\n      spec:\n        containers:\n"
        "        - {name: w, image: x, command: [sh, -c, multi-node-serving.sh worker]}\n"
    )
    report = judge(reading)
    assert report.outcome is outcome
    assert ("world-beyond-node" in {each.code for each in report.findings}) == (outcome is CheckOutcome.REJECTED)


UNNAMED = {
    "compose": "services:\n  a:\n    build: ./vllm\n    command: vllm serve Qwen/Qwen3-8B\n",
    "pod": "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - {name: a, command: [vllm, serve, Qwen/Qwen3-8B]}\n",
    "llm service": SERVICE.format(container="").replace("      image: vllm/vllm-openai:v0.20.0\n", ""),
    "runtime": "apiVersion: production-stack.vllm.ai/v1alpha1\nkind: VLLMRuntime\nmetadata: {name: a}\n"
    "spec: {model: {modelURL: Qwen/Qwen3-8B}, vllmConfig: {port: 8000}}\n",
    "modelservice": "modelArtifacts: {uri: 'hf://Qwen/Qwen3-8B', name: q}\n"
    "decode: {containers: [{name: a, modelCommand: vllmServe}]}\n",
    "rayservice": "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: a}\nspec:\n  serveConfigV2: |\n"
    "    applications: [{args: {llm_configs: [{model_loading_config: {model_id: Qwen/Qwen3-8B},\n"
    "      engine_kwargs: {seed: 1}}]}}]\n"
    "  rayClusterConfig: {headGroupSpec: {template: {spec: {containers: [{image: 'rayproject/ray-llm:2.49.0'}]}}}}\n",
    "truss": "base_image: {image: 'registry.local/team/vllm:7'}\n"
    "docker_server: {start_command: vllm serve Qwen/Qwen3-8B}\n",
    "recipe": "recipe_version: '1'\ncontainer: vllm-node\ndefaults: {port: 8000, k: 2}\ncommand: |\n"
    '  vllm serve Qwen/Qwen3-8B \\\n    --port {port} --speculative-config \'{{"method": "ngram", '
    '"num_speculative_tokens": {k}, "prompt_lookup_max": 4}}\'\n',
    "dstack": "type: service\nimage: registry.local/team/llm:7\ncommands:\n- vllm serve Qwen/Qwen3-8B\n",
}


@pytest.mark.parametrize("text", UNNAMED.values(), ids=UNNAMED)
def test_a_container_whose_release_nothing_tells_is_not_judged_by_the_newest(text: str):
    (reading,) = read_setups(text)
    assert "engine_version" in reading.unknown
    assert judge(reading).outcome is CheckOutcome.NOT_JUDGED
    (reading,) = read_setups(text, engine_version="0.26.0")
    assert (reading.unknown, judge(reading).outcome) == ({}, CheckOutcome.ACCEPTED)


def test_places_of_a_recipe_take_their_defaults_and_stay_open_without_one():
    text = UNNAMED["recipe"].replace("k: 2", "host: 0.0.0.0").replace("--port {port}", '--host "{host}" -tp {tp}')
    (reading,) = read_setups(text, engine_version="0.33.0")
    assert reading.setup.args["host"] == "0.0.0.0"
    assert "tensor_parallel_size" not in reading.setup.args
    assert {*reading.unknown} == {"tensor_parallel_size", "speculative_config"}
    (reading,) = read_setups(UNNAMED["recipe"], engine_version="0.33.0")
    assert reading.setup.args["port"] == 8000
    assert reading.setup.spec.to_dict()["num_speculative_tokens"] == 2
    (reading,) = read_setups(UNNAMED["recipe"], engine_version="0.33.0", given={"k": "7"})
    assert reading.setup.spec.to_dict()["num_speculative_tokens"] == 7


@pytest.mark.parametrize(
    ("field", "is_read"),
    [
        ("replicas: 2", True),
        ("baseRefs: [{name: defaults}]", False),
        ("kvCacheOffloading: {}", False),
        ("speculator: {config: {method: eagle3}}", False),
        ("newerField: 1", False),
    ],
)
def test_fields_that_bring_arguments_to_an_llm_service_are_not_accepted_unread(field: str, *, is_read: bool):
    (reading,) = read_setups(SERVICE.format(container="").replace("spec:\n", f"spec:\n  {field}\n"))
    assert [each.code for each in reading.findings] == ([] if is_read else ["service-fields-unread"])
    assert judge(reading).outcome is (CheckOutcome.ACCEPTED if is_read else CheckOutcome.NOT_JUDGED)


@pytest.mark.parametrize(
    ("workers", "parallelism", "args", "told"),
    [
        (False, "{tensor: 4}", {"tensor_parallel_size": 4}, None),
        (False, "{tensor: 4, data: 2, dataLocal: 2, expert: true}", {"tensor_parallel_size": 4},
         "service-parallelism-ignored"),
        (True, "{tensor: 2, data: 16, dataLocal: 4, expert: true}",
         {"tensor_parallel_size": 2, "data_parallel_size": 16, "data_parallel_size_local": 4,
          "enable_expert_parallel": True}, None),
        (True, "{data: 16, dataLocal: 8, expert: false}",
         {"data_parallel_size": 16, "data_parallel_size_local": 8}, None),
        (True, "{tensor: 8, pipeline: 2}", {"tensor_parallel_size": 8}, "service-fields-unread"),
        (True, "{tensor: 8}", {"tensor_parallel_size": 8}, "service-parallelism-refused"),
        (True, "{data: 2, dataLocal: 1, pipeline: 2}", {}, "service-parallelism-refused"),
        (True, "{data: 2}", {"data_parallel_size": 2, "data_parallel_size_local": 1}, "service-parallelism-refused"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_an_llm_services_parallelism_is_read_as_the_controller_does(role, workers, parallelism, args, told):
    template = {"containers": [{"name": "main", "image": "vllm/vllm-openai:v0.20.0"}]}
    workload = {"template": template, "parallelism": yaml.safe_load(parallelism)} | ({"worker": {}} if workers else {})
    both = [workload, {"template": template}]
    decode, prefill = both if role == "decode" else reversed(both)
    spec = {**decode, "model": {"uri": "hf://org/model"}, "prefill": prefill}
    readings = read_setups(yaml.safe_dump({"apiVersion": "v1", "kind": "LLMInferenceService", "spec": spec}))
    changed, other = readings if role == "decode" else reversed(readings)
    assert (dict(changed.setup.args), dict(other.setup.args)) == (args, {})
    assert [each.code for each in changed.findings] == ([] if told is None else [told])
    assert (judge(changed).outcome is CheckOutcome.REJECTED) is (told == "service-parallelism-refused")
