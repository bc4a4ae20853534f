"""One server in every format: each reader gives the same setup."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftwise.core import CheckOutcome, InvalidSetup
from draftwise.plan.check import judge
from draftwise.setups.read import NoServer, SetupReading, read_setups

TARGET = "Qwen/Qwen3-8B"
SPEC = {"method": "eagle3", "model": "heads/eagle3", "num_speculative_tokens": 3}
TEXT = json.dumps(SPEC)
ARGS = {"tensor_parallel_size": 2, "max_model_len": 4096, "enforce_eager": True}
IMAGE = "vllm/vllm-openai:v0.20.0"
FLAGS = ["--tensor-parallel-size", "2", "--max-model-len=4096", "--enforce-eager", "--speculative-config", TEXT]
QUOTED = f"--tensor-parallel-size 2 --max-model-len=4096 --enforce-eager --speculative-config '{TEXT}'"
ESCAPED = QUOTED.replace('"', '\\"').replace("'", '"')
KEYWORDS = {"model": TARGET, **ARGS, "speculative_config": SPEC}
ENGINE = {**ARGS, "speculative_config": SPEC}


def to_yaml(value: Any, indent: int) -> str:
    """Return JSON, which is YAML, as a block that far to the right."""
    pad = " " * indent
    return "\n".join(pad + line for line in json.dumps(value, indent=1).splitlines())


LLM_CONFIG = {"model_loading_config": {"model_id": "q", "model_source": TARGET}, "engine_kwargs": ENGINE}
SERVE_CONFIG = {"applications": [{"name": "llms", "args": {"llm_configs": [LLM_CONFIG]}}]}
CONTAINER = {"name": "vllm", "image": IMAGE, "args": ["--model", TARGET, *FLAGS]}
STACK = {
    "servingEngineSpec": {
        "modelSpec": [
            {
                "repository": "vllm/vllm-openai", "tag": "v0.20.0", "modelURL": TARGET,
                "vllmConfig": {"enablePrefixCaching": True, "extraArgs": FLAGS},
            }
        ]
    }
}  # fmt: skip
RUNTIME = {
    "model": {"modelURL": TARGET, "maxModelLen": 4096, "enableLoRA": False, "toolCallParser": ""},
    "vllmConfig": {
        "v1": True, "enablePrefixCaching": True, "enableChunkedPrefill": True, "tensorParallelSize": 2,
        "extraArgs": ["--enforce-eager", f"--speculative-config={json.dumps(SPEC)}"],
    },
    "deploymentConfig": {"image": {"registry": "vllm", "name": "vllm-openai:v0.20.0"}, "resources": {"gpu": "2"}},
}  # fmt: skip
OF_PLATFORM = ("served_model_name", "port", "enable_prefix_caching", "enable_chunked_prefill")
"""Arguments that a platform gives by itself."""
MODELSERVICE = {
    "modelArtifacts": {"name": TARGET, "uri": "hf://{{ .Values.modelArtifacts.name }}"},
    "decode": {
        "parallelism": {"tensor": 2},
        "containers": [{"image": IMAGE, "modelCommand": "vllmServe", "args": FLAGS[2:]}],
    },
    "prefill": {"create": False, "containers": [{"image": IMAGE, "modelCommand": "vllmServe"}]},
}


def manifest(kind: str, spec: Any, version: str = "v1") -> str:
    return json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}, indent=1)


FORMATS = {
    "command.sh": f"vllm serve {TARGET} \\\n  {QUOTED}\n",
    "script.sh": f'#!/bin/bash\nM={TARGET}\nARGS=({QUOTED})\nexec vllm serve $M "${{ARGS[@]}}"\n',
    "docker.sh": f"docker run --gpus all {IMAGE} --model {TARGET} {QUOTED}\n",
    "quoted.sh": f"cat > start.sh <<'EOF'\n#!/bin/bash\nvllm serve {TARGET} {QUOTED}\nEOF\nbash start.sh\n",
    "kubectl.sh": f"kubectl apply -f - <<EOF\n{manifest('Pod', {'containers': [CONTAINER]})}\nEOF\n",
    "setup.json": json.dumps({"target": TARGET, "args": ARGS, "speculative_config": SPEC}),
    "keywords.json": json.dumps(KEYWORDS),
    "config.yaml": f"model: {TARGET}\ntensor-parallel-size: 2\nmax-model-len: 4096\nenforce-eager: true\n"
    f"speculative-config: {TEXT}\n",
    "compose.yaml": f"services:\n  a:\n    image: {IMAGE}\n    command: {json.dumps(CONTAINER['args'])}\n",
    "text.compose.yaml": f"services:\n  a:\n    image: {IMAGE}\n    command: >-\n      --model {TARGET} {QUOTED}\n",
    "pod.yaml": manifest("Pod", {"containers": [CONTAINER]}),
    "shell.yaml": manifest(
        "Pod",
        {
            "containers": [
                {
                    "image": IMAGE,
                    "env": [{"name": "M", "value": TARGET}],
                    "command": ["sh", "-c", f"exec vllm serve $M {QUOTED}"],
                }
            ]
        },
    ),
    "lws.yaml": manifest(
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"leaderTemplate": {"spec": {"containers": [CONTAINER]}}}},
        "leaderworkerset.x-k8s.io/v1",
    ),
    "kserve.yaml": manifest(
        "InferenceService",
        {
            "predictor": {
                "model": {
                    "modelFormat": {"name": "vLLM"},
                    "image": IMAGE,
                    "storageUri": f"hf://{TARGET}",
                    "args": FLAGS,
                }
            }
        },
        "serving.kserve.io/v1beta1",
    ),
    "llmisvc.yaml": manifest(
        "LLMInferenceService",
        {
            "model": {"uri": f"hf://{TARGET}"},
            "template": {
                "containers": [
                    {"name": "main", "image": IMAGE, "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": QUOTED}]}
                ]
            },
        },
    ),
    "ray.yaml": yaml.safe_dump(SERVE_CONFIG),
    "rayservice.yaml": "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: x}\nspec:\n  serveConfigV2: |\n"
    + to_yaml(SERVE_CONFIG, 4)
    + "\n  rayClusterConfig: {headGroupSpec: {template: {spec: {containers: [{image: rayproject/ray-llm:2.50.1}]}}}}\n",
    "stack.yaml": yaml.safe_dump(STACK),
    "vllmruntime.yaml": manifest("VLLMRuntime", RUNTIME, "production-stack.vllm.ai/v1alpha1"),
    "modelservice.yaml": yaml.safe_dump(MODELSERVICE),
    "argo.yaml": manifest("Application", {"source": {"helm": {"valuesObject": MODELSERVICE}}}, "argoproj.io/v1alpha1"),
    "argo-text.yaml": "apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec:\n  sources:\n  - chart: x\n"
    "  - helm:\n      values: |\n" + to_yaml(STACK, 8) + "\n",
    "flux.yaml": manifest("HelmRelease", {"values": STACK}, "helm.toolkit.fluxcd.io/v2"),
    "vllm.service": f"[Unit]\nDescription=x\n[Service]\nEnvironment=M={TARGET}\n"
    f"ExecStart=vllm serve ${{M}} {ESCAPED}\n",
    "vllm.container": f"[Unit]\nDescription=x\n[Container]\nImage={IMAGE}\n"
    f"Exec=--model {TARGET} {ESCAPED}\n[Install]\n",
    "Dockerfile": f"# ours\nARG TAG=v0.20.0\nFROM vllm/vllm-openai:${{TAG}} AS base\nENV M={TARGET}\n"
    f"FROM base\nENTRYPOINT {json.dumps(['vllm', 'serve', TARGET])}\nCMD {json.dumps(FLAGS)}\n",
    "shell.Dockerfile": f"FROM {IMAGE}\nENV M={TARGET} N=1\n"
    f"ENTRYPOINT exec vllm serve $M \\\n  # a comment\n  {QUOTED}\n",
    "llm.py": f"from vllm import LLM, SamplingParams\nSPEC = {SPEC}\n"
    f"llm = LLM({TARGET!r}, speculative_config=SPEC, **{ARGS})\n",
    "args.py": f"import vllm, json\ndef main():\n    model = {TARGET!r}\n"
    "    args = vllm.AsyncEngineArgs(model=f'{model}', tensor_parallel_size=2, max_model_len=4096,\n"
    f"        enforce_eager=True, speculative_config=dict(**{SPEC}))\n",
    "ray.py": "from ray.serve.llm import LLMConfig as C, build_openai_app\n"
    f"c = C(model_loading_config=dict(model_id='q', model_source={TARGET!r}), engine_kwargs={ENGINE},\n"
    " deployment_config=make())\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_setup(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_text(FORMATS[name], encoding="utf-8")
    (reading,) = read_setups(path, engine_version="0.20.0")
    setup = reading.setup
    assert setup.spec is not None
    args = {key: value for key, value in setup.args.items() if key not in OF_PLATFORM}
    assert (setup.target, args, setup.spec.to_dict()) == (TARGET, ARGS, SPEC)
    assert (reading.unknown, [f.message for f in reading.findings if f.severity != "info"]) == ({}, [])
    assert reading.where.startswith(str(path))


@pytest.mark.parametrize("name", FORMATS)
def test_lines_are_those_of_the_file(tmp_path: Path, name: str):
    """The speculative config, or what holds it, stands in the line that is told, or at most a few below."""
    path = tmp_path / name
    path.write_text(FORMATS[name].replace('"num_speculative_tokens"', '"num_speculative_token"'), encoding="utf-8")
    (reading,) = read_setups(path, engine_version="0.20.0")
    told = reading.where.removeprefix(f"{path}").partition(" ")[0].removeprefix(":")
    assert not told or 1 <= int(told) <= len(FORMATS[name].splitlines())


class TestPython:
    def one(self, text: str, **given: str) -> SetupReading:
        (reading,) = read_setups(text, given=given)
        return reading

    @pytest.mark.parametrize(
        ("code", "part", "names"),
        [
            ("LLM('m', tensor_parallel_size=count())", "count() (computed", ["tensor_parallel_size"]),
            ("LLM(model=os.environ['M'])", "M (in the environment of the process)", ["model"]),
            ("LLM('m', speculative_config={'method': 'ngram', 'x': k})", "k (", ["speculative_config"]),
            ("LLM('m', **options)", "options (", [""]),
            ("for n in (1, 2):\n    LLM('m', seed=n)", "n (", ["seed"]),
            ("LLM('m', quantization=str(k))", "k (", ["quantization"]),
        ],
    )  # fmt: skip
    def test_what_is_computed_is_not_known(self, code, part, names):
        reading = self.one(f"import os\nfrom vllm import LLM\n{code}\n")
        assert tuple(reading.unknown) == tuple(names)
        (finding,) = reading.findings
        assert part in finding.message

    def test_the_text_of_a_known_number_is_known(self):
        code = "import vllm\nimport subprocess\nP = 1\nsubprocess.run(['vllm', 'serve', 'm', '--seed', str(P)])\n"
        assert self.one(code).setup.args["seed"] == 1

    def test_a_text_is_no_speculative_config(self):
        """Only the command line parses JSON."""
        (finding,) = self.one(
            "from vllm import LLM\nLLM('m', speculative_config='{\"method\": \"suffix\"}')\n"
        ).findings
        assert finding.code == "spec-not-a-dict"

    def test_the_environment_can_be_given(self):
        code = "import os\nfrom vllm import LLM\nLLM(model=os.environ['M'], revision=os.getenv('R', 'main'))\n"
        reading = self.one(code, M="m")
        assert (reading.setup.target, dict(reading.setup.args)) == ("m", {"revision": "main"})

    def test_other_classes_of_that_name_are_not_meant(self):
        with pytest.raises(InvalidSetup):
            read_setups("import vllm\nfrom crewai import LLM\nLLM('m')\n")

    @pytest.mark.parametrize("code", ["x = x\nLLM(x)", "a = [b, b]\nb = [a, a]\nLLM('m', seed=a)"])
    def test_names_without_end(self, code):
        with pytest.raises(InvalidSetup) as error:
            read_setups(f"from vllm import LLM\n{code}\n")
        assert error.value.findings[0].code in ("too-deep", "too-long")

    def test_what_is_no_python(self, tmp_path):
        (tmp_path / "a.py").write_text("from vllm import LLM\nLLM(", encoding="utf-8")
        with pytest.raises(InvalidSetup) as error:
            read_setups(tmp_path / "a.py")
        assert (error.value.findings[0].code, error.value.findings[0].where) == ("not-python", f"{tmp_path}/a.py:2")

    @pytest.mark.parametrize(
        "code",
        [
            "w: list[str] = {0}\nw += ['--seed', '1']\nrun(w)",
            "w = {0}\nw.extend(['--seed', '1'])\nw[3:] = ['--seed', '1']\nrun(w)",
            "w = {0}\nw += ['--seed', '1']\nw.pop()\nrun(w)",
            "w = {0}\nw += ['--seed', '1']\nv = w\nrun(v)",
            "w = {0}\nrun(w + ['--seed', '1'])",
            "w = {0}\nrun([*w, '--seed', '1'])",
            "w = {0}\nv = w\nv.append('--seed=1')\nrun(v)",
            "run({0} + ['--seed', '1'])",
            "def f(w):\n    w.append('--seed=1')\nv = {0}\nf(v)\nrun(v)",
            "def f(w):\n    run([*w, '--seed=1'])\nf({0})",
            "run(list(chain(w, x)))\nw = {0}",
            "d = {{'a': {0}}}\nd['a'].append('--seed=1')\nrun(d['a'])",
            "class A:\n    w = {0}\n    def f(self):\n        self.w.append('--seed=1')\n        run(self.w)",
            "def f(w={0}):\n    run([*w, '--seed', '1'])",
            "w = {0}\nw += ['--seed', '1']\nrun(*w, '--port', '1')",
            "def f(w):\n    w += ['--seed', '1']\ndef g():\n    w = {0}\n    f(w)\n    run(w)",
        ],
    )
    def test_a_list_that_may_grow_is_no_whole_command(self, code, tmp_path):
        (tmp_path / "a.py").write_text(code.format(["vllm", "serve", "m"]))
        with pytest.raises(InvalidSetup):
            read_setups(tmp_path / "a.py")
        (tmp_path / "b.py").write_text(f"w = {['vllm', 'serve', 'm']}\nrun(w)")
        assert read_setups(tmp_path / "b.py")[0].setup.target == "m"

    @pytest.mark.parametrize(
        "code", ["w += EXTRA\nrun(w)", "if x:\n    w.extend(y)\nprint(*w)\nrun(' '.join(w), shell=True)"]
    )
    def test_what_a_list_gains_later_is_unknown(self, code, tmp_path):
        (tmp_path / "a.py").write_text(f"w = {['vllm', 'serve', 'm']}\n{code}")
        (reading,) = read_setups(tmp_path / "a.py")
        assert reading.setup.target == "m"
        assert "adds to w" in [*reading.others, reading][0].unknown[""].message

    def test_words_that_a_list_gains_are_read_on_the_way_that_adds_them(self, tmp_path):
        added = "w += ['--seed', str(1)]\nif x:\n    w.append('--enforce-eager')"
        (tmp_path / "a.py").write_text(f"w = {['vllm', 'serve', 'm']}\n{added}\nrun(w)")
        (reading,) = read_setups(tmp_path / "a.py")
        assert [{**each.setup.args} for each in (reading, *reading.others)] == [
            {"seed": 1},
            {"seed": 1, "enforce_eager": True},
        ]

    @pytest.mark.parametrize(
        ("code", "ways"),
        [
            (
                "def a():\n    w = {0}\n    run(w)\ndef b():\n    w = {0}\n    w += ['--seed=1']\n    run(w)",
                [[{}], [{"seed": 1}]],
            ),
            ("w = {0}\nw += ['--seed=1']\nrun(w)\nw = {0}\nw += ['--seed=2']\nrun(w)", [[{"seed": 1}], [{"seed": 2}]]),
            ("if x:\n    w = {0}\nelse:\n    w = {0}\n    w += ['--seed=1']\nrun(w)", [[{}], [{"seed": 1}]]),
            ("try:\n    w = {0}\nexcept E:\n    w += ['--seed=1']\nrun(w)", [[{}, {"seed": 1}]]),
            ("w = {0}\nw += ['--seed=1']\nrun(*w)", [[{"seed": 1}]]),
            ("w = {0}\nx and w.append('--seed=1')\nrun(w)", [[{}, {"seed": 1}]]),
            ("w = {0}\n[w.append('--seed=1') for _ in x]\nrun(w)", [[{}, {"seed": 1}]]),
            ("w = {0}\ndef f(w):\n    w += ['--seed=1']\nrun(w)", [[{}]]),
            ("w = {0}\ndef f():\n    w.append('--seed=1')\nf()\nrun(w)", [[{}, {"seed": 1}]]),
        ],
        ids=["functions", "again", "else", "except", "spread", "and", "comprehension", "parameter", "closure"],
    )
    def test_a_list_gains_what_its_own_function_adds_before_the_name_is_set_again(self, code, ways, tmp_path):
        (tmp_path / "a.py").write_text(code.format(["vllm", "serve", "m"]))
        readings = read_setups(tmp_path / "a.py")
        assert [[dict(way.setup.args) for way in (each, *each.others)] for each in readings] == ways

    def test_a_list_that_is_printed_is_no_server_and_a_word_that_is_left_out_has_a_name(self, tmp_path):
        (tmp_path / "a.py").write_text(f"print('run:', {['vllm', 'serve', 'a']})\nrun(['vllm', 'serve', 'b', ...])")
        (reading,) = read_setups(tmp_path / "a.py")
        assert reading.setup.target == "b"
        assert reading.unknown[""].message.endswith("what the program adds to this list.")

    @pytest.mark.parametrize("change", ["k['seed'] = 1", "k.update(seed=1)", "del k['seed']", "k.pop('seed')"])
    def test_a_dictionary_that_changes_is_not_known(self, change):
        assert [*self.one(f"from vllm import LLM\nk = dict(seed=2)\n{change}\nLLM('m', **k)").unknown] == [""]


def test_commands_of_supervisord_span_lines_and_take_variables():
    text = "[program:llm]\ncommand = vllm serve m\n  --seed 1 --max-model-len %(ENV_LENGTH)s\nautostart=true\n"
    (reading,) = read_setups(text)
    assert (dict(reading.setup.args), [*reading.unknown]) == ({"seed": 1}, ["max_model_len"])
    (reading,) = read_setups(text, given={"LENGTH": "9"})
    assert dict(reading.setup.args) == {"seed": 1, "max_model_len": 9}


class TestDockerfile:
    def one(self, text: str, **given: str) -> SetupReading:
        (reading,) = read_setups(text, given=given)
        return reading

    def test_an_image_that_names_no_command_starts_nothing(self):
        with pytest.raises(InvalidSetup):
            read_setups(f"FROM {IMAGE}\nRUN pip install x\n")

    def test_the_last_stage_counts(self):
        reading = self.one(
            f'FROM {IMAGE} AS a\nCMD ["a"]\nFROM {IMAGE}\nRUN <<EOF\nCMD no\nEOF\nCMD ["b"]\nCMD ["c"]\n'
        )
        assert (reading.setup.target, reading.where) == ("c", "line 8 CMD")

    def test_an_installed_release(self):
        reading = self.one("FROM python:3.12\nRUN pip install 'vllm==0.19.1'\nCMD vllm serve m\n")
        assert (reading.setup.engine_version, reading.setup.target) == ("0.19.1", "m")

    def test_build_arguments(self):
        text = 'ARG TAG\nFROM vllm/vllm-openai:${TAG}\nCMD ["m"]\n'
        assert [*self.one(text).unknown] == ["engine_version"]
        assert self.one(text, TAG="v0.20.0").setup.engine_version == "0.20.0"

    def test_single_quotes_are_for_a_shell(self):
        reading = self.one(f"FROM {IMAGE}\nCMD ['m', '--seed', '1']\n")
        assert [finding.code for finding in reading.findings] == ["exec-form-not-json"]
        assert (reading.setup.target, reading.findings[0].where) == ("m", "line 2")


def test_quadlet_variables_are_those_of_the_unit():
    text = f"[Container]\nImage={IMAGE}\nEnvironment=VLLM_USE_V2_MODEL_RUNNER=1\nExec=m --seed ${{S}}\n"
    (reading,) = read_setups(text)
    assert (dict(reading.setup.env), [*reading.unknown]) == ({"VLLM_USE_V2_MODEL_RUNNER": "1"}, ["seed"])
    (reading,) = read_setups(text, given={"S": "1"})
    assert dict(reading.setup.args) == {"seed": 1}


def test_an_inner_document_keeps_the_lines_of_the_file():
    text = FORMATS["argo-text.yaml"].replace('"--enforce-eager"', '"--no-such-flag"')
    (reading,) = read_setups(text)
    line = next(number for number, each in enumerate(text.splitlines(), start=1) if "--no-such-flag" in each)
    assert [finding.where.split()[:2] for finding in reading.findings] == [["line", str(line)]]


class TestHereDocuments:
    POD = manifest("Pod", {"containers": [{"image": IMAGE, "args": ["$M", "-tp=${TP}"]}]})
    POD = f"kubectl apply -f - <<EOF\n{POD}\nEOF\n"

    def test_the_shell_puts_its_variables_in(self):
        (reading,) = read_setups(f"M=m\n{self.POD}", given={"TP": "2"})
        assert (reading.setup.target, reading.setup.args["tensor_parallel_size"]) == ("m", 2)

    def test_what_it_does_not_know_stays_open(self):
        (reading,) = read_setups(f"M=m\n{self.POD}")
        assert (reading.setup.target, [*reading.unknown]) == ("m", ["tensor_parallel_size"])

    def test_nothing_is_put_in_where_the_name_is_quoted(self):
        (reading,) = read_setups(f"M=m\n{self.POD}".replace("EOF", "'EOF'", 1))
        assert reading.setup.target == "$M"

    def test_other_texts_are_passed_over(self):
        (reading,) = read_setups("cat <<EOF\n{a: [\nEOF\nvllm serve m\n")
        assert (reading.setup.target, reading.where) == ("m", "")


MODEL_OF_KUBEAI = """
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: qwen}
spec:
  url: hf://Qwen/Qwen3-8B?pull=true
  engine: VLLM
  image: vllm/vllm-openai:v0.19.1
  args: [--max-model-len=8192, '--speculative-config={"method": "ngram", "num_speculative_tokens": 4}']
  env: {VLLM_X: "1"}
  resourceProfile: nvidia-gpu-h100:2
"""


LOGGED = """\
(APIServer pid=1) INFO 06-20 19:17:46 [api_utils.py:339]  █  version 0.26.0
(APIServer pid=1) INFO 06-20 19:17:46 [api_utils.py:273] non-default args: {'model_tag': 'm', 'model': 'm', \
'seed': 1, 'spec_method': 'ngram', 'spec_tokens': 3}
"""


def test_a_log_of_vllm_names_the_release_and_the_arguments() -> None:
    (reading,) = read_setups(LOGGED)
    assert (reading.setup.target, reading.setup.engine_version) == ("m", "0.26.0")
    (cut,) = read_setups(LOGGED.partition("\n")[2])
    assert [*cut.unknown] == ["engine_version"]
    assert dict(reading.setup.args) == {"seed": 1, "spec_method": "ngram", "spec_tokens": 3}


@pytest.mark.parametrize("rest", ["", " ", " {", " {'model_tag", " {'model': 'm', 'x': {'a': 1}, 'y"])
def test_a_start_whose_arguments_are_cut_is_told_and_not_judged(rest: str) -> None:
    whole, _ = LOGGED.split(" {")
    for text in (whole + rest, LOGGED + whole + rest):
        reading = read_setups(text)[-1]
        (told,) = reading.findings
        assert (told.code, told.where) == ("logged-start-cut", f"line {len(text.splitlines())}")
        assert judge(reading).outcome is CheckOutcome.CANNOT_BE_JUDGED


SERVER, ARGUMENTS = LOGGED.splitlines(keepends=True)
ENGINE = "INFO Initializing a V1 LLM engine (v0.26.0) with config\n"


@pytest.mark.parametrize(
    ("log", "releases"),
    [
        (LOGGED + LOGGED.replace("0.26.0", "0.33.0"), ["0.26.0", "0.33.0"]),
        (ARGUMENTS + LOGGED, ["", "0.26.0"]),
        (LOGGED + ENGINE + ARGUMENTS, ["0.26.0", "0.26.0"]),
        (SERVER + SERVER.replace("0.26.0", "0.33.0") + ARGUMENTS + ARGUMENTS, ["", ""]),
        (ARGUMENTS + ENGINE + ARGUMENTS + ENGINE.replace("0.26.0", "0.33.0"), ["0.26.0", "0.33.0"]),
    ],
    ids=["upgrade", "cut", "once", "two in one log", "engines"],
)
def test_each_start_in_a_log_has_its_own_release(log: str, releases: list[str]) -> None:
    readings = read_setups(log)
    assert [each.setup.engine_version or "" for each in readings] == releases
    assert ["engine_version" not in each.unknown for each in readings] == [release != "" for release in releases]


def test_lines_that_no_shell_reads_are_words_of_one_command(tmp_path: Path) -> None:
    file = tmp_path / "swap.yaml"
    file.write_text(
        "models:\n  m:\n    cmd: |\n      uv run vllm serve m\n      # a\n      --port 1\n\n      --seed 1\n"
    )
    (reading,) = read_setups(file)
    assert (reading.setup.args["seed"], reading.findings) == (1, ())


SWAP = """\
macros:
  start: vllm serve ${MODEL_ID} --port ${PORT}
  common: >-
    --seed ${seed}
    --max-model-len 4096
  seed: 7
  drafts: "--speculative-config '{\\"method\\": \\"ngram\\", \\"num_speculative_tokens\\": 3}'"
  loop: ${loop} ${loop}
models:
  Qwen/Qwen3-8B:
    cmd: ${start} ${common} ${drafts}
  Qwen/Qwen3-4B:
    macros:
      seed: 8
      eager: true
    cmd: |
      ${start} ${common}
      # a
      --max-num-seqs ${N}
  c:
    cmd: vllm serve ${loop}
"""


def test_macros_of_llama_swap_are_filled_in(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(SWAP)
    first, second, loop = read_setups(file)
    assert (first.setup.target, first.setup.args["seed"]) == ("Qwen/Qwen3-8B", 7)
    assert first.setup.spec.to_dict()["num_speculative_tokens"] == 3
    assert first.findings == ()
    assert (second.setup.args["seed"], second.setup.spec, [*second.unknown]) == (8, None, ["max_num_seqs"])
    assert "model" in loop.unknown


def test_the_flags_of_a_release_older_than_any_known_are_not_judged(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "base_image: {image: 'vllm/vllm-openai:v0.6.5'}\n"
        "docker_server:\n  start_command: vllm serve m --speculative-model '[ngram]'\n"
    )
    (reading,) = read_setups(file)
    assert (reading.setup.engine_version, reading.findings) == ("0.6.5", ())


def test_a_model_of_kubeai_is_read_as_its_controller_starts_it() -> None:
    (reading,) = read_setups(MODEL_OF_KUBEAI)
    setup = reading.setup
    assert (setup.target, setup.engine_version, setup.device.count) == ("Qwen/Qwen3-8B", "0.19.1", 2)
    assert (setup.spec.to_dict()["num_speculative_tokens"], dict(setup.env)) == (4, {"VLLM_X": "1"})
    (unknown,) = read_setups(MODEL_OF_KUBEAI.replace("  image: vllm/vllm-openai:v0.19.1\n", ""))
    assert "engine_version" in unknown.unknown
    with pytest.raises(NoServer):
        read_setups(MODEL_OF_KUBEAI.replace("VLLM\n", "OLlama\n"))


TEMPLATE_OF_UNRAID = """<?xml version="1.0"?>
<Container version="2">
  <Repository>vllm/vllm-openai:v0.19.1</Repository>
  <ExtraParams>--gpus all --ipc=host</ExtraParams>
  <PostArgs>--model Qwen/Qwen3-8B --speculative-config '{&quot;method&quot;: &quot;ngram&quot;}'</PostArgs>
  <Config Name="x" Target="VLLM_X" Default="" Mode="" Type="Variable" Display="always">a b</Config>
  <Config Name="p" Target="8000" Default="8000" Mode="tcp" Type="Port">8000</Config>
</Container>
"""
MAKE = "MODEL ?= Qwen/Qwen3-8B\nserve: deps\n\tvllm serve $(MODEL) --max-model-len 4096\n"


def test_a_template_of_unraid_is_the_container_that_it_runs(tmp_path: Path) -> None:
    (tmp_path / "my-vllm.xml").write_text(TEMPLATE_OF_UNRAID)
    (reading,) = read_setups(tmp_path / "my-vllm.xml")
    setup = reading.setup
    assert (setup.target, setup.engine_version, dict(setup.env)) == ("Qwen/Qwen3-8B", "0.19.1", {"VLLM_X": "a b"})
    assert setup.spec.to_dict() == {"method": "ngram"}


@pytest.mark.parametrize("name", ["Makefile", "serve.mk", "Makefile.gpu", "serve.make", "GNUmakefile", "tasks.txt"])
def test_a_file_of_make_is_read_by_its_rules_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(MAKE)
    (reading,) = read_setups(tmp_path / name)
    assert (reading.setup.target, dict(reading.setup.args)) == ("Qwen/Qwen3-8B", {"max_model_len": 4096})


KAITO = "apiVersion: kaito.sh/v1beta1\nkind: Workspace\ninference:\n  preset:\n    name: phi-4\n"
DYNAMO = (
    "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n    Decode:\n"
    "      extraPodSpec: {mainContainer: {args: [python3 -m dynamo.frontend], image: my-vllm}}\n"
)
RUNPOD = "MODEL_NAME=Qwen/Qwen3-8B\nSPECULATIVE_CONFIG={}\n"
LMI = "docker run -e HF_MODEL_ID=gpt2 -e OPTION_SPECULATIVE_CONFIG='{}' djl-inference:0.36.0-lmi21.0.0-cu129\n"
WORKER = "services:\n  w:\n    image: runpod/worker-v1-vllm:v2.7.0\n    environment: {MODEL_NAME: gpt2}\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [(KAITO, "KAITO"), (DYNAMO, "NVIDIA Dynamo"), (RUNPOD, "RunPod"), (WORKER, "RunPod"), (LMI, "AWS")],
)
def test_a_form_that_is_not_read_is_named_alone_and_next_to_a_server(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "text.yaml").write_text(text)
    with pytest.raises(InvalidSetup, match=f"{named}.*does not read"):
        read_setups(tmp_path / "text.yaml")
    if text == KAITO:
        (tmp_path / "text.yaml").write_text(f"{MODEL_OF_KUBEAI}---\n{text}")
        (reading,) = read_setups(tmp_path / "text.yaml")
        assert "form-unread" in {each.code for each in reading.findings}
        assert judge(reading).accepted is None


def test_flags_of_dynamo_are_not_judged_and_no_value_for_them_is_asked_for() -> None:
    (reading,) = read_setups("python3 -m dynamo.vllm --model m --is-prefill-worker")
    finding = reading.unknown[""]
    assert "not judge Dynamo's own flags" in finding.message
    assert "--is-prefill-worker" in finding.message
    assert "Insert the value" not in finding.fix
