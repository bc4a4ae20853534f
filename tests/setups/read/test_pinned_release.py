"""The release that a text installs next to the command is the one that judges it."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwise.plan.check import judge
from draftwise.setups.read import read_setups
from draftwise.setups.read.pinned_release import find_pinned

SERVE = "vllm serve gpt2\n"
RUN = 'subprocess.run(["vllm", "serve", "gpt2"])\n'
MODAL = "import modal, subprocess\nimage = modal.Image.debian_slim().{}\n" + RUN
DOCKER = 'FROM nvidia/cuda:12.8.1-devel-ubuntu22.04\n{}\nCMD ["vllm", "serve", "gpt2"]\n'
VLLM_18 = 'FROM vllm/vllm-openai:v0.18.0\n{}\nENTRYPOINT ["vllm", "serve", "gpt2"]\n'
COMPOSE = (
    "services:\n  llm:\n    image: vllm/vllm-openai:v0.18.0\n"
    "    entrypoint: bash -c\n    command: ['{} && vllm serve gpt2']\n"
)
CONDA = "cat > env.yaml <<X\ndependencies:\n- pip:\n  - {}\nX\nconda env create -f env.yaml\n" + SERVE
SKY = "setup: |\n  {}\nrun: |\n  vllm serve gpt2\n"
ONE = {
    "modal.py": [
        MODAL.format('uv_pip_install("vllm==0.19.1", "torch==2.8.0")'),
        MODAL.format('pip_install(["torch", "vllm[audio] == 0.19.1"])'),
        MODAL.format('run_commands("uv pip install --system vllm==0.19.1")'),
        MODAL.format('pip_install(f"vllm=={VERSION}")\nVERSION = "0.19.1"'),
        'import modal, subprocess\nimage = modal.Image.from_registry("vllm/vllm-openai:v0.19.1")\n' + RUN,
        '# /// script\n# dependencies = ["vllm==0.19.1"]\n# ///\nfrom vllm import LLM\nLLM(model="gpt2")\n',
        "# was tested with vllm==0.9.2\n" + MODAL.format('pip_install("vllm==0.19.1")'),
    ],
    "serve.sh": [
        "pip install vllm==0.19.1\n" + SERVE,
        "pip install vllm==0.19.1\npip install vllm\n" + SERVE,
        "pip install vllm==0.19.1\npip install -r requirements.txt\n" + SERVE,
        "pip download vllm==0.20.0 -d /wheels\npip uninstall -y vllm==0.18.0; pip install vllm==0.19.1\n" + SERVE,
        "pip install vllm==0.19.1\nhelm install vllm vllm/stack\n" + SERVE,
        "uvx --from vllm==0.19.1 " + SERVE,
        "pip install 'vllm>=0.15'\npip install vllm==0.19.1\n" + SERVE,
        "pip install vllm==0.19.1\ndocker logs vllm > 1.log\n" + SERVE,
        "printf 'vllm==0.19.1' > requirements.txt\npip install -r requirements.txt\n" + SERVE,
        "V=0.19.1\npip install https://github.com/vllm-project/vllm/releases/download/v$V/vllm-$V+cu129-cp38-abi3-x.whl\n"
        + SERVE,
        "git clone https://github.com/vllm-project/vllm && cd vllm && git checkout v0.19.1 && pip install -e .\n"
        + SERVE,
        "pip install git+https://github.com/vllm-project/vllm.git@v0.19.1\n" + SERVE,
        CONDA.format("vllm==0.19.1"),
        CONDA.format("vllm=0.19.1"),
    ],
    "Dockerfile": [
        DOCKER.format("RUN pip install vllm==0.19.1"),
        DOCKER.format("ARG V=0.19.1\nRUN uv pip install --system vllm==${V}"),
        VLLM_18.format("RUN pip install -U vllm==0.19.1"),
        VLLM_18.format(
            "RUN git clone https://github.com/vllm-project/vllm && cd vllm && git checkout v0.19.1 && pip install -e ."
        ),
        VLLM_18.format("RUN pip install 'vllm>=0.20'\nRUN pip install vllm==0.19.1"),
        VLLM_18.format("RUN pip install git+https://github.com/vllm-project/vllm.git@v0.19.1"),
        VLLM_18.format("RUN pip install https://example.com/vllm-0.19.1+cu129-cp38-abi3-x.whl"),
        VLLM_18.format("RUN pip install .\nRUN pip install vllm==0.19.1"),
        VLLM_18.format(
            "FROM vllm/vllm-openai:v0.19.1 AS new\nRUN pip install 'vllm>=0.18' && pip install vllm && pip install -U x"
        ),
    ],
    "compose.yaml": [COMPOSE.format("pip install -U vllm==0.19.1")],
    "task.yaml": [SKY.format("uv pip install vllm==0.19.1")],
}
OPEN = {
    "modal.py": [
        MODAL.format('pip_install("vllm==0.19.1").pip_install("vllm==0.20.0")'),
        MODAL.format('uv_pip_install("vllm>=0.19.1", "torch")'),
        MODAL.format('uv_pip_install("vllm", "torch==2.8.0")'),
        '# /// script\n# dependencies = ["torch", "vllm"]\n# ///\nfrom vllm import LLM\nLLM(model="gpt2")\n',
        '# /// script\n# dependencies = [\n#   "vllm>=0.19.1",\n# ]\n# ///\nfrom vllm import LLM\nLLM(model="gpt2")\n',
    ],
    "serve.sh": [
        "pip install vllm\n" + SERVE,
        "pip install git+https://github.com/vllm-project/vllm.git\n" + SERVE,
        "git clone https://github.com/vllm-project/vllm && cd vllm && pip install -e .\n" + SERVE,
        "uvx " + SERVE,
        "uvx --from 'vllm>=0.20' " + SERVE,
        "uv run --with vllm " + SERVE,
        'python3 -m pip install -U "vllm[audio]" torch\n' + SERVE,
        "uv venv && uv pip install \\\n  --torch-backend=auto vllm\n" + SERVE,
        "pip install 'vllm>=0.11,<0.20'\n" + SERVE,
        "pip install vllm~=0.19.0\n" + SERVE,
        "pip install 'vllm>=0.19'\n" + SERVE,
        "pip install 'vllm >= 0.19.0'  # or newer\n" + SERVE,
        "pip install 'vllm>0.18'\n" + SERVE,
        "pip install vllm==0.19.1\npip install -U 'vllm>=0.20'\n" + SERVE,
        "pip install -r requirements.txt\n" + SERVE,
        "pip install \\\nvllm\n" + SERVE,
        "uv pip install -U vllm --extra-index-url https://wheels.vllm.ai/nightly\n" + SERVE,
    ],
    "Dockerfile": [
        DOCKER.format("RUN pip install vllm"),
        VLLM_18.format("RUN pip install --no-cache-dir 'vllm>=0.20'"),
        VLLM_18.format("RUN apt-get update && uv pip install --system -U vllm transformers"),
        VLLM_18.format("RUN pip install git+https://github.com/vllm-project/vllm.git@main"),
        VLLM_18.format("RUN git clone https://github.com/vllm-project/vllm && cd vllm && pip install -e ."),
        VLLM_18.format("COPY requirements.txt /tmp/\nRUN pip install -r /tmp/requirements.txt"),
        *(
            VLLM_18.format(f"RUN {each}")
            for each in (
                "pip install .",
                "cd /src && VLLM_USE_PRECOMPILED=1 pip install --no-deps -e .[audio]",
                "uv pip install --system /workspace/app",
                "pip install ./dist/vllm-custom.whl",
                "pip install /tmp/*.whl",
                "pip install git+https://github.com/me/vllm-fork.git@fast",
                "uv sync --frozen",
                "poetry install",
                "python setup.py develop",
            )
        ),
        VLLM_18.format("FROM nvidia/cuda:12.8.1-devel-ubuntu22.04\nRUN uv pip install vllm"),
    ],
    "compose.yaml": [
        COMPOSE.format("pip install -U vllm"),
        COMPOSE.format('pip install "vllm>=0.20"'),
        COMPOSE.format("pip install -e /workspace/vllm"),
        COMPOSE.format("cd /app && uv sync"),
        COMPOSE.format("pip install -r requirements.txt"),
        COMPOSE.format("pip install --requirement=/app/requirements.txt torch"),
    ],
    "task.yaml": [SKY.format("uv pip install vllm"), SKY.format("pip install vllm==0.19.1 || pip install vllm==0.2")],
}


def list_cases(texts: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(name, text) for name, many in texts.items() for text in many]


@pytest.mark.parametrize(("name", "text"), list_cases(ONE))
def test_one_pinned_release_judges(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (reading,) = read_setups(tmp_path / name)
    assert (reading.setup.target, reading.setup.engine_version, reading.unknown) == ("gpt2", "0.19.1", {})
    (asked,) = read_setups(tmp_path / name, engine_version="0.32.0")
    assert asked.setup.engine_version == "0.32.0"


@pytest.mark.parametrize(("name", "text"), list_cases(OPEN))
def test_several_releases_or_a_range_are_unknown(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (reading,) = read_setups(tmp_path / name)
    assert "installed-release-open" in {each.code for each in reading.findings}
    assert judge(reading).accepted is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("requirements.txt", "torch\nvllm==0.19.1  # pinned\n"),
        ("pyproject.toml", '[project]\ndependencies = ["vllm == 0.19.1"]\n'),
        ("pyproject.toml", '[tool.poetry.dependencies]\nvllm = "0.19.1"\n'),
        ("environment.yml", "dependencies:\n- python=3.12\n- vllm=0.19.1\n"),
    ],
)
def test_a_file_that_the_text_names_counts(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    script = tmp_path / "serve.sh"
    script.write_text(f"install-all {file}\n{SERVE}")
    assert read_setups(script)[0].setup.engine_version == "0.19.1"
    script.write_text(SERVE)
    assert read_setups(script)[0].setup.engine_version == ""


@pytest.mark.parametrize(
    "step",
    [
        "pip install transformers==5.* torch",
        "pip install git+https://github.com/huggingface/transformers.git",
        "pip install /tmp/flash_attn-2.8.1-cp312-linux.whl",
        "pip install -c /tmp/constraints.txt --index-url https://example.com/vllm/simple numpy",
    ],
)
def test_what_installs_other_packages_leaves_the_release_of_the_image(tmp_path: Path, step: str) -> None:
    (tmp_path / "Dockerfile").write_text(VLLM_18.format(f"RUN {step}"))
    assert read_setups(tmp_path / "Dockerfile")[0].setup.engine_version == "0.18.0"


def test_a_file_that_an_image_installs_counts(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(VLLM_18.format("COPY reqs /tmp/\nRUN pip install -r /tmp/requirements.txt"))
    for text, release in (("torch\n", "0.18.0"), ("vllm==0.19.1\n", "0.19.1"), ("vllm>=0.20\n", "")):
        (tmp_path / "requirements.txt").write_text(text)
        assert read_setups(tmp_path / "Dockerfile")[0].setup.engine_version == release


@pytest.mark.parametrize(
    "text", ['dependencies = ["vllm>=0.19.1"]\n', '[tool.poetry.dependencies]\nvllm = ">=0.19.1"\n']
)
def test_a_range_in_a_file_that_the_text_names_counts(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "serve.sh").write_text(f"install-all pyproject.toml\n{SERVE}")
    assert {*read_setups(tmp_path / "serve.sh")[0].unknown} == {"engine_version"}


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("pip install torch\n", ""),
        ("pip download vllm==0.19.1 -d /wheels\n", ""),
        ("pip uninstall -y vllm==0.19.1\npip show vllm\n", ""),
        ("pip install -r requirements.txt\n", "torch\n"),
    ],
)
def test_a_script_that_installs_no_vllm_leaves_the_release(tmp_path: Path, text: str, listed: str) -> None:
    (tmp_path / "requirements.txt").write_text(listed)
    (tmp_path / "serve.sh").write_text(text + SERVE)
    (reading,) = read_setups(tmp_path / "serve.sh")
    assert (reading.setup.engine_version, reading.unknown) == ("", {})


def test_a_package_that_a_listed_file_names_without_a_release_is_open(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch\nvllm  # newest\n")
    (tmp_path / "serve.sh").write_text("pip install -r requirements.txt\n" + SERVE)
    assert {*read_setups(tmp_path / "serve.sh")[0].unknown} == {"engine_version"}


@pytest.mark.parametrize("unit", ["x", "\n", "pip install a ", "git clone a ", "vllm>=1 ", "pip_install(", "a/", "uv "])
def test_a_text_is_searched_in_a_time_that_grows_as_its_length(unit: str) -> None:
    """Of a search that starts again at each place, half a megabyte would not end within hours."""
    assert find_pinned(unit * (500_000 // len(unit)), Path()) in ((), ("vllm>=1",), ("vllm>=1 vllm>=1",))
