"""Large numbers of flags cost no memory: each is judged in a process that has little of it."""

import subprocess
import sys

import pytest

_CHECK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
import draftwise
draftwise.check(
    "meta-llama/Llama-3.1-8B-Instruct", vllm=["0.19.1", "0.33.0"], engine_flags=sys.argv[1:],
    speculative_config={"method": "ngram", "num_speculative_tokens": 3},
)
"""


@pytest.mark.parametrize("flag", ["--max-num-seqs", "--max-num-batched-tokens"])
@pytest.mark.parametrize("value", ["10000000000", "1000000000000000000", "-10000000000", "0"])
def test_a_large_number_of_a_flag_is_judged_in_little_memory(flag: str, value: str) -> None:
    done = subprocess.run([sys.executable, "-c", _CHECK, flag, value], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
