"""The promise: what is recommended starts on that release, fits, and is what it says; and no method is forgotten."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.combinations import EVERY_CASE

from draftwise.core import Effect, Ruling, Severity, SpecConfig
from draftwise.knowledge.advice import read_traffic_kinds
from draftwise.knowledge.gpus import get_gpu, read_gpus
from draftwise.knowledge.methods import get_method
from draftwise.knowledge.models import read_models
from draftwise.knowledge.vllm import get_release, releases
from draftwise.plan.check import check
from draftwise.plan.pick import MethodRanking, Requirements, describe_traffic, pick
from draftwise.plan.size import size

FLAGS: tuple[dict[str, Any], ...] = (
    {},
    {"max_model_len": 8192},
    {"max_num_seqs": 64},
    {"enable_lora": True},
    {"pipeline_parallel_size": 2},
    {"data_parallel_size": 2},
    {"enforce_eager": True},
    {"gpu_memory_utilization": 0.8},
    {"kv_cache_dtype": "fp8"},
)
REQUIREMENTS = st.builds(
    lambda target, gpu, gpus, version, kind, args, load, peak, tokens, temperature, uses: Requirements(
        target=target,
        gpu=get_gpu(gpu),
        gpus=gpus,
        version=version,
        args=args,
        traffic=describe_traffic(
            kind,
            concurrency=load,
            peak_concurrency=load * peak,
            prompt_tokens=tokens,
            output_tokens=tokens // 4 + 1,
            temperature=temperature,
            parameters=frozenset(uses),
        ),
    ),
    target=st.sampled_from([model.id for model in read_models()]),
    gpu=st.sampled_from([gpu.name for gpu in read_gpus()]),
    gpus=st.sampled_from((1, 2, 4, 8)),
    version=st.sampled_from([str(release) for release in releases()]),
    kind=st.sampled_from((None, *read_traffic_kinds())),
    args=st.sampled_from(FLAGS),
    load=st.sampled_from((1, 4, 16, 64, 256)),
    peak=st.sampled_from((1, 8)),
    tokens=st.sampled_from((1, 8, 256, 4096)),
    temperature=st.sampled_from((0.0, 0.6, 1.0)),
    uses=st.sets(st.sampled_from(("min_p", "logit_bias", "structured_outputs")), max_size=1),
)


def keeps_its_promise(advice: MethodRanking) -> None:
    for candidate in advice.ranked:
        configs = [candidate.setup.spec, candidate.scheduled and SpecConfig.keep(candidate.scheduled)]
        for spec in filter(None, configs):
            setup = type(candidate.setup)(**{name: getattr(candidate.setup, name) for name in _FIELDS} | {"spec": spec})
            report = check(setup)
            broken = [
                each
                for each in report.findings
                if isinstance(each, Ruling) and each.effect is Effect.FAILS_LATER and each.severity is Severity.ERROR
            ]
            assert report.accepted is not False
            assert not broken
            assert report.resolved is not None
            assert get_method(report.resolved.method).name == candidate.method
        if candidate.sizing is not None:
            assert size(candidate.setup, gpu=advice.requirements.gpu).budget.fits


_FIELDS = ("target", "engine", "engine_version", "device", "args", "env")


@settings(max_examples=120 if EVERY_CASE else 40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requirements=REQUIREMENTS)
def test_every_recommendation_starts_and_fits_and_every_method_is_answered_once(requirements: Requirements) -> None:
    advice = pick(requirements)
    keeps_its_promise(advice)
    answered = [each.method for each in (*advice.ranked, *advice.refused)]
    known = {get_method(name).name for name in get_release(requirements.version).table("methods")}
    assert len(answered) == len(set(answered))
    assert known <= set(answered)
    assert all(name in known or get_method(name).embedded for name in answered)
    assert all(each.reasons and all(reason.message for reason in each.reasons) for each in advice.refused)
    assert advice.sentence.endswith((".", "!", "?"))
