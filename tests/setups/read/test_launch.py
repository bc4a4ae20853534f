import pytest

from draftwise.knowledge.images import find_release
from draftwise.setups.read import SourceText, read_setups
from draftwise.setups.read.setup_reading import NoServer
from draftwise.setups.read.shell.launch import find_launches, has_own_entry, is_vllm_image


@pytest.mark.parametrize(
    ("text", "entry", "words", "version"),
    [
        ("vllm serve m -tp 2", "serve", "m -tp 2", ""),
        ("VLLM_X=1 nohup /opt/v/bin/vllm serve m > log 2>&1 &", "serve", "m", ""),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "api_server", "--model m", ""),
        ("python -m vllm.entrypoints.cli.main serve m", "serve", "m", ""),
        ("uv run --with vllm==0.20.0 vllm serve m", "serve", "m", "0.20.0"),
        ("uvx vllm@0.19.1 serve m", "serve", "m", "0.19.1"),
        ("pip install -U vllm==0.18.0\nvllm serve m", "serve", "m", "0.18.0"),
        ("bash -c 'cd /x && exec vllm serve m --seed 1'", "serve", "m --seed 1", ""),
        ("docker run --rm -it --gpus all -v /a:/b vllm/vllm-openai:v0.19.1 --model m", "image", "--model m", "0.19.1"),
        ("docker run -p8000:8000 --ipc=host vllm/vllm-openai:v0.19.1 m", "image", "m", "0.19.1"),
        ("kubectl run v --image=vllm/vllm-openai:v0.19.1 -- --model m", "image", "--model m", "0.19.1"),
        ("oc run v --image vllm/vllm-openai:v0.19.1 --command -- vllm serve m", "serve", "m", "0.19.1"),
        ("ssh host 'vllm serve m'", "serve", "m", ""),
        ("ssh host 'docker run vllm/vllm-openai:v0.19.1 --model m'", "image", "--model m", "0.19.1"),
        ("srun --job-name echo vllm serve m", "serve", "m", ""),
        ("sudo podman run --entrypoint vllm docker.io/vllm/vllm-openai:v0.19.1 serve m", "serve", "m", "0.19.1"),
        ("docker run --entrypoint bash vllm/vllm-openai:v0.19.1 -c 'vllm serve m'", "serve", "m", "0.19.1"),
        ("docker run rocm/vllm:rocm6.4_vllm_0.10.1_2025 vllm serve m", "serve", "m", "0.10.1"),
        ("apptainer exec --nv docker://vllm/vllm-openai:v0.27.0 vllm serve m", "serve", "m", "0.27.0"),
        ("docker run -it --entrypoint bash vllm/vllm-openai:v0.27.0\nvllm serve m", "serve", "m", "0.27.0"),
        ("docker run -d --entrypoint sh vllm/vllm-openai:v0.27.0\ndocker exec c vllm serve m", "serve", "m", "0.27.0"),
        ("docker run -it rocm/vllm:rocm6.4_vllm_0.10.1 /bin/bash\nvllm serve m", "serve", "m", "0.10.1"),
        ("docker run -it rocm/vllm:rocm6.4_vllm_0.10.1\nvllm serve m", "serve", "m", "0.10.1"),
        ("docker run --entrypoint ls vllm/vllm-openai:v0.27.0\nvllm serve m", "serve", "m", ""),
        ("docker pull vllm/vllm-openai:v0.27.0\nvllm serve m", "serve", "m", ""),
        ("python -m huggingfaceserver --model_id=m", "huggingfaceserver", "--model_id=m", ""),
    ],
)  # fmt: skip
def test_finds_the_server(text, entry, words, version):
    (launch,) = find_launches(text)
    assert (launch.entry, " ".join(word.text for word in launch.words), launch.version) == (entry, words, version)


@pytest.mark.parametrize(
    "text", ["vllm bench serve --model m", "ls", "docker run redis", "docker run", "bash -c", "", "sh -c vllm serve m"]
)
def test_finds_none(text):
    assert list(find_launches(text)) == []


@pytest.mark.parametrize("text", ["xargs vllm serve < words", "cat words | xargs -0 vllm serve m --seed 1"])
def test_words_that_another_program_adds_are_unknown(text):
    (reading,) = read_setups(text)
    assert "unresolved-variable" in {each.code for each in reading.findings}


IN_PLACE = [
    "xargs -I {} vllm serve FLAG {}", "xargs -I% vllm serve FLAG %", "xargs -0I{} vllm serve FLAG {}",
    "xargs -i vllm serve FLAG {}", "xargs --replace=N vllm serve FLAG N", "xargs -I{} sh -c 'vllm serve FLAG {}'",
    "parallel vllm serve FLAG {} ::: 1 2", "parallel -j1 vllm serve FLAG {1} ::: 1 2", "vllm serve FLAG {}",
    "find . -exec vllm serve FLAG {} \\;", "parallel -I, vllm serve FLAG , ::: 1 2", "xargs -J % vllm serve FLAG %",
]  # fmt: skip


@pytest.mark.parametrize("line", IN_PLACE)
@pytest.mark.parametrize(("flag", "field"), [("--max-num-seqs", "max_num_seqs"), ("--dtype", "dtype")])
def test_a_place_that_another_program_fills_is_open_and_the_rest_is_judged(line, flag, field):
    (reading,) = read_setups(line.replace("FLAG", f"m --seed 3 {flag}"))
    assert (reading.setup.target, reading.setup.args, {*reading.unknown}) == ("m", {"seed": 3}, {field})
    assert {each.code for each in reading.findings} == {"unresolved-variable"}


def test_an_object_without_keys_is_a_value_where_no_program_fills_it():
    (reading,) = read_setups("vllm serve m --hf-overrides '{}'")
    assert (reading.setup.args, reading.unknown) == ({"hf_overrides": {}}, {})


@pytest.mark.parametrize(("version", "reads"), [("0.14.1", True), ("0.33.0", False)])
def test_an_open_variable_decides_nothing_where_the_release_does_not_read_it(version, reads):
    (reading,) = read_setups("VLLM_ATTENTION_BACKEND=$B vllm serve m", engine_version=version)
    code = "unresolved-variable" if reads else "value-open"
    assert [(each.code, "VLLM_ATTENTION_BACKEND" in each.message) for each in reading.findings] == [(code, True)]
    assert bool(reading.unknown) == reads


def test_a_server_runs_in_the_image_of_a_file_or_of_the_container_before_it():
    for text in ("apptainer run vllm-cpu.sif vllm serve m", "docker run --entrypoint bash x/vllm:1\nvllm serve m"):
        (reading,) = read_setups(text)
        assert reading.unknown["engine_version"].code == "image-release-unknown"


def test_variables_come_from_everywhere():
    text = "export VLLM_A=1\nOTHER=2\nVLLM_B=2 docker run -e VLLM_C=3 --env=VLLM_D=4 vllm/vllm-openai --model m"
    (launch,) = find_launches(text)
    assert {name: value for name, value in launch.env.values.items() if name.startswith("VLLM_")} == {
        "VLLM_A": "1", "VLLM_B": "2", "VLLM_C": "3", "VLLM_D": "4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("docker run --gpus 2 vllm/vllm-openai -tp 2", 2),
        ("docker run --gpus '\"device=0,3\"' vllm/vllm-openai -tp 2", 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2 vllm serve m", 3),
        ("docker run --gpus all vllm/vllm-openai -tp 2", None),
    ],
)
def test_counts_gpus(text, count):
    (launch,) = find_launches(text)
    assert launch.num_gpus == count


@pytest.mark.parametrize("command", ["vllm serve m", "serve m", "bash", "sh"])
def test_a_repeated_entry_point_is_named(command):
    (launch,) = find_launches(f"docker run -it vllm/vllm-openai:v0.20.0 {command}")
    assert [finding.code for finding in launch.findings] == ["entrypoint-repeated"]


def test_several_servers_of_one_script():
    launches = list(find_launches("vllm serve a &\nvllm serve b --port 8001 &\nwait"))
    assert [launch.words[0].text for launch in launches] == ["a", "b"]
    assert [launch.words[0].line for launch in launches] == [1, 2]


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.19.1", "0.19.1"),
        ("vllm/vllm-openai:v0.19.1-cu128", "0.19.1"),
        ("registry:5000/vllm/vllm-openai:0.20.1rc1@sha256:abc", "0.20.1rc1"),
        ("registry:5000/vllm", ""),
        ("vllm/vllm-openai:latest", ""),
        ("nvcr.io/nvidia/vllm:25.09-py3", ""),
        ("kserve/huggingfaceserver:v0.15.2-gpu", "0.8.5"),
        ("quay.io/ascend/vllm-ascend:v0.11.0rc0-a3", "0.11.0rc3"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.9.1", "0.14.1"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.9.2", ""),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.1.0-dev.1", "0.17.1"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.1.0-dev.9", ""),
        ("ghcr.io/llm-d/llm-d-cuda:v0.9.0", "0.26.0"),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.36.0-lmi22.0.0-cu129", ""),
        ("public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.11.0", "0.11.0"),
        ("openeuler/vllm-cpu:0.10.1-oe2403lts", "0.10.1"),
        ("my/own-vllm-build:v0.19.1", ""),
        ("intel/vllm:0.10.2-xpu", ""),
        ("lmcache/vllm-openai:v0.3.9", ""),
    ],
)
def test_reads_a_release_off_a_tag(image, version):
    assert find_release(image) == version


def test_knows_images_by_name():
    assert is_vllm_image("vllm/vllm-openai:v0.19.1")
    assert is_vllm_image("my/own-vllm-build")
    assert not is_vllm_image("postgres:16")
    assert has_own_entry("vllm/vllm-openai@sha256:abc")
    assert not has_own_entry("rocm/vllm:latest")


@pytest.mark.parametrize("model", ['"$MODEL"', "org/model"])
def test_an_image_that_is_not_told_may_be_vllms_by_its_arguments(model: str) -> None:
    (reading,) = read_setups(f'docker run --gpus all "$IMAGE" {model} --speculative-config \'{{"method": "ngram"}}\'')
    assert "engine_version" in reading.unknown


@pytest.mark.parametrize("built", ["build: .", "shm_size: 8g"])
def test_a_service_without_an_image_is_vllms_by_its_arguments(built: str) -> None:
    text = "services:\n  a:\n    {built}\n    command: [--model, m/n, {flag}, '{{}}']\n"
    (reading,) = read_setups(text.format(built=built, flag="--speculative-config"))
    assert (reading.setup.target, reading.setup.engine_version) == ("m/n", "")
    assert "image-release-unknown" in {each.code for each in reading.findings}
    with pytest.raises(NoServer):
        read_setups(text.format(built=built, flag="--config"))


@pytest.mark.parametrize("text", ["--port {port}", "--port={port}", "--dtype {dtype}", "--speculative-config '{spec}'"])
def test_a_name_in_braces_is_filled_in_later(text: str) -> None:
    (reading,) = read_setups(f"vllm serve org/model {text}")
    assert {finding.code for finding in reading.findings} <= {
        "unresolved-variable", "template-left", "value-open",
    }  # fmt: skip
    assert reading.findings


@pytest.mark.parametrize(("text", "target"), [
    ("$MODEL --max-seq_len-to-capture 16384", ""),
    ("--max-seq-len-to-capture 16384 org/model", "org/model"),
    ("$EXTRA --max-seq-len-to-capture 16384 org/model", "org/model"),
])  # fmt: skip
def test_the_value_of_a_flag_that_a_release_lacks_is_no_model(text: str, target: str) -> None:
    (reading,) = read_setups(f"vllm serve {text}", engine_version="0.33.0")
    assert (reading.setup.target or "") == target


@pytest.mark.parametrize(
    "text",
    [
        "VLLM_ASCEND_ENABLE_NZ=1 vllm serve m",
        "export HCCL_BUFFSIZE=1024\nvllm serve m",
        "vllm serve m --quantization ascend",
        "PT_HPU_LAZY_MODE=1 vllm serve m",
    ],
)
def test_a_hardware_plugin_leaves_the_release_open(text: str) -> None:
    (reading,) = read_setups(text)
    assert reading.unknown["engine_version"].code == "plugin-release-open"
    (reading,) = read_setups(text, engine_version="0.26.0")
    assert reading.unknown == {}
    assert "plugin-own-code" in {each.code for each in reading.findings}


def test_a_chart_puts_its_command_in_the_place_of_the_images() -> None:
    chart = "image: {repository: vllm/vllm-openai, tag: v0.26.0, command: [vllm, serve, m/n]}\n"
    (reading,) = read_setups(SourceText(text=chart, name="values.yaml"))
    assert "entrypoint-repeated" not in {each.code for each in reading.findings}
    (reading,) = read_setups("docker run vllm/vllm-openai:v0.26.0 vllm serve m/n")
    assert "entrypoint-repeated" in {each.code for each in reading.findings}
