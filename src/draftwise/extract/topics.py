"""Every topic of the catalogue and the function that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftwise.extract import (
    attention,
    checks,
    choices,
    configs,
    engine,
    flags,
    models,
    mtp,
    probes,
    quantization,
    serving,
    speculative,
)
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Tree

__all__ = ["TOPICS"]

TOPICS: Mapping[str, Callable[[Tree], Facts]] = {
    function.__name__: function
    for function in (
        speculative.methods,
        speculative.spec_fields,
        speculative.spec_rules,
        speculative.method_inference,
        speculative.aux_targets,
        mtp.mtp_remap,
        models.architectures,
        models.speculators_types,
        models.config_model_types,
        flags.flags,
        flags.engine_defaults,
        configs.config_fields,
        checks.config_arguments,
        checks.config_changes,
        checks.config_checks,
        checks.engine_checks,
        engine.batch_defaults,
        engine.cudagraph_sizes,
        engine.async_scheduling,
        engine.runner_v2,
        attention.attention_backends,
        attention.noncausal_backends,
        quantization.quantization_methods,
        choices.kv_cache_dtypes,
        choices.moe_backends,
        choices.reasoning_parsers,
        serving.metrics,
        serving.sampling_params,
        serving.env,
        probes.probes,
    )
}
