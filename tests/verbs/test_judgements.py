"""The headline, `accepted` and the exit code are one outcome."""

import json
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

import draftwise
from draftwise.core import CheckOutcome, Effect, Finding, Ruling, Setup, Severity, Stage
from draftwise.plan.check import Report
from draftwise.verbs.check import CheckResult
from draftwise.verbs.judgements import Judgement

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_drafters_broken_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    spec = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 3}
    result = draftwise.check(LLAMA, vllm="0.33.0", speculative_config=spec)
    (judged,) = result.judgements
    assert (judged.accepted, judged.verdict, result.exit_code) == (False, "rejected", 1)
    assert "drafter-config-unreadable" in {each.code for each in judged.findings}


def test_a_config_file_is_refused_only_if_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = f"vllm serve {LLAMA} --config c.yaml"
    result = draftwise.check(line)
    (judged,) = result.judgements
    assert (judged.accepted, judged.verdict, result.exit_code) == (False, "rejected", 1)
    (tmp_path / "c.yaml").write_text(json.dumps({"seed": 1}))
    result = draftwise.check(line)
    assert (result.judgements[0].accepted, result.judgements[0].verdict, result.exit_code) == (True, "accepted", 0)


def test_what_fails_later_is_said_in_the_headline(tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: a\n"
        "    image: vllm/vllm-openai:v0.20.0\n    args: [--model, /m/target]\n"
    )
    result = draftwise.check(str(pod))
    assert (result.judgements[0].verdict, result.exit_code) == ("accepted, fails later", 1)


NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
DFLASH = {"method": "dflash", "model": "z-lab/Qwen3-8B-DFlash-b16", "num_speculative_tokens": 16}
HEAD = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}
LEVELS = ("never", "error", "unknown", "warning")


def make_findings() -> list[Finding]:
    """Return a finding of each severity and effect, and of a fault in reading."""
    made: list[Finding] = [Finding(code="read", severity=each, message="It is so.") for each in Severity]
    for effect, severity in product(Effect, Severity):
        code = f"{effect}-{severity}".replace(" ", "-")
        made.append(Ruling(code=code, severity=severity, message="So.", effect=effect, stage=Stage.ENGINE))
    return made


def test_headline_json_and_exit_code_say_the_same() -> None:
    """Of every one and two findings: what is accepted fails no gate for errors, and a stricter gate fails more."""
    made = make_findings()
    for found in [(), *combinations(made, 1), *combinations(made, 2)]:
        for is_judged in (True, False):
            report = Report(version="0.33.0", setup=Setup(), findings=found, resolved=None, is_judged=is_judged)
            judged = Judgement.of(report)
            codes = [CheckResult(judgements=(judged,), fail_on=level).exit_code for level in LEVELS]
            assert codes == sorted(codes), found
            never, error, unknown, _ = codes
            assert str(judged.outcome) in judged.verdict
            assert judged.accepted is {"rejected": False, "not judged": None, "cannot be judged": None}.get(
                judged.outcome, True
            )
            assert error == (judged.outcome in ("rejected", "fails later", "cannot be judged"))
            assert never == 0
            assert unknown == (judged.outcome is not CheckOutcome.ACCEPTED)
            has_error = any(each.severity is Severity.ERROR for each in found)
            assert error == has_error
            assert not (has_error and judged.outcome is CheckOutcome.ACCEPTED)


@pytest.mark.parametrize(
    ("target", "spec", "waits"),
    [
        ("org/name", NGRAM, {"target"}),
        ("org/name", None, {"target"}),
        (LLAMA, HEAD, {"drafter", "weights"}),
        ("org/name", HEAD, {"target", "drafter", "weights"}),
        ("Qwen/Qwen3-8B", {**DFLASH, "num_speculative_tokens": 7}, {"drafter", "weights"}),
    ],
)
def test_what_is_not_known_is_not_accepted(target: str, spec: dict[str, Any] | None, waits: set[str]) -> None:
    flags = [] if spec is None else ["--speculative-config", json.dumps(spec)]
    result = draftwise.check(target, vllm="0.33.0", engine_flags=flags)
    (judged,) = result.judgements
    assert (judged.outcome, judged.accepted, result.exit_code) == ("not judged", None, 0)
    assert judged.unchecked.keys() == waits
    said = " ".join(each.message for each in judged.findings)
    assert all(count > 0 and f"{count} " in said for count in judged.unchecked.values())
    strict = draftwise.check(target, vllm="0.33.0", engine_flags=flags, fail_on="unknown")
    assert (strict.exit_code, "not judged" in str(strict)) == (1, True)
    assert '"outcome": "not judged"' in json.dumps(strict.to_sarif())
    assert "::warning" in strict.to_github()
    for fail_on, code in (("error", 0), ("unknown", 1), ("never", 0)):
        moved = draftwise.upgrade(target, before="0.32.0", after="0.33.0", engine_flags=flags, fail_on=fail_on)
        assert (moved.exit_code, moved.setups[0].after.outcome) == (code, "not judged")
        assert "Breaks: nothing that draftwise could check" in str(moved)


def test_more_rules_wait_where_more_is_missing() -> None:
    def count(target: str, spec: dict[str, Any]) -> int:
        (judged,) = draftwise.check(target, vllm="0.33.0", speculative_config=spec).judgements
        return sum(judged.unchecked.values())

    assert count(LLAMA, NGRAM) == 0 < count("org/name", NGRAM) < count("org/name", HEAD)


def test_a_gpu_that_is_not_named_is_any() -> None:
    """dflash with 16 tokens sets more aside than a step holds on every GPU; with fewer requests only on small ones."""
    for gpu in (None, "L4", "H200", "A100-80GB"):
        result = draftwise.check("Qwen/Qwen3-8B", vllm="0.26.0", speculative_config=DFLASH, gpu=gpu)
        assert (result.judgements[0].outcome, result.exit_code) == ("rejected", 1)
    flags = ["--max-num-seqs", "256", "--speculative-config", json.dumps(DFLASH)]
    for gpu, outcome, waits in (
        (None, "not judged", {"gpu", "drafter", "weights"}),
        ("L4", "rejected", {"drafter", "weights"}),
        ("A100-80GB", "rejected", {"drafter", "weights"}),
        ("H200", "not judged", {"drafter", "weights"}),
    ):
        (judged,) = draftwise.check("Qwen/Qwen3-8B", vllm="0.26.0", engine_flags=flags, gpu=gpu).judgements
        assert (judged.outcome, judged.unchecked.keys()) == (outcome, waits)
    (judged,) = draftwise.check("Qwen/Qwen3-8B", vllm="0.26.0", engine_flags=flags).judgements
    (found,) = (each for each in judged.findings if each.code == "depends-on-gpu")
    assert "The server starts on GPUs from 70 GiB, but not on GPUs below 70 GiB" in found.message


@pytest.mark.parametrize(
    ("flags", "gpu", "verdict", "code"),
    [
        ((), "L4", "accepted, fails later", "does-not-fit"),
        (("--max-model-len", "8192"), "L4", "accepted", None),
        (("--tensor-parallel-size", "2"), "L4", "accepted", None),
        (("--gpu-memory-utilization", "0.99"), "L40S", "accepted", "out-of-memory-ahead"),
        (("--cpu-offload-gb", "8"), "L4", "accepted", "memory-not-judged"),
        ((), None, "accepted", None),
    ],
)
def test_a_named_gpu_must_hold_the_setup(flags: tuple[str, ...], gpu: str | None, verdict: str, code: str) -> None:
    result = draftwise.check(LLAMA, vllm="0.33.0", engine_flags=flags, gpu=gpu)
    (judged,) = result.judgements
    found = {each.code for each in judged.findings} & {"does-not-fit", "out-of-memory-ahead", "memory-not-judged"}
    assert (judged.verdict, found, result.exit_code) == (verdict, {code} - {None}, int("fails" in verdict))


@pytest.mark.parametrize(("usual", "other", "verdict"), [(1, 2, "not judged"), (2, 1, "accepted")])
def test_a_way_that_does_not_fit_the_gpu_is_told(tmp_path: Path, usual: int, other: int, verdict: str) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(f'TP={usual}\nif [ "$MODE" = 1 ]; then TP={other}; fi\nvllm serve {LLAMA} -tp $TP\n')
    (judged,) = draftwise.check(str(script), vllm="0.33.0", gpu="L4").judgements
    (told,) = (each for each in judged.findings if each.code == "fails-on-a-way")
    assert (judged.verdict, "KV cache" in told.message) == (verdict, True)
