"""Values that a text leaves open: what does not depend on them is judged."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

import pytest

from draftwise.core import CheckOutcome
from draftwise.plan.check import judge
from draftwise.setups.read import read_setups

NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
SPEC = f"--speculative-config '{NGRAM}'"
NO_METHOD = "--speculative-config '" + NGRAM.replace("ngram", "ngrm") + "'"


@pytest.mark.parametrize("flags", ["--port $PORT", "--port=${PORT}", "--uvicorn-log-level $LEVEL", "--api-key $KEY"])
def test_a_value_that_no_rule_reads_leaves_the_rest_judged(flags: str) -> None:
    (reading,) = read_setups(f"vllm serve Qwen/Qwen3-8B {flags} {SPEC}")
    report = judge(reading)
    assert report.outcome is CheckOutcome.ACCEPTED
    assert ("value-open" in {each.code for each in report.findings}) == ("KEY" not in flags)
    (reading,) = read_setups(f"vllm serve Qwen/Qwen3-8B {flags} {NO_METHOD}")
    assert judge(reading).outcome is CheckOutcome.REJECTED


def test_a_parser_of_tool_calls_that_a_rule_reads_is_asked_for() -> None:
    flags = "--enable-auto-tool-choice --tool-call-parser $PARSER"
    (reading,) = read_setups(f"vllm serve Qwen/Qwen3-8B {flags}", engine_version="0.33.0")
    assert judge(reading).outcome is CheckOutcome.CANNOT_BE_JUDGED


OPEN = [
    "Qwen/Qwen3-8B --api-server-count $N --headless",
    "$MODEL",
    "Qwen/Qwen3-8B --max-num-seqs $N --max-model-len $LEN",
    "Qwen/Qwen3-8B -tp $TP",
    "$MODEL --dtype $TYPE",
]


@pytest.mark.parametrize("start", OPEN)
def test_what_fails_for_every_value_is_rejected_and_nothing_is_accepted(start: str) -> None:
    (reading,) = read_setups(f"vllm serve {start} {SPEC}")
    assert judge(reading).outcome is CheckOutcome.CANNOT_BE_JUDGED
    (reading,) = read_setups(f"vllm serve {start} {NO_METHOD}")
    report = judge(reading)
    assert report.outcome is CheckOutcome.REJECTED
    assert {"unresolved-variable", "unknown-method"} <= {each.code for each in report.findings}


FOREVER = {
    "--reasoning-parser nosuch": "reasoning-parser-unknown",
    "--enable-auto-tool-choice --tool-call-parser nosuch": "tool-parser-unknown",
    "--enable-auto-tool-choice": "flags-refused",
    "--gpu-memory-utilization 2": "config-value",
    "--max-num-seqs 0": "config-value",
}


@pytest.mark.parametrize("fault", FOREVER)
@pytest.mark.parametrize(
    "start",
    [
        "Qwen/Qwen3-8B --speculative-config $S", "Qwen/Qwen3-8B --speculative-config '{\"method\": \"'$M'\"}'",
        "Qwen/Qwen3-8B --quantization $Q", "$MODEL --kv-cache-dtype $D --speculative-config $S",
        "Qwen/Qwen3-8B --load-format $F --enforce-eager", "Qwen/Qwen3-8B --attention-backend $B",
    ],
)  # fmt: skip
def test_a_fault_of_its_own_is_rejected_whatever_another_value_is(start: str, fault: str) -> None:
    (reading,) = read_setups(f"vllm serve {start}", engine_version="0.33.0")
    assert judge(reading).outcome is CheckOutcome.CANNOT_BE_JUDGED
    (reading,) = read_setups(f"vllm serve {start} {fault}", engine_version="0.33.0")
    report = judge(reading)
    assert (report.outcome, FOREVER[fault] in {each.code for each in report.findings}) == (CheckOutcome.REJECTED, True)


def test_an_open_backend_of_attention_hides_no_other_fault() -> None:
    (reading,) = read_setups("VLLM_ATTENTION_BACKEND=$B vllm serve m", engine_version="0.14.1")
    assert judge(reading).outcome is CheckOutcome.CANNOT_BE_JUDGED
    (reading,) = read_setups(f"VLLM_ATTENTION_BACKEND=$B vllm serve m {NO_METHOD}", engine_version="0.14.1")
    assert judge(reading).outcome is CheckOutcome.REJECTED


@pytest.mark.parametrize("fault", [each for each in FOREVER if "tool" not in each])
def test_an_open_parser_or_variable_hides_no_other_fault(fault: str) -> None:
    if FOREVER[fault] == "config-value":
        (reading,) = read_setups(f"vllm serve m --hf-overrides $C {fault}", engine_version="0.33.0")
        assert judge(reading).outcome is CheckOutcome.REJECTED
    for start in ("VLLM_USE_V2_MODEL_RUNNER=$V vllm serve m", "vllm serve m --tool-call-parser $P"):
        (reading,) = read_setups(f"{start} {fault}", engine_version="0.33.0")
        assert judge(reading).outcome is CheckOutcome.REJECTED


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("-tp $TP --max-num-seqs 3 --enable-batch-sharded-sampling", "sharded-sampling-unfit"),  # not for TP 2
        ("--max-model-len $LEN --max-num-batched-tokens 4096 --no-enable-chunked-prefill", "batch-below-context"),
        ("--enable-auto-tool-choice --tool-call-parser $P", "tool-parser-unknown"),
        ("--enable-auto-tool-choice --tool-call-parser $P", "flags-refused"),
        ("--reasoning-parser nosuch --reasoning-parser-plugin $P", "reasoning-parser-unknown"),
        ("--attention-backend $B", "backend-of-other-attention"),  # of MLA and others
        ("--structured-outputs-config $C --reasoning-parser nosuch", "reasoning-parser-unknown"),  # any object
    ],
)
def test_what_only_some_values_meet_is_not_told(flags: str, code: str) -> None:
    (reading,) = read_setups(f"vllm serve Qwen/Qwen3-8B {flags}", engine_version="0.33.0")
    report = judge(reading)
    assert report.outcome is CheckOutcome.CANNOT_BE_JUDGED
    assert code not in {each.code for each in report.findings}


BLANK = [
    "--max-num-seqs \"${N:-}\"", "--max-num-seqs=${N-}", "--dtype \"${T:-}\"", "--port \"${P:-}\" --seed \"${N:-}\"",
    """--speculative-config '{"method": "ngram", "num_speculative_tokens": '"${K:-}"'}'""",
]  # fmt: skip


def as_compose(flags: str) -> str:
    words = "".join(f"\n      - {json.dumps(word)}" for word in shlex.split(f"Qwen/Qwen3-8B {flags}"))
    return f"services:\n  v:\n    image: vllm/vllm-openai:v0.33.0\n    command:{words}\n"


@pytest.mark.parametrize("flags", BLANK)
@pytest.mark.parametrize("write", ["vllm serve Qwen/Qwen3-8B {}".format, as_compose])
def test_an_empty_default_that_fails_waits_for_a_caller(flags: str, write: Callable[[str], str]) -> None:
    (reading,) = read_setups(write(flags), engine_version="0.33.0")
    report = judge(reading)
    assert report.outcome is CheckOutcome.CANNOT_BE_JUDGED
    assert {"unresolved-variable", "fails-on-a-way"} <= {each.code for each in report.findings}
    (reading,) = read_setups(write(f"{flags} --kv-cache-dtype nosuch"), engine_version="0.33.0")
    assert judge(reading).outcome is CheckOutcome.REJECTED


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        ('--quantization "${Q:-}"', CheckOutcome.ACCEPTED),  # vLLM takes it as none
        ("--max-num-seqs 8${N:-}", CheckOutcome.ACCEPTED),
        ('--max-num-seqs "${N:-0}"', CheckOutcome.REJECTED),  # the author gives a value, which fails
        ("--max-num-seqs ''", CheckOutcome.REJECTED),
    ],
)
def test_other_defaults_are_judged(flags: str, outcome: CheckOutcome) -> None:
    (reading,) = read_setups(f"vllm serve Qwen/Qwen3-8B {flags}", engine_version="0.33.0")
    assert judge(reading).outcome is outcome
