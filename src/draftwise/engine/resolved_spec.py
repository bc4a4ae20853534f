"""Resolves a `--speculative-config` for the embedded engine: fills in defaults and reports all errors at once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from draftwise.checkpoints.config_values import AUX_KEY
from draftwise.core import Finding, InvalidSetup, Severity, SpecConfig
from draftwise.engine.sampling.acceptance_rules import Acceptance, Standard, Synthetic, Typical
from draftwise.knowledge.methods import Method, all_methods, find_method, find_placeholder, get_method, methods_where
from draftwise.knowledge.spec_keys import SpecKey, find_name_traps, keys_where, read_spec_keys


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of value."""

    text: str
    accepts: Callable[[Any], bool]


def accepts(key: SpecKey, value: Any) -> bool:
    """Return whether a key accepts a value. Lists must not be empty."""
    if key.choices:
        return value in key.choices
    kind, is_list = _kind_of(key)
    if is_list:
        return isinstance(value, list | tuple) and len(value) > 0 and all(_fits(kind, key, each) for each in value)
    return _fits(kind, key, value)


def describe(key: SpecKey) -> str:
    """Describe a key's valid values, as the end of "must be"."""
    if key.choices:
        return f"one of {', '.join(key.choices)}"
    kind, is_list = _kind_of(key)
    bounds = " and ".join(f"{_BOUNDS[name][0]} {bound:g}" for name, bound in key.bounds.items())
    text = f"{kind.text} {bounds}".strip()
    return f"a list, each entry {text}" if is_list else text


def _kind_of(key: SpecKey) -> tuple[_Kind, bool]:
    """Return the kind of a key's value, or of the entries of the list that it takes, and whether it takes one."""
    name = key.type.removesuffix(" | None")
    entry = name.removeprefix("list[").removesuffix("]") if name.startswith("list[") else name
    return _KINDS[entry], entry != name


def _fits(kind: _Kind, key: SpecKey, value: Any) -> bool:
    return kind.accepts(value) and all(_BOUNDS[name][1](value, bound) for name, bound in key.bounds.items())


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_range(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(map(_is_int, value))


def _is_layer_choice(value: Any) -> bool:
    """Whether a draft_model_config says which layers' states to extract, and nothing else."""
    config = value.get("hf_config") if isinstance(value, dict) else None
    ids = config.get(AUX_KEY) if isinstance(config, dict) else None
    return isinstance(ids, list | tuple) and len(ids) > 0 and all(_is_int(i) and i >= 0 for i in ids)


_KINDS: Mapping[str, _Kind] = {
    "int": _Kind("an integer", _is_int),
    "float": _Kind("a number", _is_number),
    "bool": _Kind("true or false", lambda value: isinstance(value, bool)),
    "str": _Kind("a string", lambda value: isinstance(value, str) and value != ""),
    "tuple[int, int, int]": _Kind("[integer, integer, integer]", _is_range),
    "layer ids": _Kind(f'{{"hf_config": {{"{AUX_KEY}": [layer, ...]}}}}', _is_layer_choice),
}

_BOUNDS: Mapping[str, tuple[str, Callable[[Any, float], bool]]] = {
    "ge": ("of at least", operator.ge),
    "gt": ("above", operator.gt),
    "le": ("of at most", operator.le),
    "lt": ("below", operator.lt),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSpec:
    """A fully resolved speculative config. `knowledge.spec_keys` explains the keys."""

    method: str
    k: int
    """Maximum draft tokens per step; `k_for` gives the number for a batch size."""
    model: str | None
    prompt_lookup_min: int
    prompt_lookup_max: int
    suffix_decoding_max_tree_depth: int
    suffix_decoding_max_cached_requests: int
    suffix_decoding_max_spec_factor: float
    suffix_decoding_min_token_prob: float
    disable_by_batch_size: int | None
    schedule: tuple[tuple[int, int, int], ...]
    """num_speculative_tokens_per_batch_size in ascending order: (first batch size, last, k)."""
    draft_sample_method: str
    parallel_drafting: bool
    draft_model_config: Mapping[str, Any] | None
    acceptance: Acceptance
    findings: tuple[Finding, ...]
    """Warnings and notes, such as keys without effect here or lossy rules."""

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved config in vLLM's keys, limited to those that apply to the method."""
        acting = {key: getattr(self, key) for key in sorted(_acting_keys(get_method(self.method)))}
        resolved = {"method": self.method, "model": self.model, "num_speculative_tokens": self.k} | acting
        return {key: value for key, value in resolved.items() if value is not None}

    @property
    def probabilistic(self) -> bool:
        """Whether draft tokens are sampled from the drafter's distribution."""
        return self.draft_sample_method == "probabilistic"

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Ids of the hidden states to extract."""
        config = self.draft_model_config or {}
        return tuple(config.get("hf_config", {}).get(AUX_KEY, ()))

    def k_for(self, num_running: int) -> int:
        """Return how many tokens to draft per sequence while `num_running` sequences run; 0: no drafting."""
        if self.disable_by_batch_size is not None and num_running >= self.disable_by_batch_size:
            return 0
        k = self.k
        for first, _, scheduled in self.schedule:
            if first <= num_running:  # the end of a range does not matter: what follows it keeps its k
                k = min(self.k, scheduled)
        return k


def resolve_spec(config: SpecConfig) -> ResolvedSpec:
    """Resolve a config with vLLM's defaults and rules.

    Raises:
        InvalidSetup: the config cannot run here. The findings name every error.
    """
    given = {key.replace("-", "_"): value for key, value in config.to_dict().items() if value is not None}
    findings = list(_check_keys(given))
    faulty = {finding.where for finding in findings if finding.severity is Severity.ERROR}
    settings = {name: key.default for name, key in keys_where(embedded="acts").items()}
    settings |= {name: value for name, value in given.items() if name in settings and _where(name) not in faulty}
    settings["method"] = _infer_method(settings)

    findings += _check_method(settings, given)
    findings += _check_lookup(settings)
    settings["num_speculative_tokens"] = k = _resolve_k(settings)
    if k is None and _where("num_speculative_tokens") not in faulty:
        findings.append(_error("num_speculative_tokens", "missing-k", "is missing.", "Set how many tokens to draft."))
    findings += _check_schedule(settings)
    findings += _check_acceptance(settings, given)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise InvalidSetup(errors)
    return _assemble(settings, findings)


def _where(key: str) -> str:
    return f"speculative_config.{key}"


def _error(key: str, code: str, predicate: str, fix: str) -> Finding:
    """Return the finding that a key, the sentence's subject, has a fault."""
    where = _where(key)
    return Finding.error(code, f"{where} {predicate}", where=where, fix=fix)


def _warning(key: str, code: str, predicate: str, fix: str = "") -> Finding:
    """Return the finding that a key, the sentence's subject, has an effect that nobody may expect."""
    where = _where(key)
    return Finding.warning(code, f"{where} {predicate}", where=where, fix=fix)


def _check_keys(given: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield unknown keys, wrong values, and keys that nothing here reads."""
    acting, idle = keys_where(embedded="acts"), keys_where(embedded="idle")
    for name, value in given.items():
        if name in acting:
            if not accepts(acting[name], value):
                predicate = f"must be {describe(acting[name])}, got {value!r}."
                yield _error(name, "wrong-value", predicate, f"Meaning: {acting[name].meaning}")
        elif name in idle:
            if value is not False:
                yield _warning(name, "no-effect", f"has no effect here: {idle[name].reason}.", "vLLM reads it.")
        else:
            near = get_close_matches(name, [*acting, *idle], n=1)
            fix = f"Did you mean {near[0]}?" if near else f"The keys are {', '.join(acting)}."
            yield _error(name, "unknown-key", "is not a key of the speculative config.", fix)


def _acting_keys(method: Method) -> frozenset[str]:
    """Return the keys that act for a method here and, unless another one has them too, for no other."""
    return frozenset(method.keys + method.embedded_keys) & keys_where(embedded="acts").keys()


def _infer_method(settings: Mapping[str, Any]) -> str | None:
    """Return the method, inferred from the model as vLLM from 0.17 on does."""
    name: str | None = settings["method"]
    if name is None and settings["model"] is not None:
        stands_for = find_placeholder(settings["model"])
        return "draft_model" if stands_for is None else stands_for.name
    method = find_method(name)
    return name if method is None else method.name


def _check_method(settings: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield why the method cannot run here."""
    name = settings["method"]
    method = find_method(name)
    if method is not None and method.embedded:
        yield from _check_keys_of_method(settings, given)
        return
    choices = ", ".join(all_methods(embedded=True))
    if name is None:
        if "method" not in given and "model" not in given:
            yield _error("method", "missing-method", "is missing.", f"Choose one of {choices}.")
    elif method is not None:
        predicate = f"is {name}, which this version of the embedded engine does not have."
        yield _error("method", "method-not-here", predicate, f"vLLM runs it; here, choose one of {choices}.")
    else:
        near = get_close_matches(name, list(all_methods()), n=1)
        fix = f"Did you mean {near[0]}?" if near else f"Choose one of {choices}."
        yield _error("method", "unknown-method", f"is {name!r}, which is no method.", fix)


def _check_keys_of_method(settings: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a drafter that is missing, badly named or not wanted, and keys that are for other methods."""
    name, model = settings["method"], settings["model"]
    method = get_method(name)
    if method.needs_drafter and "model" not in given:
        yield _error("model", "missing-model", f"is missing, and {name} needs it.", "Give a drafter's directory.")
    if method.required_key is not None and settings[method.required_key] is None:
        meaning = read_spec_keys()[method.required_key].meaning
        yield _error(method.required_key, "missing-key", f"is missing, and {name} needs it.", f"Meaning: {meaning}")
    if method.drafts_from == "own_model" and any(trap in str(model).lower() for trap in find_name_traps()):
        predicate = f"is {model}, which vLLM would take for a head of another method because of its name."
        yield _warning("model", "name-trap", predicate, "Rename the directory before serving it with vLLM.")
    if not (model is None or method.has_weights or model == name or find_placeholder(model)):
        yield _warning("model", "no-effect", f"has no effect with method {name}.", "Leave it out.")
    others = frozenset[str]().union(*map(_acting_keys, methods_where(embedded=True).values())) - _acting_keys(method)
    for key in given:
        if key in others and given[key] != read_spec_keys()[key].default:
            yield _warning(key, "no-effect", f"has no effect with method {name}.", "Leave it out.")


def _check_lookup(settings: dict[str, Any]) -> Iterator[Finding]:
    """Fill in the bounds of prompt lookup (both unset: 5; one unset: the other) and yield if they cross."""
    low, high = settings["prompt_lookup_min"], settings["prompt_lookup_max"]
    settings["prompt_lookup_min"] = low = low or high or 5
    settings["prompt_lookup_max"] = high = high or low
    if low > high:
        predicate = f"is {low}, more than prompt_lookup_max = {high}."
        yield _error("prompt_lookup_min", "crossed-bounds", predicate, "Lower one or raise the other.")


def _resolve_k(settings: Mapping[str, Any]) -> int | None:
    """Return k, if given or implied by the method."""
    k, method = settings["num_speculative_tokens"], find_method(settings["method"])
    if k is None and method is not None and method.default_k_key is not None:
        k = settings[method.default_k_key]
    return k


def _check_schedule(settings: dict[str, Any]) -> Iterator[Finding]:
    """Sort the k-by-batch-size table and yield what is wrong with its ranges."""
    key, k = "num_speculative_tokens_per_batch_size", settings["num_speculative_tokens"]
    schedule = settings[key] = tuple(sorted(tuple(entry) for entry in settings[key] or ()))
    before = 0
    for first, last, scheduled in schedule:
        entry = f"[{first}, {last}, {scheduled}]"
        if not 1 <= first <= last:
            yield _error(
                key,
                "bad-range",
                f"has {entry}, which is not a range of batch sizes.",
                "Use [first, last, k], first <= last.",
            )
        elif first <= before:
            yield _error(
                key, "overlapping-ranges", f"has {entry}, which overlaps the range before it.", "Make ranges disjoint."
            )
        if scheduled < 0:
            yield _error(
                key, "bad-range", f"has {entry}, which asks for a negative k.", "Use 0 to switch drafting off."
            )
        elif k is not None and scheduled > k:
            yield _warning(key, "clamped-k", f"has {entry}, held to num_speculative_tokens = {k}.", "Raise that, too.")
        before = max(before, last)
    if schedule and schedule[0][0] > 1:
        yield _error(key, "uncovered-range", "does not say what to do at batch size 1.", "Start the first range at 1.")


def _check_acceptance(settings: dict[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """Turn a synthetic length into rates; yield conflicts between acceptance settings, and which are lossy."""
    rule = settings["rejection_sample_method"]
    synthetic, typical = rule == "synthetic", settings["acceptance_method"] == "typical_acceptance_sampler"
    if typical and rule != "standard":
        predicate = f"is typical_acceptance_sampler, which rejection_sample_method {rule} excludes."
        yield _error("acceptance_method", "conflicting-keys", predicate, "Choose one.")
    method = find_method(settings["method"])
    samples = method is not None and "draft_sample_method" in _acting_keys(method)
    if rule == "block" and not (samples and settings["draft_sample_method"] == "probabilistic"):
        predicate = "is block, which helps only sampled drafts. Here it acts as standard."
        fix = 'Add "draft_sample_method": "probabilistic".' if samples else "Leave it out."
        yield _warning("rejection_sample_method", "no-effect", predicate, fix)
    if typical:
        predicate = "is typical_acceptance_sampler, which changes the output's distribution."
        yield _warning("acceptance_method", "lossy", predicate)
    for key in ("posterior_threshold", "posterior_alpha"):
        if key in given and not typical:
            yield _warning(key, "no-effect", "acts only with acceptance_method typical_acceptance_sampler.")
    if synthetic:
        yield _warning("rejection_sample_method", "lossy", "is synthetic, which is for cost only: text means nothing.")
        yield from _check_synthetic(settings, given)
        return
    for key in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
        if key in given:
            predicate = "is only for rejection_sample_method synthetic."
            yield _error(
                key, "conflicting-keys", predicate, 'Add "rejection_sample_method": "synthetic", or leave it out.'
            )


def _check_synthetic(settings: dict[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """Resolve the synthetic rates as vLLM does (`_resolve_synthetic_acceptance_rates`)."""
    rates_key, length_key = "synthetic_acceptance_rates", "synthetic_acceptance_length"
    if (rates_key in given) == (length_key in given):
        fix = f"Give exactly one of {rates_key} and {length_key}."
        yield _error("rejection_sample_method", "synthetic-rates", "is synthetic, which needs to know its odds.", fix)
        return
    k, rates, length = settings["num_speculative_tokens"], settings[rates_key], settings[length_key]
    if k is None:
        return
    if length is not None:
        if length > k + 1:
            fix = f"Stay within 1..{k + 1}."
            yield _error(length_key, "synthetic-rates", f"is {length}, more than k + 1 tokens.", fix)
        settings[rates_key] = tuple(min(max(length - 1 - i, 0.0), 1.0) for i in range(k))
    if rates is not None:
        if len(rates) != k:
            yield _error(rates_key, "synthetic-rates", f"has {len(rates)} rates for {k} tokens.", "Give one a token.")
        if any(later > earlier for earlier, later in pairwise(rates)):
            fix = "Entry i is the share of drafts whose first i+1 tokens are all accepted."
            yield _error(rates_key, "synthetic-rates", "must not increase.", fix)


def _assemble(settings: Mapping[str, Any], findings: list[Finding]) -> ResolvedSpec:
    """Return the resolved spec for settings without fault."""
    acceptance: Acceptance = Standard(by_block=settings["rejection_sample_method"] == "block")
    if settings["acceptance_method"] == "typical_acceptance_sampler":
        acceptance = Typical(threshold=settings["posterior_threshold"], alpha=settings["posterior_alpha"])
    if settings["rejection_sample_method"] == "synthetic":
        acceptance = Synthetic(rates=tuple(settings["synthetic_acceptance_rates"]))
    settings = {**settings, "model": settings["model"] if get_method(settings["method"]).has_weights else None}
    same = {field.name: settings[field.name] for field in fields(ResolvedSpec) if field.name in settings}
    return ResolvedSpec(
        k=settings["num_speculative_tokens"],
        schedule=settings["num_speculative_tokens_per_batch_size"],
        acceptance=acceptance,
        findings=tuple(findings),
        **same,
    )
