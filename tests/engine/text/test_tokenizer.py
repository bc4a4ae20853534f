"""Tokenizer and detokenizer against the tokenizers library's own decode of the whole text."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from draftwise.core import InvalidSetup
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.grammar import Grammars
from draftwise.engine.sampling.params import StructuredOutputsParams
from draftwise.engine.text import chat_template
from draftwise.engine.text.detokenizer import IncrementalDetokenizer
from draftwise.engine.text.tokenizer import Tokenizer, load_tokenizer

TEXT = ["def f(x):\n    return x + 1\n", "naïve café — 日本語 😀 text", "the end of the thing, then the rest"]


@cache
def byte_level(extra: tuple[str, ...] = ()) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    backend.train_from_iterator([*TEXT, *extra], trainer)
    backend.add_tokens([AddedToken("two words", normalized=False)])
    return backend


@cache
def byte_fallback() -> Backend:
    """Llama 2's kind: word-start marks, bytes as <0x..> tokens, one leading space stripped."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁end", "x", "é", "th", "."]
    backend = Backend(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["</s>"])
    return backend


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback", "unigram"])
@pytest.mark.parametrize("more", [-3, 1, 2])
def test_a_grammar_gets_no_ids_that_the_model_does_not_have(kind, more, tmp_path):
    """A tokenizer may have fewer tokens than its model, or more, as Gemma 3's."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((chr(97 + i % 26) * (i // 26 + 1), -1.0 - i) for i in range(90))]
    backend = Backend(models.Unigram(pieces, 0)) if kind == "unigram" else BACKENDS[kind]()
    backend.decoder = backend.decoder or byte_fallback().decoder
    tokenizer = Tokenizer.from_pretrained(save(backend, tmp_path / "t"))
    vocab_size = tokenizer.vocab_size - more
    content = tokenizer.to_json(vocab_size)
    kept = Backend.from_str(content).get_vocab(with_added_tokens=True)
    assert kept == {token: i for token, i in backend.get_vocab(with_added_tokens=True).items() if i < vocab_size}
    grammars = Grammars(lambda: content, end_ids=[kept.get("</s>", kept.get("<|end|>"))], vocab_size=vocab_size)
    grammar = grammars.compile(StructuredOutputsParams(regex="x"))
    logits = torch.zeros(1, 1, vocab_size)
    grammars.constrain(logits, [grammar], Draft.from_lists([[]], 0))
    assert logits.isfinite().nonzero().tolist() == [[0, 0, kept["x"]]]
    assert grammar.advance([kept["x"]]) == (1, "stop")


BACKENDS = {"byte-level": byte_level, "byte-fallback": byte_fallback}


def save(backend: Backend, directory, **files):
    directory.mkdir(exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def units(kind: str) -> st.SearchStrategy[list[int]]:
    """Runs of tokens: any byte-level token; byte fallback only in whole characters, as it is all or nothing there."""
    backend = BACKENDS[kind]()
    if kind == "byte-level":
        return st.integers(0, backend.get_vocab_size() - 1).map(lambda i: [i])
    words = st.sampled_from([i for token, i in backend.get_vocab().items() if "0x" not in token])
    in_bytes = st.text(min_size=1, max_size=2).map(lambda t: [backend.token_to_id(f"<0x{b:02X}>") for b in t.encode()])
    return words.map(lambda i: [i]) | in_bytes


@pytest.mark.parametrize("kind", BACKENDS)
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_increments_join_to_the_whole_text(kind, data, skip):
    ids = [token for unit in data.draw(st.lists(units(kind), max_size=20)) for token in unit]
    stream = IncrementalDetokenizer(Tokenizer(BACKENDS[kind]()), skip_special_tokens=skip)
    text = "".join(map(stream.add, ids)) + stream.finish()
    whole = BACKENDS[kind]().decode(ids, skip_special_tokens=skip)
    assert text.rstrip("\ufffd") == whole.rstrip("\ufffd")
    assert whole.startswith(text)


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_character_in_several_tokens_appears_once_it_is_complete(kind):
    backend = BACKENDS[kind]()
    stream = IncrementalDetokenizer(Tokenizer(backend))
    ids = [
        backend.token_to_id(token)
        for token in (["ð", "Ł", "ĺ", "Ģ"] if kind == "byte-level" else ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"])
    ]
    assert [stream.add(i) for i in ids] == ["", "", "", "😀"]


def test_prompt_keeps_the_leading_space_of_the_first_output_token():
    backend = byte_fallback()
    the, end = backend.token_to_id("▁the"), backend.token_to_id("▁end")
    assert IncrementalDetokenizer(Tokenizer(backend)).add(end) == "end"
    assert IncrementalDetokenizer(Tokenizer(backend), prompt_token_ids=[the]).add(end) == " end"


def whole_text_stop(pieces: list[str], stops: list[str], include: bool, min_tokens: int):
    """What vLLM's check_stop_strings says when it sees the whole text after every token."""
    text = ""
    for count, piece in enumerate(pieces, start=1):
        new_from, text = len(text), text + piece
        if count <= min_tokens or not piece:
            continue
        found = [
            (start + len(stop), order)
            for order, stop in enumerate(stops)
            if (start := text.find(stop, max(0, new_from - len(stop) + 1))) >= 0
        ]
        if found:
            end, order = min(found)
            return text[: end if include else end - len(stops[order])], stops[order]
    return text, None


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 4),
)
@settings(max_examples=400, deadline=None)
def test_stop_strings_as_vllm_finds_them(pieces, stops, include, min_tokens):
    backend = Backend(models.WordLevel({piece: i for i, piece in enumerate(sorted(set(pieces)))}, unk_token=""))
    backend.decoder = decoders.Fuse()
    stream = IncrementalDetokenizer(Tokenizer(backend), stop_strings=stops, include_stop=include)
    stream._stream = _Pieces(pieces)  # pieces as they are: the stop logic alone
    text, given_out = "", []
    for i in range(len(pieces)):
        given_out.append(stream.add(i, look_for_stops=i + 1 > min_tokens))
        if stream.stopped_by is not None:
            break
    text = "".join(given_out) + stream.finish()
    assert (text, stream.stopped_by) == whole_text_stop(pieces, stops, include, min_tokens)


class _Pieces:
    def __init__(self, pieces):
        self.add = pieces.__getitem__


def test_only_a_possible_stop_prefix_is_held_back():
    backend = byte_level()
    stream = IncrementalDetokenizer(Tokenizer(backend), stop_strings=["###"])
    ids = {text: backend.token_to_id(text) for text in "a#b"}
    assert [stream.add(ids[c]) for c in "a##b#"] == ["a", "", "", "##b", ""]
    assert stream.finish() == "#"


def test_reads_the_files_around_a_checkpoint(tmp_path):
    end = byte_level().token_to_id("<|end|>")
    directory = save(
        byte_level(),
        tmp_path / "m",
        generation_config={"eos_token_id": [5, 6]},
        config={"eos_token_id": 9},
        tokenizer_config={"eos_token": {"content": "<|end|>"}, "chat_template": "{{ eos_token }}{{ messages|length }}"},
    )
    tokenizer = Tokenizer.from_pretrained(directory)
    assert tokenizer.end_ids == {5, 6, end}
    assert tokenizer.special_ids == {end}
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}]) == "<|end|>1"
    ids = tokenizer.encode("the café", add_special_tokens=False)
    assert tokenizer.decode(ids) == "the café" == b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert tokenizer.token_text(end) == "<|end|>"
    (directory / "generation_config.json").unlink()
    assert Tokenizer.from_pretrained(directory).end_ids == {9, end}


CHATML = (
    "{% for m in messages %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + m.role) }}{% endif %}"
    "<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ tools|tojson if tools }}"
)
MESSAGES = [{"role": "user", "content": "a <b>"}, {"role": "assistant", "content": "c"}]


def test_chat_template_renders_as_transformers_does(tmp_path):
    import transformers

    directory = save(byte_level(), tmp_path / "m", tokenizer_config={"eos_token": "<|end|>"})
    (directory / "chat_template.jinja").write_text(CHATML)
    tools = [{"type": "function", "function": {"name": "f<x>"}}]
    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    for generation in (True, False):
        assert Tokenizer.from_pretrained(directory).apply_chat_template(
            MESSAGES, add_generation_prompt=generation, tools=tools
        ) == oracle.apply_chat_template(MESSAGES, add_generation_prompt=generation, tools=tools, tokenize=False)


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (None, "no-chat-template"),
        ("{% for %}", "bad-chat-template"),
        (["a"], "bad-chat-template"),
        ([{"name": "default", "template": 5}], "bad-chat-template"),
        (CHATML, "chat-template-refused"),
        ("{{ messages.append(1) }}", "chat-template-refused"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "chat-template-refused"),
    ],
    ids=["none", "syntax", "names", "number", "raises", "mutates", "escapes-the-sandbox"],
)
def test_chat_template_faults_are_findings(tmp_path, template, code):
    directory = save(byte_level(), tmp_path / "m", tokenizer_config={"chat_template": template})
    with pytest.raises(InvalidSetup) as error:
        Tokenizer.from_pretrained(directory).apply_chat_template([{"role": "system", "content": "x"}])
    assert error.value.findings[0].code == code


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes too long"),
        ("{{ 'a' * 10 ** 10 }}", "MemoryError"),
        ("{{ 'a' * 6 * 10 ** 8 }}", "MemoryError"),
        ("{{ messages[0].role * 2 * 10 ** 8 }}", "MemoryError"),
    ],
)
def test_a_template_is_bounded_wherever_it_is_rendered(tmp_path, monkeypatch, template, words):
    monkeypatch.setattr(chat_template, "_CPU_S", 0.3)
    source = "{% if messages %}" + template + "{% endif %}{{ tools }}"
    directory = save(byte_level(), tmp_path / "m", tokenizer_config={"chat_template": source})
    tokenizer = Tokenizer.from_pretrained(directory)
    with pytest.raises(InvalidSetup, match=words) as error:
        tokenizer.apply_chat_template(MESSAGES)
    assert error.value.findings[0].code == "chat-template-refused"
    assert tokenizer.apply_chat_template([], tools=1) == "1"  # a new process


def test_what_was_interrupted_is_not_the_next_answer(tmp_path, monkeypatch):
    directory = save(byte_level(), tmp_path / "m", tokenizer_config={"chat_template": "{{ messages[0].content }}"})
    tokenizer = Tokenizer.from_pretrained(directory)

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chat_template.Connection, "recv", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tokenizer.apply_chat_template([{"role": "user", "content": "one"}])
    assert tokenizer.apply_chat_template([{"role": "user", "content": "two"}]) == "two"


def test_messages_that_cannot_be_handed_over_are_refused(tmp_path):
    directory = save(byte_level(), tmp_path / "m", tokenizer_config={"chat_template": "{{ messages | length }}"})
    tokenizer, deep = Tokenizer.from_pretrained(directory), []
    for _ in range(100_000):
        deep = [deep]
    for content in (deep, (each for each in "ab")):
        with pytest.raises(InvalidSetup, match="not plain values") as error:
            tokenizer.apply_chat_template([{"role": "user", "content": content}])
        assert error.value.findings[0].code == "chat-template-refused"
    assert tokenizer.apply_chat_template(MESSAGES) == str(len(MESSAGES))


def test_a_negative_end_token_is_none(tmp_path):
    """vLLM and transformers compare it with every token, and no token is negative."""
    files = {"generation_config": {"eos_token_id": [-1, 3]}, "config": {"eos_token_id": 9}}
    assert Tokenizer.from_pretrained(save(byte_level(), tmp_path / "some", **files)).end_ids == {3}
    files["generation_config"] = {"eos_token_id": -1}
    assert not Tokenizer.from_pretrained(save(byte_level(), tmp_path / "none", **files)).end_ids


@pytest.mark.parametrize(("content", "code"), [(None, "no-tokenizer"), ("{", "bad-tokenizer")])
def test_missing_and_broken_files_are_findings(tmp_path, content, code):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InvalidSetup) as error:
        Tokenizer.from_pretrained(tmp_path)
    assert error.value.findings[0].code == code


@pytest.mark.parametrize("end", [1.0, [[3]]])
def test_an_end_token_that_is_no_id_is_refused(tmp_path, end):
    with pytest.raises(InvalidSetup, match="must be a token id"):
        Tokenizer.from_pretrained(save(byte_level(), tmp_path, generation_config={"eos_token_id": end}))


@pytest.mark.parametrize("end", [2**24, 2**31, 2**70, -1])
def test_an_end_token_that_no_model_has_ends_nothing(tmp_path, end):
    tokenizer = Tokenizer.from_pretrained(save(byte_level(), tmp_path, generation_config={"eos_token_id": [3, end]}))
    assert 3 in tokenizer.end_ids
    assert end not in tokenizer.end_ids


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file["model"]["vocab"].update({"!": 2**24}), "the id 16777216, larger"),
        (lambda file: file["model"]["vocab"].update({"!": 2**32 - 1}), "the id 4294967295, larger"),
        (lambda file: file["added_tokens"][0].update(id=2**31), "the id 2147483648, but its vocabulary leads to 0"),
        (lambda file: file["added_tokens"].append(file["added_tokens"][0] | {"content": "new", "id": 999}), "id 999"),
    ],
)
def test_ids_that_take_memory_or_mean_other_tokens_are_refused(tmp_path, change, words):
    save(byte_level(), tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InvalidSetup, match=words):
        Tokenizer.from_pretrained(tmp_path)


DECODERS = {
    "none": None,
    "fuse": decoders.Fuse(),
    "word pieces": decoders.WordPiece(),
    "suffixes": decoders.BPEDecoder(),
    "ctc": decoders.CTC(),
    "marks": decoders.Metaspace(),
}


@pytest.mark.parametrize("kind", DECODERS)
@given(ids=st.lists(st.integers(0, 13), max_size=12))
@settings(deadline=None)
def test_with_any_decoder_increments_join_to_the_librarys_text(kind, ids):
    tokens = ["a", "b", "##c", "x</w>", "</w>", "▁the", "▁", "|", "<pad>", "é", " ", "'s", "n't", "."]
    backend = Backend(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="a"))
    if DECODERS[kind] is not None:
        backend.decoder = DECODERS[kind]
    assert "".join(map(IncrementalDetokenizer(Tokenizer(backend)).add, ids)) == backend.decode(ids)


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(InvalidSetup, match="is not a directory"):
        Tokenizer.from_pretrained(tmp_path / "no-such-model")


def test_without_a_tokenizer_ids_have_no_text_and_text_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 9]}')
    tokenizer = load_tokenizer(tmp_path, skip=True)
    assert tokenizer.end_ids == {7, 9}
    assert (tokenizer.decode([1, 2]), tokenizer.token_text(1), tokenizer.token_bytes(1)) == ("", "", b"")
    assert [IncrementalDetokenizer(tokenizer, prompt_token_ids=[1, 2]).add(each) for each in (3, 10**6)] == ["", ""]
    for refused in (
        lambda: tokenizer.encode("a"),
        lambda: tokenizer.apply_chat_template([{"role": "user", "content": "a"}], enable_thinking=False),
        lambda: IncrementalDetokenizer(tokenizer, stop_strings=["x"]),
    ):
        with pytest.raises(InvalidSetup, match="skip_tokenizer_init"):
            refused()


def test_a_tokenizer_is_loaded_unless_it_is_to_be_skipped(tmp_path):
    with pytest.raises(InvalidSetup, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path, skip=False)
    with pytest.raises(InvalidSetup, match="is not a directory"):
        load_tokenizer(tmp_path / "none", skip=True)
