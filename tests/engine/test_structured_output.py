"""Structured output: it always matches, speculation changes no token of it, and requests beside it notice nothing."""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from scipy import stats
from tests.support.combinations import EVERY_CASE, taking_turns
from tests.support.every_method import METHODS, WITH_MODEL, make_config

from draftwise import LLM, SamplingParams, StructuredOutputsParams
from draftwise.core import InvalidSetup
from draftwise.engine.engine_outputs import CompletionOutput
from draftwise.engine.sampling import grammar
from draftwise.engine.step.scheduler import EngineRequest

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["function", "class"]},
        "name": {"type": "string", "maxLength": 5},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["kind", "name", "lines"],
    "additionalProperties": False,
}
FORMS = {
    "schema": StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
    "regex": StructuredOutputsParams(regex=r"def [a-z]{2,9}\((x|y, z)?\):"),
    "choice": StructuredOutputsParams(choice=["yes", "no", "nope, never"]),
    "grammar": StructuredOutputsParams(grammar='root ::= "[" [0-9] ("," [0-9]){3,9} "]"'),
    "free": None,
}
PROMPTS = ["abcabcabcabc", "def f(x):\n    return x + 1\n\n\ndef g(x):\n"]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SITUATIONS: dict[str, dict[str, Any]] = {
    "plenty": {},
    "a step behind": {"lag": 1},
    "preempted": {"num_gpu_blocks_override": 14, "max_model_len": 208, "max_num_batched_tokens": 16},
}
SETTINGS: dict[str, Any] = {"dtype": "float64", "device": "cpu"}
Outputs = list[CompletionOutput]


def generate(llm: LLM, *, max_tokens: int = 60, **params: Any) -> Outputs:
    """Return an output for each prompt and form, all in one batch."""
    cases = list(product(PROMPTS, FORMS.values()))
    wanted = [SamplingParams(max_tokens=max_tokens, structured_outputs=form, **params) for _, form in cases]
    return [each.outputs[0] for each in llm.generate([prompt for prompt, _ in cases], wanted)]


def check(outputs: Outputs) -> None:
    """Assert that every output matches its form."""
    by_form = zip(list(FORMS) * len(PROMPTS), outputs, strict=True)
    for form, output in by_form:
        if form == "free":
            continue
        assert output.finish_reason == "stop"
        if form == "schema":
            jsonschema.validate(json.loads(output.text), SCHEMA)
        elif form == "choice":
            assert output.text in FORMS[form].choice
        else:
            assert re.fullmatch(FORMS[form].regex or r"\[\d(,\d){3,9}\]", output.text)


def tokens_of(outputs: Outputs) -> list[tuple[list[int], str | None]]:
    return [(output.token_ids, output.finish_reason) for output in outputs]


@pytest.fixture(scope="module")
def plain(tiny_target: Path) -> Outputs:
    outputs = generate(LLM(str(tiny_target), **SETTINGS), temperature=0)
    check(outputs)
    return outputs


def test_requests_beside_structured_ones_notice_nothing(tiny_target: Path, plain: Outputs) -> None:
    alone = LLM(str(tiny_target), **SETTINGS).generate(PROMPTS, SamplingParams(temperature=0, max_tokens=60))
    free = plain[len(FORMS) - 1 :: len(FORMS)]
    assert tokens_of(free) == tokens_of([each.outputs[0] for each in alone])


@pytest.mark.parametrize(
    ("name", "situation"),
    [
        *taking_turns(METHODS, ["plenty", "a step behind"]),
        *product(["ngram", "draft_model", "eagle3", "mtp"], ["preempted"]),
    ],
)
def test_speculation_changes_no_token(
    name: str, situation: str, tiny_target: Path, tiny_draft: Path, plain: Outputs, tmp_path: Path
) -> None:
    spec = make_config(name, tiny_target, tiny_draft, tmp_path / "drafter")
    llm = LLM(str(tiny_target), speculative_config=spec, **SETTINGS, **SITUATIONS[situation])
    assert tokens_of(generate(llm, temperature=0)) == tokens_of(plain)
    counted = llm.engine.stats()
    assert counted.spec.num_drafts > 0, "the method must really have drafted"
    assert (counted.num_preemptions > 0) == (situation == "preempted")
    assert counted.kv_cache_usage == 0
    if name == "ngram":
        assert counted.spec.num_drafts > counted.spec.drafted_per_pos[0], "a draft that a grammar refuses was made too"
    if name == "self_draft":
        assert counted.spec.num_accepted_tokens > 0


@pytest.mark.parametrize("name", ["ngram", "eagle3", "mtp"])
def test_sampled_output_matches_too(name: str, tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    spec = make_config(name, tiny_target, tiny_draft, tmp_path / "drafter")
    if name in WITH_MODEL:
        spec |= {"draft_sample_method": "probabilistic"}
    check(generate(LLM(str(tiny_target), speculative_config=spec, **SETTINGS), seed=3, top_k=40))


def test_a_draft_that_is_accepted_by_chance_matches_too(tiny_target: Path) -> None:
    spec = {"method": "draft_model", "model": str(tiny_target), "num_speculative_tokens": 3}
    spec |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.8, 0.7]}
    llm = LLM(str(tiny_target), speculative_config=spec, **SETTINGS)
    check(generate(llm, temperature=0))
    assert llm.engine.stats().spec.num_accepted_tokens > 0


NUM_SAMPLES = 2000 if EVERY_CASE else 1000


@pytest.mark.parametrize("name", ["plain", "ngram", "draft_model", "eagle3"])
def test_sampled_tokens_follow_the_targets_distribution(
    name: str, tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    """Of tokens that the grammar allows, each has its probability under the target, renormalised."""
    settings = SETTINGS | {"max_model_len": 64}
    target = LLM(str(tiny_target), **settings)
    encode, prompt = target.get_tokenizer().encode, [65, 66, 65, 66, 65, 66]
    letters, (a,) = encode(string.ascii_letters), encode("a")
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=target.engine.shape.vocab_size)
    (output,) = target.generate({"prompt_token_ids": [*prompt, a]}, params)
    found = output.outputs[0].logprobs[0]
    probs = torch.tensor([found[token].logprob for token in letters], dtype=torch.float64).softmax(0)
    expected = dict(zip(letters, (NUM_SAMPLES * probs).tolist(), strict=True))

    spec = None
    if name != "plain":
        spec = make_config(name, tiny_target, tiny_draft, tmp_path / "drafter")
        spec |= {"draft_sample_method": "probabilistic"} if name in WITH_MODEL else {}
    llm = LLM(str(tiny_target), speculative_config=spec, max_num_seqs=256, **settings)
    form = StructuredOutputsParams(regex="a[A-Za-z]{3}")  # the first token comes with the prompt, without a draft
    params = SamplingParams(max_tokens=4, n=NUM_SAMPLES, seed=1, structured_outputs=form)
    (output,) = llm.generate({"prompt_token_ids": prompt}, params)
    seen = Counter(completion.token_ids[1] for completion in output.outputs)
    assert set(seen) <= set(expected)

    def p_value(seen: Mapping[int, int], expected: Mapping[int, float]) -> float:
        common = [token for token, number in expected.items() if number >= 5]
        rest = NUM_SAMPLES - sum(seen[token] for token in common), NUM_SAMPLES - sum(map(expected.get, common))
        numbers = [*((seen[token], expected[token]) for token in common), rest]
        return stats.chisquare(*zip(*(each for each in numbers if each[1] > 0), strict=True)).pvalue

    assert p_value(seen, expected) > 1e-4
    assert p_value(seen, dict(zip(expected, reversed(expected.values()), strict=True))) < 1e-4


def test_log_probabilities_are_those_under_the_grammar(tiny_target: Path) -> None:
    form = StructuredOutputsParams(choice=["a", "b"])
    params = SamplingParams(temperature=0, logprobs=3, structured_outputs=form)
    (output,) = LLM(str(tiny_target), **SETTINGS).generate(PROMPTS[0], params)
    candidates = output.outputs[0].logprobs[0]
    allowed = [entry.logprob for entry in candidates.values() if entry.logprob > -torch.inf]
    assert len(allowed) == 2
    assert sum(torch.tensor(allowed).exp()) == pytest.approx(1)


def test_where_it_ends(tiny_target: Path) -> None:
    llm = LLM(str(tiny_target), speculative_config=NGRAM, **SETTINGS)

    def ends(regex: str, **params: Any) -> tuple[str, str | None]:
        form = StructuredOutputsParams(regex=regex)
        (output,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, structured_outputs=form, **params))
        return output.outputs[0].text, output.outputs[0].finish_reason

    assert ends("a{30}", max_tokens=7) == ("a" * 7, "length")
    assert ends("a{7}", max_tokens=7) == ("a" * 7, "stop")
    assert ends("^a{7}$", max_tokens=60, ignore_eos=True) == ("a" * 7, "stop")
    assert ends("a{7}", max_tokens=60, min_tokens=20) == ("a" * 7, "stop"), "nothing may follow"
    assert ends("", max_tokens=60, min_tokens=2) == ("", "stop")
    assert ends("aabaab", max_tokens=60, stop="b") == ("aa", "stop")
    forbidden = {llm.get_tokenizer().encode("b")[0]: -1e300}  # the grammar asks for what the request all but forbids
    assert ends("aab", max_tokens=60, logit_bias=forbidden) == ("aab", "stop")
    assert ends("aab", max_tokens=60, bad_words=["b"]) == ("aa", "abort"), "no token is left; nothing hangs"
    assert ends("ab?", max_tokens=60, bad_words=["b"], min_tokens=5) == ("a", "stop"), "complete as it is"
    llm.engine.scheduler.pool.check_integrity()
    assert llm.engine.stats().kv_cache_usage == 0


@pytest.mark.parametrize("name", ["ngram", "suffix", "draft_model", "eagle3", "dflash"])
def test_a_request_without_a_way_out_disturbs_no_other(
    name: str, tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    spec = make_config(name, tiny_target, tiny_draft, tmp_path / "drafter")
    llm = LLM(str(tiny_target), speculative_config=spec, **SETTINGS)
    form = StructuredOutputsParams(regex="a{9}bc")
    dead = SamplingParams(temperature=0, max_tokens=40, structured_outputs=form, bad_words=["b"])
    free = SamplingParams(temperature=0, max_tokens=40)
    stopped, other = llm.generate([PROMPTS[0], PROMPTS[1]], [dead, free])
    assert (stopped.outputs[0].text, stopped.outputs[0].finish_reason) == ("a" * 9, "abort")
    (alone,) = LLM(str(tiny_target), **SETTINGS).generate(PROMPTS[1], free)
    assert other.outputs[0].token_ids == alone.outputs[0].token_ids


@pytest.mark.parametrize("spec", [None, NGRAM])
def test_what_is_found_beside_the_steps_is_the_same(
    spec: dict[str, Any] | None, tiny_target: Path, plain: Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "_LONG", 0)
    llm = LLM(str(tiny_target), speculative_config=spec, **SETTINGS)
    assert tokens_of(generate(llm, temperature=0)) == tokens_of(plain)
    check(generate(llm, seed=3, top_k=40))


class _Held(Executor):
    """Does nothing until it is told to."""

    num_busy = 0

    def __init__(self) -> None:
        self._jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        self._jobs.append((Future(), work))
        return self._jobs[-1][0]

    def release(self) -> None:
        jobs, self._jobs = self._jobs, []
        for future, work in jobs:
            future.set_result(work())


def test_nobody_waits_for_a_mask_of_another(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "_LONG", 0)
    engine, held = LLM(str(tiny_target), **SETTINGS).engine, _Held()
    engine.grammars._maskers = held  # type: ignore[assignment]
    for name, form in {"held": StructuredOutputsParams(regex="[a-z]{40}"), "free": None}.items():
        params = SamplingParams(max_tokens=40, ignore_eos=True, structured_outputs=form)
        engine.add(EngineRequest(request_id=name, prompt_token_ids=[1, 2], params=params))
    counts: Counter[str] = Counter()

    def step(times: int) -> None:
        for _ in range(times):
            _, deltas = engine.step(())
            counts.update({delta.request_id: len(delta.token_ids) for delta in deltas})

    step(6)
    assert counts == {"held": 1, "free": 6}, "the first mask was found when the grammar was compiled"
    held.release()
    step(6)
    assert counts == {"held": 2, "free": 12}
    engine.abort("free")
    step(3)
    assert counts["held"] == 2, "a step without work is none"
    held.release()
    step(1)
    assert counts["held"] == 3


def test_several_completions_of_a_prompt_have_places_of_their_own(tiny_target: Path) -> None:
    form = StructuredOutputsParams(regex="[a-z]{3}[0-9]{3}")
    params = SamplingParams(n=5, seed=2, structured_outputs=form)
    (output,) = LLM(str(tiny_target), speculative_config=NGRAM, **SETTINGS).generate(PROMPTS[0], params)
    texts = [completion.text for completion in output.outputs]
    assert all(re.fullmatch(form.regex, text) for text in texts)
    assert len(set(texts)) > 1


def test_a_grammar_that_cannot_be_used_is_refused_and_leaves_nothing_behind(tiny_target: Path) -> None:
    engine = LLM(str(tiny_target), **SETTINGS).engine
    form = StructuredOutputsParams(regex="(")
    request = EngineRequest(request_id="1", prompt_token_ids=[1], params=SamplingParams(structured_outputs=form))
    with pytest.raises(InvalidSetup, match="unclosed group"):
        engine.add(request)
    assert not engine.has_work()


def test_without_a_tokenizer_there_is_none(tiny_target: Path) -> None:
    llm = LLM(str(tiny_target), skip_tokenizer_init=True, **SETTINGS)
    with pytest.raises(InvalidSetup, match="Text prompts need a tokenizer, but skip_tokenizer_init is set"):
        llm.generate([[1, 2]], SamplingParams(structured_outputs=FORMS["choice"]))
