"""Requirements as short as a test needs them."""

from collections.abc import Iterator
from typing import Any

from draftwise.core import Finding
from draftwise.knowledge.gpus import get_gpu
from draftwise.plan.pick import MethodRanking, RankedMethod, Refusal, Requirements, describe_traffic, pick

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
QWEN = "Qwen/Qwen3-8B"
_OWN_FIELDS = ("gpus", "version", "args", "drafters", "air_gapped", "can_train")


def requirements(target: str = LLAMA, *, gpu: str = "H200", kind: str | None = "code", **asked: Any) -> Requirements:
    own = {name: asked.pop(name) for name in _OWN_FIELDS if name in asked}
    return Requirements(
        target=target, gpu=get_gpu(gpu), traffic=describe_traffic(kind, **asked), **{"version": "0.33.0", **own}
    )


def advise(target: str = LLAMA, **asked: Any) -> MethodRanking:
    return pick(requirements(target, **asked))


def methods(advice: MethodRanking) -> list[str]:
    return [candidate.method for candidate in advice.ranked]


def candidate(advice: MethodRanking, method: str) -> RankedMethod:
    return next(each for each in advice.ranked if each.method == method)


def refusal(advice: MethodRanking, method: str) -> Refusal:
    return next(each for each in advice.refused if each.method == method)


def findings(advice: MethodRanking) -> Iterator[Finding]:
    yield from (lever.finding for lever in advice.levers)
    for each in advice.ranked:
        yield from (*each.reasons, *each.caveats)
    for refused in advice.refused:
        yield from refused.reasons
