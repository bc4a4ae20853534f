"""The closing checks of SpeculativeConfig, which look at the whole: sampling, vocabularies, GPUs, experimental keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from draftwise.plan.check.lookup import MODEL_FREE
from draftwise.plan.check.parallel import judge_parallel
from draftwise.plan.check.work import Work

__all__ = ["verify"]

_AUX_METHODS = ("eagle3", "extract_hidden_states", "dflash")
_LM_HEAD_METHODS = ("eagle", "eagle3", "mtp")
_XPRESS = frozenset({"Qwen3XPressModel", "DFlashQwen3XPressModel"})
_SYNTHETIC_KEYS = ("synthetic_acceptance_rates", "synthetic_acceptance_length")
_FLY_WINDOW = 6


def verify(work: Work) -> None:
    """Check the whole config, in vLLM's order."""
    _verify_keys_of_methods(work)
    if work.get("tensor_parallel_size") is not None:
        work.add("tensor-parallel-size-key", "is not a key to set here.", where="tensor_parallel_size",
                 fix="Write draft_tensor_parallel_size instead.")  # fmt: skip
    _verify_tokens(work)
    _verify_lm_head(work)
    _verify_synthetic(work)
    judge_parallel(work)
    _verify_target(work)
    _verify_vocabularies(work)
    _verify_fly(work)


def _verify_keys_of_methods(work: Work) -> None:
    if not work.known("method"):
        return
    if work.get("index_share_for_mtp_iteration") is not None and work.method not in ("mtp", None):
        work.add("mtp-only-key", "is for the method mtp only.", where="index_share_for_mtp_iteration", fix="Remove it.")
    if work.get("enable_adaptive_verification") and work.method != "dspark":
        work.add("adaptive-needs-dspark", f"is for dspark only in this release, and the method is {work.method}.",
                 where="enable_adaptive_verification", fix="Remove it, or use a release from 0.30.0 on.")  # fmt: skip
        if work.get("use_local_argmax_reduction"):
            work.add("adaptive-needs-logits", "reads the draft logits, which use_local_argmax_reduction never makes.",
                     where="enable_adaptive_verification", fix="Set one of the two only.")  # fmt: skip
    top = work.get("xpress_topc")
    if top is not None and work.method not in MODEL_FREE and work.draft is not None:
        if not _XPRESS & set(work.draft.config.architectures) or work.method != "dflash":
            work.add("xpress-only-key", "is for DFlash drafters with an XPress refiner only.", where="xpress_topc",
                     fix="Remove it.")  # fmt: skip
        elif top > (vocabulary := _draft_vocabulary(work)):
            work.add("xpress-topc-range", f"is {top}, and the draft vocabulary has {vocabulary} tokens.",
                     where="xpress_topc", fix=f"Give at most {vocabulary}.")  # fmt: skip


def _draft_vocabulary(work: Work) -> int:
    assert work.draft is not None
    size = work.draft.config.get("draft_vocab_size") or work.draft.config.get("vocab_size")
    return size if isinstance(size, int) else 0


def _verify_tokens(work: Work) -> None:
    if not work.known("num_speculative_tokens"):
        return
    if work.tokens is None:
        if not work.known("model", "draft"):
            return
        work.add("tokens-missing", "must be given.", where="num_speculative_tokens",
                 fix='Add it, e.g. "num_speculative_tokens": 3.', opens=("num_speculative_tokens",))  # fmt: skip
    elif not isinstance(work.tokens, (int, float)):
        work.add("tokens-not-a-number", f"must be an integer, got {work.tokens!r}.", where="num_speculative_tokens",
                 fix="Give an integer above 0.", opens=("num_speculative_tokens",))  # fmt: skip
    elif work.tokens <= 0:
        work.add("tokens-not-positive", f"is {work.tokens}; it must be above 0.", where="num_speculative_tokens",
                 fix="Give 1 or more; leave out speculation to switch it off.",
                 opens=("num_speculative_tokens",))  # fmt: skip
    elif isinstance(work.tokens, float) and not work.tokens.is_integer():
        work.add("tokens-not-whole-lookahead", f"is {work.tokens}; it must be whole.", where="num_speculative_tokens",
                 fix="Give an integer above 0.")  # fmt: skip


def _verify_lm_head(work: Work) -> None:
    if work.get("draft_lm_head_quantization") is None or not work.known("method"):
        return
    gemma4 = work.draft is not None and work.draft.config.model_type == "gemma4_mtp"
    if work.method not in _LM_HEAD_METHODS or gemma4:
        work.add("lm-head-quantization-method", f"does not work with {work.method}.",
                 where="draft_lm_head_quantization", fix="Use it with eagle, eagle3 or mtp, or remove it.")  # fmt: skip


def _verify_synthetic(work: Work) -> None:
    if not work.known("rejection_sample_method", *_SYNTHETIC_KEYS):
        return
    rates, length = (work.get(key) for key in _SYNTHETIC_KEYS)
    if work.get("rejection_sample_method") != "synthetic":
        if rates is not None or length is not None:
            where = _SYNTHETIC_KEYS[0 if rates is not None else 1]
            work.add("synthetic-needs-method", 'works only with "rejection_sample_method": "synthetic".', where=where,
                     fix="Add that, or remove the key.")  # fmt: skip
        return
    if not work.context.holds("synthetic-needs-method"):
        return
    if (rates is None) == (length is None):
        work.add("synthetic-needs-one", "needs exactly one of synthetic_acceptance_rates and "
                 "synthetic_acceptance_length.", where="rejection_sample_method",
                 fix='Add e.g. "synthetic_acceptance_length": 2.5.')  # fmt: skip
    elif isinstance(work.tokens, int) and work.known("num_speculative_tokens"):
        work.rates = _read_rates(work, rates) if rates is not None else _spread(work, float(length))


def _read_rates(work: Work, rates: Sequence[float]) -> tuple[float, ...] | None:
    wrong = None
    if len(rates) != work.tokens:
        wrong = f"has {len(rates)} entries; num_speculative_tokens is {work.tokens}"
    elif not all(0 <= rate <= 1 for rate in rates):
        wrong = "has an entry outside 0 to 1"
    elif any(later > earlier for earlier, later in pairwise(rates)):
        wrong = "rises; each position can be accepted at most as often as the one before it"
    if wrong is None:
        return tuple(rates)
    work.add("synthetic-rates", f"{wrong}.", where="synthetic_acceptance_rates",
             fix=f"Give {work.tokens} falling numbers from 0 to 1.")  # fmt: skip
    return None


def _spread(work: Work, length: float) -> tuple[float, ...] | None:
    """Return the rate of each position for a mean length: whole positions first, then the fraction."""
    if not 1 <= length <= work.tokens + 1:
        work.add("synthetic-length", f"is {length}; with {work.tokens} tokens it must be 1 to {work.tokens + 1}.",
                 where="synthetic_acceptance_length", fix=f"Give 1 to {work.tokens + 1}.")  # fmt: skip
        return None
    whole = int(length - 1)
    rates = [1.0] * whole + [length - 1 - whole] + [0.0] * (work.tokens - whole - 1)
    return tuple(rates[: work.tokens])


def _verify_target(work: Work) -> None:
    """Check the batch limit of old releases, and their list of targets that give out hidden states."""
    limit = work.get("disable_by_batch_size")
    if limit is not None and limit < 2:
        work.add("batch-limit-below-two", f"is {limit}; it must be 2 or more.", where="disable_by_batch_size",
                 fix="Remove it: the V1 engine never reads it.")  # fmt: skip
    allowed = work.context.release.table("aux_targets")
    if not allowed or work.target is None or work.method not in _AUX_METHODS or not work.known("method"):
        return
    if work.method != "eagle3" and not work.context.holds(f"aux-targets-{work.method.replace('_', '-')}"):
        return
    kind = work.target.config.text.model_type
    if not any(name in kind for name in allowed):
        work.add("target-not-for-hidden-states", f"is of type {kind!r}; in this release {work.method} works with "
                 f"targets of {', '.join(allowed)} only.", where="target",
                 fix="Use 0.22.0 or newer, where the model class decides, or another method.")  # fmt: skip


def _verify_vocabularies(work: Work) -> None:
    if not work.known("method", "use_heterogeneous_vocab"):
        return
    if work.get("use_heterogeneous_vocab"):
        for code, holds, message in (
            ("hetero-needs-draft-model", work.method != "draft_model", "works with the method draft_model only."),
            ("hetero-needs-greedy", work.get("draft_sample_method") not in (None, "greedy"),
             "works with greedy draft sampling only."),
            ("hetero-needs-logits", bool(work.get("use_local_argmax_reduction")),
             "needs the whole draft logits, which use_local_argmax_reduction never makes."),
        ):  # fmt: skip
            if holds:
                work.add(code, message, where="use_heterogeneous_vocab", fix="Remove one of the two.")
        return
    if work.method == "draft_model" and work.draft is not None and work.target is not None:
        _compare_vocabularies(work)


def _compare_vocabularies(work: Work) -> None:
    assert work.draft is not None
    assert work.target is not None
    draft, target = (model.config.text.get("vocab_size", 0) for model in (work.draft, work.target))
    if draft != target:
        fix = "Use a drafter with the target's tokenizer"
        if work.context.holds("hetero-needs-draft-model"):
            fix += ', or add "use_heterogeneous_vocab": true'
        work.add("vocabulary-sizes-differ", f"has a vocabulary of {draft} tokens, and the target one of {target}.",
                 where="model", fix=f"{fix}.")  # fmt: skip


def _verify_fly(work: Work) -> None:
    if work.get("rejection_sample_method") != "fly" or not work.known("num_speculative_tokens", "method"):
        return
    window = work.get("fly_window_size")
    if work.method == "extract_hidden_states":
        work.add("fly-needs-drafts", "makes no sense with extract_hidden_states, which drafts nothing.",
                 where="rejection_sample_method", fix="Remove it.")  # fmt: skip
    elif not isinstance(work.tokens, int):  # what is wrong with it is said where it is judged
        return
    elif work.tokens < 2:
        work.add("fly-needs-two-tokens", "needs num_speculative_tokens of 2 or more.", where="rejection_sample_method",
                 fix='Write "num_speculative_tokens": 2 or more.')  # fmt: skip
    elif window is not None and window >= work.tokens:
        work.add("fly-window-too-long", f"is {window}; it must be below num_speculative_tokens, {work.tokens}.",
                 where="fly_window_size", fix=f"Give at most {min(_FLY_WINDOW, work.tokens - 1)}.")  # fmt: skip
    else:
        work.filled["fly_window_size"] = window or min(_FLY_WINDOW, work.tokens - 1)
        work.add("fly-is-lossy", "lets some rejected tokens through: answers differ from the target's own.",
                 where="rejection_sample_method", fix="Use standard for lossless speculation.")  # fmt: skip
