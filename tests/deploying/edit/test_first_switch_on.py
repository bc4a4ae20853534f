# ruff: noqa: E501 -- a file a row
"""The first switch-on: servers that have no arguments yet, one of several, shared by an alias, or written with tabs."""

import json
import re
from dataclasses import replace

import pytest
import yaml

from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.deploying.edit import edit, edit_as
from draftwise.setups.read import SourceText, read_setups

MODEL, IMAGE = "meta-llama/Llama-3.1-8B-Instruct", "vllm/vllm-openai:v0.26.0"
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=5)
POD = "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - name: {name}-server\n    image: {image}\n{args}"
WORDS = f'    args: ["--model", "{MODEL}"]\n'
CHART = (
    f"servingEngineSpec:\n  modelSpec:\n  - name: llama\n    repository: vllm/vllm-openai\n    tag: v0.26.0\n    modelURL: {MODEL}\n"
    "    requestGPU: 1\n"
)


def pod(name: str = "llama", args: str = WORDS, image: str = IMAGE) -> str:
    return POD.format(name=name, args=args, image=image)


FIRST = {
    "the command alone": pod(args=f'    command: ["vllm", "serve", "{MODEL}"]\n'),
    "a shell's text": pod(args=f'    command: ["sh", "-c", "exec vllm serve {MODEL} --seed 1"]\n'),
    "a shell's text in single quotes": pod(args=f"    command: [sh, -c, 'vllm serve {MODEL}']\n"),
    "a shell's plain text": pod(args=f"    command: [sh, -c]\n    args:\n    - vllm serve {MODEL} --seed 1\n"),
    "a chart without a config": CHART,
    "a chart without arguments": f"{CHART}    vllmConfig:\n      maxModelLen: 8192\n",
    "a predictor": "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: llama}\nspec:\n"
    f"  predictor:\n    model:\n      modelFormat: {{name: vLLM}}\n      image: {IMAGE}\n      storageUri: hf://{MODEL}\n",
    "a predictor in one line": "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: llama}\n"
    f"spec: {{predictor: {{model: {{modelFormat: {{name: vLLM}}, image: '{IMAGE}', storageUri: 'hf://{MODEL}'}}}}}}\n",
    "a runtime's arguments": "apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: own}\nspec:\n"
    f"  containers:\n  - name: kserve-container\n    image: {IMAGE}\n    command: [vllm, serve, /mnt/models]\n---\n"
    "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: llama}\nspec:\n  predictor:\n    model:\n"
    f"      modelFormat: {{name: vLLM}}\n      runtime: own\n      storageUri: hf://{MODEL}\n",
    "llm-d's service": "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\nmetadata: {name: llama}\nspec:\n"
    f"  model: {{uri: 'hf://{MODEL}', name: llama}}\n  template:\n    containers:\n    - name: main\n      image: {IMAGE}\n",
    "llm-d's service without a template": "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\n"
    f"metadata: {{name: llama}}\nspec:\n  model: {{uri: 'hf://{MODEL}', name: llama}}\n  replicas: 1\n",
    "a shell's text behind two dashes": pod(
        args=f'    command: [bash, -lc, "--"]\n    args: ["vllm serve {MODEL} --seed 1"]\n'
    ),
    "a private image": pod(
        "own", args=WORDS.replace("]", ', "--tensor-parallel-size", "1", "--max-model-len", "8192"]'), image="reg/llm:1"
    ),
    "a value in another document that is filled in": f"{pod()}---\nkind: Secret\nstringData:\n  token: {{{{HF_TOKEN}}}}\n",
    "a tab behind a list": pod(args=f'    args: ["--model", "{MODEL}"]\t\n'),
    "a tab before a comment": pod(args=f'    args: ["--model", "{MODEL}"]\t# own\n'),
}


def source_of(text: str) -> SourceText:
    return SourceText(text=text, name="server.yaml")


@pytest.mark.parametrize("text", FIRST.values(), ids=FIRST)
def test_a_server_speculates_for_the_first_time_and_every_other_line_stays(text: str) -> None:
    (before,) = read_setups(source_of(text))
    changed = edit(source_of(text), NGRAM, engine_version="0.26.0")
    (after,) = read_setups(source_of(changed.text))
    assert after.setup.spec == NGRAM
    assert (after.setup.target, after.setup.engine_version) == (before.setup.target, before.setup.engine_version)
    gone = [line for line in changed.difference.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert len(gone) <= 1
    back = edit(source_of(changed.text), None, engine_version="0.26.0").text
    assert back == text or text == FIRST["a chart without a config"]


@pytest.mark.parametrize("name", ["other", "other-server"])
def test_one_of_several_is_chosen_by_any_of_its_names(name: str) -> None:
    text = f"{pod()}---\n{pod('other')}"
    with pytest.raises(InvalidSetup, match=r"llama.*other") as raised:
        edit(source_of(text), NGRAM, engine_version="0.26.0")
    assert "--select" in raised.value.findings[0].fix
    changed = edit(source_of(text), NGRAM, engine_version="0.26.0", select=name)
    assert [each.setup.spec for each in read_setups(source_of(changed.text))] == [None, NGRAM]
    with pytest.raises(InvalidSetup, match="named 'nobody'"):
        edit(source_of(text), NGRAM, engine_version="0.26.0", select="nobody")


def test_who_shares_a_list_by_an_alias_keeps_it() -> None:
    shared = f'&words ["--model", "{MODEL}"]'
    text = pod(args="    args: *words\n").replace(
        "  containers:", f"  initContainers:\n  - {{name: first, image: busybox, args: {shared}}}\n  containers:"
    )
    changed = edit(source_of(text), NGRAM, engine_version="0.26.0").text
    before, after = (yaml.safe_load(each)["spec"] for each in (text, changed))
    assert after["initContainers"] == before["initContainers"]
    assert len(after["containers"][0]["args"]) == 3
    merged = text.replace("*words", "*all").replace(shared, '["x"]') + "x-all: &all [a]\n"
    with pytest.raises(InvalidSetup):
        edit(source_of(merged), NGRAM, engine_version="0.26.0")


NAMED = {
    "Dockerfile": f'FROM {IMAGE}\nENTRYPOINT ["vllm", "serve", "{MODEL}"]\nCMD ["--port", "8000"]\n',
    "whole.Dockerfile": f'FROM {IMAGE}\nCMD ["--model", "{MODEL}", \\\n     "--seed", "1"]\n',
    "ray.yaml": "applications:\n- name: llm\n  import_path: ray.serve.llm:build_openai_app\n  args:\n    llm_configs:\n"
    f"    - model_loading_config: {{model_id: m, model_source: {MODEL}}}\n      engine_kwargs:\n        max_model_len: 8192\n",
    "flow-ray.yaml": "applications:\n- name: llm\n  import_path: ray.serve.llm:build_openai_app\n  args:\n    llm_configs:\n"
    f"    - model_loading_config: {{model_id: m, model_source: {MODEL}}}\n      engine_kwargs: {{max_model_len: 8192}}\n",
    "config.yaml": f"model: {MODEL}\nport: 8000\nmax-model-len: 8192\n",
    "play.yaml": f"- hosts: gpu\n  tasks:\n  - docker_container:\n      image: {IMAGE}\n      command: --model {MODEL}\n",
    "task.yaml": f"resources: {{accelerators: H100}}\nrun: |\n  vllm serve {MODEL} \\\n    --port 8000\n",
    "service.dstack.yaml": f"type: service\nimage: {IMAGE}\ncommands:\n- vllm serve {MODEL}\n",
    "task-definition.json": f'{{"containerDefinitions": [{{"image": "{IMAGE}", "command": ["--model", "{MODEL}"]}}]}}\n',
    "own-chart.yaml": f"image: {{repository: vllm/vllm-openai, tag: v0.26.0, command: [vllm, serve, {MODEL}]}}\nport: 80\n",
    "llm.nomad.hcl": f'job "llm" {{\n  config {{\n    image = "{IMAGE}"\n    args = ["--model", "{MODEL}"]\n  }}\n}}\n',
    "entry-point.json": f'{{"containerDefinitions": [{{"image": "{IMAGE}", "entryPoint": ["vllm", "serve"], "command": ["{MODEL}"]}}]}}\n',
    "shell.Dockerfile": f'FROM {IMAGE}\nENTRYPOINT ["/bin/sh", "-c", "vllm serve {MODEL} --port ${{PORT:-8000}}"]\n',
    "port.nomad.hcl": f'job "llm" {{\n  config {{\n    image = "{IMAGE}"\n    args = [\n      "--model", "{MODEL}",\n'
    '      "--port", "${NOMAD_PORT_http}",\n    ]\n  }\n}\n',
    "raw.nomad.hcl": f'job "llm" {{\n  config {{\n    command = "/opt/vllm/bin/vllm"\n    args = ["serve", "{MODEL}"]\n  }}\n}}\n',
    "Procfile": f"web: vllm serve {MODEL} --port 8000\n",
    "supervisord.conf": f"[program:llm]\ncommand=vllm serve {MODEL} --port 8000\nautostart=true\n",
    "folded-supervisord.conf": f"[program:llm]\ncommand=vllm serve {MODEL}\n  --port 8000\nautostart=true\n",
    "tmux.sh": f'tmux new-session -d -s llm "vllm serve {MODEL} --port 8000"\n',
    "engine.py": f'from vllm import LLM\n\nllm = LLM(\n    model="{MODEL}",\n    seed=1,\n)\n',
    "positional.py": f'from vllm import LLM\n\nllm = LLM("{MODEL}")\n',
    "remark.py": f'from vllm import LLM\n\nllm = LLM(\n    model="{MODEL}",  # own, or yours\n)\n',
    "serve.py": f'import subprocess\n\nMODEL = "{MODEL}"\nsubprocess.Popen(["vllm", "serve", MODEL])\n',
    "joined.py": f'import subprocess\n\nsubprocess.run(" ".join(["vllm", "serve", "{MODEL}"]), shell=True)\n',
    "graph.yaml": "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n    Decode:\n"
    f"      extraPodSpec:\n        mainContainer:\n          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.9.1\n"
    f"          args: [sh, -c, 'python3 -m dynamo.vllm --model {MODEL} --is-prefill-worker']\n",
    "listed.py": f'import subprocess\n\nsubprocess.run([\n    "vllm", "serve",\n    "{MODEL}",  # own, or yours\n])\n',
    "rayservice.yaml": "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: llm}\nspec:\n  serveConfigV2: |\n    applications:\n"
    f"    - args:\n        llm_configs:\n        - model_loading_config: {{model_id: m, model_source: {MODEL}}}\n"
    "          engine_kwargs:\n            max_model_len: 8192\n",
    "model-alone.yaml": "applications:\n- name: llm\n  import_path: ray.serve.llm:build_openai_app\n  args:\n    llm_configs:\n"
    f"    - model_loading_config:\n        model_id: m\n        model_source: {MODEL}\n      accelerator_type: L4\n",
    "akash.yaml": f"version: '2.0'\nservices:\n  llm:\n    image: {IMAGE}\n    command: [bash, '-c']\n    args:\n    - >-\n"
    f"      vllm serve {MODEL} --port 8000\n    env: [HF_TOKEN=]\n",
    "llm-d.yaml": f"modelArtifacts: {{uri: 'hf://{MODEL}', name: llama}}\ndecode:\n  containers:\n  - name: vllm\n"
    "    image: ghcr.io/llm-d/llm-d-xpu:latest\n    modelCommand: imageDefault\n    args:\n    - --dtype\n    - float16\n",
    "flux.yaml": "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: vllm}\nspec:\n  chart: {spec: {chart: vllm-stack}}\n"
    f"  values:\n{''.join(f'    {line}' for line in CHART.splitlines(keepends=True))}",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_file_of_another_form_is_switched_on_and_off_again(name: str) -> None:
    source = SourceText(text=NAMED[name], name=name)
    on = edit(source, NGRAM, engine_version="0.26.0").text
    (changed,) = read_setups(SourceText(text=on, name=name))
    assert (changed.setup.spec, changed.setup.target) == (NGRAM, MODEL)
    again = edit(
        SourceText(text=on, name=name), SpecConfig(method="ngram", num_speculative_tokens=2), engine_version="0.26.0"
    ).text
    assert on.replace("5", "2").count("num_speculative_tokens") == again.count("num_speculative_tokens") == 1
    off = edit(SourceText(text=again, name=name), None, engine_version="0.26.0").text
    assert off == NAMED[name] or name == "flux.yaml"
    assert read_setups(SourceText(text=off, name=name))[0].setup.spec is None


@pytest.mark.parametrize("keys", ["{0}", "{0}, seed: 1", "seed: 1, {0}", "seed: 1, {0}, max_model_len: 99"])
def test_a_config_among_keys_on_one_line_is_removed(keys: str) -> None:
    whole = NAMED["flow-ray.yaml"].replace("max_model_len: 8192", keys)
    text = whole.replace("{0}", f"speculative_config: {json.dumps(NGRAM.to_dict())}")
    off = edit(SourceText(text=text, name="ray.yaml"), None, engine_version="0.26.0").text
    rest = ", ".join(each for each in keys.split(", ") if each != "{0}")
    assert off == NAMED["flow-ray.yaml"].replace("max_model_len: 8192", rest)


@pytest.mark.parametrize("gap", [" ", "\n    "])
@pytest.mark.parametrize("form", ["LLM({0},{1}{2})", "LLM(**{{'speculative_config': {3},{1}'model': '{4}'}})"])
def test_a_config_that_comes_first_in_python_is_removed(form: str, gap: str) -> None:
    spec = NGRAM.to_dict()
    text = form.format(f"speculative_config={spec}", gap, f"model='{MODEL}'", spec, MODEL)
    source = SourceText(text=f"from vllm import LLM\nllm = {text}\n", name="serve.py")
    (after,) = read_setups(replace(source, text=edit(source, None, engine_version="0.26.0").text))
    assert (after.setup.spec, after.setup.target) == (None, MODEL)


def test_comments_between_the_words_of_a_list_stay() -> None:
    words = f'"vllm", "serve",\n    "{MODEL}",  # own, or yours\n'
    flags = f'    "--speculative-config", \'{NGRAM.to_json()}\',\n    "--port", "80",  # ours\n'
    source = SourceText(text=f"import subprocess\n\nsubprocess.run([\n    {words}{flags}])\n", name="serve.py")
    off = edit(source, None, engine_version="0.26.0").text
    assert off == source.text.replace(flags, '    "--port", "80",  # ours\n')


SPECULATES = "--speculative-config.method=ngram --speculative-config.num_speculative_tokens=3"
SCRIPTS = {
    "if": f'if [ "$MODE" = fast ]; then\n  vllm serve {MODEL} --seed 1 {SPECULATES}\nelse\n'
    f"  vllm serve {MODEL} --seed 2\nfi\n",
    "case": f'case "$MODE" in\nfast) exec vllm serve {MODEL} --seed 1 ;;\nslow) exec vllm serve {MODEL} --seed 2 ;;\nesac\n',
    "pipe": f"vllm serve {MODEL} --seed 1 2>&1 | tee first.log &\nvllm serve {MODEL} --seed 2 | tee second.log\n",
    "lines": f"vllm serve {MODEL} \\\n  --seed 1 \\\n  {SPECULATES}\nvllm serve {MODEL} \\\n  --seed 2 \\\n  {SPECULATES}\n",
}


@pytest.mark.parametrize("spec", [NGRAM, None])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("form", SCRIPTS)
def test_one_of_several_commands_of_a_script_is_chosen(form: str, number: int, spec: SpecConfig | None) -> None:
    source = SourceText(text=SCRIPTS[form], name="run.sh")
    before = [each.setup for each in read_setups(source)]
    with pytest.raises(InvalidSetup, match=r"starts 2 servers.*(MODE=fast|1); ") as raised:
        edit(source, spec, engine_version="0.26.0")
    assert "--select" in raised.value.findings[0].fix
    edited = edit(source, spec, engine_version="0.26.0", select=str(number + 1))
    after = [each.setup for each in read_setups(replace(source, text=edited.text))]
    assert after[number] == replace(before[number], spec=spec)
    assert after[1 - number] == before[1 - number]
    if form in ("if", "case"):
        assert number or edit(source, spec, engine_version="0.26.0", select="MODE=fast") == edited


LOOPS = {
    "for": f"for PORT in 1 2 3; do\n  vllm serve {MODEL} \\\n    --seed 1 \\\n    --port $PORT &\ndone\n",
    "eval": f'CMD="vllm serve {MODEL} \\\n  --seed 1"\nfor N in "$@"; do CMD="$CMD --port $N"; done\neval $CMD > log 2>&1 &\n',
    "one line": f"for N in 1 2; do vllm serve {MODEL} --seed $N & done\n",
}


@pytest.mark.parametrize("form", LOOPS)
def test_all_servers_of_one_command_speculate(form: str) -> None:
    source = SourceText(text=LOOPS[form], name="run.sh")
    on = edit(source, NGRAM, engine_version="0.26.0").text
    assert all(each.setup.spec == NGRAM for each in read_setups(replace(source, text=on)))
    assert edit(replace(source, text=on), None, engine_version="0.26.0").text == source.text


def test_commands_on_one_line_are_told_apart() -> None:
    source = SourceText(text=f"vllm serve {MODEL} --seed 1 & vllm serve {MODEL} --seed 2\n", name="run.sh")
    with pytest.raises(InvalidSetup, match="starts 2 servers"):
        edit(source, NGRAM, engine_version="0.26.0")


def test_no_condition_of_a_template_decides_on_the_config() -> None:
    words = f"ExecStart={{{{ venv }}}}/bin/vllm serve {{{{ model | default('{MODEL}') }}}} \\\n  --seed 1"
    key = "{% if key is defined %} \\\n  --api-key {{ key }}{% endif %}\n"
    for flag in ("", " \\\n  --enforce-eager"):
        source = SourceText(text=f"[Service]\n{words}{flag}{key}", name="vllm.service.j2")
        on = edit(source, NGRAM, engine_version="0.26.0").text
        assert re.sub(r"{%.*?%}.*{% endif %}", "", on, flags=re.DOTALL).count("--speculative-config") == 1
        assert edit(replace(source, text=on), None, engine_version="0.26.0").text == source.text


def test_no_way_through_a_script_keeps_another_config() -> None:
    text = f'A=--seed=1\nif [ "$MODE" = fast ]; then A="$A {SPECULATES}"; fi\nvllm serve {MODEL} $A\n'
    source = SourceText(text=text, name="run.sh")
    off = edit(source, None, engine_version="0.26.0").text
    assert "--speculative" not in off
    (on,) = read_setups(replace(source, text=edit(source, NGRAM, engine_version="0.26.0").text))
    assert [each.setup.spec for each in (on, *on.others)] == [NGRAM, NGRAM]


def test_a_config_in_the_brackets_of_an_array_is_replaced_on_every_way() -> None:
    """A choice of the caller has its own config: it goes with the one of the usual way."""
    ways = "".join(
        f'{name}) A=(--speculative-config \'{{"method": "suffix", "num_speculative_tokens": {k}}}\') ;;\n'
        for name, k in (("mtp", 2), ("suffix", 8))
    )
    text = f'A=()\ncase "${{SPEC:-mtp}}" in\n{ways}esac\nvllm serve {MODEL} \\\n  --port 80 "${{A[@]}}"\n'
    on = edit(SourceText(text=text, name="run.sh"), NGRAM, engine_version="0.26.0").text
    assert (on.count("--speculative"), on.count("suffix"), on.count("A=()")) == (1, 1, 2)
    (after,) = read_setups(SourceText(text=on, name="run.sh"))
    assert all(each.setup.spec in (NGRAM, None) for each in (after, *after.others))


def test_words_stand_at_the_command_where_not_every_way_to_it_was_followed() -> None:
    more = "".join(f'if [ -n "$V{n}" ]; then\n  cmd+=(--served-model-name "$V{n}")\nfi\n' for n in range(16))
    text = f'cmd=(vllm serve {MODEL})\n{more}if probe; then\n  cmd+=(--seed 1)\nfi\nexec "${{cmd[@]}}"\n'
    source = SourceText(text=text, name="run.sh")
    (before,) = read_setups(source)
    assert before.launch is not None
    assert before.launch.is_partial
    on = edit(source, NGRAM, engine_version="0.26.0").text
    assert on.startswith(text.removesuffix("\n"))
    assert edit(replace(source, text=on), None, engine_version="0.26.0").text == text


def test_the_own_command_is_tried_before_any_other_line(monkeypatch: pytest.MonkeyPatch) -> None:
    others = "".join(f"run --number {n} \\\n  --again\n" for n in range(400))
    api = f"exec python -m vllm.entrypoints.openai.api_server --model {MODEL}\n"
    read: list[str] = []
    monkeypatch.setattr("draftwise.deploying.edit.read_setups", lambda *a, **b: read.append("") or read_setups(*a, **b))
    on = edit(SourceText(text=api.replace("exec ", "") + others, name="run.sh"), NGRAM, engine_version="0.26.0").text
    assert on.splitlines()[0].endswith("}'")
    assert len(read) < 10


@pytest.mark.parametrize("flag", ["--help", "-h", "--help=ModelConfig", "--version"])
def test_a_server_that_is_asked_for_its_help_starts_none(flag: str) -> None:
    text = f"vllm serve {flag} | grep -q runner\nvllm serve {MODEL}\n"
    assert [each.setup.target for each in read_setups(SourceText(text=text, name="run.sh"))] == [MODEL]


@pytest.mark.parametrize("behind", [" > log 2>&1 &", " 2>&1 | tee log", " >> log", "  # ours", "; echo done", " &"])
def test_words_stand_before_what_follows_the_command(behind: str) -> None:
    source = SourceText(text=f"cd /srv && vllm serve {MODEL} --seed 1{behind}\n", name="run.sh")
    on = edit(source, NGRAM, engine_version="0.26.0").text
    assert on.endswith(f"'{behind}\n")
    assert edit(replace(source, text=on), None, engine_version="0.26.0").text == source.text


def test_a_service_that_is_based_on_a_config_keeps_its_arguments() -> None:
    """KServe puts a list of arguments in the place of the config's."""
    text = FIRST["llm-d's service without a template"].replace("spec:", "spec:\n  baseRefs: [{name: own}]")
    with pytest.raises(InvalidSetup, match="No edit of"):
        edit(source_of(text), NGRAM, engine_version="0.26.0")


OPEN = {
    "open.sh": 'vllm serve "$MODEL_PATH" \\\n  --port "$PORT" \\\n  $EXTRA_ARGS\n',
    "open-compose.yaml": f"services:\n  llm:\n    image: {IMAGE}\n    command: --model $LLM_MODEL_ID --port 80\n",
    "growing.py": f'import subprocess\n\ncmd = ["vllm", "serve", "{MODEL}"]\ncmd += EXTRA\nsubprocess.Popen(cmd)\n',
    "cpu.yaml": pod(image="vllm/vllm-openai-cpu:v0.26.0"),
    "variables.yaml": "services:\n  llm:\n    build: .\n    command: >\n      ${VLLM_MODEL}\n      ${VLLM_ARGS}\n",
    "envsubst.yaml": pod("own", args='    args: ["--model", "${MODEL}", "-tp", "${COUNT}"]\n', image="${IMAGE}"),
    "kustomize.yaml": pod("own", args='    args: ["--model", "${MODEL}"]\n', image="$(vllm-image)"),
    "tagged.yaml": pod("own", args='    args: ["${MODEL}", "-tp", "2"]\n', image="reg/engine:vllm-ascend_v1"),
    "own-chart.yaml": "image: {repository: vllm/vllm-openai, tag: v0.26.0}\nvllm:\n  seed: 1\n  extraArgs: [--dtype, half]\n",
    "engines.yaml": "image: {repository: vllm/vllm-openai, tag: v0.26.0}\nengines:\n- name: a\n  extraArgs: [--dtype, half]\n",
    "shell.yaml": "- hosts: gpu\n  tasks:\n  - shell: |\n      vllm serve {{ model | default('m') }} \\\n        --port {{ port }}\n",
    "container.yaml": "- hosts: gpu\n  tasks:\n  - docker_container:\n      name: vllm\n      image: '{{ image }}'\n"
    "      command: --model {{ model }} --max-model-len 8192\n",
    "job.nomad.hcl": f'job "llm" {{\n  config {{\n    image = "{IMAGE}"\n    args = ["--model", "${{var.model}}"]\n  }}\n}}\n',
}


@pytest.mark.parametrize("name", OPEN)
def test_what_a_file_leaves_open_is_judged_as_the_given_model_and_said(name: str) -> None:
    source = SourceText(text=OPEN[name], name=name)
    wanted = Setup(engine="vllm", engine_version="0.26.0", target=MODEL, spec=NGRAM)
    changed = edit_as(source, wanted)
    (after,) = read_setups(replace(source, text=changed.text), engine_version="0.26.0")
    assert after.setup.spec is not None
    assert {each.code for each in after.unknown.values()} <= {each.code for each in changed.findings}
    assert name == "cpu.yaml" or "unresolved-variable" in {each.code for each in changed.findings}
    off = edit_as(replace(source, text=changed.text), replace(wanted, spec=None))
    assert off.text == source.text
    with pytest.raises(InvalidSetup, match=r"context|checkpoint|model") as raised:
        edit_as(source, replace(wanted, spec=SpecConfig(method="eagle3", model=MODEL, num_speculative_tokens=3)))
    assert raised.value.findings[0].code != "target-not-named"


@pytest.mark.parametrize("printing", ["echo", "printf '%s '"])
def test_a_printed_command_starts_no_server(printing: str) -> None:
    """Whoever reads it splits it again, quotes and braces included."""
    text = f'make() {{\n  local cmd=(vllm serve {MODEL})\n  {printing} "${{cmd[@]}}"\n}}\nrun "$(make)"\n'
    with pytest.raises(InvalidSetup, match="mentions vLLM"):
        edit(SourceText(text=text, name="run.sh"), NGRAM, engine_version="0.26.0")


@pytest.mark.parametrize("search", ["pgrep -f", "pkill -f", "ps aux | grep", "sudo pkill -9 -f"])
def test_a_search_for_a_server_starts_none(search: str) -> None:
    api = "vllm.entrypoints.openai.api_server"
    text = f'if {search} "{api}" > /dev/null; then\n  exit 0\nfi\npython -m {api} --model {MODEL}\n'
    on = edit(SourceText(text=text, name="run.sh"), NGRAM, engine_version="0.26.0").text
    assert on.splitlines()[-1].endswith("}'")
    assert on.startswith(text.removesuffix("\n"))


def test_servers_that_share_a_name_go_by_their_numbers() -> None:
    head, role, pods = NAMED["llm-d.yaml"].partition("decode:")
    source = source_of(f"{head}{role}{pods}prefill:{pods}")
    with pytest.raises(InvalidSetup, match="1; 2"):
        edit(source, NGRAM, engine_version="0.26.0")
    changed = edit(source, NGRAM, engine_version="0.26.0", select="2").text
    assert [each.setup.spec for each in read_setups(source_of(changed))] == [None, NGRAM]


UNREAD = {
    "an Ansible playbook": "- hosts: gpu\n  tasks:\n  - ansible.builtin.shell: vllm serve {% if a %}{{ model }}{% endif %}\n",
    "a Nomad job": f'job "llm" {{\n  config {{\n    image = "{IMAGE}"\n    args = ["--seed", "1"]\n  }}\n}}\n',
    "a Terraform file": f'resource "docker_container" "llm" {{\n  image = "{IMAGE}"\n}}\n',
    "a SkyPilot task": "resources: {accelerators: H100}\nrun: |\n  vllm serve {% raw %}m{% endraw %}\n",
    "a Nix expression": '{ lib, ... }:\n{ containers.vllm.cmd = [ "--model=m" ]; }\n',
    "a CloudFormation template": f"Resources:\n  Task:\n    Type: AWS::ECS::TaskDefinition\n    Image: {IMAGE}\n",
    "finds no command in it": "steps:\n- run: pip install vllm\n",
    "draftwise finds no command": f"name: a recipe\nmodel: {MODEL}\nnotes: start vllm serve with care\n",
    "but draftwise finds": "image: {repository: vllm/vllm-openai, tag: v0.26.0}\nargs: [--max-model-len, '8192']\nport: 80\n",
    "mentions vLLM": f"import subprocess\nwords = ['vllm', 'serve', '{MODEL}']\nsubprocess.run(words + EXTRA)\n",
}


@pytest.mark.parametrize("form", UNREAD)
def test_a_form_that_is_not_read_is_named_and_never_said_to_start_nothing(form: str) -> None:
    name = (
        "main.nix"
        if "Nix" in form
        else "main.py"
        if UNREAD[form].startswith("import")
        else "main.yaml"
        if ": " in UNREAD[form]
        else "main"
    )
    with pytest.raises(InvalidSetup, match=form) as raised:
        edit(SourceText(text=UNREAD[form], name=name), NGRAM, engine_version="0.26.0")
    assert "beginning with vllm serve" in raised.value.findings[0].fix


@pytest.mark.parametrize("spec", [NGRAM, None])
def test_what_the_release_refuses_of_the_file_as_it_was_is_said(spec: SpecConfig | None) -> None:
    text = f"vllm serve {MODEL} --swap-space 4"
    config = '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 5}\''
    setup = Setup(target=MODEL, engine_version="0.26.0", spec=spec)
    edited = edit_as(SourceText(text=text if spec else f"{text} {config}", name="run.sh"), setup)
    assert edited.text.startswith(text)
    assert "flag-of-other-release" in {each.code for each in edited.findings}


@pytest.mark.parametrize("spec", [NGRAM, None])
def test_what_the_release_refuses_of_the_model_stays_the_files_own(spec: SpecConfig | None) -> None:
    config = '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 5}\''
    text = f"vllm serve {MODEL} --max-model-len 999999"
    setup = Setup(target=MODEL, engine_version="0.26.0", spec=spec)
    edited = edit_as(SourceText(text=text if spec else f"{text} {config}", name="run.sh"), setup)
    assert edited.text.startswith(text)
    assert ("--speculative" in edited.text) == (spec is not None)
    assert "target-too-long" in {each.code for each in edited.findings}
    refused = replace(setup, spec=SpecConfig(method="eagle3", model=MODEL, num_speculative_tokens=3))
    with pytest.raises(InvalidSetup):
        edit_as(SourceText(text=text, name="run.sh"), refused)


@pytest.mark.parametrize("models", [f"{MODEL} Qwen/Qwen3-4B", f"Qwen/Qwen3-4B {MODEL}"])
@pytest.mark.parametrize("loop", ["for m in {}; do\n  vllm serve $m\ndone\n", "for m in {}; do vllm serve $m & done\n"])
def test_no_server_of_another_model_is_switched_on_with_it(loop: str, models: str) -> None:
    setup = Setup(target=MODEL, engine_version="0.26.0", spec=NGRAM)
    with pytest.raises(InvalidSetup, match="may start servers of several models"):
        edit_as(SourceText(text=loop.format(models), name="run.sh"), setup)


@pytest.mark.parametrize("name", ["run.py", "run.sh"])
def test_a_way_that_would_no_longer_start_is_refused(name: str) -> None:
    python = f'cmd = ["vllm", "serve", "{MODEL}"]\nif fast:\n    cmd += ["--async-scheduling"]\nrun(cmd)\n'
    shell = f'cmd=(vllm serve {MODEL})\nif [ "$FAST" = 1 ]; then cmd+=(--async-scheduling); fi\n"${{cmd[@]}}"\n'
    source = SourceText(text=python if name == "run.py" else shell, name=name)
    setup = Setup(target=MODEL, engine_version="0.26.0", spec=NGRAM)
    with pytest.raises(InvalidSetup, match="async-scheduling"):
        edit_as(source, setup)
    other = replace(source, text=source.text.replace("--async-scheduling", "--enforce-eager"))
    assert "--speculative" in edit_as(other, setup).text
