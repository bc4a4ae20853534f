"""Every rule of `engine` and `serving`: a setup that meets it, and the releases in which it does."""

from dataclasses import replace

import pytest
from tests.support.later_case import EPYC, LLAMA, Case, codes, find_engine, find_later, spans_of

from draftwise.knowledge.rules import get_rule
from draftwise.plan.check.engine.vllm_config import find_unfit

NEWEST = "0.33.0"

EAGLE = Case()
ADAPTIVE = Case(spec={"enable_adaptive_verification": True})
NGRAM = Case(method="ngram")
DRAFT = Case(method="draft_model", drafter=LLAMA)
DFLASH = Case(method="dflash", resolved={"parallel_drafting": True}, drafter={"block_size": 8})
MEDUSA = Case(method="medusa", drafter={"medusa_num_heads": 4, "vocab_size": 100})
HIDDEN = Case(method="extract_hidden_states", k=1)
SUFFIX = Case(method="suffix")
PARALLEL = Case(spec={"parallel_drafting": True}, resolved={"parallel_drafting": True}, drafter={})
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
PIXTRAL = {"architectures": ["PixtralForConditionalGeneration"], "model_type": "pixtral"}
ONE_GPU = {"draft_tensor_parallel_size": 1}
V2 = {"runner": "V2"}
FORCE_V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
FORCE_V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}


PIECEWISE = {"compilation_config": '{"cudagraph_mode": "PIECEWISE"}'}


def schedule(*entries: list[int]) -> dict:
    return {"num_speculative_tokens_per_batch_size": list(entries)}


ENGINE = [
    # who runs it
    ("v0-engine-taken", Case(method="mlp_speculator"), "0.9.2", "0.9.2"),
    ("v0-rejects-chunked-eagle", EAGLE.but(spec={"method": None}, args={"enable_chunked_prefill": True}),
     "0.9.2", "0.9.2"),
    ("v0-rejects-negative-length", Case(method="mlp_speculator", args={"max_model_len": -1}), "0.9.2", "0.9.2"),
    ("v0-engine-refused", Case(method="mlp_speculator", env={"VLLM_USE_V1": "1"}), "0.9.2", "0.9.2"),
    ("runner-v2-fails", NGRAM.but(env=FORCE_V2), "0.12.0", "0.19.1"),
    ("runner-v2-rejected", SUFFIX.but(env=FORCE_V2), "0.20.0", NEWEST),
    ("runner-v2-rejected", NGRAM.but(env=FORCE_V2), "0.20.0", "0.31.0"),
    ("runner-v2-rejected", DRAFT.but(env=FORCE_V2), "0.20.0", "0.30.0"),
    ("runner-v2-rejected", DFLASH.but(env=FORCE_V2), "0.20.0", "0.23.0"),
    ("runner-v2-rejected", HIDDEN.but(env=FORCE_V2), "0.20.0", "0.28.0"),
    ("runner-v2-rejected", PARALLEL.but(env=FORCE_V2), "0.22.0", NEWEST),
    ("runner-v2-rejected", EAGLE.but(env=FORCE_V2, args={"pipeline_parallel_size": 2}), "0.22.0", "0.29.0"),
    ("runner-v2-rejected", EAGLE.but(env=FORCE_V2, args={"logits_processors": ["a.B"]}), "0.20.0", "0.30.0"),
    ("runner-v2-rejected", EAGLE.but(env=FORCE_V2, args={"enable_dbo": True}), "0.20.0", NEWEST),
    ("runner-v2-rejected", EAGLE.but(env=FORCE_V2, args={"enable_prompt_embeds": True}), "0.22.0", "0.28.0"),
    ("runner-falls-back", SUFFIX.but(target=QWEN3), "0.22.0", NEWEST),
    ("runner-falls-back", SUFFIX, "0.23.0", NEWEST),
    ("runner-falls-back", EAGLE.but(args={"enable_prompt_embeds": True}), "0.23.0", "0.28.0"),
    ("runner-falls-back", EAGLE.but(args={"logprobs_mode": "raw_logits"}), "0.23.0", "0.25.1"),
    ("v1-lacks-dspark", Case(method="dspark", env=FORCE_V1), "0.29.0", NEWEST),
    ("v1-lacks-adaptive-verification",
     EAGLE.but(env=FORCE_V1, spec={"enable_adaptive_verification": True}),
     "0.29.0", NEWEST),
    ("v1-lacks-lm-head-quantization",
     EAGLE.but(env=FORCE_V1, spec={"draft_lm_head_quantization": "fp8"}),
     NEWEST, NEWEST),
    ("v1-lacks-mixed-dflash",
     DFLASH.but(env=FORCE_V1, drafter={"layer_types": ["sliding_attention", "full_attention"]}),
     "0.29.0", NEWEST),
    ("v1-lacks-candidate-heads",
     DFLASH.but(env=FORCE_V1, drafter={"architectures": ["DFlash2DraftModel"]}),
     "0.29.0", NEWEST),
    ("v1-lacks-xpress", DFLASH.but(env=FORCE_V1, drafter={"architectures": ["Qwen3XPressModel"]}), NEWEST, NEWEST),
    ("v2-needs-triton", EAGLE.but(env=FORCE_V2, device=EPYC), "0.22.0", "0.32.0"),
    ("v2-needs-triton", Case(method="dspark", device=EPYC), "0.25.0", "0.28.0"),
    ("v2-without-triton-fails", EAGLE.but(env=FORCE_V2, device=EPYC), NEWEST, NEWEST),
    ("runner-v2-rejected", SUFFIX.but(env=FORCE_V2, device=EPYC), "0.20.0", NEWEST),
    # asynchronous scheduling
    ("async-rejects-speculation", EAGLE.but(args={"async_scheduling": True}), "0.10.0", "0.11.0"),
    ("async-rejected", NGRAM.but(args={"async_scheduling": True}), "0.11.1", NEWEST),
    ("async-rejected", NGRAM.but(args={"async_scheduling": True}, resolved=V2), "0.11.1", "0.32.0"),
    ("async-rejected", DRAFT.but(args={"async_scheduling": True}), "0.11.1", "0.15.1"),
    ("async-rejected", NGRAM.but(args={"async_scheduling": True}, device=EPYC), "0.11.1", NEWEST),
    ("async-rejected",
     EAGLE.but(args={"async_scheduling": True}, spec={"disable_padded_drafter_batch": True}),
     "0.11.1", NEWEST),
    ("async-switched-off", NGRAM, "0.14.0", NEWEST),
    ("async-switched-off", NGRAM.but(resolved=V2), "0.14.0", "0.32.0"),
    ("async-switched-off", Case(method="ngram_gpu"), "0.14.0", "0.17.1"),
    ("async-switched-off", DRAFT, "0.14.0", "0.27.1"),
    ("async-switched-off", HIDDEN, "0.14.0", "0.16.0"),
    ("async-switched-off", EAGLE.but(spec={"disable_padded_drafter_batch": True}), "0.14.0", NEWEST),
    # budgets
    ("lora-token-budget",
     EAGLE.but(args={"enable_lora": True, "max_num_seqs": 512, "max_num_batched_tokens": 2047}),
     "0.11.1", NEWEST),
    ("draft-slots-exhaust-tokens",
     DRAFT.but(args={"max_num_seqs": 512, "max_num_batched_tokens": 512}),
     "0.20.0", "0.27.1"),
    ("draft-slots-starve-scheduler",
     DRAFT.but(args={"max_num_seqs": 512, "max_num_batched_tokens": 511}),
     "0.17.0", "0.19.1"),
    ("draft-slots-shrink-tokens",
     DRAFT.but(args={"max_num_seqs": 512, "max_num_batched_tokens": 513}),
     "0.17.0", "0.27.1"),
    ("token-budget-within-slots", DRAFT.but(args={"max_num_batched_tokens": 1}), "0.28.0", NEWEST),
    ("token-budget-within-slots", EAGLE.but(args={"max_num_batched_tokens": 3}), NEWEST, NEWEST),
    ("draft-pass-limits-requests",
     DFLASH.but(args={"max_num_seqs": 256, "max_num_batched_tokens": 1023}),
     NEWEST, NEWEST),
    # the schedule, adaptive verification, prefill, lengths
    ("schedule-off-with-data-parallel",
     EAGLE.but(spec=schedule([1, 4, 3]), args={"data_parallel_size": 2}),
     "0.26.0", NEWEST),
    ("schedule-hangs-with-data-parallel",
     EAGLE.but(spec=schedule([1, 4, 3]), args={"data_parallel_size": 2}),
     "0.24.0", "0.25.1"),
    ("schedule-off-on-v1", SUFFIX.but(spec=schedule([1, 4, 3])), NEWEST, NEWEST),
    ("schedule-lowers-graphs", EAGLE.but(spec=schedule([1, 4, 3])), "0.24.0", NEWEST),
    ("adaptive-rejects-lora", ADAPTIVE.but(args={"enable_lora": True}), "0.28.0", NEWEST),
    ("adaptive-rejects-pipeline", ADAPTIVE.but(args={"pipeline_parallel_size": 2}), "0.28.0", NEWEST),
    ("adaptive-needs-graphs", ADAPTIVE.but(args={"enforce_eager": True}), "0.28.0", "0.29.0"),
    ("adaptive-needs-full-graphs",
     ADAPTIVE.but(args={"compilation_config": '{"cudagraph_mode": "PIECEWISE"}'}),
     "0.30.0", NEWEST),
    ("adaptive-rejects-routed-experts", ADAPTIVE.but(args={"enable_return_routed_experts": True}), "0.31.0", NEWEST),
    ("adaptive-rejects-sampling-mask", ADAPTIVE.but(args={"return_sampling_mask": True}), "0.32.0", NEWEST),
    ("fast-prefill-rejects-drafter", EAGLE.but(args={"kv_sharing_fast_prefill": True}), "0.11.1", NEWEST),
    ("fast-prefill-not-written-for-drafter", EAGLE.but(args={"kv_sharing_fast_prefill": True}), "0.10.2", "0.11.0"),
    ("draft-model-limits-length", DRAFT.but(resolved={"draft_max_model_len": 2048, **V2}), NEWEST, NEWEST),
    ("context-gate", DRAFT.but(resolved={"draft_max_model_len": 2048}), "0.11.0", NEWEST),
    ("context-gate", EAGLE.but(resolved={"draft_max_model_len": 2048}), "0.11.0", NEWEST),
]  # fmt: skip

LATER = [
    # CPU servers
    ("cpu-without-speculation", EAGLE.but(device=EPYC), "0.9.2", "0.19.1"),
    ("cpu-ngram-gpu", Case(method="ngram_gpu", device=EPYC), "0.20.0", NEWEST),
    ("cpu-synthetic", EAGLE.but(device=EPYC, spec={"rejection_sample_method": "synthetic"}), "0.21.0", NEWEST),
    ("cpu-sampling-wrong", EAGLE.but(device=EPYC), "0.20.0", NEWEST),
    ("cpu-dflash-norm", DFLASH.but(device=EPYC, drafter={"num_hidden_layers": 5}), "0.32.0", "0.32.0"),
    # drafters
    ("draft-tensor-parallel-differs",
     DRAFT.but(args={"tensor_parallel_size": 2}, spec=ONE_GPU, resolved=ONE_GPU),
     "0.15.0", NEWEST),
    ("draft-tensor-parallel-ignored",
     EAGLE.but(args={"tensor_parallel_size": 2}, spec=ONE_GPU, resolved=ONE_GPU),
     "0.9.2", NEWEST),
    ("target-without-aux-states", EAGLE.but(target={"architectures": ["GemmaForCausalLM"]}), "0.10.1", NEWEST),
    ("target-without-aux-states", EAGLE.but(target={"architectures": ["GptOssForCausalLM"]}), "0.10.1", "0.10.2"),
    ("padded-batch-required", DRAFT.but(spec={"disable_padded_drafter_batch": True}), "0.15.0", NEWEST),
    ("padded-batch-required", PARALLEL.but(spec={"disable_padded_drafter_batch": True}), "0.16.0", NEWEST),
    ("draft-with-mrope", DRAFT.but(drafter={"rope_scaling": {"mrope_section": [16, 24, 24]}}), "0.15.0", NEWEST),
    ("draft-model-with-multimodal-target", DRAFT.but(target=PIXTRAL), "0.15.0", "0.20.2"),
    ("draft-model-reads-text-only", DRAFT.but(target=PIXTRAL), "0.21.0", NEWEST),
    ("parallel-drafting-needs-mask-token", PARALLEL, "0.16.0", NEWEST),
    ("parallel-drafting-needs-mask-token",
     PARALLEL.but(drafter={"dflash_config": {"mask_token_id": 7}}),
     "0.16.0", "0.19.1"),
    ("parallel-drafting-needs-mask-token", PARALLEL.but(drafter={"mask_token_id": 7}), "0.16.0", "0.27.1"),
    ("medusa-too-few-heads", MEDUSA.but(k=5), "0.9.2", "0.32.0"),
    ("medusa-truncated-vocabulary",
     MEDUSA.but(drafter={"vocab_size": 100, "truncated_vocab_size": 40}),
     "0.21.0", "0.32.0"),
    ("hidden-states-one-token", HIDDEN.but(k=3), "0.17.0", NEWEST),
    ("hidden-states-layer-ids", HIDDEN, "0.17.0", NEWEST),
    ("hidden-states-padded-batch", HIDDEN.but(spec={"disable_padded_drafter_batch": True}), "0.17.0", NEWEST),
    ("hidden-states-greedy-on-v2",
     HIDDEN.but(spec={"draft_sample_method": "probabilistic"}, resolved=V2),
     "0.29.0", NEWEST),
    ("hidden-states-without-connector", HIDDEN, "0.17.0", NEWEST),
    ("dflash-beyond-block", DFLASH.but(k=9), "0.20.0", NEWEST),
    ("dflash-short-block", DFLASH.but(k=6), "0.20.0", NEWEST),
    ("suffix-beyond-depth",
     SUFFIX.but(k=32, resolved={"fields": {"suffix_decoding_max_tree_depth": 24}}),
     "0.11.1", NEWEST),
    ("mlp-speculator-not-on-v1", Case(method="mlp_speculator"), "0.10.0", "0.32.0"),
    ("custom-class-path", Case(method="custom_class", resolved={"model": "proposer"}), "0.22.0", NEWEST),
    # backends
    ("dflash-target-backend", DFLASH.but(args={"attention_backend": "TRITON_ATTN"}), "0.20.0", "0.20.2"),
    ("dflash-target-backend-on-v2",
     DFLASH.but(args={"attention_backend": "FLASHMLA"}, resolved=V2),
     "0.24.0", "0.24.0"),
    ("dflash-draft-backend", DFLASH.but(spec={"attention_backend": "flashmla"}), "0.21.0", NEWEST),
    ("dflash-draft-backend", DFLASH.but(spec={"attention_backend": "triton_attn"}), "0.21.0", "0.23.0"),
    ("draft-backend-not-inherited", EAGLE.but(args={"attention_backend": "FLASHINFER"}), "0.21.0", NEWEST),
    ("kv-cache-type-inherited", EAGLE.but(args={"kv_cache_dtype": "fp8"}), "0.9.2", NEWEST),
    ("hpc-attention-limit", EAGLE.but(k=4, args={"attention_backend": "HPC_ATTN"}), "0.25.0", NEWEST),
    ("moe-backend-inherited",
     EAGLE.but(args={"moe_backend": "cutlass", "quantization": "fp8"}, drafter={"num_experts": 8}),
     "0.19.0", NEWEST),
    # the schedule and sampling keys
    ("schedule-invalid", EAGLE.but(spec=schedule([2, 4, 3])), "0.24.0", NEWEST),
    ("schedule-clamped", EAGLE.but(spec=schedule([1, 4, 9])), "0.24.0", NEWEST),
    ("schedule-gap", EAGLE.but(spec=schedule([1, 4, 3], [9, 12, 1])), "0.24.0", NEWEST),
    ("schedule-breaks-drafter", SUFFIX.but(spec=schedule([1, 4, 2])), "0.24.0", "0.32.0"),
    ("rejection-method-ignored-on-v1",
     EAGLE.but(spec={"rejection_sample_method": "probabilistic"}),
     "0.18.0", "0.19.1"),
    ("probabilistic-rejection-ignored-on-v1",
     EAGLE.but(spec={"rejection_sample_method": "probabilistic"}),
     "0.20.0", "0.20.2"),
    ("block-verification-ignored-on-v1", EAGLE.but(spec={"rejection_sample_method": "block"}), "0.25.0", NEWEST),
    ("gumbel-drafts-ignored-on-v1", EAGLE.but(spec={"draft_sample_method": "gumbel"}), "0.21.0", "0.21.0"),
    ("medusa-drafts-greedily", MEDUSA.but(spec={"draft_sample_method": "probabilistic"}), "0.21.0", "0.32.0"),
    ("draft-sampling-without-model", NGRAM.but(spec={"draft_sample_method": "probabilistic"}), "0.21.0", NEWEST),
    ("probabilistic-drafts-keep-logits", EAGLE.but(spec={"draft_sample_method": "probabilistic"}), "0.22.0", NEWEST),
    # together with the engine
    ("batch-overlap-breaks-drafter", EAGLE.but(args={"enable_dbo": True}), "0.12.0", NEWEST),
    ("aux-states-over-pipeline", EAGLE.but(args={"pipeline_parallel_size": 2}, resolved=V2), "0.30.0", NEWEST),
    ("prefix-hits-lose-a-block", EAGLE.but(args={"block_size": 64}), "0.9.2", NEWEST),
    # idle keys
    ("disable-by-batch-size-idle", EAGLE.but(spec={"disable_by_batch_size": 32}), "0.9.2", "0.16.0"),
    ("suffix-keys-idle", NGRAM.but(spec={"suffix_decoding_max_spec_factor": 2.0}), "0.11.1", NEWEST),
    ("lookup-keys-idle", EAGLE.but(spec={"prompt_lookup_max": 4}), "0.9.2", NEWEST),
    ("parallel-drafting-idle", NGRAM.but(spec={"parallel_drafting": True}), "0.16.0", NEWEST),
    ("draft-attention-backend-ignored-on-v2",
     EAGLE.but(spec={"attention_backend": "flash_attn"}, resolved=V2),
     "0.21.0", "0.29.0"),
    ("dflash-attention-backend-ignored-on-v2",
     DFLASH.but(spec={"attention_backend": "flash_attn"}, resolved=V2),
     "0.24.0", "0.24.0"),
    ("draft-moe-backend-ignored-on-v2", EAGLE.but(spec={"moe_backend": "triton"}, resolved=V2), "0.19.0", "0.29.0"),
    ("draft-load-config-ignored-on-v2",
     EAGLE.but(spec={"draft_load_config": {"load_format": "dummy"}}, resolved=V2),
     "0.17.0", "0.29.0"),
    ("local-argmax-ignored-on-v2",
     EAGLE.but(spec={"use_local_argmax_reduction": True}, resolved=V2),
     "0.17.0", "0.24.0"),
    ("draft-eager-ignored-on-v2", EAGLE.but(spec={"enforce_eager": True}, resolved=V2), "0.12.0", NEWEST),
    ("padded-batch-ignored-on-v2",
     EAGLE.but(spec={"disable_padded_drafter_batch": True}, resolved=V2),
     "0.12.0", NEWEST),
    # graphs and traps
    ("cudagraph-cliff", EAGLE.but(args={"max_num_seqs": 129}), "0.9.2", NEWEST),
    ("cudagraph-reach", EAGLE.but(device=EPYC.__class__(name="unknown", kind="cuda")), "0.9.2", NEWEST),
    ("short-lookup-with-tools",
     NGRAM.but(args={"tool_call_parser": "hermes"}, resolved={"prompt_lookup_min": 2}),
     "0.9.2", NEWEST),
    ("draft-model-runs-eagerly", DRAFT.but(resolved=V2), "0.31.0", NEWEST),
    ("heterogeneous-vocab-unmapped",
     DRAFT.but(spec={"use_heterogeneous_vocab": True}, resolved=V2),
     "0.31.0", "0.31.0"),
    # requests
    ("default-min-p-refused", EAGLE.but(args={"override_generation_config": '{"min_p": 0.05}'}), "0.14.0", NEWEST),
    ("default-penalty-stops-drafting",
     EAGLE.but(args={"override_generation_config": {"repetition_penalty": 1.05}}),
     "0.9.2", "0.13.0"),
    ("requests-refused", EAGLE, "0.14.0", NEWEST),
    ("requests-not-drafted", EAGLE, "0.9.2", "0.13.0"),
    ("requests-parameters-ignored", EAGLE, "0.9.2", "0.13.0"),
    ("requests-refused-async", EAGLE.but(args={"async_scheduling": True}), "0.11.1", "0.13.0"),
    ("requests-logprobs-refused", ADAPTIVE, "0.28.0", "0.28.0"),
    ("requests-beam-allowlist-refused", EAGLE, NEWEST, NEWEST),
    ("structured-outputs-backend",
     EAGLE.but(args={"structured_outputs_config": {"backend": "lm-format-enforcer"}}),
     "0.10.2", NEWEST),
    ("structured-outputs-misaligned",
     Case(method="ngram_gpu", resolved={"async_scheduling": True, "runner": "V1"}), "0.18.0", "0.32.0"),
    ("logits-processors-refused", EAGLE.but(args={"logits_processors": ["package.Processor"]}), "0.11.1", NEWEST),
    # beside other features
    ("lora-with-drafts", EAGLE.but(args={"enable_lora": True}), "0.11.1", NEWEST),
    ("structured-outputs-with-drafts",
     EAGLE.but(args={"structured_outputs_config": {"backend": "xgrammar"}}), "0.9.2", NEWEST),
    ("logprobs-with-drafts", EAGLE.but(args={"max_logprobs": 5}), "0.14.0", NEWEST),
    ("kv-transfer-with-drafts", EAGLE.but(args={"kv_transfer_config": '{"kv_role": "kv_both"}'}), "0.17.0", NEWEST),
    ("kv-transfer-before-drafts", EAGLE.but(args={"kv_transfer_config": '{"kv_role": "kv_both"}'}),
     "0.9.2", "0.16.0"),
    ("prefix-caching-with-drafts", EAGLE.but(args={"enable_prefix_caching": True}), "0.9.2", NEWEST),
    ("chunked-prefill-with-drafts", EAGLE.but(args={"enable_chunked_prefill": True}), "0.9.2", NEWEST),
    ("async-waits-for-acceptance", EAGLE.but(resolved={"async_scheduling": True}), "0.11.1", "0.18.1"),
    # graphs and schedules
    ("graph-holes", EAGLE.but(k=4, resolved={"num_speculative_tokens": 4, **V2}, args={"max_num_seqs": 64}),
     "0.25.0", "0.28.0"),
    ("lookups-run-piecewise", NGRAM, "0.11.0", NEWEST),
    ("lookups-run-piecewise", SUFFIX, "0.11.0", NEWEST),
    ("schedule-counts-prefills", EAGLE.but(spec=schedule([1, 4, 3])), "0.24.0", NEWEST),
    ("schedule-breaks-capture", EAGLE.but(spec=schedule([1, 4, 3], [5, 8, 1]), resolved=V2), "0.25.0", "0.31.0"),
    ("schedule-drafts-in-full",
     EAGLE.but(spec=schedule([1, 4, 3], [5, 8, 1]), resolved=V2, args=PIECEWISE), "0.25.0", "0.31.0"),
    ("schedule-drafts-in-full", DFLASH.but(spec=schedule([1, 4, 3], [5, 8, 1]), resolved=V2), "0.25.0", "0.31.0"),
    ("schedule-off-still-drafts", EAGLE.but(spec=schedule([1, 4, 3], [5, 8, 0]), resolved=V2), "0.32.0", NEWEST),
    ("schedule-off-still-drafts", DFLASH.but(spec=schedule([1, 4, 3], [5, 8, 0]), resolved=V2), "0.32.0", NEWEST),
    ("schedule-unpads-admissions",
     EAGLE.but(spec=schedule([1, 4, 3], [5, 8, 1]), resolved=V2, args={"kv_transfer_config": '{"kv_role": "kv_both"}'}),
     "0.25.0", NEWEST),
    ("iteration-details-are-waits",
     EAGLE.but(resolved={"async_scheduling": True}, args={"enable_logging_iteration_details": True}),
     "0.14.0", NEWEST),
]  # fmt: skip


@pytest.mark.parametrize(("code", "case", "first", "last"), ENGINE, ids=[row[0] for row in ENGINE])
def test_engine_rules_hold_from_first_to_last_release(code, case, first, last):
    assert spans_of(find_engine, case, code) == [(first, last)]


@pytest.mark.parametrize(("code", "case", "first", "last"), LATER, ids=[row[0] for row in LATER])
def test_later_rules_hold_from_first_to_last_release(code, case, first, last):
    assert spans_of(find_later, case, code) == [(first, last)]


def test_pipeline_parallelism_turns_async_scheduling_off_in_two_stretches_on_v1():
    case = EAGLE.but(args={"pipeline_parallel_size": 2})
    assert spans_of(find_engine, case, "async-switched-off") == [("0.14.0", "0.14.1"), ("0.31.0", NEWEST)]
    assert spans_of(find_engine, case.but(resolved=V2), "async-switched-off") == [("0.14.0", "0.14.1")]


def test_two_vocabularies_keep_a_draft_model_off_v2_but_in_the_release_that_forgot_them():
    case = DRAFT.but(env=FORCE_V2, spec={"use_heterogeneous_vocab": True})
    assert spans_of(find_engine, case, "runner-v2-rejected") == [("0.20.0", "0.30.0"), ("0.32.0", NEWEST)]


def test_metrics_per_request_need_speculation():
    context, _ = EAGLE.but(args={"per_request_spec_decode_metrics": "summary"}).seen_in(NEWEST)
    plain = replace(context, spec=None)
    assert codes(find_unfit(plain, None)) == ["request-metrics-without-speculation"]
    assert "request-metrics-without-speculation" not in codes(find_engine(context, EAGLE.seen_in(NEWEST)[1]))


def test_a_plain_setup_meets_notes_only():
    case = EAGLE.but(args={"max_num_seqs": 64, "max_num_batched_tokens": 8192}, resolved=V2)
    for version in ("0.29.0", "0.33.0"):
        context, resolved = case.seen_in(version)
        rulings = [*find_engine(context, resolved), *find_later(context, resolved)]
        assert {get_rule(each.code).severity for each in rulings} <= {"info"}


def test_every_ruling_says_where_and_names_the_release_it_was_read_in():
    for _, case, _, last in [*ENGINE, *LATER]:
        for ruling in [*find_engine(*case.seen_in(last)), *find_later(*case.seen_in(last))]:
            assert ruling.where
            assert ruling.message[-1] == "."
            assert ruling.source == get_rule(ruling.code).source
