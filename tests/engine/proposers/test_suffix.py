import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.combinations import tries
from tests.support.lookup_cases import Confirming, drafts, repetitive_texts
from tests.support.suffix_model import SuffixModel

from draftwise.core import InvalidSetup
from draftwise.engine.proposers.suffix import SuffixProposer
from draftwise.lookup import suffix_nodes
from draftwise.lookup.suffix_cache import SuffixCache

DEFAULTS = {"max_tree_depth": 24, "max_cached_requests": 10_000, "max_spec_factor": 1.0, "min_token_prob": 0.1}
SLOTS = range(3)


class Lives(RuleBasedStateMachine):
    """Requests start (their prompt in chunks), grow in batches, end, are preempted and evicted, in any order."""

    @initialize(
        depth=st.sampled_from([1, 2, 3, 5, 9, 24]),
        max_cached=st.integers(0, 3),
        factor=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
        min_prob=st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0]),
    )
    def begin(self, depth, max_cached, factor, min_prob):
        self.proposer = SuffixProposer(
            SuffixCache(
                max_tree_depth=depth, max_cached_requests=max_cached, max_spec_factor=factor, min_token_prob=min_prob
            )
        )
        self.model = SuffixModel(depth, max_cached, factor, min_prob)
        self.names: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}
        self.num_prompt: dict[int, int] = {}
        self.num_started = 0
        self.confirming = Confirming()

    @rule(slot=st.sampled_from(SLOTS), text=repetitive_texts(max_size=25), share=st.floats(0, 1), k=st.integers(0, 6))
    def start(self, slot, text, share, k):
        """Begin a request with a part of its prompt, with its first token, or (preempted) with former output."""
        self.end(slot)
        self.names[slot], self.num_started = self.num_started, self.num_started + 1
        self.texts[slot] = []
        self.num_prompt[slot] = max(1, int(share * 1.5 * len(text)))
        self.feed({slot: text}, k)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), k=st.integers(0, 6))
    def grow(self, data, k):
        """Confirm a few more tokens of some requests, in any order of slots."""
        slots = data.draw(st.lists(st.sampled_from(sorted(self.names)), min_size=1, unique=True))
        self.feed({slot: data.draw(repetitive_texts(max_size=5)) for slot in slots}, k)

    @rule(slot=st.sampled_from(SLOTS))
    def end(self, slot):
        self.proposer.release(slot)
        self.confirming.release(slot)
        if slot in self.names:
            self.model.release(self.names.pop(slot))

    @invariant()
    def trees_are_sound(self):
        if hasattr(self, "proposer"):
            self.proposer.cache.check_integrity()

    def feed(self, rows, k):
        expected = []
        for slot, new in rows.items():
            num_prompt_left = max(0, self.num_prompt[slot] - len(self.texts[slot]))
            self.texts[slot] += new
            expected.append(self.model.step(self.names[slot], new[:num_prompt_left], new[num_prompt_left:], k))
        assert drafts(self.proposer.propose(self.confirming.confirm(rows, self.num_prompt), k)) == expected


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=tries(100), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def traffic(rng: random.Random, vocabulary: int, num_steps: int):
    """Yield batches of a small server: (slots that end, {slot: (request, its prompt if it is new, new output)})."""
    phrases = [[rng.randrange(vocabulary) for _ in range(rng.randrange(3, 40))] for _ in range(6)]

    def write(size: int) -> list[int]:
        phrase = rng.choice(phrases)
        start = rng.randrange(len(phrase))
        return [*phrase[start : start + size - 1], rng.randrange(vocabulary)]

    names: dict[int, int] = {}
    for step in range(num_steps):
        slots = rng.sample(range(4), rng.randrange(1, 5))
        ended = [slot for slot in slots if slot in names and rng.random() < 0.05]
        rows = {}
        for slot in slots:
            if slot in names and slot not in ended:
                rows[slot] = (names[slot], [], write(rng.randrange(1, 5)))
            else:
                names[slot] = 10 * step + slot
                rows[slot] = (names[slot], write(30), write(1))
        yield ended, rows


def propose_as_served(proposer: SuffixProposer, traffic, k: int):
    """Yield (ended slots, rows, our drafts) of each batch."""
    num_prompt: dict[int, int] = {}
    confirming = Confirming()
    for ended, rows in traffic:
        for slot in ended:
            proposer.release(slot)
            confirming.release(slot)
        num_prompt |= {slot: len(prompt) for slot, (_, prompt, _) in rows.items() if prompt}
        new = {slot: prompt + response for slot, (_, prompt, response) in rows.items()}
        yield ended, rows, drafts(proposer.propose(confirming.confirm(new, num_prompt), k))


@pytest.mark.parametrize("seed", range(40))
def test_drafts_are_those_of_the_definition(seed):
    rng = random.Random(seed)
    depth, max_cached, factor, min_prob = (
        rng.choice([1, 2, 3, 6, 24]),
        rng.choice([0, 1, 2, 6]),
        rng.choice([0.0, 0.7, 1.0, 2.0]),
        rng.choice([0.0, 0.1, 0.25, 0.5, 1.0]),
    )
    proposer = SuffixProposer(
        SuffixCache(
            max_tree_depth=depth, max_cached_requests=max_cached, max_spec_factor=factor, min_token_prob=min_prob
        )
    )
    model, k, names = SuffixModel(depth, max_cached, factor, min_prob), rng.choice([1, 3, 12]), {}
    for ended, rows, ours in propose_as_served(proposer, traffic(rng, rng.choice([2, 4, 40]), 40), k):
        for slot in ended:
            model.release(names[slot])
        names |= {slot: name for slot, (name, _, _) in rows.items()}
        assert ours == [model.step(name, prompt, response, k) for name, prompt, response in rows.values()]
    proposer.cache.check_integrity()


@pytest.mark.parametrize("vocabulary", [3, 20, 500])
@pytest.mark.parametrize("options", [DEFAULTS, {**DEFAULTS, "max_tree_depth": 6, "max_cached_requests": 4}])
def test_drafts_are_those_of_arctic_inference(options, vocabulary):
    arctic = pytest.importorskip("arctic_inference.suffix_decoding", reason="the oracle needs arctic-inference 0.1.1")
    depth, factor, min_prob = options["max_tree_depth"], options["max_spec_factor"], options["min_token_prob"]
    theirs = arctic.SuffixDecodingCache(depth, options["max_cached_requests"])
    names: dict[int, int] = {}
    texts: dict[int, list[int]] = {}
    num_drafted = 0
    served = propose_as_served(
        SuffixProposer(SuffixCache(**options)), traffic(random.Random(vocabulary), vocabulary, 400), 12
    )
    for ended, rows, ours in served:
        for slot in ended:
            theirs.stop_request(names[slot])
        expected = []
        for slot, (name, prompt, response) in rows.items():
            if prompt:
                names[slot], texts[slot] = name, prompt
                theirs.start_request(name, prompt)
            texts[slot] = texts[slot] + response
            theirs.add_active_response(name, response)
            expected.append(theirs.speculate(name, texts[slot][-depth:], 12, factor, 0.0, min_prob).token_ids)
        assert ours == expected
        num_drafted += sum(map(len, expected))
    assert num_drafted > 100


def test_default_arguments_draft_from_the_prompt_and_from_former_responses():
    confirming, proposer = Confirming(), SuffixProposer(SuffixCache())
    response = [9, 8, 7, 6, 5, 4]
    proposer.propose(confirming.confirm({0: [1, 2, 3, 9]}, {0: 3}), 0)
    proposer.propose(confirming.confirm({0: response[1:]}, {0: 3}), 0)
    proposer.release(0)
    confirming.release(0)
    own = proposer.propose(confirming.confirm({0: [1, 2, 3, 0, 1, 2]}, {0: 5}), 4)
    assert drafts(own) == [[3, 0]]  # as long as what matched
    former = proposer.propose(confirming.confirm({1: [0, 9, 8, 7]}, {1: 3}), 4)
    assert drafts(former) == [[6, 5, 4]]


def test_a_match_is_shorter_than_the_context():
    """The whole context of request 1 occurs in request 0's response, but only a proper suffix of it may match."""
    confirming, proposer = Confirming(), SuffixProposer(SuffixCache(max_spec_factor=4.0))
    proposer.propose(confirming.confirm({0: [1, 5]}, {0: 1}), 0)
    proposer.propose(confirming.confirm({0: [6, 7, 6, 8, 6, 8]}, {0: 1}), 0)
    assert drafts(proposer.propose(confirming.confirm({1: [5, 6]}, {1: 1}), 1)) == [[8]]


def test_no_global_tree_when_no_request_may_be_cached():
    confirming, proposer = Confirming(), SuffixProposer(SuffixCache(max_cached_requests=0))
    proposer.propose(confirming.confirm({0: [1, 5]}, {0: 1}), 0)
    proposer.propose(confirming.confirm({0: [6, 7, 8]}, {0: 1}), 0)
    assert drafts(proposer.propose(confirming.confirm({1: [2, 5, 6]}, {1: 2}), 3)) == [[]]


def test_the_output_of_a_preempted_sequence_is_counted_once():
    """5 was followed by 6 in the preempted one and by 7 twice in another: 6 counted twice would win the tie."""
    confirming, proposer = Confirming(), SuffixProposer(SuffixCache())
    proposer.propose(confirming.confirm({0: [1, 5]}, {0: 1}), 0)
    proposer.propose(confirming.confirm({0: [6]}, {0: 1}), 0)
    proposer.propose(confirming.confirm({1: [2, 5]}, {1: 1}), 0)
    proposer.propose(confirming.confirm({1: [7, 5, 7]}, {1: 1}), 0)
    proposer.release(0)
    confirming.release(0)
    proposer.propose(confirming.confirm({0: [1, 5, 6, 3]}, {0: 1}), 0)
    assert drafts(proposer.propose(confirming.confirm({2: [0, 5]}, {2: 1}), 1)) == [[7]]


def test_memory_is_reused_and_evicted():
    confirming, proposer = Confirming(), SuffixProposer(SuffixCache(max_cached_requests=4))
    rng = random.Random(0)
    sizes = []
    for _ in range(40):
        proposer.propose(confirming.confirm({0: [rng.randrange(1000) for _ in range(400)]}, {0: 300}), 0)
        proposer.propose(confirming.confirm({0: [rng.randrange(1000) for _ in range(100)]}, {0: 300}), 0)
        proposer.release(0)
        confirming.release(0)
        sizes.append(proposer.cache.memory_bytes)
    assert sizes[-1] == sizes[6] < 1_000_000


def test_kernels_are_compiled_each_time_where_no_cache_can_be_written(monkeypatch):
    def refuse(**options):
        raise RuntimeError("cannot cache function: no locator available")

    assert suffix_nodes._can_cache()
    monkeypatch.setattr(suffix_nodes, "njit", refuse)
    assert not suffix_nodes._can_cache()


def test_every_bad_option_is_named():
    with pytest.raises(InvalidSetup) as error:
        SuffixProposer(SuffixCache(max_tree_depth=0, max_cached_requests=-1, max_spec_factor=-0.5, min_token_prob=1.5))
    assert [finding.message.split()[0] for finding in error.value.findings] == [
        f"suffix_decoding_{name}" for name in DEFAULTS
    ]


def test_the_integrity_check_sees_a_wrong_count():
    confirming, proposer = Confirming(), SuffixProposer(SuffixCache())
    proposer.propose(confirming.confirm({0: [1, 2, 1, 3]}, {0: 3}), 0)
    proposer.cache.check_integrity()
    proposer.cache._forest.arena.nodes[48] += 1
    with pytest.raises(AssertionError):
        proposer.cache.check_integrity()
