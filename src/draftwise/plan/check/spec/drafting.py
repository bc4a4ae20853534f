"""The drafter's part of SpeculativeConfig: its model, its rewritten architecture, its tokens, GPUs and context."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from draftwise.core import Ruling
from draftwise.plan.check.architecture import find_architecture
from draftwise.plan.check.dspark import judge_dspark, rewrite_dspark
from draftwise.plan.check.hf_config import HfConfig, read_hf_config
from draftwise.plan.check.later.legacy import V0_EAGLE, runs_on_v0
from draftwise.plan.check.method import detect_method
from draftwise.plan.check.model import judge_model
from draftwise.plan.check.mtp import rewrite_draft
from draftwise.plan.check.work import Work

__all__ = ["resolve_drafter"]

_PREFIXES = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash"}
_AS_IT_IS = {"dflash": ("LiLiCorrDraftModel",)}
_PLACEHOLDERS = frozenset({"ngram", "[ngram]"})
_CLASS_PATH = re.compile(r"([A-Za-z_]\w*\.)+[A-Z]\w*")
_ALWAYS_PARALLEL = ("dflash", "dspark")
_LONGEST_TREE = 1000
"""The tree of a chain grows with the square of its length; a longer one is not written out."""


def resolve_drafter(work: Work) -> None:
    """Fill in everything that depends on the drafter; nothing without one."""
    if work.model is None or not work.known("model"):
        return
    _read_drafter(work)
    if "draft" in work.open:
        # vLLM raised while it read the drafter, so that nothing after it can be said.
        if "method" not in work.fields.given or not work.known("method"):
            work.open.add("method")
        return
    detect_method(work)
    if "draft" in work.open:
        return
    _rename_architecture(work)
    rewrite_dspark(work)
    work.parallel_drafting = work.method in _ALWAYS_PARALLEL or bool(work.get("parallel_drafting"))
    _settle_tokens(work)
    _require_tokens(work)
    judge_dspark(work)
    _settle_parallel_size(work)
    _settle_length(work)


def _read_drafter(work: Work) -> None:
    """Set `work.draft` to the drafter as ModelConfig holds it, or open `draft` with the reason for its refusal."""
    context = work.context
    is_target = work.model == (context.verifier or context.setup.target)
    own = context.target if is_target else context.drafter
    if own is None:
        if not is_target:
            _tell_unknown(work)
        return
    if is_target and work.target is None:
        work.open.add("draft")  # what is wrong with the target has been said
        return
    as_medusa = work.method == "medusa" and context.holds("medusa-type-injected")
    config = read_hf_config(context, own, role="drafter", as_medusa=as_medusa)
    if isinstance(config, Ruling):
        work.rulings.append(config)
        work.open.add("draft")
        return
    if not config.architectures:
        work.add("drafter-without-architectures", "has a config.json without architectures, which vLLM looks at first.",
                 where="model", fix="Add the architectures to its config.json.", opens=("draft",))  # fmt: skip
        return
    if config.kind == "plain":
        config = rewrite_draft(context.release, config)
    _judge_drafter(work, _align_medusa(work, config))


def _align_medusa(work: Work, config: HfConfig) -> HfConfig:
    """Return a Medusa with the target's vocabulary, where the release makes them agree."""
    if work.method != "medusa" or work.target is None or not work.context.holds("medusa-type-injected"):
        return config
    return config.changed(vocab_size=work.target.config.get("vocab_size"))


def _judge_drafter(work: Work, config: HfConfig) -> None:
    asked = work.get("max_model_len") if work.context.holds("drafter-length-checked-early") else None
    model, rulings = judge_model(
        work.context, config, role="drafter", max_model_len=asked, quantization=work.quantization,
        target_length=None if work.target is None else work.target.max_model_len,
    )  # fmt: skip
    work.draft = model
    work.rulings.extend(rulings)
    if rulings:
        work.open.add("draft")


def _tell_unknown(work: Work) -> None:
    if not work.model or work.model in _PLACEHOLDERS:
        work.add("drafter-config-unreadable", f"{work.model!r} names no checkpoint.", where="model", opens=("draft",),
                 fix="Give the directory or id of the drafter.")  # fmt: skip
        return
    if _CLASS_PATH.fullmatch(work.model) and work.context.holds("class-path-without-custom-class"):
        work.add("class-path-without-custom-class", f"{work.model!r} reads like a Python class, which no method of "
                 "this release takes.", where="model", fix="Use 0.22.0 or newer for custom_class.",
                 opens=("draft",))  # fmt: skip
        return
    faults = [fault for fault in work.context.faults if fault.where == work.model]
    if faults:
        work.add("drafter-config-unreadable", faults[0].message, where="model", fix=faults[0].fix, opens=("draft",))
        return
    work.add("drafter-not-here", f"{work.model!r} is neither a directory here nor in the table of known models; it is "
             "judged by its name alone.", where="model",
             fix="Give a directory with its config.json to have the rest checked.")  # fmt: skip


def _rename_architecture(work: Work) -> None:
    """Apply the naming of EAGLE and DFlash classes, and check that the release has the outcome."""
    prefix = _PREFIXES.get(work.method or "")
    if prefix is None or work.draft is None or work.draft.config.kind in ("eagle", "speculators"):
        return
    names = [_rename(work, name, prefix) for name in work.draft.config.architectures]
    if runs_on_v0(work.context):
        names = [V0_EAGLE]
    config = work.draft.config.changed(architectures=names, model_type="eagle")
    work.draft = type(work.draft)(
        config=config, max_model_len=work.draft.max_model_len, quantization=work.draft.quantization
    )
    check_class(work, names)


def check_class(work: Work, names: Sequence[str]) -> None:
    """Record that the release has no class of the rewritten name, in the releases that look for it this early."""
    if work.context.holds("drafter-class-missing") and find_architecture(work.context, names) is None:
        work.add("drafter-class-missing", f"is run as {work.method}, which needs the class {names[0]}; vLLM "
                 f"{work.context.release} has none of that name.", where="model",
                 fix="Use a head whose architecture this release registers, or the method that the head was made for.",
                 opens=("draft",))  # fmt: skip


def _rename(work: Work, name: str, prefix: str) -> str:
    ends = prefix in ("Eagle3", "DFlash") and not (prefix == "Eagle3" and work.context.holds("eagle3-suffix-unknown"))
    if name.startswith(prefix) or (ends and name.endswith(prefix)):
        return name
    if name in _AS_IT_IS.get(work.method or "", ()) and work.context.holds("dflash-lilicorr"):
        return name
    return prefix + name


def _settle_tokens(work: Work) -> None:
    """Fill in or check the number of tokens against what the drafter was made for."""
    if work.draft is None or not work.known("num_speculative_tokens"):
        return
    if work.method == "dspark" and work.context.holds("dspark-tokens-by-block"):
        return
    _judge_inkling(work)
    steps = work.draft.config.get("n_predict")
    if not isinstance(steps, int) or steps < 0:
        return
    if not steps and isinstance(work.tokens, (int, float)) and work.tokens > 0:
        work.add("drafter-predicts-nothing", "has 0 for the number of its prediction steps.", where="model",
                 fix="Use a checkpoint with MTP modules, or another method.")  # fmt: skip
    elif work.tokens is None and steps:
        work.tokens = steps
        work.add("tokens-from-drafter", f"is not given; the drafter's n_predict makes it {steps}.",
                 where="num_speculative_tokens", becomes=str(steps))  # fmt: skip
    elif isinstance(work.tokens, (int, float)) and work.tokens > steps and work.tokens % steps:
        work.add("tokens-not-divisible", f"is {work.tokens}, and above the drafter's n_predict it must be a multiple "
                 f"of {steps}.", where="num_speculative_tokens",
                 fix=f"Give {steps} or a multiple, e.g. {steps * (work.tokens // steps)}.")  # fmt: skip


def _judge_inkling(work: Work) -> None:
    if work.draft is not None and work.draft.config.model_type == "inkling_mtp" and work.tokens not in (None, 1):
        work.add("inkling-one-token", f"is {work.tokens}; this release drafts exactly one token with Inkling.",
                 where="num_speculative_tokens", fix="Give 1, or use 0.28.0 or newer.")  # fmt: skip


def _require_tokens(work: Work) -> None:
    """Record what stops releases that write out a tree of draft tokens here."""
    if work.draft is None or not work.known("num_speculative_tokens"):
        return
    tree = work.get("speculative_token_tree")
    if tree is not None:
        _read_tree(work, tree)
    elif work.tokens is None:
        work.add("tokens-missing-type-error", "must be given: without it vLLM fails with a TypeError.",
                 where="num_speculative_tokens", fix='Add it, e.g. "num_speculative_tokens": 3.',
                 opens=("num_speculative_tokens",))  # fmt: skip
    elif isinstance(work.tokens, float):
        work.add("tokens-not-whole", f"must be an integer, got {work.tokens}.", where="num_speculative_tokens",
                 fix="Give an integer above 0.", opens=("num_speculative_tokens",))  # fmt: skip
    else:
        _write_tree(work)


def _write_tree(work: Work) -> None:
    """Fill in the chain that releases with a token tree spell out."""
    if work.context.holds("token-tree-malformed") and isinstance(work.tokens, int) and work.tokens <= _LONGEST_TREE:
        work.filled["speculative_token_tree"] = str([(0,) * length for length in range(1, work.tokens + 1)])


def _read_tree(work: Work, tree: str) -> None:
    try:
        choices = ast.literal_eval(tree)
        sorted(choices, key=lambda path: (len(path), path))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        work.add("token-tree-malformed", "is no list of tuples.", where="speculative_token_tree",
                 fix="Leave it out: chains are the default, and the key is gone from 0.21.0 on.")  # fmt: skip


def _settle_parallel_size(work: Work) -> None:
    given = work.get("draft_tensor_parallel_size")
    target = work.context.flag("tensor_parallel_size", 1)
    if not work.known("draft_tensor_parallel_size") or not isinstance(target, int):
        return
    is_mlp = work.draft is not None and work.draft.config.model_type == "mlp_speculator"
    if given is None:
        work.draft_tp = target
        if is_mlp and work.context.holds("mlp-speculator-on-one-gpu"):
            work.draft_tp = 1
            if target > 1:
                work.add("mlp-speculator-on-one-gpu", "an MLP speculator cannot be split, so it runs on one GPU.",
                         where="draft_tensor_parallel_size", becomes="1")  # fmt: skip
    elif given in (1, target):
        work.draft_tp = given
    else:
        work.add("draft-tensor-parallel", f"is {given}; it can be 1 or the target's tensor_parallel_size, {target}.",
                 where="draft_tensor_parallel_size", fix=f"Leave it out, or give {target}.",
                 opens=("draft_tensor_parallel_size",))  # fmt: skip


def _settle_length(work: Work) -> None:
    """Set the drafter's context length, or record that the one asked for is too long."""
    asked = work.get("max_model_len")
    if work.draft is None or work.target is None or not work.known("max_model_len"):
        work.draft_len = asked
        return
    draft, target = work.draft.max_model_len, work.target.max_model_len
    if asked is None:
        work.draft_len = min(draft, target)
        return
    for limit, whose in ((draft, "drafter"), (target, "target")):
        if asked > limit:
            work.add("draft-longer-than-model", f"is {asked}, and the {whose}'s context is {limit} tokens.",
                     where="max_model_len", fix=f"Give at most {min(draft, target)}.")  # fmt: skip
            return
    work.draft_len = asked
