"""What `check` and `upgrade` take as a source, and what they never take for one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftwise.cli import main

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 5}'
SERVE = f"vllm serve {LLAMA} --speculative-config '{NGRAM}'\n"
COMPOSE = "services:\n  llm:\n    image: vllm/vllm-openai:{}\n    command:\n      - --model=" + LLAMA + "\n"


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin, catch_exceptions=False)


def judged(*arguments: str, stdin: str | None = None) -> list[dict[str, object]]:
    return json.loads(run("check", "--json", *arguments, stdin=stdin).stdout)


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """A folder as repositories have it: two servers, and files that start none."""
    (tmp_path / "a" / ".hidden").mkdir(parents=True)
    files = {
        "compose.yaml": COMPOSE.format("v0.32.0"),
        "a/serve.sh": f"#!/bin/bash\n{SERVE}",
        "a/package.json": '{"name": "x", "args": {"a": 1}, "target": "es5"}',
        "a/settings.yaml": "seed: 1\nlearning_rate: 2\nmodel: gpt2\nepochs: 3\n",
        "a/configmap.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {A: b}\n",
        "a/.hidden/serve.sh": SERVE,
        "a/broken.yaml": "a: [\n",
        "a/notes.md": SERVE,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("flags", [f"--model {LLAMA} -tp 2", f"-tp 2 --model {LLAMA}", f"-tp=2 --model={LLAMA}"])
@pytest.mark.parametrize("verb", [("check",), ("size", "--gpu", "H200")])
def test_flags_of_vllm_in_one_quoted_text_are_a_command(verb: tuple[str, ...], flags: str) -> None:
    result = run(*verb, "--json", f"{flags} --speculative-config '{NGRAM}'", "--vllm", "0.33.0")
    assert result.exit_code == 0, result.output
    assert LLAMA in result.stdout
    assert "ngram" in result.stdout


@pytest.mark.parametrize(
    "source",
    ["deploy/prod/vllm.yaml", "configs.json", "./model", "/mnt/models/llama", "deploy/*.yaml", "a/b/c", "run.sh", "x/"],
)
@pytest.mark.parametrize("verb", [("check",), ("upgrade", "--from", "0.32.0", "--to", "0.33.0")])
def test_what_is_spelled_as_a_file_and_is_none_is_exit_2(
    verb: tuple[str, ...], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*verb, source)
    assert result.exit_code == 2
    assert source.rstrip("/") in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("model", [LLAMA, "gpt2", "org/name-2.5", "Qwen/Qwen2.5-0.5B"])
def test_model_ids_stay_models(model: str) -> None:
    (answer,) = judged(model, "--vllm", "0.33.0")
    assert (answer["target"], answer["accepted"] is False) == (model, False)


def test_a_file_that_may_not_be_read_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    result = run("check", str(tmp_path / "binary.yaml"))
    assert (result.exit_code, "not UTF-8" in result.stderr) == (2, True)


def test_standard_input_is_read_once_for_all_releases() -> None:
    answers = judged("-", "--vllm", "0.32.0", "--vllm", "0.33.0", stdin=SERVE)
    assert [(each["vllm"], each["target"]) for each in answers] == [("0.32.0", LLAMA), ("0.33.0", LLAMA)]
    result = run("upgrade", "-", "--from", "0.32.0", "--to", "0.33.0", "--json", stdin=COMPOSE.format("v0.32.0"))
    assert [each["where"] for each in json.loads(result.stdout)] == ["stdin:2 services.llm"]
    assert run("check", "-", stdin="").exit_code == 2


def test_a_pipe_is_a_file(tmp_path: Path) -> None:
    script = f'"{sys.executable}" -m draftwise check <(cat compose.yaml) --quiet'
    (tmp_path / "compose.yaml").write_text(COMPOSE.format("v0.32.0"))
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "vLLM 0.32.0: accepted" in done.stdout


def test_several_sources_are_judged_one_after_another(deploy: Path) -> None:
    answers = judged(str(deploy / "compose.yaml"), LLAMA, SERVE, "--vllm", "0.33.0")
    assert [each["target"] for each in answers] == [LLAMA] * 3
    assert [bool(each["where"]) for each in answers] == [False, True, False]


def test_a_folder_is_searched_for_servers(deploy: Path) -> None:
    result = run("check", str(deploy), "--quiet")
    places = [line.split(": ")[0] for line in result.stdout.splitlines()]
    assert places == [
        f"{deploy}/compose.yaml:2 services.llm {LLAMA}",
        f"{deploy}/a/serve.sh {LLAMA}",
    ]
    assert (result.exit_code, result.stderr) == (0, "4 files start no vLLM server (--verbose names them).\n")
    named = run("check", str(deploy), "--quiet", "--verbose").stderr
    assert [Path(line.split(" starts")[0]).name for line in named.splitlines()] == [
        "broken.yaml", "configmap.yaml", "package.json", "settings.yaml",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["Dockerfile", "Containerfile", "Dockerfile.gpu", "vllm.dockerfile"])
def test_a_dockerfile_of_a_folder_is_judged(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('FROM vllm/vllm-openai:v0.32.0\nCMD ["--model", "gpt2"]\n')
    (answer,) = judged(str(tmp_path))
    assert (answer["vllm"], answer["target"]) == ("0.32.0", "gpt2")


def test_the_python_files_of_a_folder_are_judged_but_not_other_peoples(tmp_path: Path) -> None:
    engine = "from vllm import LLM\nllm = LLM('gpt2', seed=1)\n"
    (tmp_path / "venv" / "site-packages").mkdir(parents=True)
    (tmp_path / "serve.py").write_text(engine)
    (tmp_path / "venv" / "site-packages" / "example.py").write_text(engine)
    (tmp_path / "notes.py").write_text("NAME = 'vllm'\n")
    (answer,) = judged(str(tmp_path))
    assert (answer["where"], answer["target"]) == (f"{tmp_path}/serve.py:2 LLM", "gpt2")


@pytest.mark.parametrize("before", ["", "# x\n" * 4_000_001], ids=["short", "beyond what is looked at"])
def test_a_file_that_is_too_long_says_so(deploy: Path, before: str) -> None:
    (deploy / "a" / "all.yaml").write_text(before + COMPOSE.format("v0.32.0") + "# x\n" * 250_000)
    (row,) = [each for each in judged(str(deploy)) if each["accepted"] is None]
    (finding,) = row["findings"]
    assert (finding["code"], finding["severity"]) == ("too-long", "warning")
    assert finding["message"] == f"{deploy}/a/all.yaml is larger than 1,000,000 bytes, so draftwise does not read it."


class TestWhatOptionsTellInsteadOfAFile:
    """A target or a speculative config that a file leaves open is known once an option gives it."""

    @pytest.fixture
    def compose(self, tmp_path: Path) -> str:
        path = tmp_path / "compose.yaml"
        path.write_text(
            "services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n"
            '    command: ["--model", "${MODEL}", "--speculative-config", "${SPEC}"]\n'
        )
        return str(path)

    def test_both(self, compose: str) -> None:
        (answer,) = judged(compose, "--target", LLAMA, "-sc", NGRAM)
        assert (answer["accepted"], answer["target"]) == (True, LLAMA)
        assert answer["resolved"]["method"] == "ngram"
        assert "unresolved-variable" not in {finding["code"] for finding in answer["findings"]}

    @pytest.mark.parametrize(
        ("options", "left"), [(("--target", LLAMA), "SPEC"), (("-sc", NGRAM), "MODEL")], ids=["target", "spec"]
    )
    def test_the_other_stays_unknown(self, compose: str, options: tuple[str, ...], left: str) -> None:
        (answer,) = judged(compose, *options)
        (finding,) = [each for each in answer["findings"] if each["code"] == "unresolved-variable"]
        assert (answer["accepted"], f"depends on {left} " in finding["message"]) == (None, True)

    def test_of_a_python_file(self, tmp_path: Path) -> None:
        (tmp_path / "serve.py").write_text("import sys\nfrom vllm import LLM\nllm = LLM(sys.argv[1], seed=1)\n")
        (answer,) = judged(str(tmp_path / "serve.py"), "--target", LLAMA)
        assert (answer["accepted"], answer["target"]) == (True, LLAMA)


def test_a_pattern_takes_what_it_fits(deploy: Path) -> None:
    assert [each["where"] for each in judged(f"{deploy}/**/*.sh")] == [f"{deploy}/a/serve.sh"]


def test_a_file_of_a_folder_that_names_vllm_and_cannot_be_read_is_not_passed_over(deploy: Path) -> None:
    (deploy / "a" / "chart.yaml").write_text("{{- if .Values.on }}\nimage: vllm/vllm-openai\n{{- end }}\n")
    result = run("check", str(deploy), "--json")
    (row,) = [each for each in json.loads(result.stdout) if each["accepted"] is None]
    assert (row["where"], row["vllm"]) == (f"{deploy}/a/chart.yaml", "")
    assert [(each["code"], each["severity"]) for each in row["findings"]] == [("template", "warning")]
    assert result.exit_code == 0
    assert run("check", str(deploy), "--fail-on", "warning").exit_code == 1
    assert run("check", str(deploy / "a" / "chart.yaml")).exit_code == 1


def test_a_folder_in_which_nothing_starts_a_server_is_exit_2_unless_that_is_right(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1\n")
    assert run("check", str(tmp_path)).exit_code == 2
    assert run("check", str(tmp_path), "--skip-other-files").exit_code == 0
    assert run("check", str(tmp_path / "a.yaml")).exit_code == 2
    assert run("check", str(tmp_path / "a.yaml"), "--skip-other-files").exit_code == 0


@pytest.mark.parametrize("content", ['{"a": [', "", "[1]"])
def test_a_checkpoint_whose_config_is_broken_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    result = run("check", str(tmp_path), "--json")
    (answer,) = json.loads(result.stdout)
    assert (result.exit_code, answer["accepted"]) == (1, False)
    assert "target-config-unreadable" in {finding["code"] for finding in answer["findings"]}


def test_a_folder_of_weights_without_a_config_is_no_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (answer,) = judged(str(tmp_path))
    assert "target-config-unreadable" in {finding["code"] for finding in answer["findings"]}


def test_engine_flags_go_with_one_model(deploy: Path) -> None:
    for sources in ([str(deploy / "compose.yaml")], [LLAMA, "gpt2"], [SERVE]):
        result = run("check", *sources, "--", "--seed", "1")
        assert (result.exit_code, "one model" in result.stderr) == (2, True)
    assert judged(LLAMA, "--", "--seed", "1")[0]["args"] == {"seed": 1}


@pytest.mark.parametrize("verb", ["check", "upgrade", "size", "pick", "inspect"])
def test_every_verb_that_takes_a_release_refuses_one_that_is_not_known(verb: str, tmp_path: Path) -> None:
    extra = {"upgrade": ["--from", "0.33.0", "--to"], "size": ["--gpu", "H200", "--vllm"]}
    extra["pick"] = extra["size"]
    target = str(Path(__file__).parents[2] / "bundle" / "target") if verb == "inspect" else LLAMA
    arguments = [verb, target, *extra.get(verb, ["--vllm"]), "0.34.0"]
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "draftwise does not know vLLM 0.34.0. It knows 0.9.2 to 0.33.0." in refused.stderr
    assert "draftwise facts add vllm==0.34.0" in refused.stderr
    assert refused.stdout == ""
    near = run(*arguments, "--nearest")
    assert near.exit_code == 0
    assert "draftwise does not know vLLM 0.34.0 and judges it as 0.33.0" in near.output
    if verb != "inspect":
        text = run(*arguments, "--nearest", "--json").stdout
        assert '"asked": "0.34.0"' in text


def test_an_image_of_an_unknown_release_hides_no_other_service(tmp_path: Path) -> None:
    known, unknown = COMPOSE.format("v0.33.0"), COMPOSE.format("v0.34.0").replace("services:\n  llm", "  next")
    (tmp_path / "compose.yaml").write_text(known + unknown)
    result = run("check", str(tmp_path / "compose.yaml"), "--json")
    assert [(each["vllm"], each["accepted"]) for each in json.loads(result.stdout)] == [
        ("0.33.0", True),
        ("0.34.0", None),
    ]
    assert result.exit_code == 1
    quiet = run("check", str(tmp_path / "compose.yaml"), "--quiet")
    assert quiet.stdout.splitlines()[1].endswith("vLLM 0.34.0: cannot be judged (unknown-release)")
    near = run("check", str(tmp_path / "compose.yaml"), "--quiet", "--nearest")
    assert near.stdout.splitlines()[1].endswith("vLLM 0.34.0, judged as 0.33.0: accepted (release-nearest)")
    assert near.exit_code == 0


def test_a_key_that_is_given_twice_is_said() -> None:
    twice = '{"method": "ngram", "num_speculative_tokens": 3, "method": "suffix"}'
    (answer,) = judged(LLAMA, "-sc", twice, "--vllm", "0.33.0")
    assert "flag-json-duplicate" in {finding["code"] for finding in answer["findings"]}


def test_what_a_text_does_not_tell_is_given_by_a_file(tmp_path):
    compose, values = tmp_path / "compose.yaml", tmp_path / "production.env"
    compose.write_text(COMPOSE.format("${TAG}") + "      - --tensor-parallel-size=$TP\n")
    values.write_text("TAG=v0.20.0\nTP=2\n")
    result = run("check", str(compose))
    assert (result.exit_code, result.stdout.splitlines()[0].startswith("cannot be judged")) == (1, True)
    (row,) = judged(str(compose))
    assert row["accepted"] is None
    given = ("--env-file", str(values))
    (row,) = judged(str(compose), *given)
    assert (row["accepted"], row["vllm"], row["args"]) == (True, "0.20.0", {"tensor_parallel_size": 2})
    releases = ("--from", "0.20.0", "--to", "0.33.0")
    result = run("upgrade", str(compose), *releases)
    assert (result.exit_code, "Breaks: nothing\n" in result.stdout) == (1, False)
    assert run("upgrade", str(compose), *releases, *given).exit_code == 0
    assert run("check", str(compose), "--env-file", "no-such-file").exit_code == 2


def test_a_kustomization_is_named_with_the_command_that_renders_it(deploy: Path) -> None:
    overlay = deploy / "prod"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text("resources: [../base]\n")
    command = f"kubectl kustomize {overlay} | draftwise check -"
    for words, code in ((("check", str(overlay)), 2), (("check", str(deploy)), 0)):
        result = run(*words)
        assert (result.exit_code, command in result.stderr) == (code, True)
    assert "kustomize" not in run("check", str(deploy / "a")).stderr
