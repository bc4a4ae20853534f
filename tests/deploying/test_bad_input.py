"""What cannot be deployed is answered with one sentence and what to do, and leaves nothing behind."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftwise.cli import main
from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.deploying import TARGETS, deploy, make_order

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 5})
POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: NAME}}
spec: {{containers: [{{name: vllm, image: "vllm/vllm-openai:v0.26.0", args: ["--model={MODEL}"]}}]}}
"""


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, words)], catch_exceptions=False)


def refused(tmp_path: Path, *words: str | Path) -> str:
    """Return what is said of an order that writes nothing."""
    before = sorted(tmp_path.rglob("*"))
    platform = () if "--to" in words else ("--to", "kubernetes")
    result = run("deploy", "--out", tmp_path / "out", *platform, *words)
    assert result.exit_code in (1, 2)
    assert sorted(tmp_path.rglob("*")) == before
    lines = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert len(lines) == 1, result.output
    return lines[0]


def test_an_unknown_release_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    assert "0.33.0" in refused(tmp_path, MODEL, "--vllm", "7.1.0", "-sc", NGRAM)


def test_an_unknown_release_of_the_platform_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    said = refused(tmp_path, MODEL, "--vllm", "0.26.0", "-sc", NGRAM, "--to", "kserve", "--kserve", "9.9")
    assert "draftwise does not know KServe 9.9." in said
    assert "Use 0.15 to 0.20" in said


def test_of_two_servers_in_one_manifest_neither_is_deployed(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("---\n".join(POD.replace("NAME", name) for name in ("one", "two")))
    said = refused(tmp_path, tmp_path / "two.yaml")
    assert "starts 2 servers" in said
    assert "Give the file or the command line of one server, or the setup.json of a folder that deploy wrote." in said


@pytest.mark.parametrize(
    "flags",
    [
        ("--nnodes", "2", "--tensor-parallel-size", "4"),
        ("--data-parallel-size-local", "2", "--data-parallel-size", "4"),
        ("--data-parallel-rank", "0", "--data-parallel-size", "2"),
        ("--headless",),
    ],
)
@pytest.mark.parametrize("to", ["kubernetes", "kserve", "ray-serve", "systemd"])
def test_a_server_with_ranks_on_other_hosts_is_not_started_on_one_where_it_would_wait(
    to: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    image = ("--image", "rayproject/ray-llm:2.60.0") if to == "ray-serve" else ()
    model = "Qwen/Qwen3-30B-A3B" if flags[0] == "--data-parallel-rank" else MODEL  # which vLLM takes of mixtures only
    said = refused(tmp_path, model, "--vllm", "0.26.0", "-sc", NGRAM, "--to", to, *image, "--", *flags)
    assert f"{flags[0]} puts ranks on other hosts" in said


@pytest.mark.parametrize("flag", ["--frobnicate=2", "--nnodes=2"])
def test_words_that_the_release_does_not_take_are_not_written(flag: str, tmp_path: Path) -> None:
    said = refused(tmp_path, MODEL, "--vllm", "0.11.0", "-sc", NGRAM, "--", flag)
    assert flag.partition("=")[0] in said
    assert "ordered" not in said


@pytest.mark.parametrize("value", ["{{ .Values.share }}", "$(SHARE)"])
def test_a_value_that_the_text_does_not_tell_is_not_left_to_the_default(value: str, tmp_path: Path) -> None:
    elsewhere = "envFrom: [{configMapRef: {name: elsewhere}}], args: ["
    text = POD.replace("args: [", f'{elsewhere}"--gpu-memory-utilization={value}", ')
    (tmp_path / "pod.yaml").write_text(text)
    said = refused(tmp_path, tmp_path / "pod.yaml", "-sc", NGRAM)
    assert "The value of --gpu-memory-utilization cannot be judged" in said


@pytest.mark.parametrize("flags", [("--nnodes", "1"), ("--data-parallel-size", "2", "--data-parallel-size-local", "2")])
def test_all_ranks_on_one_host_are_deployed(flags: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    order = (MODEL, "--vllm", "0.26.0", "-sc", NGRAM, "--to", "kubernetes", "--out", out)
    assert run("deploy", *order, "--", *flags).exit_code == 0


@pytest.mark.parametrize("to", [each for each in TARGETS if each != "ray-serve"])  # which fills in nothing
def test_a_template_in_an_argument_is_not_carried_to_where_it_is_filled_in(to: str, tmp_path: Path) -> None:
    flag = ("--", "--chat-template", "{{ messages }}")
    said = refused(tmp_path, MODEL, "--vllm", "0.26.0", "-sc", NGRAM, "--to", to, *flag)
    assert "{{" in said
    assert said.rstrip().endswith(".")


SECRETS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "--api-key": {"args": {"api_key": "tell-nobody"}},
    "--hf-token": {"args": {"hf_token": "tell-nobody"}},
    "HF_TOKEN": {"env": {"HF_TOKEN": "tell-nobody"}},
    "AWS_SECRET_ACCESS_KEY": {"env": {"AWS_SECRET_ACCESS_KEY": "tell-nobody"}},
    "--otlp-traces-endpoint": {"args": {"otlp_traces_endpoint": "https://me:tell-nobody@traces.example.org"}},
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_written_nowhere(name: str, tmp_path: Path) -> None:
    given = {"target": MODEL, "engine_version": "0.26.0", "args": {}, **SECRETS[name]}
    (tmp_path / "setup.json").write_text(json.dumps({**given, "speculative_config": json.loads(NGRAM)}))
    said = refused(tmp_path, tmp_path / "setup.json")
    assert f"{name} holds a secret" in said
    assert "tell-nobody" not in said
    bundled = run("bundle", tmp_path / "setup.json", "--out", tmp_path / "bundle")
    assert bundled.exit_code == 2
    assert "tell-nobody" not in bundled.output
    assert not (tmp_path / "bundle").exists()


def test_a_tokenizer_is_no_token() -> None:
    setup = Setup(
        target=MODEL,
        engine="vllm",
        engine_version="0.26.0",
        args={"tokenizer": MODEL, "max_num_batched_tokens": 4096},
        env={"VLLM_LOGGING_LEVEL": "INFO"},
    )
    make_order(setup)


def test_a_folder_that_may_not_be_written_is_no_half_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *words: object, **more: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    result = run("deploy", MODEL, "--vllm", "0.26.0", "-sc", NGRAM, "--to", "compose", "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert "Permission denied" in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_run_that_is_no_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    assert str(tmp_path / "run") in refused(tmp_path, tmp_path / "run")


def test_what_is_rendered_of_a_setup_without_secrets_has_no_value_of_one() -> None:
    setup = Setup(
        target=MODEL, engine="vllm", engine_version="0.26.0", spec=SpecConfig(method="ngram", num_speculative_tokens=5)
    )
    for to in TARGETS:
        for text in deploy(make_order(setup, image="registry.local/vllm:v0.26.0"), to).files.values():
            assert "api_key" not in text.lower().replace("api_key_file", "")


def test_an_order_for_nothing_is_refused() -> None:
    with pytest.raises(InvalidSetup, match="release to deploy is unknown"):
        make_order(Setup(target=MODEL, engine="vllm"))


def test_a_setup_that_does_not_speculate_has_no_twin() -> None:
    with pytest.raises(InvalidSetup) as refused:
        deploy(make_order(Setup(target=MODEL, engine="vllm", engine_version="0.26.0")), "kubernetes")
    assert [finding.code for finding in refused.value.findings] == ["no-twin"]
