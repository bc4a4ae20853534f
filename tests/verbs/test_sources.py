"""Words as sources: a source that is nothing is refused, and words of a command are one."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import draftwise
from draftwise.cli import main
from draftwise.core import UnreadableSource

VERBS = [
    ["check"],
    ["upgrade", "--from", "0.32.0", "--to", "0.33.0"],
    ["deploy", "--to", "kubernetes", "--out", "out", "--gpu", "H200"],
]
FLAGS = ["--max-model-len", "4096", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}']


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    "source",
    [
        "deploy", "manifests/prod", "k8s/prod", "kserve.ymal", "Dockerfile.gpu", "my-service.yml", "a/kserve.ymal",
        "serve.yam", "config.jsno", "docker-compose", "compose.prod", "compose.override", "a/Dockerfile", "Makefile",
        "gpu.dockerfile", "prod.evn", "llama", "m", "a/b/c", "org/", "run.sh.bak/x/y",
    ],
)  # fmt: skip
def test_a_source_that_is_nothing_is_exit_2(verb: list[str], source: str) -> None:
    result = run(*verb, source)
    assert (result.exit_code, result.stdout) == (2, "")
    assert source.rstrip("/") in result.stderr
    assert "vllm serve" in result.stderr


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    "text", ["", " \n\t\n", "# a: b\n", "---\n---\n...", "#!/bin/bash\n", "null\n", "[]", "\ufeff"]
)
def test_a_text_that_is_nothing_is_exit_2(verb: list[str], text: str, folder: Path) -> None:
    (folder / "some.yaml").write_text(text, encoding="utf-8")
    for source in ("some.yaml", "-"):
        result = CliRunner().invoke(main, [*verb, source], input=text.removeprefix("\ufeff"), catch_exceptions=False)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "is empty" in result.stderr
    (folder / "some.yaml").write_text(f"{text.rstrip('.')}\nvllm serve org/name\n", encoding="utf-8")
    assert "is empty" not in run(*verb, "some.yaml").stderr
    if verb[0] == "check":
        (folder / "some.yaml").write_text(text, encoding="utf-8")
        assert run("check", "--skip-other-files", "some.yaml").exit_code == 0


@pytest.mark.parametrize(
    "source",
    [
        "gpt2", "Qwen3-8B", "qwen/qwen3-8b", "org/name", "org/name-2.5", "org/model.v1", "org/name-0.1-GGUF:Q4_K_M",
        "Qwen/Qwen2.5-0.5B", "microsoft/Phi-3.5-mini", "s3://bucket/models/x.y", "org/Composer-7B", "a-b/c_d.e",
    ],
)  # fmt: skip
def test_a_model_that_can_be_had_stays_one(source: str) -> None:
    (judged,) = draftwise.check(source).judgements
    assert (judged.target, judged.accepted is not False) == (source, True)


def test_a_known_model_of_an_organization_that_has_a_folder_here_stays_one(folder: Path) -> None:
    (folder / "Qwen").mkdir()
    assert run("check", "Qwen/Qwen3-8B").exit_code == 0
    assert run("check", "Qwen/no-such-thing").exit_code == 2


def test_the_fix_names_files_and_models_of_similar_names(folder: Path) -> None:
    (folder / "kserve.yaml").write_text("a: 1\n")
    assert "Did you mean kserve.yaml?" in run("check", "kserve.ymal").stderr
    assert "Qwen/Qwen3-8B" in run("check", "Qwen3-8C").stderr


def test_a_folder_is_read(folder: Path) -> None:
    (folder / "deploy").mkdir()
    (folder / "deploy" / "serve.sh").write_text("vllm serve gpt2\n")
    (judged,) = draftwise.check("deploy").judgements
    assert (judged.target, judged.where) == ("gpt2", "deploy/serve.sh")


def test_a_path_is_never_a_model() -> None:
    with pytest.raises(UnreadableSource):
        draftwise.check(Path("org/name"))


@pytest.mark.parametrize(
    ("words", "target", "args"),
    [
        (["vllm", "serve", "Qwen/Qwen3-8B", *FLAGS], "Qwen/Qwen3-8B", {"max_model_len": 4096}),
        (["VLLM_X=a b", "vllm", "serve", "m", "--seed=1"], "m", {"seed": 1}),
        (["A=1", "env", "-u", "B", "VLLM_X=1", "vllm", "serve", "m", "--seed=1"], "m", {"seed": 1}),
        (["uv", "run", "vllm", "serve", "m"], "m", {}),
        (["docker", "run", "--gpus", "all", "vllm/vllm-openai:v0.33.0", "--model", "m"], "m", {}),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], "m", {}),
    ],
    ids=["vllm", "variable", "env", "uv", "docker", "python"],
)
@pytest.mark.parametrize("options", [["--json", "--vllm", "0.33.0"], ["--json", "--vllm=0.33.0"]])
@pytest.mark.parametrize("behind", [False, True])
def test_words_of_a_command_are_one_source(
    words: list[str], target: str, args: dict[str, object], options: list[str], behind: bool
) -> None:
    result = run("check", *(words + options if behind else options + words))
    (judged,) = json.loads(result.stdout)
    assert (judged["vllm"], judged["target"], judged["args"]) == ("0.33.0", target, args)
    assert (judged["speculative_config"] is not None) == (FLAGS[0] in words)
    assert draftwise.check(words).judgements[0].target == target


def test_flags_of_vllm_behind_a_model_are_told_where_to_go() -> None:
    result = run("check", "Qwen/Qwen3-8B", "--max-model-len", "4096")
    assert result.exit_code == 2
    assert "No such option '--max-model-len'. Put vLLM flags after `--`" in result.stderr
    assert "quote the whole command" in result.stderr


def test_what_is_not_there_is_looked_for_in_a_folder_of_a_similar_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my deploy").mkdir()
    (tmp_path / "my deploy/llama.yaml").write_text("a: 1\n")
    (tmp_path / "latin.yaml").write_bytes("# f\u00fcr vllm\n".encode("cp1252"))
    for typed in ("my deplyo/llama.yaml", "my deploy/lama.yaml"):
        result = run("check", typed)
        assert result.exit_code == 2
        assert "Did you mean my deploy/llama.yaml?" in result.stderr
    assert "(it is not UTF-8 text). Save it as UTF-8." in run("check", "latin.yaml").stderr
