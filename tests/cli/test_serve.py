"""`draftwise serve` as a user types it: the start-up line, errors as sentences, exit codes."""

import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from click.testing import CliRunner

from draftwise.cli import main


def test_help_does_not_import_torch():
    code = "import sys; from draftwise.cli import main; main(['--help'], standalone_mode=False)"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "serve" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_the_servers_own_process_does_not_import_torch():
    code = "import sys, draftwise.serve.http_server; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serve"], 2, "Missing argument 'MODEL'"),
        (["serve", "m", "--port", "70000"], 2, "--port"),
        (["serve", "m", "--no-such-flag"], 2, "No such option"),
        (["survey"], 2, "No such command 'survey'. Did you mean serve?"),
        (
            ["serve", "m", "--speculative-config", "{"],
            2,
            "--speculative-config: The text has an unclosed brace. Close the last brace.",
        ),
        (["serve", "/no/such/model", "--port", "0"], 2, "error: /no/such/model: The path is not a directory."),
        (["serve", "m", "--host", "0.0.0.0"], 2, "To allow this, add --allow-remote and --api-key"),
        (["serve", "m", "--api-key", ""], 2, "--api-key is empty. Is a variable of the shell not set?"),
        (["serve", "m", "--allowed-hosts", "a b"], 2, "'a b' is not a host name. Write the name alone"),
        (["serve", "m", "--allowed-origins", "HTTP://App"], 2, "'HTTP://App' is not a web origin. Write it as"),
        (["serve", "m", "--host", "nowhere.invalid"], 2, "nowhere.invalid is not an address of this machine"),
        (["serve", ""], 2, "an argument is empty. Is a variable of the shell not set?"),
        (["guard", "http://127.0.0.1:1", "--state="], 2, "--state is empty."),
        (["guard", "http://127.0.0.1:1", "--state", "."], 2, "File '.' is a directory."),
        (["serve", "m", "--kv-cache-dtype", "fp16"], 2, "'fp16' is not one of"),
        (["serve", "m", "--gpu-memory-utilization", "90"], 2, "gpu_memory_utilization must be more than 0 and at mo"),
        (["serve", "m", "--cudagraph-capture-sizes", "1,x"], 2, "give numbers, such as 1,2,4,8."),
        (["serve", "m", "--cudagraph-capture-sizes", "0"], 2, "cudagraph_capture_sizes must be a list of positive"),
    ],
)
def test_mistakes_are_sentences_with_an_exit_code(arguments, code, words):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_all_faults_of_a_speculative_config_are_named_at_once(tiny_target):
    config = '{"method": "ngram", "num_speculative_tokens": 0, "promptlookup_max": 3}'
    result = CliRunner().invoke(main, ["serve", str(tiny_target), "--port", "0", "--speculative-config", config])
    assert result.exit_code == 2
    assert result.stderr.count("error: ") == 2


def test_more_than_one_gpu_is_answered_with_vllms_command(tiny_target):
    config = '{"method": "ngram", "num_speculative_tokens": 2}'
    arguments = ["serve", str(tiny_target), "-tp", "2", "--max-num-seqs", "8", "-sc", config]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    command = f"vllm serve {tiny_target} --tensor-parallel-size 2 --max-num-seqs 8 --speculative-config '{config}'"
    assert f"more than one is vLLM's job. Run: {command}" in result.stderr


def test_the_newest_vllm_is_asked_about_that_command():
    config = '{"method": "eagle3", "num_speculative_tokens": 2}'
    result = CliRunner().invoke(main, ["serve", "m", "--pipeline-parallel-size", "2", "-sc", config])
    assert result.exit_code == 1
    assert result.stderr.count("error: ") == 2, result.stderr
    assert "pipeline_parallel_size is 2" in result.stderr


def test_a_port_in_use_shows_before_the_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["serve", "/no/such/model", "--port", port])
    assert result.exit_code == 2
    assert f"Port {port} of 127.0.0.1 is in use" in result.stderr


def test_serves_until_sigterm(tiny_target):
    config = '{"method": "ngram", "num_speculative_tokens": 2}'
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "draftwise", "serve", str(tiny_target), "--port", "0", "--dtype", "float32"),
            *("--served-model-name", "tiny", "--max-model-len", "128", "--speculative-config", config),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert "serves tiny at http://127.0.0.1:" in line
        assert "float32 on cpu; context 128 tokens; KV cache" in line
        assert (
            '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 5, "prompt_lookup_min": 5}' in line
        )
        url = re.search(r"http://\S+?(?=;)", line)[0]
        body = {"model": "tiny", "prompt": "ab", "max_tokens": 3, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
