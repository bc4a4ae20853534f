"""An existing file gets the flag, or loses it: it starts what was wanted, and every other line stays."""

import json
from collections.abc import Mapping
from dataclasses import replace
from difflib import ndiff
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from tests.support.adopted import ORDER
from tests.support.combinations import tries

import draftwise.deploying.edit as editing
from draftwise.cli import main
from draftwise.core import InvalidSetup, SpecConfig
from draftwise.deploying import TARGETS, deploy
from draftwise.deploying.edit import edit
from draftwise.setups.read import SourceText, read_setups

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=5)
EAGLE = SpecConfig(method="eagle3", model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", num_speculative_tokens=3)
SCHEDULED = SpecConfig.keep({**NGRAM.to_dict(), "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 64, 0]]})
RAY = "ray-serve"
"""Its files hold the config as keys of Python, and no flags."""
IMAGE = "vllm/vllm-openai:v0.26.0"

FILES: Mapping[str, str] = {
    "deployment.yaml": f"""\
# Who owns it: the platform team
apiVersion: apps/v1
kind: Deployment
metadata: {{name: llama}}   # do not rename
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: {IMAGE}
        args:
          # the model
          - --model={MODEL}
          - "--port=8000"  # as the Service says
        # what it takes
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
""",
    "flow.yaml": f"""\
apiVersion: v1
kind: Pod
metadata: {{name: llama}}
spec: {{containers: [{{name: vllm, image: "{IMAGE}", args: ["--model={MODEL}", "--seed", "1"]}}]}}
""",
    "isvc.yaml": f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: llama}}
spec:
  predictor:
    minReplicas: 2  # for the night
    model:
      modelFormat: {{name: vLLM}}
      runtime: vllm
      storageUri: hf://{MODEL}
      args: [--max-model-len=8192]
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {{name: vllm}}
spec:
  containers:
  - name: kserve-container
    image: {IMAGE}
    command: [vllm, serve, /mnt/models]
""",
    "compose.yaml": f"""\
services:
  llm:  # the one
    image: {IMAGE}
    command: --model {MODEL} --seed 1
""",
    "script.yaml": f"""\
apiVersion: v1
kind: Pod
metadata: {{name: llama}}
spec:
  containers:
  - image: {IMAGE}
    command: [/bin/sh, -c]
    args:
    - |
      # --speculative-config={{}} was tried in May
      exec vllm serve {MODEL} \\
        --port 8000 \\
        --seed 1
""",
    "vllm.service": f"""\
[Service]
# one GPU
ExecStart=/usr/bin/env vllm serve {MODEL} \\
  --port=8000 \\
  --seed=1
Restart=on-failure
""",
    "start.sh": f"""\
#!/bin/bash
set -e
vllm serve {MODEL} --port 8000
""",
}


def source_of(name: str, text: str | None = None) -> SourceText:
    return SourceText(text=FILES[name] if text is None else text, name=name)


def starts(name: str, text: str) -> object:
    (reading,) = read_setups(SourceText(text=text, name=name), engine_version="0.26.0")
    return reading.setup


def changed_lines(before: str, after: str) -> list[str]:
    lines = ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True))
    return [line[2:] for line in lines if line.startswith("- ")]


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=tries(12), deadline=None)
@given(
    ending=st.sampled_from(["\n", "\r\n"]),
    is_cut=st.booleans(),
    spec=st.sampled_from([NGRAM, EAGLE, SCHEDULED]),
    other=st.sampled_from([NGRAM, EAGLE]),
)
def test_it_starts_what_was_wanted_and_no_other_line_changes(
    name: str, ending: str, is_cut: bool, spec: SpecConfig, other: SpecConfig
) -> None:
    text = FILES[name].replace("\n", ending)
    text = text.removesuffix(ending) if is_cut else text
    with_it = edit(source_of(name, text), spec, engine_version="0.26.0")
    assert starts(name, with_it.text) == replace(starts(name, text), spec=spec)
    # At most the line that the words are appended to is another one.
    assert len(changed_lines(text, with_it.text)) <= 1
    for line in changed_lines(text, with_it.text):
        assert any(each.startswith(line.rstrip("\r\n")[:20]) for each in with_it.text.splitlines())
    again = edit(source_of(name, with_it.text), other, engine_version="0.26.0")
    assert starts(name, again.text) == replace(starts(name, text), spec=other)
    without = edit(source_of(name, again.text), None, engine_version="0.26.0")
    assert without.text == text


@pytest.mark.parametrize("name", ["deployment.yaml", "vllm.service", "script.yaml"])
def test_a_list_and_a_command_over_several_lines_get_one_line_more(name: str) -> None:
    edited = edit(source_of(name), NGRAM, engine_version="0.26.0")
    assert changed_lines(FILES[name], edited.text) == []
    assert len(edited.text.splitlines()) == len(FILES[name].splitlines()) + 1
    assert edited.difference.count("\n+") == 2  # the head of the diff, and the line


@pytest.mark.parametrize(
    "flags",
    [
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
        ["--speculative-config.method=ngram", "--speculative-config.num_speculative_tokens=3"],
        ["--speculative_config={method: ngram}".replace("{method: ngram}", json.dumps(NGRAM.to_dict()))],
    ],
)
def test_every_spelling_is_taken_out(flags: list[str]) -> None:
    text = FILES["flow.yaml"].replace('"--seed"', ", ".join([*map(json.dumps, flags), '"--seed"']))
    assert edit(source_of("flow.yaml", text), None, engine_version="0.26.0").text == FILES["flow.yaml"]


def test_nothing_changes_where_it_is_so_already() -> None:
    once = edit(source_of("deployment.yaml"), NGRAM, engine_version="0.26.0")
    again = edit(source_of("deployment.yaml", once.text), NGRAM, engine_version="0.26.0")
    assert (again.text, again.difference) == (once.text, "")


@pytest.mark.parametrize("to", [each for each in TARGETS if each != RAY])
def test_what_deploy_writes_goes_back_to_its_twins_arguments(to: str) -> None:
    folder = deploy(ORDER, to)
    name = f"spec{TARGETS[to].suffix}"
    text = folder.files[name]
    edited = edit(SourceText(text=text, name=name), None, engine_version="0.26.0")
    for line in changed_lines(text, edited.text):  # the last argument of a command takes the mark before it along
        assert "speculative" in line or line.endswith("\\\n")
    assert "--speculative" not in edited.text


def test_what_takes_no_flags_is_left_alone() -> None:
    text = deploy(replace(ORDER, image="rayproject/ray-llm:2.60"), RAY).files["spec.yaml"]
    with pytest.raises(InvalidSetup) as raised:
        edit(SourceText(text=text, name="spec.yaml"), None, engine_version="0.26.0")
    assert raised.value.findings[0].code == "no-place-to-edit"


def test_what_starts_the_server_is_changed_however_much_stands_before_it() -> None:
    text = "import vllm\n" + "a = [1, 2]\n" * 400 + f"vllm.LLM(model={MODEL!r})\n"
    edited = edit(SourceText(text=text, name="serve.py"), NGRAM, engine_version="0.26.0")
    assert edited.text == text.replace(f"{MODEL!r})", f"{MODEL!r}, speculative_config={NGRAM.to_dict()!r})")


def test_a_long_file_is_left_to_its_owner_after_fewer_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for lines in (10, 20_000):
        tried = list[object]()
        monkeypatch.setattr(editing, "_keeps_conditions", lambda *_, tried=tried: tried.append(0))
        text = f"vllm serve {MODEL}\n" + "# --a\n" * lines
        with pytest.raises(InvalidSetup) as raised:
            edit(SourceText(text=text, name="serve.sh"), NGRAM, engine_version="0.26.0")
        assert raised.value.findings[0].code == "no-place-to-edit"
        counts.append(len(tried))
    assert 10 < counts[1] <= 20 < counts[0]


def test_two_servers_in_one_file_are_refused() -> None:
    two = FILES["flow.yaml"] + "---\n" + FILES["flow.yaml"].replace("name: llama", "name: other")
    with pytest.raises(InvalidSetup, match="starts 2 servers") as raised:
        edit(source_of("flow.yaml", two), NGRAM, engine_version="0.26.0")
    assert "--select" in raised.value.findings[0].fix


def test_what_cannot_be_edited_is_left_alone() -> None:
    text = json.dumps({"target": MODEL, "engine_version": "0.26.0", "args": {}})
    with pytest.raises(InvalidSetup, match="was found that starts its server"):
        edit(source_of("setup.json", text), NGRAM, engine_version="0.26.0")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["deploy", *map(str, words)], catch_exceptions=False)


def test_the_change_is_shown_and_written_on_request(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(FILES["deployment.yaml"])
    file.chmod(0o640)
    words = (MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file)
    shown = run(*words)
    assert '+          - "--speculative-config={' in shown.stdout
    assert "Nothing is written yet" in shown.stdout
    assert file.read_text() == FILES["deployment.yaml"]
    told = json.loads(run(*words, "--write", "--json").stdout)
    assert told["written"] is True
    schema = json.loads(CliRunner().invoke(main, ["schema", "deploy"]).stdout)
    assert not list(Draft7Validator(schema).iter_errors(told))
    assert "--speculative-config" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    assert "already starts this setup" in run(*words).stdout
    run(MODEL, "--vllm", "0.26.0", "--edit", file, "--write")
    assert file.read_text() == FILES["deployment.yaml"]
    assert [each.name for each in tmp_path.iterdir()] == ["deployment.yaml"]


def test_a_secret_in_the_file_stays_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(FILES["flow.yaml"].replace('"--seed"', '"--api-key=tell-nobody", "--seed"'))
    shown = run(MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file, "--write")
    assert shown.exit_code == 0, shown.output
    assert '"--api-key=tell-nobody", "--seed", "1", "--speculative-config' in file.read_text()


def test_what_the_release_refuses_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(FILES["deployment.yaml"])
    config = json.dumps({"method": "nothing", "num_speculative_tokens": 3})
    assert run(MODEL, "--vllm", "0.26.0", "-sc", config, "--edit", file, "--write").exit_code == 1
    assert file.read_text() == FILES["deployment.yaml"]


def test_a_setup_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(FILES["deployment.yaml"])
    refused = run("Qwen/Qwen3-8B", "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file, "--write")
    assert refused.exit_code == 2
    assert "serves meta-llama" in refused.output


POPEN = 'import os, queue, subprocess, sys\ndef up(model, port=1):\n    subprocess.Popen(["vllm", "serve", model])\n'
REPEATED = {
    "for.py": ('for m in ("A", "B"):\n    subprocess.Popen(["vllm", "serve", m])\n', 2),
    "enumerate.py": ('for n, m in enumerate(NAMES):\n    cmd = ["vllm", "serve", m]\n    run(cmd)\n', 2),
    "keys.py": ('for name in SERVERS:\n    run(["vllm", "serve", SERVERS[name]["model"]])\n', 2),
    "queue.py": ('while True:\n    run(["vllm", "serve", waiting.get()])\n', 2),
    "list.py": ('all = [run(["vllm", "serve", m]) for m in NAMES]\n', 1),
    "engine.py": ("from vllm import LLM\nfor m in NAMES:\n    LLM(model=m, max_model_len=8192)\n", 3),
    "twice.py": (f'{POPEN}up("A")\nup("B")\n', 3),
    "mapped.py": (f"{POPEN}list(pool.map(up, NAMES))\n", 3),
    "looped.py": (f"{POPEN}for m in NAMES:\n    up(m)\n", 3),
    "here.sh": ('while read -r M; do\n  vllm serve "$M" &\ndone <<EOF\nA\nB\nEOF\n', 2),
    "file.sh": ('while read -r M P; do\n  vllm serve "$M" --port "$P" &\ndone < models.txt\n', 2),
    "array.sh": ('M=(A B)\nfor ((i=0;i<${#M[@]};i++)); do\n  vllm serve "${M[$i]}" &\ndone\n', 3),
    "restart.sh": ('while true; do MODEL=$(cat current); vllm serve "$MODEL"; done\n', 1),
    "echo.sh": ('while read -r M; do\n  echo done\n  vllm serve "$(cat "$M")"\ndone\n', 3),
    "known.sh": (f"for m in {MODEL} Qwen/Qwen3-8B; do\n  vllm serve $m &\ndone\n", 2),
    "docker.yml": (f"- docker_container: {{image: '{IMAGE}', command: '--model {{{{item.m}}}}'}}\n  loop: [A]\n", 1),
    "tasks.yml": ("- ansible.builtin.command: vllm serve {{ item.model }}\n  loop: [{model: A}, {model: B}]\n", 1),
}
ONCE = {
    "environ.py": 'while True:\n    run(["vllm", "serve", os.environ["MODEL"]])\n',
    "ports.py": 'for port in (1, 2):\n    run(["vllm", "serve", args.model, "--port", str(port)])\n',
    "one.py": f"{POPEN}up(sys.argv[1])\n",
    "again.sh": 'while true; do\n  vllm serve "$MODEL"\ndone\n',
    "behind.sh": 'for f in *.txt; do\n  cat "$f"\ndone\nvllm serve "$(cat model)"\n',
    "told.sh": 'echo "Please do set HF_TOKEN"\nM=$(cat model.txt)\nvllm serve "$M"\n',
    "quoted.sh": 'echo "First; do set HF_TOKEN"\nvllm serve "$(cat model)"\n',
    "over.sh": 'for f in *.txt; do cat "$f"; done; vllm serve "$(cat model)"\n',
    "command.yml": "- ansible.builtin.command: vllm serve {{ model }}\n- debug: {msg: x}\n  loop: [1, 2]\n",
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_command_for_several_models_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    (text, line), file = REPEATED[name], tmp_path / name
    file.write_text(text)
    shown = run(MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file, "--write")
    assert shown.exit_code in (1, 2)
    assert f"One command, at {file}:{line}" in shown.output.replace("\n", " "), shown.output
    assert file.read_text() == text


@pytest.mark.parametrize("name", ONCE)
def test_a_command_whose_model_stays_open_is_edited(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(ONCE[name])
    shown = run(MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file)
    assert shown.exit_code == 0, shown.output
    assert "ngram" in shown.stdout


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.sh", f"vllm serve {MODEL} --served-model-name \u201cllama\u201d\n", "a.sh:1 has typographic quotes"),
        ("a.sh", f"vllm serve {MODEL} --served-model-name llama\u2019\n", "a.sh:1 has typographic quotes"),
        ("a.sh", f"vllm serve {MODEL} --hf-overrides '{{ \u201ca\u201d : 1}}'\n", "a.sh:1 has typographic quotes"),
        ("a.yaml", f"image: {IMAGE}\nargs: [\u201c--model\u201d, {MODEL}]\n", "typographic quotes in"),
    ],
)
def test_typographic_quotes_are_named_with_their_line(name: str, text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text if name == "a.sh" else f"services:\n  a:\n    image: {IMAGE}\n    {text.splitlines()[1]}\n"
                    .replace("args", "command"))  # fmt: skip
    shown = run(MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file, "--write")
    assert said in shown.output
    assert "Type straight quotes" in shown.output


@pytest.mark.parametrize("name", ["Anna\u2019s Qwen", "the \u201cfast\u201d one"])
def test_an_apostrophe_in_a_word_is_not_a_quote(name: str, tmp_path: Path) -> None:
    (file := tmp_path / "a.sh").write_text(f"vllm serve {MODEL} --served-model-name '{name}'\n")
    shown = run(MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file, "--write")
    assert shown.exit_code == 0, shown.output
    assert f"'{name}'" in file.read_text()


def test_what_is_no_file_and_what_no_edit_uses_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(FILES["flow.yaml"])
    order = (MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()))
    for words, said in {
        ("--edit", "-"): "not standard input. Save the text",
        ("--edit", tmp_path): f"is a folder. Name one of its files: {tmp_path / 'a.yaml'}.",
        ("--edit", tmp_path / "a.yaml", "--owner", "us", "--no-observe"): "--no-observe, --owner apply to new ones",
        ("--select", "a", "--to", "compose", "--out", tmp_path / "out"): "Add --edit: only an edit takes --select.",
    }.items():
        shown = run(*order, *words)
        assert shown.exit_code == 2
        assert said in shown.output.replace("\n", " "), shown.output
    assert [each.name for each in tmp_path.iterdir()] == ["a.yaml"]


def test_what_is_read_in_translation_is_not_written(tmp_path: Path) -> None:
    line = f"vllm serve {MODEL} --port"
    for name, data in {
        "Makefile": f"PORT = 8000\nrun:\n\t{line} $(PORT)\n".encode(),
        "run.bat": f"set PORT=8000\r\n{line} %PORT%\r\n".encode(),
        "run.ps1": f"$PORT = 8000\r\n{line} $PORT\r\n".encode(),
        "run.sh": f"{line} 8000\n".encode("utf-16"),
    }.items():
        file = tmp_path / name
        file.write_bytes(data)
        shown = run(MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file, "--write")
        assert "only in translation" in shown.output
        assert "+" not in shown.stdout
        assert file.read_bytes() == data


def test_a_byte_order_mark_stays(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_bytes(f"\ufeffvllm serve {MODEL}\n".encode())
    assert run(MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file, "--write").exit_code == 0
    assert file.read_bytes().startswith(f"\ufeffvllm serve {MODEL} '--spec".encode())


def test_a_list_that_a_shell_reads_again_gets_an_item_and_loses_it(tmp_path: Path) -> None:
    text = f"""\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {{name: llama}}
spec:
  model: {{uri: "hf://{MODEL}"}}
  template:
    containers:
    - name: main
      image: {IMAGE}
      args:
      - --max-model-len=8192
"""
    file = tmp_path / "llm.yaml"
    file.write_text(text)
    run(MODEL, "--vllm", "0.26.0", "-sc", json.dumps(NGRAM.to_dict()), "--edit", file, "--write")
    assert file.read_text().startswith(text)
    assert file.read_text().removeprefix(text).lstrip().startswith("- '''--speculative-config=")
    run(MODEL, "--vllm", "0.26.0", "--edit", file, "--write")
    assert file.read_text() == text


def test_a_file_or_a_folder_is_asked_for(tmp_path: Path) -> None:
    assert run(MODEL).exit_code == 2
    assert run(MODEL, "--to", "compose", "--out", tmp_path / "out", "--edit", tmp_path / "x.yaml").exit_code == 2
