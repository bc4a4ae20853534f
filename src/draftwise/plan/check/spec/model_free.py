"""Methods without a drafter: n-gram lookup, suffix trees, a class of the user's own, and dumped hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from draftwise.plan.check.architecture import find_architecture
from draftwise.plan.check.parallel import judge_class
from draftwise.plan.check.work import Work

__all__ = ["MODEL_FREE", "resolve_model_free"]

MODEL_FREE = frozenset({"ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states"})
"""Methods that have no model of their own: `model` is a placeholder, or the path of a class."""

_DEFAULT_LOOKUP = 5
_HIDDEN_STATES_CLASS = "ExtractHiddenStatesModel"
_SUFFIX_RANGES: Mapping[str, tuple[float, float | None]] = {
    "suffix_decoding_max_tree_depth": (1, None),
    "suffix_decoding_max_cached_requests": (0, None),
    "suffix_decoding_max_spec_factor": (0, None),
    "suffix_decoding_min_token_prob": (0, 1),
}


def resolve_model_free(work: Work) -> None:
    """Fill in and check what a method without a drafter needs."""
    work.draft_tp = work.get("draft_tensor_parallel_size")
    if work.method in ("ngram", "ngram_gpu"):
        _resolve_lookup(work)
    elif work.method == "suffix":
        work.lookup = (work.get("prompt_lookup_min"), work.get("prompt_lookup_max"))
        _resolve_suffix(work)
    else:
        work.lookup = (0, 0)
        if work.method == "extract_hidden_states":
            work.model = "extract_hidden_states"
            _check_hidden_states(work)


def _resolve_lookup(work: Work) -> None:
    if not work.known("prompt_lookup_min", "prompt_lookup_max"):
        return
    low, high = work.get("prompt_lookup_min"), work.get("prompt_lookup_max")
    if low is None and high is None:
        work.add("lookup-default", f"is not given: only n-grams of exactly {_DEFAULT_LOOKUP} tokens are looked up.",
                 where="prompt_lookup_max", fix='For shorter matches too, write "prompt_lookup_min": 2.',
                 becomes=f"{_DEFAULT_LOOKUP} to {_DEFAULT_LOOKUP}")  # fmt: skip
        low = high = _DEFAULT_LOOKUP
    low = high if low is None else low
    high = low if high is None else high
    for key, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
        if value < 1:
            work.add("lookup-below-one", f"is {value}; it must be 1 or more.", where=key, fix="Give 1 or more.")
            return
    if low > high:
        work.add("lookup-min-above-max", f"is {low}, above prompt_lookup_max, {high}.", where="prompt_lookup_min",
                 fix=f"Give at most {high}.")  # fmt: skip
        return
    work.lookup = (low, high)


def _resolve_suffix(work: Work) -> None:
    if "arctic_inference" not in work.context.installed:
        work.add("suffix-needs-arctic", "needs the package arctic-inference in the server's environment.",
                 where="method", fix="pip install arctic-inference==0.1.1")  # fmt: skip
    depth = work.get("suffix_decoding_max_tree_depth")
    if work.tokens is None and work.known("num_speculative_tokens", "suffix_decoding_max_tree_depth"):
        work.tokens = depth
        work.add("suffix-default-tokens", f"is not given; it becomes suffix_decoding_max_tree_depth, {depth}.",
                 where="num_speculative_tokens", becomes=str(depth))  # fmt: skip
    for key, (low, high) in _SUFFIX_RANGES.items():
        value = work.get(key)
        if value is None:
            continue
        if value < low or (high is not None and value > high) or value != value:
            span = f"{low} or more" if high is None else f"{low} to {high}"
            work.add("suffix-out-of-range", f"is {value}; it must be {span}.", where=key, fix=f"Give {span}.")


def _check_hidden_states(work: Work) -> None:
    """Record what stops the class that stands in for a drafter; it is split as the target is."""
    names = (_HIDDEN_STATES_CLASS,)
    if find_architecture(work.context, names) is None:
        work.add("drafter-class-missing", f"needs the class {_HIDDEN_STATES_CLASS}, which vLLM {work.context.release} "
                 "does not have.", where="method", fix="Use a release that has it.")  # fmt: skip
    if work.target is None:
        return
    config = work.target.config.changed(architectures=list(names))
    work.draft = replace(work.target, config=config)
    work.draft_len = work.target.max_model_len
    work.rulings.extend(judge_class(work.context, config))
