"""What the command writes when nobody reads on, when the encoding is poor, and when the output is no terminal."""

import os
import subprocess
import sys

import pytest

from draftwise.version import tell_install

CHECK = ["check", "Qwen/Qwen3-8B", "--vllm", "0.33.0", "-sc"]
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
UNKNOWN = '{"method": "ngrm", "num_speculative_tokens": 3}'


def start(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "draftwise", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize(("config", "code"), [(NGRAM, 0), (UNKNOWN, 1)])
def test_a_reader_that_goes_away_changes_no_exit_code(config: str, code: int) -> None:
    """`draftwise check ... | head -1` in a script with `set -o pipefail`."""
    with start(*CHECK, config) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        said = command.stderr.read().decode()
    assert (command.returncode, said) == (code, "")


@pytest.mark.parametrize(
    "arguments",
    [
        [*CHECK, NGRAM],
        ["size", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100"],
        ["pick", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "A30", "--workload", "chat"],
        ["explain", "ngram"],
        ["decide", "http://127.0.0.1:1"],
    ],
)
def test_an_encoding_without_some_characters_and_lines_without_padding(arguments: list[str]) -> None:
    with start(*arguments, PYTHONIOENCODING="ascii") as command:
        written, said = command.communicate()
    assert b"Traceback" not in said
    assert (written + said).isascii()
    assert b"??" not in written + said  # bars and marks have plain stand-ins
    assert not [line for line in written.splitlines() if line.endswith(b" ")]


def test_a_server_given_as_the_target_is_named() -> None:
    with start("decide", "http://127.0.0.1:8000") as command:
        _, said = command.communicate()
    assert command.returncode == 2
    assert (
        b"http://127.0.0.1:8000 is a server URL. Pass it as --url, and the speculative server as --candidate-url"
        in said
    )


def test_the_engine_that_is_not_installed_says_how_to_install_it() -> None:
    """As on the light install: nothing of torch can be found."""
    script = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from draftwise import LLM
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    told = f"draftwise.LLM needs torch, which is not installed. {tell_install('engine')}"
    assert done.stderr.splitlines()[-1] == f"ImportError: {told}"
