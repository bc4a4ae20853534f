"""What may be asked for, what is refused, and which tokens a grammar allows at each row of a draft."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers

from draftwise.core import InvalidSetup
from draftwise.engine.sampling import grammar as module
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.grammar import Grammars
from draftwise.engine.sampling.params import SamplingParams, StructuredOutputsParams

VOCAB, END = 300, 256


@pytest.fixture
def grammars(tiny_target: Path) -> Grammars:
    """Of byte tokens, in a vocabulary with ids beyond them."""
    return Grammars((tiny_target / "tokenizer.json").read_text, end_ids=[END], vocab_size=VOCAB)


@pytest.fixture
def ids(tiny_target: Path) -> Any:
    tokenizer = Tokenizer.from_file(str(tiny_target / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, "it has none"),
    "two": ({"json": {}, "regex": "a"}, "it has json and regex"),
    "no choice": ({"choice": []}, "a list of strings"),
    "a word": ({"choice": "ab"}, "a list of strings"),
    "a number": ({"regex": 3}, "must be a string, got int"),
    "elsewhere": ({"structural_tag": "x"}, "not supported"),
    "unknown": ({"xml": 1}, "has no 'xml'"),
    "spaces": ({"json_object": True, "disable_any_whitespace": 1}, "true or false"),
    "pattern": ({"json_object": True, "whitespace_pattern": 1}, "must be a string"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_malformed_is_refused_in_a_sentence(case: str) -> None:
    given, words = BAD[case]
    with pytest.raises(InvalidSetup, match=words):
        StructuredOutputsParams.parse(given)


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"regex": "[a"}, "unclosed character class"),
    "look-around": ({"regex": "(?=a)b"}, "look-around"),
    "schema": ({"json": {"type": "thing"}}, "thing"),
    "no JSON": ({"json": "{"}, "EOF"),
    "contradiction": ({"json": {"type": "string", "minLength": 3, "maxLength": 1}}, "minLength"),
    "not implemented": ({"json": {"if": {}}}, '"if"'),
    "remote": ({"json": {"$ref": "http://localhost/x"}}, "does not fetch"),
    "grammar": ({"grammar": "start: other"}, "unknown name"),
    "gbnf": ({"grammar": "what?"}, "GBNF"),
    "endless": ({"grammar": 'start: a\na: a "x"'}, "no text matches it"),
    "never": ({"regex": r"[^\s\S]"}, "no text matches it"),
    "long gbnf": ({"grammar": "\n" * 2**15 + "what?"}, "GBNF may have 16384"),
    "deep": ({"json": json.loads('{"properties":{"a":' * 200 + "{}" + "}}" * 200)}, "recursion"),
}


@pytest.mark.parametrize("case", INVALID)
def test_a_grammar_that_cannot_be_used_is_refused_in_a_sentence(case: str, grammars: Grammars) -> None:
    given, words = INVALID[case]
    with pytest.raises(InvalidSetup, match=words) as caught:
        grammars.compile(StructuredOutputsParams.parse(given))
    assert "\n" not in str(caught.value)
    assert not grammars.has(StructuredOutputsParams.parse(given))


DOUBLED = 'T0: "a"\n' + "".join(f"T{i}: T{i - 1} T{i - 1}\n" for i in range(1, 31))
LONG: dict[str, dict[str, Any]] = {
    "repetition": {"regex": "a{2147483648}"},
    "after a choice": {"regex": "[xy]a{30000}"},
    "lazy repetition": {"regex": "(ab|ab){200000,}?"},
    "nested": {"regex": "(?:(?P<x>a{9}){999}){999}"},
    "class of one": {"regex": "[aa]{100000}"},
    "pattern": {"json": {"pattern": "^(ab){100000}$", "type": "string"}},
    "Lark's regex": {"grammar": "start: T // a comment\nT: /(ab){100000}/"},
    "Lark's repetition": {"grammar": 'start: T\nT: ("ab"){100000}'},
    "doubled": {"grammar": f"start: T17\n{DOUBLED}"},
    "doubled often": {"grammar": f"start: T30\n{DOUBLED}"},
    "doubled after a choice": {"grammar": f"start: /[xy]/ T15\n{DOUBLED}"},
}


@pytest.mark.parametrize("case", LONG)
def test_a_text_longer_than_its_grammar_is_not_walked_to_its_end(case: str, grammars: Grammars) -> None:
    """Nor before a step, nor in one: for a million characters, that takes a second and 150 MB."""
    with pytest.raises(InvalidSetup, match="it spells out too long a text, or has too many alternatives"):
        grammars.compile(StructuredOutputsParams.parse(LONG[case]))


FIELDS: dict[str, dict[str, Any]] = {
    "text": {"type": "string", "maxLength": 100_000, "description": "long " * 8000},
    "pattern": {"type": "string", "pattern": r"^[^\n]{1,100000}(\{\d{1,9}\})*$"},
    "uuid": {"type": "string", "format": "uuid", "default": {"a": "x" * 20000}, "examples": [["x" * 20000]]},
    "list": {"type": "array", "minItems": 1000, "maxItems": 10**6, "items": {"type": "integer"}},
    "name": {"enum": [f"value {i}" for i in range(5000)]},
    "license": {"const": "All rights reserved. " * 1000},
}
ORDINARY: dict[str, dict[str, Any]] = {
    "many fields": {"json": {"properties": {f"{name}{i}": FIELDS[name] for i in range(5) for name in FIELDS}}},
    "many required": {
        "json": {
            "type": "object",
            "properties": {f"field_{i}": {"type": ["string", "null"]} for i in range(1000)},
            "required": [f"field_{i}" for i in range(1000)],
        }
    },
    "open repetition": {"regex": r"([a-z]{1,50} ){0,100000}(?i)[.!?]{1,2147483647}"},
    "many names": {"regex": "|".join(f"option {i:05d}" for i in range(9000))},
    "many alternatives": {"regex": "|".join(f"(?:option {i:05d}){{1,3}}" for i in range(3000))},
    "long": {"regex": "a{30000}"},
    "many characters": {"regex": r"[ab]{100000}.{100000}\d{100000}(yes|no){100000}"},
    "literal": {"regex": "a" * 40000},
    "literal after a repetition": {"regex": "b{2}" + "a" * 40000},
    "long choice": {"choice": ["a", "b" * 40000]},
    "long const": {"json": {"properties": {"x" * 40000: {"const": {"description": "x" * 40000}}}}},
    "many numbers": {"regex": "|".join(map(str, range(10000)))},
    "many choices": {"choice": [f"option {i}" * 5 for i in range(10000)]},
    "Lark": {"grammar": 'start: (T | "x"{1,100})+ // {40000}\nT: /[^"]{1,100000}/'},
}


@pytest.mark.parametrize("case", ORDINARY)
def test_what_is_large_but_ordinary_is_compiled(case: str, grammars: Grammars) -> None:
    assert grammars.compile(StructuredOutputsParams.parse(ORDINARY[case]))


CHAINS: dict[str, Callable[[int], dict[str, str]]] = {
    "rules": lambda n: {"grammar": "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(n)) + f'r{n}: "c"'},
    "terminals": lambda n: {"grammar": CHAINS["rules"](n)["grammar"].replace("r", "T").replace("staTt", "start")},
    "references": lambda n: {
        "json": json.dumps(
            {"$ref": "#/$defs/0", "$defs": {i: {"$ref": f"#/$defs/{i + 1}"} for i in range(n)} | {n: {}}}
        )
    },
}


@pytest.mark.parametrize("case", CHAINS)
def test_a_long_chain_ends_no_process(case: str, grammars: Grammars) -> None:
    """llguidance recurses along it, and an overflow of the stack cannot be caught."""
    assert grammars.compile(StructuredOutputsParams(**CHAINS[case](5000))).is_slow
    with pytest.raises(InvalidSetup, match="at most 1048576 are compiled"):
        grammars.compile(StructuredOutputsParams(**CHAINS[case](10**5)))


UNCLOSED = {
    "class": {"regex": "[" * 2**19 + "{2}"},
    "property": {"regex": r"\p{" * 2**18},
    "group": {"regex": "(?P<a" * 2**17 + "{2}"},
    "text": {"grammar": 'start: "' + r"\"" * 2**18},
    "Lark's regex": {"grammar": "start: /" + r"\/" * 2**18},
}


@pytest.mark.parametrize("case", UNCLOSED)
def test_what_is_not_closed_is_refused_in_linear_time(case: str, grammars: Grammars) -> None:
    """In quadratic time, each would take minutes."""
    with pytest.raises(InvalidSetup):
        grammars.compile(StructuredOutputsParams(**UNCLOSED[case]))


KINDS = {
    "Lark": "\n" * 2**18 + 'start: "a"',
    "GBNF": ' root ::= "a" | "b" root',
    "GBNF with a comment": "root ::= [a-c]+ # start",
}


@pytest.mark.parametrize("kind", KINDS)
def test_both_kinds_of_grammar_are_told_apart_in_linear_time(kind: str, grammars: Grammars) -> None:
    assert grammars.compile(StructuredOutputsParams(grammar=KINDS[kind]))


def test_a_model_without_an_end_token_has_no_structured_output(tiny_target: Path) -> None:
    grammars = Grammars((tiny_target / "tokenizer.json").read_text, end_ids=[], vocab_size=VOCAB)
    with pytest.raises(InvalidSetup, match="an end token, but the model names none"):
        grammars.compile(StructuredOutputsParams(regex="a"))


def test_a_tokenizer_with_more_tokens_than_the_model_has_no_structured_output(tiny_target: Path) -> None:
    grammars = Grammars((tiny_target / "tokenizer.json").read_text, end_ids=[0], vocab_size=VOCAB - 100)
    with pytest.raises(InvalidSetup, match="tokenizer does not fit the model"):
        grammars.compile(StructuredOutputsParams(regex="a"))


def test_forced_tokens_and_a_grammar_do_not_go_together() -> None:
    with pytest.raises(InvalidSetup, match="does not work with"):
        SamplingParams(forced_token_ids=[1], structured_outputs=StructuredOutputsParams(regex="a"))


def test_rows_are_constrained_along_the_draft(grammars: Grammars, ids: Any) -> None:
    (a,), (b,), (c,) = map(ids, "abc")
    grammar = grammars.compile(StructuredOutputsParams(regex="ab?c"))
    draft = Draft.from_lists([[a, c, b], [a, b, c], [a, a, c], [c]], 3)
    logits = torch.zeros(4, 4, VOCAB)
    assert grammar.advance([]) == (0, None)
    states = [grammar, None, *(grammars.compile(StructuredOutputsParams(regex="ab?c")) for _ in range(2))]
    allowed = grammars.constrain(logits, states, draft)
    assert allowed.lengths_B.tolist() == [2, 3, 1, 0]
    seen = [[set((row > -torch.inf).nonzero().flatten().tolist()) for row in rows] for rows in logits]
    everything = set(range(VOCAB))
    assert seen[0] == [{a}, {b, c}, {END}, everything], "behind what is not allowed nothing is read"
    assert seen[1] == [everything] * 4, "without a grammar"
    assert seen[2] == [{a}, {b, c}, everything, everything]
    assert [state is not None and state.refused_draft for state in states] == [False, False, False, True]
    assert seen[3] == [{a}, everything, everything, everything]
    assert grammar.advance([a, b]) == (2, None), "constraining moves nothing on"


def test_many_rows_are_constrained_as_few_are(grammars: Grammars, ids: Any) -> None:
    drafts = [ids(text) for text in ("abc", "ac", "", "b", "abb", "c", "a")]
    draft = Draft.from_lists(drafts, 3)
    together = torch.zeros(len(drafts), 4, VOCAB)
    states = [grammars.compile(StructuredOutputsParams(regex="ab?c")) for _ in drafts]
    lengths = grammars.constrain(together, states, draft).lengths_B
    for b, drafted in enumerate(drafts):
        alone = torch.zeros(1, 4, VOCAB)
        state = grammars.compile(StructuredOutputsParams(regex="ab?c"))
        assert grammars.constrain(alone, [state], Draft.from_lists([drafted], 3)).lengths_B == lengths[b]
        assert torch.equal(alone[0], together[b])


@pytest.mark.parametrize("vocab_size", [VOCAB, 320, 321])
def test_masks_of_slow_grammars_are_the_same(
    vocab_size: int, tiny_target: Path, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the vocabulary fills the last word of a mask."""
    grammars = Grammars((tiny_target / "tokenizer.json").read_text, end_ids=[END], vocab_size=vocab_size)
    seen = []
    for longest in (2**14, 0):
        monkeypatch.setattr(module, "_LONG", longest)
        grammar, logits = grammars.compile(StructuredOutputsParams(regex="ab?c")), torch.zeros(1, 1, vocab_size)
        assert grammar.is_slow == (longest == 0)
        assert grammar.advance(ids("a")) == (1, None)
        grammars.constrain(logits, [grammar], Draft.empty(1))
        seen.append((logits > -torch.inf).nonzero().tolist())
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2


def test_without_a_grammar_nothing_is_looked_at(grammars: Grammars) -> None:
    draft = Draft.empty(2, 3)
    logits = torch.zeros(2, 4, VOCAB)
    assert grammars.constrain(logits, [None, None], draft) is draft
    assert not logits.any()


def test_whitespace_of_json_has_a_bound(grammars: Grammars, ids: Any) -> None:
    def taken(text: str, **options: Any) -> int:
        form = StructuredOutputsParams(json={"type": "array"}, **options)
        return grammars.compile(form).advance(ids(text))[0]

    indented = "[\n" + " " * 24 + "1 ,\t2\r\n]"
    assert taken(indented) == len(indented)
    assert taken("[" + " " * 1000) == 41
    assert taken("[ 1", disable_any_whitespace=True) == 1
    assert taken("[__1", whitespace_pattern="_") == 2


def test_advancing(grammars: Grammars, ids: Any) -> None:
    form = StructuredOutputsParams(regex="ab{0,2}")
    a, b, c = (ids(each)[0] for each in "abc")
    assert grammars.compile(form).advance([a, b, b, c, c]) == (3, "stop")
    assert grammars.compile(form).advance([a, b]) == (2, None)
    assert grammars.compile(form).advance([a, END]) == (2, "stop")
    assert grammars.compile(form).advance([a, c]) == (1, "stop"), "complete as it is"
    assert grammars.compile(form).advance([c]) == (0, "abort")
    broken = grammars.compile(form)
    broken.matcher.consume_token(c)  # as where llguidance gives up because a step is too complex
    assert broken.advance([END]) == (0, "abort")


def test_a_grammar_is_compiled_once(grammars: Grammars, ids: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[StructuredOutputsParams] = []
    compile_one = grammars._compile
    monkeypatch.setattr(grammars, "_compile", lambda params: compiled.append(params) or compile_one(params))
    first = grammars.compile(StructuredOutputsParams(json={"const": "a"}))
    first.advance(ids('"a"'))
    second = grammars.compile(StructuredOutputsParams(json={"const": "a"}))
    assert second.advance(ids('"a"')) == (3, "stop"), "at its own start"
    assert len(compiled) == 1
    for number in range(100):
        grammars.compile(StructuredOutputsParams(regex=f"{number}"))
    assert not grammars.has(StructuredOutputsParams(json={"const": "a"})), "not more than fit are kept"
    large = StructuredOutputsParams(json={"const": "a", "description": "a" * (2**20 - 200)})
    grammars.compile(large)
    assert grammars.has(large)
    assert not grammars.has(StructuredOutputsParams(regex="99")), "nor larger ones than fit"


def test_what_steps_have_found_counts_as_part_of_a_kept_grammar(grammars: Grammars, ids: Any) -> None:
    used, *others = (StructuredOutputsParams(regex=f"[ab]*{number}") for number in range(64))
    first = grammars.compile(used)
    for each in others:
        grammars.compile(each)
    for _ in range(2**10):
        assert first.advance(ids("a")) == (1, None)
    grammars.compile(used)
    assert sum(map(grammars.has, (used, *others))) == 64
    grammars.compile(StructuredOutputsParams(regex="a"))
    assert grammars.has(used), "as the last to be asked for"
    assert sum(map(grammars.has, others)) == 63 - 5, "its steps and the new one take the room of five"
    for _ in range(2**12 - 2**10):
        first.advance(ids("a"))
    assert not grammars.has(used), "so that its states are dropped"
    again = grammars.compile(used)
    assert (grammars.has(used), again.advance(ids("a")), first.advance(ids("a"))) == (True, (1, None), (1, None))


def test_threads_compile_beside_each_other(grammars: Grammars) -> None:
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            for each in range(8):
                grammars.compile(StructuredOutputsParams(regex=f"[a-f]{{{each},{number + 9}}}"))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_cores_of_compilers_and_maskers_are_counted_while_they_work(grammars: Grammars) -> None:
    grammars.compile(StructuredOutputsParams(regex="[a-z]{40}"))
    assert grammars.num_busy == 0
    goes_on = threading.Event()
    jobs = [threads.submit(goes_on.wait) for threads in (grammars._compilers, grammars._maskers) for _ in range(3)]
    assert grammars.num_busy == 4, "the third of each waits for a thread"
    goes_on.set()
    assert all(job.result() for job in jobs)
    assert grammars.num_busy == 0


def test_pieces_that_begin_with_a_space_keep_it() -> None:
    """SentencePiece's vocabularies, where a token's text alone has lost its leading space."""
    vocab = {"<unk>": 0, "</s>": 1, "▁": 2, "▁b": 3, "a": 4, "<0x0A>": 5, "b": 6}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "b")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    replaced = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([replaced, decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    grammars = Grammars(tokenizer.to_str, end_ids=[1], vocab_size=7)
    logits = torch.zeros(1, 3, 7)
    draft = Draft.from_lists([[4, 3]], 2)
    grammars.constrain(logits, [grammars.compile(StructuredOutputsParams(regex="a b\n"))], draft)
    assert [row.argmax().item() for row in logits[0]] == [4, 3, 5]
