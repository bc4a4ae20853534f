"""Each method's proposal for a target, or its refusal, by its source of drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftwise.checkpoints.config_json import find_model_config
from draftwise.core import Finding, InvalidSetup
from draftwise.knowledge.advice import get_advice, give_advice
from draftwise.knowledge.methods import Method, all_methods, find_method
from draftwise.knowledge.published_drafters import PublishedDrafter, find_native
from draftwise.plan.cost.work import Work, count_drafter_kv, find_drafter_work, find_work
from draftwise.plan.pick.requirements import STRUCTURED_OUTPUT, GivenDrafter, PickCase
from draftwise.plan.size.shapes import read_text_config
from draftwise.plan.size.weight_parts import precision_of

_NONCAUSAL = "FLASH_ATTN"
"""Attention backend that can attend over a whole block at once in every release."""
_SHORT_LOOKUP, _STRICT_LOOKUP = (3, 5), (8, 16)
"""The least and the most tokens that must match. Longer matches are tried first, as vLLM does; at least eight kept tool
calls intact (vLLM issues #35800, #40875)."""
_LOOKUP_KEYS = ("prompt_lookup_min", "prompt_lookup_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A method that is not recommended, and why."""

    method: str
    reasons: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A method that could be tried."""

    method: str
    spec: Mapping[str, Any]
    """The speculative config without `num_speculative_tokens`."""
    trained_on: str | None = None
    """Kind of traffic that its drafter was trained for; None for several."""
    place: int
    """Position in the guides' order of methods, for this target and traffic; the smallest is tried first."""
    at_hand: bool = False
    """Whether the operator gave its drafter."""
    lengths: tuple[int, ...]
    """Values of k that its drafter allows."""
    why_lengths: Finding | None = None
    """Source of `lengths`; None for the usual range."""
    work: Work | None = None
    """Work of one pass of the drafter."""
    kv_bytes_per_token: float = 0.0
    """KV bytes per token of its own layers on each GPU."""
    reasons: tuple[Finding, ...] = ()
    caveats: tuple[Finding, ...] = ()
    alternatives: tuple[PublishedDrafter, ...] = ()
    """Other published drafters for the same method."""
    bound: int | None = None
    """`num_speculative_tokens`, if it is only an upper limit on drafts of varying length."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Engine flags that the method needs on this release."""
    stand_in: Mapping[str, Any] | None = None
    """A config.json like the drafter's, to check instead if the drafter is not on disk."""


_BEHIND_HEADS = 3
"""Places by which modules that a copy may have lost rank behind published heads."""


def list_methods(case: PickCase) -> tuple[str, ...]:
    """Return the methods of the release and of the embedded engine; aliases of MTP count as one."""
    return tuple(sorted(_methods_of_release(case) | all_methods(embedded=True).keys()))


def propose(case: PickCase, method: str) -> Proposal | Refusal:
    """Return a method's proposal or its refusal."""
    facts = find_method(method)
    if facts is None:
        return _refuse(method, "method-not-described", message=get_advice("method-not-described").explains)
    if method not in _methods_of_release(case):
        fix = get_advice("runs-embedded").explains if facts.embedded else ""
        return _refuse(method, "not-in-release", what=f"vLLM {case.release} does not have the method.", fix=fix)
    match facts.drafts_from:
        case "text":
            return _propose_lookup(case, facts)
        case "own_model":
            return _propose_draft_model(case, facts)
        case "target_states":
            return (_propose_native if facts.weights == "target" else _propose_head)(case, facts)
        case "own_code":
            return _refuse(method, "own-code", message=get_advice("own-code").explains)
        case "none":
            return _refuse(method, "not-acceleration", message=get_advice("not-acceleration").explains)


def _methods_of_release(case: PickCase) -> set[str]:
    """Return the methods of the release, by the name that draftwise has for them if it has one."""
    return {name if (method := find_method(name)) is None else method.name for name in case.release.table("methods")}


def _refuse(method: str, code: str, **values: object) -> Refusal:
    return Refusal(method=method, reasons=(give_advice(code, **values),))


def _refuse_no_drafter(case: PickCase, facts: Method) -> Refusal:
    train = " You can train one: draftwise train." if case.requirements.can_train and facts.trainable else ""
    return _refuse(facts.name, "no-drafter-known", target=case.target.name, train=train)


def _cite(finding: Finding, row: PublishedDrafter) -> Finding:
    """Return a finding with a row of the table of drafters as its source."""
    return replace(finding, source=f"{row.source}, read {row.checked}")


def _find_published_caveats(case: PickCase, row: PublishedDrafter, *, exact: bool) -> Iterator[Finding]:
    """Yield what is worth knowing about a published drafter; `exact` if it was made for this very checkpoint."""
    if not exact:
        made_for = ", ".join(row.targets)
        yield give_advice("head-for-another", model=row.model, made_for=made_for, target=case.target.name)
    if row.note:
        yield _cite(give_advice("publisher-note", note=row.note), row)
    if case.requirements.air_gapped:
        yield give_advice("air-gapped", model=row.model)


def _propose_head(case: PickCase, facts: Method) -> Proposal | Refusal:
    """Return the proposal of a method whose drafter is a head: the operator's own, else a published one."""
    old = facts.advice.only_if_deployed
    given = next((each for each in case.given if each.drafter.method == facts.name), None)
    if given is not None:
        made = _given_head(case, facts, given)
        return replace(made, reasons=(*made.reasons, give_advice("locked-in", model=given.name))) if old else made
    exact = [row for row in case.published if _loads(case, row, facts)]
    rows = exact or [row for row in case.similar if _loads(case, row, facts)]
    if not rows:
        return _refuse_no_drafter(case, facts)
    if old:
        return _refuse(facts.name, "only-when-locked-in", model=rows[0].model)
    return _published_head(case, facts, rows, exact=bool(exact))


def _loads(case: PickCase, row: PublishedDrafter, facts: Method) -> bool:
    """Return whether a published drafter is of a method, and of a format and a class that the release reads."""
    kind = "peagle" if row.parallel_drafting else row.method
    readable = row.format == "plain" or kind in case.release.table("speculators_types")
    built = not row.architecture or row.architecture in case.release.table("architectures")
    return row.method == facts.name and readable and built


def _given_head(case: PickCase, facts: Method, given: GivenDrafter) -> Proposal:
    block = given.drafter.config.get("block_size")
    most = block - facts.block_counts_anchor if isinstance(block, int) else facts.usual_k
    parallel = {"parallel_drafting": True} if facts.parallel == "option" and given.drafter.parallel else {}
    return Proposal(
        method=facts.name,
        spec={"method": facts.name, "model": given.name, **parallel},
        place=facts.advice.rank,
        at_hand=True,
        lengths=_lengths(facts, most),
        work=_work(case, facts, most, given.drafter.config),
        kv_bytes_per_token=_kv(case, facts, most, given.drafter.config),
        args=_backend(case, facts),
        reasons=(give_advice("given-drafter", model=given.name),),
    )


def _published_head(case: PickCase, facts: Method, rows: list[PublishedDrafter], *, exact: bool) -> Proposal:
    row, *others = rows
    most = row.num_speculative_tokens or facts.usual_k
    parallel = {"parallel_drafting": True} if row.parallel_drafting else {}
    shown = _cite(give_advice("k-published", most=most, model=row.model), row)
    return Proposal(
        method=facts.name,
        spec={"method": facts.name, "model": row.model, **parallel},
        place=facts.advice.rank,
        lengths=_lengths(facts, most),
        why_lengths=shown if row.num_speculative_tokens else None,
        work=_work(case, facts, most, None),
        kv_bytes_per_token=_kv(case, facts, most, None),
        args=_backend(case, facts),
        stand_in=_stand_in(case, facts),
        trained_on=row.trained_on,
        reasons=(_cite(give_advice("published-head", model=row.model), row),),
        caveats=tuple(_find_published_caveats(case, row, exact=exact)),
        alternatives=tuple(others),
    )


def _backend(case: PickCase, facts: Method) -> dict[str, str]:
    """Return the attention backend to set on a release that has few suitable ones."""
    known = case.release.table("noncausal_backends")
    chosen = "attention_backend" in case.requirements.args
    if facts.network != "one_pass" or not known or "FLASHINFER" in known or chosen:
        return {}
    return {"attention_backend": _NONCAUSAL}


def _stand_in(case: PickCase, facts: Method) -> Mapping[str, Any] | None:
    if facts.usual_class is None:
        return None
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
            "max_position_embeddings")  # fmt: skip
    target = read_text_config(case.target.config)
    like = {"architectures": [facts.usual_class], "model_type": "llama", "num_hidden_layers": 1}
    return like | {key: target[key] for key in keys if key in target}


def _lengths(facts: Method, most: int) -> tuple[int, ...]:
    """Return the k that a head allows: some methods draft the whole block, others any number of tokens up to `most`."""
    return (most,) if facts.drafts_whole_block else tuple(range(1, most + 1))


def _work(case: PickCase, facts: Method, most: int, config: Mapping[str, Any] | None) -> Work | None:
    return find_drafter_work(facts.name, most, case.target.config, config, case.precision, case.tensor_parallel_size)


def _kv(case: PickCase, facts: Method, most: int, config: Mapping[str, Any] | None) -> float:
    try:
        return count_drafter_kv(facts.name, most, case.target.config, config, case.tensor_parallel_size)
    except InvalidSetup:
        return 0.0


def _propose_lookup(case: PickCase, facts: Method) -> Proposal | Refusal:
    traffic, advice = case.requirements.traffic, facts.advice
    if traffic.text_in_pictures and (facts.remembers != "answers" or traffic.overlap == "none"):
        return _refuse(facts.name, "text-in-pictures")
    if traffic.overlap == "none" and not traffic.repetitive:
        return _refuse(facts.name, "no-overlap", traffic=traffic.kind or "this traffic")
    sizes = _STRICT_LOOKUP if STRUCTURED_OUTPUT in traffic.parameters else _SHORT_LOOKUP
    rank = advice.rank if traffic.repetitive else advice.rank_without_repetition
    repeats = "repetitive-traffic" if traffic.repetitive or traffic.overlap == "high" else "overlap-some"
    overlap = give_advice(repeats, traffic=traffic.kind or f"traffic with {traffic.overlap} overlap")
    return Proposal(
        method=facts.name,
        spec={"method": facts.name}
        | {key: size for key, size in zip(_LOOKUP_KEYS, sizes, strict=True) if key in facts.keys},
        place=advice.rank if rank is None else rank,
        lengths=tuple(range(1, facts.usual_k + 1)),
        why_lengths=give_advice("k-of-suffix") if facts.default_k_key else None,
        bound=_longest_suffix(case) if facts.default_k_key else None,
        reasons=(overlap, give_advice("no-artefact")),
    )


def _longest_suffix(case: PickCase) -> int | None:
    """Return the longest draft: at most a factor times the match, and both together within the depth of the tree."""
    fields = case.release.table("spec_fields")
    depth = fields.get("suffix_decoding_max_tree_depth", {}).get("default")
    factor = fields.get("suffix_decoding_max_spec_factor", {}).get("default")
    if not isinstance(depth, int) or not isinstance(factor, int | float):
        return None
    return max(1, int(depth * factor / (1 + factor)))


def _propose_native(case: PickCase, facts: Method) -> Proposal | Refusal:
    """Return the proposal of modules that the target was trained with, under the name that the release has for them."""
    table, target = case.release.table("mtp_remap"), case.target
    row = next((table[name] for name in (target.model_type, *target.architectures) if name in table), None)
    modules = None if row is None else _count_modules(case, row)
    names = case.release.table("methods")
    apart = next((each for each in (*case.published, *case.similar) if each.method == facts.name), None)
    if apart is not None:
        row, modules = {"model_type": f"{target.model_type}_{facts.name}"}, 1
    if row is None or modules == 0:
        none = f"{target.model_type} ships without them" if target.model_type else "nothing is known of the model"
        why = "its config says 0" if row is not None else none
        return _refuse(facts.name, "no-native-modules", target=target.name, why=why)
    alias = str(row.get("model_type") or target.model_type)
    if alias not in names and (apart or facts.name not in names):
        what = f"vLLM {case.release} has no MTP for {target.model_type}."
        return _refuse(facts.name, "not-in-release", what=what)
    copy, native, count = target.copy, find_native(target.model_type), modules or 1
    shown = apart or native
    most = max(count, (shown.num_speculative_tokens or 1) if shown else 1)
    source = shown.source if shown else f"{count} trained module{'s' if count > 1 else ''}"
    return Proposal(
        method=facts.name,
        spec={"method": facts.name if facts.name in names else alias} | ({"model": apart.model} if apart else {}),
        place=facts.advice.rank + (0 if apart or copy is None or copy.keeps_modules else _BEHIND_HEADS),
        lengths=tuple(k for k in range(1, most + 1) if k <= count or k % count == 0),
        why_lengths=give_advice("k-of-modules", most=most, source=source),
        work=_work(case, facts, 1, None),
        kv_bytes_per_token=_kv(case, facts, 1, None),
        reasons=(
            _cite(give_advice("published-head", model=apart.model), apart)
            if apart
            else give_advice("native-modules", target=target.name)
            if copy is None or copy.keeps_modules
            else give_advice("copied-modules", target=target.name, base=copy.base_name),
        ),
        caveats=tuple(_find_published_caveats(case, apart, exact=apart in case.published)) if apart else (),
    )


def _count_modules(case: PickCase, row: Mapping[str, Any]) -> int | None:
    """Return the number of modules according to the config. None if it gives none."""
    field = row.get("n_predict")
    if isinstance(field, int):
        return field
    for config in (case.target.config, case.target.text_config):
        count = config.get(str(field))
        if isinstance(count, int):
            return count
    return None


def _propose_draft_model(case: PickCase, facts: Method) -> Proposal | Refusal:
    given = next((each for each in case.given if not each.drafter.is_head), None)
    rows = [row for row in (*case.published, *case.similar) if row.method == facts.name]
    if given is None and not rows:
        return _refuse_no_drafter(case, facts)
    name = given.name if given else rows[0].model
    found = find_model_config(name)
    config = {} if found is None else found.config
    work = find_work(config, precision_of(config), case.tensor_parallel_size)
    vocabularies = _vocabularies(case, config)
    family = give_advice("small-family-model", model=name)
    published = () if given else _find_published_caveats(case, rows[0], exact=rows[0] in case.published)
    return Proposal(
        method=facts.name,
        spec={"method": facts.name, "model": name, **vocabularies},
        place=facts.advice.rank,
        at_hand=given is not None,
        lengths=tuple(range(1, facts.usual_k + 1)),
        work=work,
        kv_bytes_per_token=_kv(case, facts, facts.usual_k, config or None),
        reasons=(give_advice("given-drafter", model=name) if given else _cite(family, rows[0]),),
        caveats=(*published, *_find_model_caveats(case, name, work, padded=bool(vocabularies))),
        alternatives=tuple(rows[0 if given else 1 :]),
    )


def _vocabularies(case: PickCase, draft: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that allow vocabularies of different sizes, if they differ and the release has such keys."""
    sizes = {config.get("vocab_size") for config in (case.target.text_config, draft)}
    if len(sizes - {None}) < 2 or "use_heterogeneous_vocab" not in case.release.table("spec_fields"):
        return {}
    return {"use_heterogeneous_vocab": True}


def _find_model_caveats(case: PickCase, name: str, work: Work | None, *, padded: bool) -> Iterator[Finding]:
    if padded:
        yield give_advice("unequal-vocabularies", model=name)
    if work is not None and case.machine is not None:
        ratio, numbers = case.machine.work.weights / work.weights, get_advice("size-ratio").numbers
        if not numbers["least"] <= ratio <= numbers["most"]:
            yield give_advice("size-ratio", ratio=ratio, model=name)
