"""Training data: what files may hold, who is held out, and in which order samples are learned."""

from __future__ import annotations

import gzip
import itertools
import json
import re

import numpy as np
import pytest
import torch

from draftwise.core import InvalidSetup
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.training.data import Corpus, Feed, SampleOrder, TextSample, bucket_lengths, read_samples, split


@pytest.fixture(scope="module")
def tokenizer(tiny_target):
    return Tokenizer.from_pretrained(tiny_target)


def read(paths, tokenizer, *, max_length=64, window=16):
    return list(read_samples(paths, tokenizer, max_length=max_length, window=window))


def random_samples(count, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 90, count)
    return [TextSample(rng.integers(0, 200, n).astype(np.int32), int(rng.integers(1, n))) for n in lengths]


def test_plain_text_is_cut_into_windows_and_loses_nothing(tokenizer, tmp_path):
    text = "".join(f"line {i}\n" for i in range(30))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    plain, packed = (read([tmp_path / name], tokenizer) for name in ("a.txt", "b.txt.gz"))
    assert tokenizer.decode(np.concatenate([each.tokens for each in plain]).tolist()) == text
    assert [len(each.tokens) for each in plain[:-1]] == [16] * (len(plain) - 1)
    assert all(np.array_equal(a.tokens, b.tokens) and a.num_prompt == 0 for a, b in zip(plain, packed, strict=True))


def test_json_lines_hold_prompts_conversations_and_ids(tokenizer, tmp_path):
    lines = [
        {"prompt": "ab", "completion": "cde"},
        {"prompt": "ab"},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"token_ids": [5, 6, 7, 8], "num_prompt": 3},
        {"prompt": "x" * 80, "completion": "y"},
        {"prompt": "x" * 80},
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    samples = read([file], tokenizer)
    seen = [(tokenizer.decode(s.tokens[: s.num_prompt].tolist(), False), len(s.tokens) - s.num_prompt) for s in samples]
    assert seen[:2] == [("ab", 3), ("ab", 0)]
    assert seen[2][0] == seen[3][0] == "<|user|>hi<|end|><|assistant|>"
    assert samples[4].tokens.tolist() == [5, 6, 7, 8]
    assert samples[4].num_prompt == 3
    assert [len(each.tokens) for each in samples[5:]] == [64, 64]


@pytest.mark.parametrize(
    ("line", "code"),
    [("{", "not-json"), ("[]", "not-an-object"), ('{"txt": 1}', "bad-entry"), ('{"text": 1}', "bad-entry")]
    + [(f'{{"messages": {value}}}', "bad-entry") for value in ('"hi"', "5", "[5]", '{"role": "user"}', "[[]]")]
    + [
        (f'{{"token_ids": {value}}}', "bad-entry")
        for value in ('"12"', "5", '["5"]', "[1.5]", "[[1], [2, 3]]", "[-1]", "[1000000]", "[true]", "[9e99]")
    ]
    + [(f'{{"token_ids": [1, 2, 3], "num_prompt": {value}}}', "bad-entry") for value in ('"x"', "-1", "1.5", "[]")],
)
def test_a_bad_line_is_named(line, code, tokenizer, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "ok"}\n' + line + "\n")
    with pytest.raises(InvalidSetup) as error:
        read([file], tokenizer)
    (finding,) = error.value.findings
    assert (finding.code, finding.where) == (code, f"{file}:2")
    assert not re.search(r"indices|has no|subscriptable|str'", finding.message)


def test_samples_stay_on_their_side_when_others_come_and_go():
    samples = random_samples(400)
    learned, held_out = split(samples, 0.2, most_tokens=10**9)
    assert 50 < len(held_out) < 110
    fewer, fewer_out = split(samples[::2], 0.2, most_tokens=10**9)
    assert {id(each) for each in fewer} <= {id(each) for each in learned}
    assert {id(each) for each in fewer_out} <= {id(each) for each in held_out}
    twin = TextSample(np.append(held_out[0].tokens, 1).astype(np.int32), held_out[0].num_prompt)
    assert split([*samples, twin], 0.2, most_tokens=10**9)[0] == learned, "the same prompt goes the same way"
    with pytest.raises(InvalidSetup, match="No sample is left"):
        split(samples[:1], 0.2, most_tokens=10**9)


def test_bucket_lengths_waste_as_little_as_can_be():
    lengths = np.random.default_rng(1).integers(1, 100, 60)
    chosen = bucket_lengths(lengths, 3, 16)

    def padded(buckets):
        return sum(min((b for b in buckets if b >= n), default=10**9) for n in lengths)

    candidates = range(16, 129, 16)
    best = min(padded(c) for n in (1, 2, 3) for c in itertools.combinations(candidates, n))
    assert padded(chosen) == best


def test_an_epoch_takes_each_sample_once_and_a_position_is_all_there_is_to_know():
    corpus = Corpus.from_samples(random_samples(100))
    order = SampleOrder(corpus, batch_tokens=300, seed=3)
    position, taken, places = order.get_start(), [], []
    for _ in range(60):
        parts, position = order.take_step(position)
        taken += parts
        places.append(position)
    for bucket, length in enumerate(order.lengths):
        size = sum(1 for n in corpus.lengths if n <= length) - sum(
            1 for n in corpus.lengths if bucket and n <= order.lengths[bucket - 1]
        )
        stream = np.concatenate([part.samples_B for part in taken if part.length == length])
        for epoch in range(len(stream) // size):
            assert len(set(stream[epoch * size : (epoch + 1) * size].tolist())) == size
    again = SampleOrder(corpus, batch_tokens=300, seed=3)
    for done in (1, 17, 40):
        parts, _ = again.take_step(places[done - 1])
        assert np.array_equal(parts[0].samples_B, taken[done].samples_B)
    once = np.concatenate([part.samples_B for part in order.iterate_once()])
    assert sorted(once[once >= 0].tolist()) == list(range(len(corpus)))


def test_accumulated_batches_hold_the_samples_of_a_bigger_batch():
    corpus = Corpus.from_samples(random_samples(200))
    lengths = [32, 64, 96]
    big = SampleOrder(corpus, batch_tokens=768, lengths=lengths)
    small = SampleOrder(corpus, batch_tokens=384, accumulate=2, lengths=lengths)
    at_big, at_small = big.get_start(), small.get_start()
    for _ in range(20):
        (one,), at_big = big.take_step(at_big)
        two, at_small = small.take_step(at_small)
        assert np.array_equal(one.samples_B, np.concatenate([part.samples_B for part in two]))


def test_batches_hold_the_samples_and_learn_only_answers():
    samples = random_samples(20)
    corpus = Corpus.from_samples(samples)
    feed, order = Feed(corpus, torch.device("cpu")), SampleOrder(corpus, batch_tokens=256)
    for rows in order.iterate_once():
        batch = feed.make_batch(rows)
        assert int(batch.learned_BT.sum()) == rows.num_learned
        assert int(batch.valid_BT.sum()) == rows.num_tokens
        for b, i in enumerate(rows.samples_B.tolist()):
            sample = samples[i] if i >= 0 else TextSample(np.zeros(0, np.int32), 0)
            assert batch.tokens_BT[b][batch.valid_BT[b]].tolist() == sample.tokens.tolist()
            assert batch.learned_BT[b].nonzero().flatten().tolist() == list(
                range(sample.num_prompt, len(sample.tokens))
            )
