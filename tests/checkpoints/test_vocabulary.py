"""Vocabularies are read as the tokenizers library reads them, and compared by what every id means."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.crafted import BUNDLE, write_vocabulary

from draftwise.checkpoints.tokenizer_fit import check_same_tokens, compare_vocabularies
from draftwise.checkpoints.vocabulary import Vocabulary, read_vocabulary
from draftwise.core import InvalidSetup

QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path) -> Vocabulary:
    found = read_vocabulary(folder)
    assert found is not None
    return found


def make(tokens: dict[int, str], added: frozenset[int] = frozenset()) -> Vocabulary:
    return Vocabulary(tokens=tokens, added=added, source="tokenizer.json")


@pytest.mark.engine
def test_the_bundled_tokenizer_is_read_as_the_library_does() -> None:
    from tokenizers import Tokenizer as Library

    folder = BUNDLE / "target"
    found = read(folder)
    library = Library.from_file(str(folder / "tokenizer.json")).get_vocab(with_added_tokens=True)
    assert found.tokens == {token_id: token for token, token_id in library.items()}
    assert found.identity == sha256(json.dumps(sorted((i, token) for token, i in library.items())).encode()).hexdigest()
    assert found.named == {"eos_token": (0, 4), "pad_token": (1,)}
    recorded = json.loads((BUNDLE / "eagle3" / "draftwise.json").read_text())["target"]["tokenizer"]
    assert found.identity == recorded


class TestSameTokens:
    """What the embedded engine asks of a draft model: the very same ids."""

    TOKENS: ClassVar = {"a": 0, "b": 1, "<end>": 2}

    def check(self, tmp_path: Path, vocab: dict[str, int] | None, added: dict[str, int] | None = None) -> list[str]:
        for name in ("target", "drafter"):
            (tmp_path / name).mkdir()
        write_vocabulary(tmp_path / "target", self.TOKENS, {"<end>": 2})
        if vocab is not None:
            write_vocabulary(tmp_path / "drafter", vocab, {"<end>": 2} if added is None else added)
        try:
            check_same_tokens(tmp_path / "drafter", tmp_path / "target")
        except InvalidSetup as error:
            return [finding.code for finding in error.findings]
        return []

    def test_the_same_pass(self, tmp_path: Path) -> None:
        assert self.check(tmp_path, self.TOKENS) == []

    def test_two_of_one_size_that_mean_other_tokens(self, tmp_path: Path) -> None:
        assert self.check(tmp_path, {"b": 0, "a": 1, "<end>": 2}) == ["tokenizers-differ"]

    def test_another_control_token(self, tmp_path: Path) -> None:
        assert self.check(tmp_path, {"a": 0, "b": 1}, {"<stop>": 2}) == ["control-tokens-differ"]

    def test_one_token_more(self, tmp_path: Path) -> None:
        assert self.check(tmp_path, self.TOKENS | {"c": 3}) == ["tokenizers-differ"]

    def test_none_at_all(self, tmp_path: Path) -> None:
        assert self.check(tmp_path, None) == ["tokenizers-not-compared"]


def test_every_format_tells_the_same_tokens(tmp_path: Path) -> None:
    tokens = ["<unk>", "▁the", "▁a", "é"]
    by_id = dict(enumerate(tokens))
    folders = {name: tmp_path / name for name in ("bpe", "unigram", "slow", "pieces", "lines")}
    for folder in folders.values():
        folder.mkdir()
    write_vocabulary(folders["bpe"], {token: i for i, token in by_id.items()})
    unigram = {"model": {"type": "Unigram", "vocab": [[token, -1.0] for token in tokens]}}
    (folders["unigram"] / "tokenizer.json").write_text(json.dumps(unigram))
    (folders["slow"] / "vocab.json").write_text(json.dumps({token: i for i, token in by_id.items()}))
    (folders["pieces"] / "tokenizer.model").write_bytes(sentencepiece(tokens))
    (folders["lines"] / "vocab.txt").write_text("\n".join(tokens) + "\n")
    for folder in folders.values():
        assert read(folder).tokens == by_id


def sentencepiece(tokens: list[str]) -> bytes:
    """Return a model as sentencepiece_model.proto lays it out: pieces with score and type, then trainer_spec."""
    pieces = b""
    for token in tokens:
        text = token.encode()
        piece = b"\x0a" + bytes([len(text)]) + text + b"\x15" + bytes(4) + b"\x18\x02"
        pieces += b"\x0a" + bytes([len(piece)]) + piece
    return pieces + b"\x12\x02\x18\x01"


def test_tokens_beside_the_model_count_too(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(["a", "b"]))
    (tmp_path / "added_tokens.json").write_text('{"<pad>": 2}')
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {"3": {"content": "<end>"}}, "eos_token": {"content": "<end>"}})
    )
    found = read(tmp_path)
    assert found.tokens == {0: "a", 1: "b", 2: "<pad>", 3: "<end>"}
    assert found.named == {"eos_token": (3,)}
    assert found.added == {2, 3}


def test_a_tiktoken_file_or_none_is_not_compared(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path) is None
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
    assert read_vocabulary(tmp_path) is None


def test_both_spellings_of_merges_are_one(tmp_path: Path) -> None:
    for name, merges in (("old", ["a b", "ab c"]), ("new", [["a", "b"], ["ab", "c"]])):
        (tmp_path / name).mkdir()
        write_vocabulary(tmp_path / name, {"a": 0}, merges=merges)
    old, new = read(tmp_path / "old"), read(tmp_path / "new")
    assert compare_vocabularies(old, new).splitting == ()
    write_vocabulary(tmp_path / "new", {"a": 0}, merges=["ab c", "a b"], normalizer={"type": "NFC"})
    assert compare_vocabularies(old, read(tmp_path / "new")).splitting == ("merges", "normalizer")


class TestComparison:
    def test_verdicts(self) -> None:
        base = make({0: "a", 1: "b", 2: "<end>"}, frozenset({2}))
        assert compare_vocabularies(base, base).verdict == "same"
        longer = make({**base.tokens, 3: "<new>"}, frozenset({2, 3}))
        assert compare_vocabularies(base, longer).verdict == "prefix"
        renamed = make({0: "a", 1: "b", 2: "<stop>"}, frozenset({2}))
        assert compare_vocabularies(base, renamed).verdict == "control tokens differ"
        swapped = make({0: "b", 1: "a", 2: "<end>"}, frozenset({2}))
        found = compare_vocabularies(base, swapped)
        assert found.verdict == "different"
        assert [str(each) for each in found.first] == [
            "id 0 is 'a' in the drafter and 'b' in the target",
            "id 1 is 'b' in the drafter and 'a' in the target",
        ]

    def test_nothing_in_common_is_different_even_if_all_tokens_are_added(self) -> None:
        mine, theirs = make({0: "<x>"}, frozenset({0})), make({0: "<y>"}, frozenset({0}))
        assert compare_vocabularies(mine, theirs).verdict == "different"

    @QUICK
    @given(
        st.dictionaries(st.integers(0, 12), st.sampled_from("abcd"), max_size=8),
        st.dictionaries(st.integers(0, 12), st.sampled_from("abcd"), max_size=8),
    )
    def test_counts_add_up_and_do_not_depend_on_the_order(self, one: dict[int, str], two: dict[int, str]) -> None:
        mine, theirs = make(one), make(two)
        there, back = compare_vocabularies(mine, theirs), compare_vocabularies(theirs, mine)
        assert there.num_equal + there.num_differing + there.num_only_drafter == len(one)
        assert (there.num_equal, there.num_differing) == (back.num_equal, back.num_differing)
        assert there.num_only_drafter == back.num_only_target
        assert (there.verdict == "same") == (mine.identity == theirs.identity)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        "{}",
        '{"model": {"vocab": {"a": "b"}}}',
        '{"model": {"vocab": {"a": -1}}}',
        '{"model": {"vocab": [1]}}',
    ],
)
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InvalidSetup) as raised:
        read_vocabulary(tmp_path)
    assert raised.value.findings[0].where.endswith("tokenizer.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**33) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
MODEL = st.fixed_dictionaries({}, optional={"vocab": st.dictionaries(st.text(), JSON) | JSON, "merges": JSON})
ROWS = st.lists(st.fixed_dictionaries({}, optional={"id": JSON, "content": JSON}), max_size=3)


@QUICK
@given(
    content=st.fixed_dictionaries({}, optional={"model": MODEL | JSON, "added_tokens": ROWS | JSON, "normalizer": JSON})
    | JSON,
    beside=st.dictionaries(st.sampled_from(["added_tokens_decoder", "eos_token", "bos_token"]), JSON) | JSON,
    config=st.dictionaries(st.sampled_from(["eos_token_id", "pad_token_id"]), JSON),
)
def test_arbitrary_files_are_read_or_refused(tmp_path: Path, content: Any, beside: Any, config: Any) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(beside))
    (tmp_path / "config.json").write_text(json.dumps(config))
    try:
        found = read_vocabulary(tmp_path)
    except InvalidSetup:
        return
    assert found is None or all(type(i) is int and isinstance(token, str) for i, token in found.tokens.items())


@QUICK
@given(data=st.binary(max_size=60))
def test_arbitrary_bytes_are_no_sentencepiece_model_or_pieces(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    try:
        found = read_vocabulary(tmp_path)
    except InvalidSetup:
        return
    assert found is None or set(found.tokens) == set(range(len(found.tokens)))
