import json
import shlex
from pathlib import Path

import pytest

from draftwise.core import InvalidSetup, Severity
from draftwise.plan.check import judge
from draftwise.setups.read import NoServer, SetupReading, read_setups

SPEC = {"method": "ngram", "num_speculative_tokens": 5}
SPEC_TEXT = '{"method": "ngram", "num_speculative_tokens": 5}'


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def codes(reading: SetupReading) -> list[str]:
    return [finding.code for finding in reading.findings]


def fault(source: str | Path) -> str:
    with pytest.raises(InvalidSetup) as error:
        read_setups(source)
    return error.value.findings[0].code


class TestText:
    def test_a_command_line(self):
        (reading,) = read_setups(f"VLLM_USE_V2_MODEL_RUNNER=1 HF_TOKEN=x vllm serve m -tp 2 -sc '{SPEC_TEXT}'")
        setup = reading.setup
        assert (setup.target, setup.engine, setup.spec.to_dict()) == ("m", "vllm", SPEC)
        assert dict(setup.args) == {"tensor_parallel_size": 2}
        assert dict(setup.env) == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
        assert (reading.where, reading.findings) == ("", ())

    def test_bare_flags(self):
        (reading,) = read_setups(f"--model m --speculative-config '{SPEC_TEXT}'")
        assert (reading.setup.target, reading.setup.spec.to_dict(), reading.findings) == ("m", SPEC, ())

    def test_places_have_no_line_in_a_single_one(self):
        (reading,) = read_setups("vllm serve m --no-such-flag")
        assert reading.findings[0].where == "--no-such-flag"
        (reading,) = read_setups("vllm serve m \\\n --no-such-flag")
        assert reading.findings[0].where == "line 2 --no-such-flag"

    def test_the_release_asked_for_wins(self):
        source = "docker run vllm/vllm-openai:v0.20.0 --model m --spec-tokens 3"
        (reading,) = read_setups(source)
        assert (reading.setup.engine_version, codes(reading)) == ("0.20.0", ["flag-of-other-release"])
        (reading,) = read_setups(source, engine_version="0.22.0")
        assert (reading.setup.engine_version, codes(reading)) == ("0.22.0", ["other-version-asked"])

    @pytest.mark.parametrize(
        ("version", "nearest"), [("0.6.0", "0.9.2"), ("0.34.0", "0.33.0"), ("0.33.1rc0", "0.33.0")]
    )
    def test_an_unknown_release_is_kept_and_its_words_read_by_the_nearest(self, version, nearest):
        (reading,) = read_setups(f"docker run vllm/vllm-openai:v{version} --model gpt2")
        assert (reading.setup.engine_version, codes(reading)) == (version, [])
        assert judge(reading).accepted is None
        assert [finding.code for finding in judge(reading).findings] == ["unknown-release"]
        report = judge(reading, nearest=True)
        assert (report.accepted, report.version, report.asked) == (True, nearest, version)
        assert "release-nearest" in {finding.code for finding in report.findings}

    @pytest.mark.parametrize(
        ("source", "code"),
        [
            ("ls -la", "no-server"),
            ("", "no-server"),
            ("vllm serve 'm", "unclosed-quote"),
            ("x" * 1_000_001, "too-long"),
            ("vllm serve m;" * 300, "too-many-servers"),
            ("vllm serve " + "m " * 5_000, "too-long"),
            ("kind: {{ .Kind }}\nspec: 1", "template"),
            ("services: [", "not-yaml"),
            ("{", "not-json"),
            ("[1]", "no-server"),
            ("no/such/file.yaml", "no-such-file"),
        ],
    )
    def test_what_cannot_be_read_says_why(self, source, code):
        assert fault(source) == code


class TestJson:
    def test_a_bare_config(self):
        (reading,) = read_setups(SPEC_TEXT)
        assert (reading.setup.spec.to_dict(), codes(reading)) == (SPEC, ["no-target"])

    def test_a_setup(self, tmp_path):
        path = write(
            tmp_path, "s.json", f'{{"target": "m", "speculative_config": {SPEC_TEXT}, "engine_version": "0.19.1",'
            ' "args": {"tensor-parallel-size": 2}, "env": {"VLLM_X": 1}}',
        )  # fmt: skip
        (reading,) = read_setups(path)
        setup = reading.setup
        assert (setup.target, setup.engine_version, setup.spec.to_dict()) == ("m", "0.19.1", SPEC)
        assert (dict(setup.args), dict(setup.env)) == ({"tensor_parallel_size": 2}, {"VLLM_X": "1"})
        assert (reading.where, reading.findings) == (str(path), ())

    def test_keyword_arguments(self):
        (reading,) = read_setups(f'{{"model": "m", "speculative_config": {SPEC_TEXT}, "seed": 1, "typo": 2}}')
        assert (reading.setup.target, dict(reading.setup.args)) == ("m", {"seed": 1})
        assert codes(reading) == ["unknown-engine-argument"]

    @pytest.mark.parametrize("slip", ["speculative_confg", "tensor_paralel_size"])
    def test_a_slip_in_a_setup_is_named(self, slip: str) -> None:
        (reading,) = read_setups(json.dumps({"target": "m", slip: {"method": "ngram"}}))
        assert [slip in each.message for each in reading.findings] == [True]

    def test_duplicates_are_named(self):
        (reading,) = read_setups('{"method": "ngram", "method": "eagle"}')
        assert "duplicate-key" in codes(reading)


class TestCompose:
    TEXT = f"""
x-env: &env
  VLLM_USE_V2_MODEL_RUNNER: 1
services:
  list:
    image: vllm/vllm-openai:v0.20.0
    environment: {{<<: *env, HF_TOKEN: secret}}
    command: ["--model", "m", "--speculative-config", '{SPEC_TEXT}', "-tp", "4"]
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: 2}}]}}}}}}
  text:
    image: "vllm/vllm-openai:${{TAG:-v0.19.1}}"
    environment: ["VLLM_X=${{X:-1}}"]
    command: >-
      --model m --port $PORT --speculative-config '{SPEC_TEXT}'
  shell:
    image: vllm/vllm-openai:v0.20.0
    entrypoint: ["bash", "-c"]
    command:
    - >-
      vllm serve m --speculative-config '{SPEC_TEXT}'
  database:
    image: postgres:16
"""

    def test_every_server_is_read(self, tmp_path):
        path = write(tmp_path, "compose.yaml", self.TEXT)
        readings = read_setups(path)
        assert [reading.where for reading in readings] == [
            f"{path}:5 services.list", f"{path}:10 services.text", f"{path}:15 services.shell",
        ]  # fmt: skip
        assert all(reading.setup.spec.to_dict() == SPEC for reading in readings)
        first, second, third = readings
        assert dict(first.setup.env) == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
        assert (first.setup.device.count, codes(first)) == (2, ["fewer-gpus-than-ranks"])
        assert (second.setup.engine_version, dict(second.setup.env)) == ("0.19.1", {"VLLM_X": "1"})
        assert (codes(second), second.unknown) == (["value-open", "taken-as-not-set"], {})
        assert second.findings[0].where == f"{path}:13 services.text.command --port"
        assert codes(third) == []

    def test_numbers_must_be_quoted(self):
        (reading,) = read_setups("services:\n  a:\n    image: vllm/vllm-openai:v0.20.0\n    command: [m, --port, 8000]")
        assert codes(reading) == ["argument-not-text"]
        assert reading.findings[0].where == "line 4 services.a.command[2]"
        assert reading.setup.args["port"] == 8000

    def test_duplicate_keys_are_named(self):
        (reading,) = read_setups(
            "services:\n  a:\n    image: vllm/vllm-openai:v0.20.0\n    command: [a]\n    command: [b]"
        )
        assert (codes(reading), reading.setup.target) == (["duplicate-key"], "b")


class TestKubernetes:
    DEPLOYMENT = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: llm}}
spec:
  template:
    spec:
      nodeSelector: {{nvidia.com/gpu.product: NVIDIA-H200}}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.20.0
        args: ["--model=$(MODEL)", "--speculative-config", '{SPEC_TEXT}', "-tp=2"]
        env: [{{name: MODEL, value: m}}, {{name: VLLM_API_KEY, value: secret}}, {{name: VLLM_X, value: "1"}}]
        resources: {{limits: {{nvidia.com/gpu: "2"}}}}
      - {{name: proxy, image: envoy, args: [run]}}
"""

    def test_a_deployment(self, tmp_path):
        path = write(tmp_path, "d.yaml", self.DEPLOYMENT)
        (reading,) = read_setups(path)
        setup = reading.setup
        assert (setup.target, setup.spec.to_dict(), reading.findings) == ("m", SPEC, ())
        assert (setup.device.name, setup.device.count) == ("NVIDIA-H200", 2)
        assert dict(setup.env) == {"VLLM_X": "1"}
        assert reading.where == f"{path}:10 spec.template.spec.containers[0] (Deployment llm)"

    def test_a_leader_worker_set(self):
        (reading,) = read_setups(
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec:\n  leaderWorkerTemplate:\n"
            "    leaderTemplate:\n      spec:\n        containers:\n        - image: vllm/vllm-openai:v0.20.0\n"
            "          command: [sh, -c, 'ray start --head; vllm serve m -tp 8']\n"
        )
        assert (reading.setup.target, dict(reading.setup.args)) == ("m", {"tensor_parallel_size": 8})

    @pytest.mark.parametrize(
        ("argument", "code"),
        [
            ("\"'{}'\"", "flag-json-invalid"),
            ('\'{\\"method\\": \\"ngram\\"}\'', "flag-json-invalid"),
            ("{method: ngram}", "argument-not-text"),
        ],
    )
    def test_quoting_mistakes(self, argument, code):
        argument = argument.format(SPEC_TEXT.replace('"', '\\"')) if "{}" in argument else argument
        (reading,) = read_setups(
            f"apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.20.0\n"
            f"    args: [m, --speculative-config, {argument}]"
        )
        assert code in codes(reading)

    def test_a_template_that_stays_is_named(self):
        (reading,) = read_setups(self.DEPLOYMENT.replace("-tp=2", "--served-model-name={{.Name}}"))
        assert (codes(reading), reading.unknown) == (["template-left"], {})
        (reading,) = read_setups(self.DEPLOYMENT.replace("-tp=2", "-tp={{ .Values.tp }}"))
        assert (codes(reading), [*reading.unknown]) == (["unresolved-variable"], ["tensor_parallel_size"])

    @pytest.mark.parametrize(("args", "target"), [("--model m --seed 1", "m"), ("5", "Qwen/Qwen3-0.6B")])
    def test_arguments_that_are_no_list(self, args, target):
        (reading,) = read_setups(
            f"apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.20.0\n    args: {args}"
        )
        assert (codes(reading)[0], reading.setup.target) == ("arguments-not-a-list", target)
        assert reading.findings[0].where == "line 6 spec.containers[0].args"

    @pytest.mark.parametrize(
        ("mounts", "expected"),
        [("", ["directory-not-mounted"] * 2), ("volumeMounts: [{name: v, mountPath: /m/}]", ["directory-not-mounted"])],
    )
    def test_directories_that_nothing_mounts(self, mounts, expected):
        text = f"""apiVersion: v1
kind: Pod
spec:
  containers:
  - image: IMAGE
    args: [/m/target, '-sc={{"model": "/drafts/d", "method": "eagle3", "num_speculative_tokens": 3}}']
    {mounts}"""
        (reading,) = read_setups(text.replace("IMAGE", "vllm/vllm-openai:v0.20.0"))
        assert codes(reading) == expected
        (reading,) = read_setups(text.replace("IMAGE", "our/vllm-openai:v0.20.0"))
        assert codes(reading) == []


class TestKServe:
    SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  predictor:
    model:
      modelFormat: {name: FORMAT}
      RUNTIME
      storageUri: hf://org/model:main
      args: ARGS
"""

    def text(
        self, *, form="vLLM", runtime="runtimeVersion: v0.20.0", args=f"['--speculative-config={SPEC_TEXT}']"
    ) -> str:
        return self.SERVICE.replace("FORMAT", form).replace("RUNTIME", runtime).replace("ARGS", args)

    def test_its_own_runtime(self):
        (reading,) = read_setups(self.text())
        setup = reading.setup
        assert (setup.target, setup.engine_version, setup.spec.to_dict()) == ("org/model", "0.20.0", SPEC)
        assert codes(reading) == ["runtime-not-in-file"]

    def test_a_runtime_in_the_same_file(self):
        runtime = (
            "apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: mine}\nspec:\n"
            "  containers:\n  - name: kserve-container\n    image: vllm/vllm-openai:v0.19.1\n"
            "    args: [--model=/mnt/models, --seed=1]\n    env: [{name: VLLM_X, value: '1'}]\n---"
        )
        (reading,) = read_setups(runtime + self.text(runtime="runtime: mine", args="[--seed=2]"))
        setup = reading.setup
        assert (setup.target, setup.engine_version, dict(setup.env)) == ("org/model", "0.19.1", {"VLLM_X": "1"})
        assert setup.args["seed"] == 2
        (alone,) = read_setups(runtime.removesuffix("---"))
        assert alone.setup.target == "/mnt/models"

    def test_the_hugging_face_server(self):
        args = f"[--model_name=x, --model_id=org/other, --backend=vllm, --max_model_len=1024, -sc, '{SPEC_TEXT}']"
        (reading,) = read_setups(self.text(form="huggingface", args=args), engine_version="0.20.0")
        setup = reading.setup
        assert (setup.target, setup.spec.to_dict()) == ("org/other", SPEC)
        assert dict(setup.args) == {"served_model_name": ["x"], "max_model_len": 1024}

    def test_several_storage_uris(self):
        (reading,) = read_setups("""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  predictor:
    storageUris:
    - {uri: 'hf://org/model', mountPath: /mnt/models/target}
    - {uri: 's3://b/d', mountPath: /mnt/models/draft}
    containers:
    - name: kserve-container
      image: vllm/vllm-openai:v0.20.0
      args: [--model=/mnt/models/target, '-sc={"model": "/mnt/models/draft", "num_speculative_tokens": 3}']
""")
        assert (reading.setup.target, reading.setup.spec.model) == ("org/model", "/mnt/models/draft")
        assert reading.origins == {"/mnt/models/target": "org/model"}

    def test_a_drafter_is_known_by_the_uri_of_its_mount(self):
        drafter = "RedHatAI/Qwen3-8B-speculator.eagle3"
        (reading,) = read_setups(f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: chat}}
spec:
  predictor:
    storageUris:
    - {{uri: 'hf://Qwen/Qwen3-32B', mountPath: /mnt/models/target}}
    - {{uri: 'hf://{drafter}', mountPath: /mnt/models/draft}}
    containers:
    - image: vllm/vllm-openai:v0.20.0
      args: [/mnt/models/target, '-sc={{"method": "eagle", "model": "/mnt/models/draft", "num_speculative_tokens": 3}}']
""")
        found = {finding.code: finding.message for finding in judge(reading).findings}
        assert f"{drafter}, eagle3 for Qwen/Qwen3-8B" in found["drafter-not-here"]
        assert {"drafter-of-other-method", "drafter-of-other-target"} < set(found)

    def test_storage_uris_in_the_model(self):
        (reading,) = read_setups(
            self.text().replace("storageUri: hf://org/model:main", "storageUris: [{uri: hf://a/b}]")
        )
        assert "storage-uris-in-model" in codes(reading)
        assert (reading.setup.target, reading.findings[0].where) == (
            "a/b", "line 10 spec.predictor.model.storageUris",
        )  # fmt: skip

    def test_the_runtimes_model_wins(self):
        (reading,) = read_setups(self.text(args="[--model=/mnt/models/target]"))
        assert reading.setup.target == "org/model"
        lost = next(finding for finding in reading.findings if finding.code == "second-model-not-served")
        assert (lost.becomes, lost.where) == ("/mnt/models", "line 11 spec.predictor.model.args[0] --model")

    def test_an_llm_service_hands_its_arguments_to_a_shell(self):
        text = """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {{name: q}}
spec:
  model: {{uri: 'hf://org/model'}}
  parallelism: {{tensor: 2}}
  template:
    containers:
    - name: main
      image: vllm/vllm-openai:v0.20.0
      env: [{{name: VLLM_ADDITIONAL_ARGS, value: "{}"}}]
"""
        escaped = SPEC_TEXT.replace('"', '\\"')
        (wrong,) = read_setups(text.format(f"-sc {escaped}"))
        (right,) = read_setups(text.format(f"-sc '{escaped}'"))
        assert (codes(wrong), codes(right)) == (["flag-json-invalid"], [])
        assert wrong.setup.spec == right.setup.spec
        assert right.setup.spec.to_dict() == SPEC
        assert (right.setup.target, dict(right.setup.args)) == ("org/model", {"tensor_parallel_size": 2})


def test_a_systemd_unit(tmp_path):
    escaped = SPEC_TEXT.replace('"', '\\"')
    path = write(
        tmp_path, "vllm.service", "[Unit]\nDescription=it's vLLM\n[Service]\nEnvironment=\"VLLM_X=a b\" M=org/model\n"
        f"ExecStart=/opt/bin/vllm serve ${{M}} \\\n  --speculative-config \"{escaped}\"\n",
    )  # fmt: skip
    (reading,) = read_setups(path)
    assert (reading.setup.target, reading.setup.spec.to_dict()) == ("org/model", SPEC)
    assert (dict(reading.setup.env), reading.where) == ({"VLLM_X": "a b"}, f"{path}:5 ExecStart")


@pytest.mark.parametrize(("reference", "faults"), [("${SPEC}", []), ("$SPEC", ["flag-json-invalid"])])
def test_systemd_takes_the_quotes_out_of_a_variable_that_it_splits(reference, faults, tmp_path):
    escaped = SPEC_TEXT.replace('"', '\\"')
    unit = f'[Service]\nEnvironment="SPEC={escaped}"\nExecStart=/bin/vllm serve m --speculative-config {reference}\n'
    (reading,) = read_setups(write(tmp_path, "vllm.service", unit))
    assert [each.code for each in reading.findings if each.severity == "error"] == faults


def test_steps_of_a_workflow_see_the_variables_around_them(tmp_path):
    text = (
        "env: {MODEL: gpt2}\njobs:\n  a:\n    env: {N: 4}\n    steps:\n"
        "      - run: |\n          echo\n          vllm serve $MODEL --max-num-seqs $N --seed $SEED\n"
    )
    (reading,) = read_setups(write(tmp_path, "ci.yml", text))
    assert (reading.setup.target, dict(reading.setup.args)) == ("gpt2", {"max_num_seqs": 4})
    assert [each.where for each in reading.unknown.values()] == [f"{tmp_path}/ci.yml:8 --seed"]


def test_the_file_of_vllm_serve_config(tmp_path):
    path = write(tmp_path, "c.yaml", "model: m\nseed: 3\nspeculative_config:\n  method: ngram\nno-such-flag: 1\n")
    (reading,) = read_setups(path)
    assert (reading.setup.target, reading.setup.spec.to_dict(), dict(reading.setup.args)) == (
        "m", {"method": "ngram"}, {"seed": 3},
    )  # fmt: skip
    assert (codes(reading), reading.findings[0].where) == (["unknown-flag"], f"{path}:5 --no-such-flag")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("cat <<EOF | sudo tee $F\nmodel: m\nEOF\nvllm serve --config $F\n", "config-file-unread"),
        ("envsubst < t.yaml > made.yaml\nvllm serve --config made.yaml\n", "config-file-unread"),
        ("vllm serve --config made.yaml\n", "unreadable-file"),
    ],
)
def test_a_config_file_that_the_script_may_write_is_unknown_and_another_is_missing(tmp_path, script, code):
    readings = read_setups(write(tmp_path, "serve.sh", f"F={tmp_path}/site.yaml\n{script}"))
    assert code in codes(readings[0])


def test_values_of_the_production_stack():
    (reading,) = read_setups(
        "servingEngineSpec:\n  modelSpec:\n  - repository: vllm/vllm-openai\n    tag: v0.20.0\n"
        "    modelURL: org/model\n"
        f"    requestGPU: 1\n    vllmConfig: {{tensorParallelSize: 1, extraArgs: [-sc, '{SPEC_TEXT}']}}\n"
    )
    assert (reading.setup.target, reading.setup.spec.to_dict(), reading.findings) == ("org/model", SPEC, ())


@pytest.mark.parametrize(
    ("config", "caching"),
    [("{dtype: auto}", False), ("{enablePrefixCaching: false}", False), ("{enablePrefixCaching: true}", True),
     ("{extraArgs: [--enable-prefix-caching]}", True), ("{}", None)],
)  # fmt: skip
def test_the_production_stack_caches_no_prefixes_unless_it_is_told_to(config, caching):
    (reading,) = read_setups(
        f"servingEngineSpec:\n  modelSpec:\n  - {{tag: v0.20.0, modelURL: org/model, vllmConfig: {config}}}\n"
    )
    assert reading.setup.args.get("enable_prefix_caching") is caching


def test_what_the_production_stack_says_of_the_model():
    (reading,) = read_setups(
        "servingEngineSpec:\n  modelSpec:\n  - {tag: v0.20.0, modelURL: org/model, modelRevision: abc,\n"
        "     enableTool: true, enableLoRA: true, toolCallParser: hermes,\n"
        "     vllmConfig: {enableChunkedPrefill: false, maxLoras: 4}}\n"
    )
    assert dict(reading.setup.args) == {
        "revision": "abc", "enable_auto_tool_choice": True, "enable_lora": True, "tool_call_parser": "hermes",
        "enable_chunked_prefill": False, "enable_prefix_caching": False, "max_loras": 4,
    }  # fmt: skip


RUNTIME = """
apiVersion: production-stack.vllm.ai/v1alpha1
kind: VLLMRuntime
metadata: {name: llama}
spec:
  model: {modelURL: org/model, maxNumSeqs: 0}
  vllmConfig: {port: 8000, env: [{name: VLLM_X, value: "1"}]}
  deploymentConfig: {image: {registry: docker.io, name: "vllm/vllm-openai:v0.20.0"}, resources: {gpu: "2"}}
"""


def test_a_runtime_of_the_production_stack_is_read_with_what_its_operator_decides():
    (reading,) = read_setups(RUNTIME)
    setup = reading.setup
    assert (setup.target, setup.engine_version, setup.device.count) == ("org/model", "0.20.0", 2)
    assert dict(setup.args) == {"enable_prefix_caching": False, "enable_chunked_prefill": False}
    assert dict(setup.env) == {"VLLM_X": "1"}
    for version, env in (("0.10.0", {"VLLM_USE_V1": "1", "VLLM_X": "1"}), ("0.20.0", {"VLLM_X": "1"})):
        (reading,) = read_setups(RUNTIME.replace("port: 8000", "v1: true"), engine_version=version)
        assert dict(reading.setup.env) == env
    (reading,) = read_setups(RUNTIME.replace("VLLM_X", "VLLM_USE_V1"))
    assert "variable-unread" in {each.code for each in judge(reading).findings}


def test_engine_arguments_of_ray_serve():
    (reading,) = read_setups(
        "spec: x\napplications:\n- args:\n    llm_configs:\n"
        "    - model_loading_config: {model_id: q, model_source: org/model}\n"
        "      runtime_env: {env_vars: {VLLM_X: '1', HF_TOKEN: secret}}\n"
        "      engine_kwargs: {seed: 1, speculative_config: {method: ngram}}\n"
    )
    assert (reading.setup.target, reading.setup.spec.method, dict(reading.setup.env)) == (
        "org/model", "ngram", {"VLLM_X": "1"},
    )  # fmt: skip
    assert dict(reading.setup.args) == {"seed": 1, "served_model_name": ["q"]}


LIST = f"import shlex\ncmd = ['vllm', 'serve', 'org/model', '-sc', '{SPEC_TEXT}']\n"


@pytest.mark.parametrize(
    ("call", "is_whole"),
    [
        ("subprocess.run(cmd)", True),
        ("print(' '.join(cmd))\nsubprocess.run(cmd)", True),
        ("subprocess.run(shlex.join(cmd), shell=True)", True),
        ("subprocess.Popen(' '.join(cmd), shell=True)", False),
        ("line = ' '.join(cmd)\nos.system(line)", False),
    ],
)
def test_a_list_that_a_program_joins_for_a_shell_loses_its_quotes(call: str, tmp_path: Path, *, is_whole: bool):
    (reading,) = read_setups(write(tmp_path, "serve.py", LIST + call))
    assert (codes(reading) == []) is is_whole
    assert ("flag-json-invalid" in codes(reading)) is not is_whole


def test_severities_come_with_the_rules():
    (reading,) = read_setups("docker run vllm/vllm-openai m --no-such-flag")
    assert {finding.code: finding.severity for finding in reading.findings} == {
        "image-release-unknown": Severity.WARNING, "unknown-flag": Severity.ERROR,
    }  # fmt: skip


def test_a_script_with_line_ends_of_windows(tmp_path):
    script = b"#!/bin/bash\r\nvllm serve m \\\r\n  --seed 1\r\n"
    path = tmp_path / "run.sh"
    path.write_bytes(script)
    for source in (path, script.decode()):
        (reading,) = read_setups(source)
        assert (codes(reading), dict(reading.setup.args)) == (["script-with-carriage-returns"], {"seed": 1})
    path.write_bytes(script.replace(b"\r", b""))
    assert codes(*read_setups(path)) == []


@pytest.mark.parametrize(
    "layout",
    [
        "FROM {image}\nENTRYPOINT []\nCMD {line}\n",
        "services: {{a: {{image: '{image}', entrypoint: [], command: '{line}'}}}}",
    ],
)
def test_an_entry_point_that_is_taken_away_is_not_repeated(layout):
    text = layout.format(image="vllm/vllm-openai:v0.26.0", line="vllm serve gpt2 --seed 1")
    (reading,) = read_setups(text)
    assert (codes(reading), reading.setup.target) == ([], "gpt2")
    (kept,) = read_setups(text.replace("ENTRYPOINT []\n", "").replace("entrypoint: [], ", ""))
    assert codes(kept) == ["entrypoint-repeated"]


def test_the_release_that_one_task_installs_is_that_of_the_others():
    (reading,) = read_setups("setup: pip install vllm==0.22.1\nrun: vllm serve gpt2\n")
    assert reading.setup.engine_version == "0.22.1"
    (open_one,) = read_setups("setup: pip install vllm==0.22.1\ntry: pip install vllm==0.23.0\nrun: vllm serve gpt2\n")
    assert open_one.setup.engine_version == ""


@pytest.mark.parametrize(
    "text", ["- 'hosts': gpu\n  'tasks':\n  - 'shell': vllm serve gpt2\n", '"run": vllm serve gpt2\n']
)
def test_yaml_with_quoted_keys_and_lists_is_yaml(text):
    (reading,) = read_setups(text)
    assert (reading.setup.target, reading.setup.extra_args) == ("gpt2", ())


@pytest.mark.parametrize(
    ("text", "target", "args"),
    [
        ('{"model": "gpt2", "tensor_parallel_size": 2}', "gpt2", {"tensor_parallel_size": 2}),
        ('{"model": "head", "num_speculative_tokens": 2}', "", {}),
    ],
)
def test_json_of_engine_arguments_is_no_speculative_config(text, target, args):
    (reading,) = read_setups(text)
    assert (reading.setup.target, reading.setup.args, reading.setup.spec is None) == (target, args, bool(target))


def test_json_that_is_no_setup_is_no_speculative_config_with_odd_keys(tmp_path):
    notebook = '{"cells": [{"source": ["!vllm serve gpt2"]}], "metadata": {}, "nbformat": 4}'
    with pytest.raises(NoServer, match="Jupyter notebook"):
        read_setups(write(tmp_path, "a.ipynb", notebook))


@pytest.mark.parametrize(
    "text",
    [
        '{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0}',
        '{"model": "m", "prompt": "x", "max_tokens": 3}',
        '{"method": "GET", "url": "http://x"}',
        '{"target": "es2022", "module": "node16", "strict": true}',
        '{"name": "x", "image": "nginx", "model": "m", "args": ["--model", "m"]}',
        '{"name": "x", "imageName": "someone/worker:v2.7.0", "model": "m", "env": {"MODEL_NAME": "m"}}',
        '{"architectures": ["LlamaForCausalLM"], "quantization": null, "torch_dtype": "bfloat16"}',
    ],
)
def test_the_object_of_another_tool_is_no_speculative_config(tmp_path, text):
    for source in (text, write(tmp_path, "a.json", text)):
        with pytest.raises(NoServer, match="neither a setup nor a speculative config"):
            read_setups(source)


@pytest.mark.parametrize(
    "made",
    [
        lambda image, args, env: {"imageName": image, "dockerArgs": shlex.join(args), "ports": "8000/http", "env": env},
        lambda image, args, env: {"imageName": image, "dockerStartCmd": args, "env": {env[0]["key"]: env[0]["value"]}},
        lambda image, args, env: {"containerSpec": {"imageUri": image, "args": args, "env": env}},
        lambda image, args, env: [{"Config": {"Image": image, "Cmd": args, "Env": ["VLLM_LOGGING_LEVEL=DEBUG"]}}],
        lambda image, args, env: {"image": image, "args": args, "disk": 40, "env": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
    ],
    ids=["runpod template", "runpod rest", "vertex", "docker inspect", "vast"],
)
def test_the_container_in_the_object_of_another_tool_is_read(tmp_path, made):
    args = ["--model", "m", "--speculative-config", SPEC_TEXT]
    env = [{"key": "VLLM_LOGGING_LEVEL", "name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]
    (reading,) = read_setups(write(tmp_path, "a.json", json.dumps(made("vllm/vllm-openai:v0.19.1", args, env))))
    setup = reading.setup
    assert (setup.target, setup.spec.to_dict(), setup.engine_version) == ("m", SPEC, "0.19.1")
    assert dict(setup.env) == {"VLLM_LOGGING_LEVEL": "DEBUG"}


def test_the_image_whose_commands_stand_beside_it_names_the_release():
    (reading,) = read_setups("image: vllm/vllm-openai:v0.29.0\ncommands:\n- vllm serve gpt2\n")
    assert reading.setup.engine_version == "0.29.0"


@pytest.mark.parametrize("prompt", ["$ ", "(venv) me@gpu-1:~/x$ ", "root@a:/opt$ "])
def test_what_is_copied_from_a_terminal_is_read_without_its_prompts(prompt: str):
    (reading,) = read_setups(f"{prompt}K=3\n{prompt}vllm serve m \\\n> --seed $K\n")
    assert (dict(reading.setup.args), reading.findings) == ({"seed": 3}, ())
