"""The engine as a whole: it says what transformers says, and speculation never changes a word."""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.support.combinations import EVERY_CASE, taking_turns
from tests.support.every_method import METHODS, make_config

from draftwise import LLM, SamplingParams
from draftwise.core import InvalidSetup
from draftwise.engine.engine_outputs import RequestOutput
from draftwise.engine.proposers.extract_hidden_states import hidden_states_path
from draftwise.engine.proposers.proposer import Confirmed
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.step.scheduler import EngineRequest
from draftwise.engine.step.threads import StepThreads

DEVICE = os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu")

PROMPTS = [
    "abcabcabcabcabc",
    "the cat sat on the mat, the cat sat on the",
    "x",
    "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 1\n" * 2,
    "0123456789" * 12,
]

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}

SITUATIONS: dict[str, dict[str, Any]] = {
    "plenty": {},
    "no prefix cache": {"enable_prefix_caching": False},
    "chunked": {"max_num_batched_tokens": 16},
    "preempted": {"num_gpu_blocks_override": 14, "max_model_len": 208},
    "unequal k": {"max_num_seqs": 3, "block_size": 4},
}
AGAIN = SITUATIONS.keys() if EVERY_CASE else {"no prefix cache", "chunked", "preempted"}
"""Where everything is asked for twice: the second time comes from the prefix cache, if there is one."""


def make_llm(target: Path, spec: dict[str, Any] | None = None, **settings: Any) -> LLM:
    defaults = {"dtype": "float64", "device": DEVICE}
    if DEVICE != "cpu":  # the default share of a GPU's memory would leave none to the next engine
        defaults |= {"kv_cache_memory_bytes": 32 * 2**20} if "kv_cache_memory_bytes" not in settings else {}
    return LLM(str(target), speculative_config=spec, **(defaults | settings))


UNEQUAL = [0, 1, 2, None, 1]
"""Requests with no draft, short drafts and drafts as long as the method makes them, in one batch."""


def self_draft(target: Path) -> dict[str, Any]:
    return {"method": "draft_model", "num_speculative_tokens": 3, "model": str(target)}


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def configs(tiny_target: Path, tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A speculative config for each of METHODS."""
    folder = tmp_path_factory.mktemp("drafters")
    return {name: make_config(name, tiny_target, tiny_draft, folder / name.replace(" ", "_")) for name in METHODS}


@pytest.fixture(scope="module")
def plain(tiny_target: Path) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=24)
    return tokens_of(make_llm(tiny_target).generate(PROMPTS, params))


def test_plain_greedy_equals_transformers(tiny_target: Path, plain: list[list[int]]) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float64)
    llm = make_llm(tiny_target)
    for prompt, ours in zip(PROMPTS, plain, strict=True):
        ids = torch.tensor([llm.get_tokenizer().encode(prompt)])
        theirs = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)[0, ids.shape[1] :].tolist()
        assert ours == theirs


Drafts = dict[tuple[int, ...], list[int]]
"""What was drafted after a text."""


@pytest.fixture(scope="module")
def drafts_of() -> defaultdict[str, Drafts]:
    """What each method drafted in the situations so far."""
    return defaultdict(dict)


def watch(llm: LLM, texts: list[list[int]], drafts: Drafts) -> None:
    """Compare what is drafted with `drafts`, add to them, and make a part of each draft right."""
    proposer = llm.engine.proposer
    assert proposer is not None
    propose = proposer.propose

    def watched(new: Confirmed, k: int) -> Draft:
        draft = propose(new, k)
        sequences = {sequence.slot: sequence for sequence in llm.engine.scheduler.running}
        for b, slot in enumerate(new.slots_B.tolist()):
            known, drafted = tuple(sequences[slot].tokens), draft.tokens_BK[b, : draft.lengths_B[b]]
            if not len(drafted):
                continue
            expected = drafts.setdefault(known, drafted.tolist())
            shorter = min(len(expected), len(drafted))
            assert drafted[:shorter].tolist() == expected[:shorter], "a draft follows from the text alone"
            text = next(text for text in texts if tuple(text[: len(known)]) == known)
            right = text[len(known) : len(known) + len(known) % 4][: len(drafted)]
            drafted[: len(right)] = torch.tensor(right, dtype=torch.long)
        return draft

    proposer.propose = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", METHODS)
def test_neither_words_nor_drafts_depend_on_the_situation(
    name: str,
    situation: str,
    configs: dict[str, dict[str, Any]],
    drafts_of: defaultdict[str, Drafts],
    tiny_target: Path,
    plain: list[list[int]],
) -> None:
    """Greedy output is plain decoding's, and what is drafted after a text is the same however it came about."""
    llm = make_llm(tiny_target, configs[name], **SITUATIONS[situation])
    texts = [llm.get_tokenizer().encode(prompt) + output for prompt, output in zip(PROMPTS, plain, strict=True)]
    watched = name != "suffix" and DEVICE == "cpu"  # suffix also drafts from other requests; a graph calls nobody
    if watched:
        watch(llm, texts, drafts_of[name])
    wishes = UNEQUAL if situation == "unequal k" else [None] * len(PROMPTS)
    for _ in range(1 + (situation in AGAIN)):
        params = [SamplingParams(temperature=0, max_tokens=24, num_speculative_tokens=wish) for wish in wishes]
        assert tokens_of(llm.generate(PROMPTS, params)) == plain
    stats = llm.engine.stats()
    assert stats.spec.num_drafts > 0, "the method must really have drafted"
    assert stats.spec.num_accepted_tokens > 0 or not watched
    assert (stats.num_preemptions > 0) == (situation == "preempted")
    if situation in AGAIN - {"preempted"}:
        assert (stats.prefix_cache_hits > 0) == (situation != "no prefix cache")
    assert stats.kv_cache_usage == 0


@pytest.mark.parametrize(("name", "situation"), taking_turns([*METHODS, "plain"], [*SITUATIONS], each=2))
def test_a_step_behind_nothing_changes(
    name: str,
    situation: str,
    configs: dict[str, dict[str, Any]],
    tiny_target: Path,
    plain: list[list[int]],
) -> None:
    """With uniform padded rows, and tokens that the host knows a step late."""
    llm = make_llm(tiny_target, configs.get(name), lag=1, **SITUATIONS[situation])
    lengths = [24, 16, 24, 7, 20]
    for _ in range(1 + (situation in AGAIN)):
        params = [SamplingParams(temperature=0, max_tokens=length) for length in lengths]
        expected = [tokens[:length] for tokens, length in zip(plain, lengths, strict=True)]
        assert tokens_of(llm.generate(PROMPTS, params)) == expected
    llm.engine.scheduler.pool.check_integrity()
    assert llm.engine.stats().kv_cache_usage == 0


def test_a_step_behind_requests_come_and_go(
    configs: dict[str, dict[str, Any]],
    tiny_target: Path,
    plain: list[list[int]],
) -> None:
    """Aborted requests leave at once; whoever takes their pages is not disturbed by what is still under way."""
    llm = make_llm(tiny_target, configs["eagle3"], num_gpu_blocks_override=40, max_num_seqs=3, lag=1)
    engine, found, pending = llm.engine, defaultdict(list), ()
    prompts = [engine.tokenizer.encode(prompt) for prompt in PROMPTS]
    for number in range(24):
        which = number % len(prompts)
        params = SamplingParams(temperature=0, max_tokens=20)
        engine.add(EngineRequest(request_id=f"{number}", prompt_token_ids=prompts[which], params=params))
        for _ in range(number % 4):
            pending, deltas = engine.step(pending)
            for delta in deltas:
                found[delta.request_id] += delta.token_ids
        if number % 3 == 0:
            engine.abort(f"{number}")
    while engine.has_work():
        pending, deltas = engine.step(pending)
        for delta in deltas:
            found[delta.request_id] += delta.token_ids
    for number in range(24):
        text = plain[number % len(prompts)][:20]
        assert found[f"{number}"] == (text[: len(found[f"{number}"])] if number % 3 == 0 else text)
    assert engine.stats().kv_cache_usage == 0


def test_a_drafter_equal_to_the_target_is_always_right(configs: dict[str, dict[str, Any]], tiny_target: Path) -> None:
    llm = make_llm(tiny_target, configs["self_draft"])
    llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24))
    assert llm.engine.stats().spec.acceptance_rate == 1.0


@pytest.mark.parametrize("name", ["draft_model", "eagle3", "mtp", "dflash", "medusa"])
def test_a_request_of_one_token_leaves_its_prompt_to_the_next(
    name: str, configs: dict[str, dict[str, Any]], tiny_target: Path, plain: list[list[int]]
) -> None:
    llm = make_llm(tiny_target, configs[name])
    llm.generate(PROMPTS[4], SamplingParams(temperature=0, max_tokens=1))
    (output,) = llm.generate(PROMPTS[4], SamplingParams(temperature=0, max_tokens=24))
    assert output.outputs[0].token_ids == plain[4]
    assert llm.engine.stats().prefix_cache_hits > 0


def test_extracting_hidden_states_changes_no_word(tiny_target: Path, plain: list[list[int]], tmp_path: Path) -> None:
    """And what is written equals transformers' hidden states."""
    import transformers

    layers = {"hf_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
    spec = {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": layers}
    llm = make_llm(tiny_target, spec, hidden_states_folder=str(tmp_path), max_num_batched_tokens=16)
    for start, length in ((0, 24), (4, 1)):
        outputs = llm.generate(PROMPTS[start:], SamplingParams(temperature=0, max_tokens=length))
        assert tokens_of(outputs) == [tokens[:length] for tokens in plain[start:]]
        assert llm.engine.stats().kv_cache_usage == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float64)
    for prompt in PROMPTS:
        ids = llm.get_tokenizer().encode(prompt)
        written = load_file(hidden_states_path(tmp_path, ids))
        assert written["token_ids"].tolist() == ids
        expected = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        expected_TNH = torch.stack(expected[:2], dim=2)[0].detach()
        torch.testing.assert_close(written["hidden_states"][:, :2], expected_TNH, atol=1e-4, rtol=0)


def test_an_end_token_outside_the_vocabulary_ends_nothing(tiny_target: Path, tmp_path: Path) -> None:
    for file in tiny_target.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [256, 300, 1000000000000]}')
    llm = make_llm(tmp_path)
    for params in (SamplingParams(min_tokens=4, max_tokens=5), SamplingParams(min_tokens=2, max_tokens=3, seed=1)):
        assert tokens_of(llm.generate(["x"], params))[0]


@pytest.fixture(scope="module")
def sampled(tiny_target: Path) -> tuple[list[SamplingParams], list[list[int]]]:
    """Sampling parameters of all kinds, and what plain decoding says with them."""
    params = SamplingParams(
        temperature=0.8,
        top_p=0.9,
        min_p=0.01,
        seed=5,
        max_tokens=28,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={65: 2.0},
        bad_words=["zq"],
        min_tokens=4,
    )
    mixed = [params, replace(params, temperature=0.0), replace(params, top_k=9), params, replace(params, seed=6)]
    return mixed, tokens_of(make_llm(tiny_target).generate(PROMPTS, mixed))


@pytest.mark.parametrize(("name", "situation"), taking_turns(METHODS, ["plenty", "preempted", "unequal k"]))
def test_deterministic_drafts_keep_the_sampled_text_too(
    name: str,
    situation: str,
    configs: dict[str, dict[str, Any]],
    tiny_target: Path,
    sampled: tuple[list[SamplingParams], list[list[int]]],
) -> None:
    params, expected = sampled
    if situation == "unequal k":
        params = [replace(each, num_speculative_tokens=k) for each, k in zip(params, UNEQUAL, strict=True)]
    llm = make_llm(tiny_target, configs[name], **SITUATIONS[situation])
    for _ in range(1 + (situation in AGAIN)):
        assert tokens_of(llm.generate(PROMPTS, params)) == expected


@pytest.mark.parametrize(("name", "situation"), [("plain", "preempted"), ("eagle3", "preempted"), ("eagle3", "plenty")])
def test_penalties_count_what_the_host_does_not_know_yet(
    name: str, situation: str, configs: dict[str, dict[str, Any]], tiny_target: Path
) -> None:
    """A step behind the device the text is the same, and so it is for a sequence that had to give way."""
    penalised = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, repetition_penalty=3, frequency_penalty=2)
    free = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    params = [penalised, replace(penalised, presence_penalty=0.5), free]
    params += [replace(penalised, temperature=0.8, seed=5), penalised]
    expected = tokens_of(make_llm(tiny_target).generate(PROMPTS, params))
    unpenalised = tokens_of(make_llm(tiny_target).generate(PROMPTS, free))
    assert [a == b for a, b in zip(expected, unpenalised, strict=True)] == [False, False, True, False, False]
    llm = make_llm(tiny_target, configs.get(name), lag=1, **SITUATIONS[situation])
    assert tokens_of(llm.generate(PROMPTS, params)) == expected
    assert not llm.engine.scheduler.running
    assert (llm.engine.stats().num_preemptions > 0) == (situation == "preempted")


def test_a_request_may_ask_for_fewer_drafts_or_none(tiny_target: Path, plain: list[list[int]]) -> None:
    """Speculative and plain requests share a batch, and k differs between them."""
    llm = make_llm(tiny_target, self_draft(tiny_target))
    wishes = UNEQUAL
    outputs = llm.generate(
        PROMPTS, [SamplingParams(temperature=0, max_tokens=24, num_speculative_tokens=k) for k in wishes]
    )
    assert tokens_of(outputs) == plain
    stats = llm.engine.stats().spec
    assert stats.num_drafts <= stats.num_draft_tokens < 3 * stats.num_drafts
    alone = make_llm(tiny_target, self_draft(tiny_target))
    alone.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=24, num_speculative_tokens=0))
    assert alone.engine.stats().spec.num_drafts == 0


def test_same_seed_same_output_whatever_else_is_in_the_batch(tiny_target: Path) -> None:
    llm = make_llm(tiny_target)
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=24)
    alone = tokens_of(llm.generate(PROMPTS[1], params))
    together = tokens_of(llm.generate(PROMPTS, [replace(params, seed=i) if i != 1 else params for i in range(5)]))
    assert together[1] == alone[0]


def test_probabilistic_drafts_are_accepted_when_the_drafter_is_the_target(tiny_target: Path) -> None:
    spec = self_draft(tiny_target) | {"draft_sample_method": "probabilistic"}
    llm = make_llm(tiny_target, spec)
    llm.generate(PROMPTS, SamplingParams(temperature=1.0, seed=1, max_tokens=24))
    assert llm.engine.stats().spec.acceptance_rate == 1.0


def test_prompts_in_small_pieces_between_steps_have_the_same_answers(tiny_target: Path) -> None:
    llm = make_llm(tiny_target, NGRAM)
    params = [SamplingParams(temperature=0, max_tokens=8 * i + 2, prompt_logprobs=i % 3 or None) for i in range(5)]
    expected = tokens_of(llm.generate(PROMPTS, params))
    llm = make_llm(tiny_target, NGRAM)
    llm.engine.scheduler.most_rows_between = 5
    assert tokens_of(llm.generate(PROMPTS[::-1], params[::-1]))[::-1] == expected


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU has passes of fixed sizes")
@pytest.mark.parametrize("spec", [None, NGRAM])
def test_prompts_share_the_pass_of_decoding_sequences_while_no_bit_depends_on_it(
    spec: dict[str, Any] | None, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm(tiny_target, spec, dtype="bfloat16", max_num_batched_tokens=48, max_num_seqs=3)
    runner, passes, kinds = llm.engine.runner, [0], set()
    forward, run = runner.model.forward, runner.run

    def counted(tokens_N: torch.Tensor, *args: Any) -> Any:
        passes[0] += 1
        return forward(tokens_N, *args)

    def watched(schedule: Any) -> Any:
        before, launched = passes[0], run(schedule)
        if schedule.chunks and schedule.decodes:
            rows = sum(chunk.length for chunk in schedule.chunks) + (schedule.k + 1) * len(schedule.decodes)
            assert passes[0] - before == (1 if rows <= 32 else 2)
            kinds.add(rows <= 32)
        return launched

    monkeypatch.setattr(type(runner.model), "__call__", lambda _, *args: counted(*args))
    monkeypatch.setattr(runner, "run", watched)
    params = [SamplingParams(temperature=0, max_tokens=4 * i + 2, prompt_logprobs=i % 3 or None) for i in range(5)]
    together = tokens_of(llm.generate(PROMPTS[::-1], params))
    assert kinds == {True, False}
    assert together == [tokens_of(llm.generate(*each))[0] for each in zip(PROMPTS[::-1], params, strict=True)]


def test_n_completions_share_a_prompt_whose_log_probabilities_are_told_once(tiny_target: Path) -> None:
    llm, params = make_llm(tiny_target), SamplingParams(n=4, seed=3, max_tokens=6, prompt_logprobs=2)
    alone = llm.generate(PROMPTS[3], replace(params, n=1))[0].prompt_logprobs
    (output,) = make_llm(tiny_target).generate(PROMPTS[3], params)
    assert output.prompt_logprobs == alone
    assert llm.engine.scheduler.num_cache_hits == 0
    llm.generate(PROMPTS[1], params)
    assert llm.engine.scheduler.num_cache_hits > 0, "the others take the pages of the first"


def test_n_completions_differ_and_share_the_prompt(tiny_target: Path) -> None:
    llm = make_llm(tiny_target)
    (output,) = llm.generate(PROMPTS[3], SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=12))
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3
    assert llm.engine.stats().prefix_cache_hits > 0


@pytest.mark.parametrize("spec", [None, "ngram"])
def test_stops(spec: str | None, tiny_target: Path, plain: list[list[int]]) -> None:
    llm = make_llm(tiny_target, NGRAM if spec else None)
    text = llm.get_tokenizer().decode(plain[1])
    needle = text[10:13]
    params = SamplingParams(temperature=0, max_tokens=24, stop=[needle])
    (output,) = llm.generate(PROMPTS[1], params)
    assert output.outputs[0].text == text[: text.index(needle)]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", needle)
    stop_id = plain[1][7]
    (output,) = llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=24, stop_token_ids=[stop_id]))
    assert output.outputs[0].token_ids == plain[1][: plain[1].index(stop_id) + 1]
    assert output.outputs[0].stop_reason == stop_id
    (output,) = llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=5))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (5, "length")


def test_context_limit_ends_a_completion(tiny_target: Path) -> None:
    llm = make_llm(tiny_target, NGRAM, max_model_len=64)
    (output,) = llm.generate("ab" * 30, SamplingParams(temperature=0, max_tokens=None))
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 64
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("spec", [None, "ngram"])
def test_logprobs_are_those_of_transformers(spec: str | None, tiny_target: Path) -> None:
    import transformers

    llm = make_llm(tiny_target, NGRAM if spec else None, max_num_batched_tokens=8)
    params = SamplingParams(temperature=0, max_tokens=10, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate(PROMPTS[0], params)
    ids = output.prompt_token_ids + output.outputs[0].token_ids
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float64)
    expected = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    found = (output.prompt_logprobs or [])[1:] + (output.outputs[0].logprobs or [])
    assert len(found) == len(ids) - 1
    for position, candidates in enumerate(found):
        token = ids[position + 1]
        assert candidates[token].logprob == pytest.approx(expected[position, token].item(), abs=1e-5)
        best = expected[position].argmax().item()
        assert candidates[best].rank == 1


def test_a_prompts_logprobs_come_in_pieces_before_its_first_token(tiny_target: Path) -> None:
    engine = make_llm(tiny_target).engine
    for name, length in (("long", 150), ("one token", 1)):
        params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=1)
        engine.add(EngineRequest(request_id=name, prompt_token_ids=list(range(40, 40 + length)), params=params))
    pieces: dict[str, list[list[Any]]] = defaultdict(list)
    begun, pending = set[str](), ()
    while engine.has_work():
        pending, deltas = engine.step(pending)
        for delta in deltas:
            if delta.prompt_logprobs is not None:
                assert delta.request_id not in begun
                pieces[delta.request_id].append(delta.prompt_logprobs)
            begun |= {delta.request_id} if delta.token_ids else set()
    assert [len(piece) for piece in pieces["long"]] == [65, 64, 21]
    assert pieces["long"][0][0] is None
    assert pieces["one token"] == [[None]]


def test_a_prompt_that_is_computed_twice_has_its_logprobs_once(tiny_target: Path) -> None:
    """The younger request is preempted between two chunks of its prompt."""
    engine = make_llm(
        tiny_target,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=14,
        max_model_len=208,
        enable_prefix_caching=False,
    ).engine
    old = SamplingParams(temperature=0, max_tokens=140, ignore_eos=True)
    engine.add(EngineRequest(request_id="old", prompt_token_ids=list(range(32, 92)), params=old))
    prompt, added, found, pending = list(range(40, 190)), False, [], ()
    num_tokens = 60
    while engine.has_work():
        if not added and num_tokens >= 62 and num_tokens % 16 == 14:  # the older one needs a page soon
            young = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1)
            engine.add(EngineRequest(request_id="young", prompt_token_ids=prompt, params=young))
            added = True
        pending, deltas = engine.step(pending)
        for delta in deltas:
            num_tokens += len(delta.token_ids) * (delta.request_id == "old")
            found += delta.prompt_logprobs or []
    assert engine.stats().num_preemptions > 0
    assert len(found) == len(prompt)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 4096}, "256 positions"),
        ({"kv_cache_memory_bytes": 1000}, "less than one sequence"),
        ({"max_nun_seqs": 4}, "Did you mean max_num_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs must be positive"),
    ],
)
def test_impossible_settings_are_explained(settings: dict[str, Any], words: str, tiny_target: Path) -> None:
    with pytest.raises(InvalidSetup, match=words):
        make_llm(tiny_target, None, **settings)


def test_impossible_requests_are_explained(tiny_target: Path) -> None:
    llm = make_llm(tiny_target)
    for prompt, words in [([], "no tokens|no prompts"), ([9999], "Token ids must lie"), ([65] * 256, "has 256 tokens")]:
        with pytest.raises(InvalidSetup, match=words):
            llm.generate({"prompt_token_ids": prompt}, SamplingParams())
    with pytest.raises(InvalidSetup, match="no prompts"):
        llm.generate([])


class ChangingThreads(StepThreads):
    """Another number of threads in every step; keeps how many rows of prompts each had."""

    def __init__(self) -> None:
        self.prompt_rows: list[int] = []

    @contextmanager
    def computing(self, *, prompt_rows: int, taken: int = 0) -> Iterator[None]:
        self.prompt_rows.append(prompt_rows)
        before = torch.get_num_threads()
        torch.set_num_threads(1 + len(self.prompt_rows) % 3)
        yield
        torch.set_num_threads(before)


@pytest.mark.skipif(DEVICE != "cpu", reason="threads of the CPU")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_words_do_not_depend_on_the_number_of_threads(dtype: str, tiny_target: Path) -> None:
    llm = make_llm(tiny_target, self_draft(tiny_target), dtype=dtype, enable_prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=24)
    expected = tokens_of(llm.generate(PROMPTS, params))
    llm.engine.runner.threads = changing = ChangingThreads()
    assert tokens_of(llm.generate(PROMPTS, params)) == expected
    lengths = [len(llm.get_tokenizer().encode(prompt)) for prompt in PROMPTS]
    assert sum(changing.prompt_rows) == sum(lengths)
    assert changing.prompt_rows.count(0) > 5


TYPES = {"bfloat16": {"dtype": "bfloat16"}, "int8": {"dtype": "auto", "quantization": "int8"}}


@pytest.fixture(scope="module")
def plain_by_type(tiny_target: Path) -> dict[str, list[list[int]]]:
    params = SamplingParams(temperature=0, max_tokens=24)
    return {name: tokens_of(make_llm(tiny_target, **each).generate(PROMPTS, params)) for name, each in TYPES.items()}


@pytest.mark.skipif(DEVICE != "cpu", reason="rows alone and among others on a CPU")
@pytest.mark.parametrize(("name", "situation"), taking_turns(METHODS, [*SITUATIONS], each=1))
@pytest.mark.parametrize("kind", TYPES)
def test_greedy_words_are_those_of_plain_decoding_in_every_type(
    kind: str,
    name: str,
    situation: str,
    configs: dict[str, dict[str, Any]],
    tiny_target: Path,
    plain_by_type: dict[str, list[list[int]]],
) -> None:
    """On a CPU a row has the same bits whatever stands next to it, though these types round."""
    llm = make_llm(tiny_target, configs[name], **TYPES[kind], **SITUATIONS[situation])
    for _ in range(2):  # the second time from the prefix cache, if there is one
        params = [SamplingParams(temperature=0, max_tokens=24, num_speculative_tokens=wish) for wish in UNEQUAL]
        assert tokens_of(llm.generate(PROMPTS, params)) == plain_by_type[kind]
    assert llm.engine.stats().spec.num_drafts > 0
