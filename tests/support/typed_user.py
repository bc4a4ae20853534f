"""What a user's file may write, and may not: `make check` has mypy read it, strictly, and nothing runs it."""

import draftwise
from draftwise.verbs.check import CheckResult


def use() -> tuple[bool | None, int, list[str]]:
    result: CheckResult = draftwise.check("compose.yaml", vllm="0.33.0", speculative_config={"method": "ngram"})
    accepted: bool | None = result.judgements[0].accepted
    code: int = draftwise.size("meta-llama/Llama-3.1-8B-Instruct", gpu="H200").exit_code
    names: list[str] = [each.method for each in draftwise.pick("Qwen/Qwen3-8B", gpu="H200").ranked]
    return accepted, code, names


def err() -> None:
    draftwise.size("meta-llama/Llama-3.1-8B-Instruct", gpus="H200")  # type: ignore[call-arg]  # no such field
    draftwise.check(vllm=3)  # type: ignore[arg-type]  # not a release
