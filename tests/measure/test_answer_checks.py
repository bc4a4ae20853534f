"""`verify --answers` on servers that are right, wrong on cache hits, wrong with tools, unsteady, silent, or absent."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch
from zlib import crc32

import pytest
from click.testing import CliRunner, Result
from tests.support.web import Answer, serving_answers

from draftwise.cli import main

_TIE, _GAP = 0.001, 6.0
"""Nats between the two best tokens where they are tied, and elsewhere."""
_SUBJECT = '{"name": "a", "year": 1969, "tags": []}'


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a stubborn server goes by."""

    number: int
    """Of the request, from 1."""
    is_hit: bool
    kind: str
    length: int
    """Tokens of the prompt."""


FAULTS: Mapping[str, tuple[Callable[[Seen], bool], set[str]]] = {
    "cache hits": (lambda seen: seen.is_hit, {"cache"}),
    "tools": (lambda seen: seen.kind == "tools", {"tools"}),
    "schema": (lambda seen: seen.kind == "schema", {"schema"}),
    "long": (lambda seen: seen.length > 3000, {"long"}),
    "every tenth time": (lambda seen: seen.number % 10 == 0, set()),
}
"""The faults of a server, and the kinds that must show each; without a kind, any of them."""


@dataclass
class Model:
    """A server of a model whose next token is a hash of all tokens before it."""

    wrong: Callable[[Seen], bool] = lambda _: False
    """Which requests it answers with a token that it does not rate."""
    wrong_at: int = 5
    breaks_json: bool = False
    garbles: bool = False
    """Loses arguments of tools although the tokens are right, as parsers do that expect one token at a time."""
    ends: str = "length"
    flips: float = 0.0
    """Share of tokens in whose place it takes the other one of two that are tied, at random."""
    mad: bool = False
    """Changes tokens that are not tied."""
    tells_logprobs: bool = True
    tells_ids: bool = True
    has_cache: bool = True
    drafts: bool = True
    refuses: str = ""
    """Field of a request that it refuses."""
    seed: int = 0
    _seen: set[tuple[object, ...]] = field(default_factory=set)
    _times: Counter[int] = field(default_factory=Counter)
    _asked: int = 0
    _hits: int = 0

    def get(self, path: str, _: object) -> Answer:
        if path == "/metrics":
            counts = {"vllm:generation_tokens_total": 48 * self._asked, "vllm:prefix_cache_queries_total": self._asked}
            counts["vllm:prefix_cache_hits_total"] = self._hits
            if self.drafts:
                counts["vllm:spec_decode_num_drafts_total"] = 20 * self._asked
            return 200, "".join(f'{name}{{model_name="m"}} {count}\n' for name, count in counts.items())
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": "m", "max_model_len": 4096}]})
        return 200, json.dumps({"version": "0.33.0"})

    def post(self, path: str, body: bytes) -> Answer:
        asked: dict[str, Any] = json.loads(body)
        if self.refuses and self.refuses in asked:
            return 400, json.dumps({"error": {"message": f"{self.refuses} is not supported"}})
        if isinstance(asked.get("prompt"), list):
            return 200, json.dumps({"choices": [{"logprobs": self._view(asked["prompt"])}]})
        self._asked += 1
        content = asked["messages"][0]["content"]
        prompt = [*content.encode(), *(b"tools" if "tools" in asked else b"")]
        key = (asked.get("cache_salt"), content[:64])
        is_hit = self.has_cache and key in self._seen
        self._hits += 16 * is_hit
        self._seen.add(key)
        kind = "tools" if "tools" in asked else "schema" if "response_format" in asked else ""
        is_wrong = self.wrong(Seen(number=self._asked, is_hit=is_hit, kind=kind, length=len(prompt)))
        if kind == "schema":
            text = _SUBJECT[: 20 if self.breaks_json else None]
            text = text.replace("1969", "1968") if is_wrong else text
            tokens = [*text.encode()]
        else:
            tokens = list(self._answer(prompt, asked["max_tokens"], is_wrong=is_wrong))
            text = " ".join(map(str, tokens))
        shown: dict[str, Any] = {"role": "assistant", "content": text}
        if kind == "tools":
            call = {"name": "find_orders", "arguments": text[:30] if self.garbles else text}
            shown = {"role": "assistant", "tool_calls": [{"function": call}]}
        ends = "stop" if kind == "schema" else self.ends
        choice = {"index": 0, "delta": shown, "finish_reason": ends} | ({"token_ids": tokens} if self.tells_ids else {})
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        event = {"choices": [choice], "usage": usage} | ({"prompt_token_ids": prompt} if self.tells_ids else {})
        return 200, f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"

    def _answer(self, prompt: Sequence[int], count: int, *, is_wrong: bool) -> Iterator[int]:
        digest = _digest(prompt)
        self._times[digest] += 1  # not by the order in which requests arrive, which differs from run to run
        chance = Random(f"{self.seed} {digest} {self._times[digest]}")
        for position in range(count):
            best, second, gap = _choose(digest)
            takes_other = gap == _TIE and chance.random() < self.flips
            takes_other = takes_other or (self.mad and position == self._asked % 7)
            token = 7 if is_wrong and position == self.wrong_at else second if takes_other else best
            digest = _digest([token], digest)
            yield token

    def _view(self, tokens: Sequence[int]) -> object:
        best, second, gap = _choose(_digest(tokens))
        view = {f"token_id:{best}": -0.1, f"token_id:{second}": -0.1 - gap, "token_id:1": -9.0}
        written = bytes(token for token in tokens[-len(_SUBJECT) :] if token < 256)
        so_far = written[written.rfind(b'{"name') :]
        if so_far and _SUBJECT.encode().startswith(so_far):
            view = {f"token_id:{_SUBJECT.encode()[len(so_far)]}": -0.1, "token_id:1": -9.0}
        return {"top_logprobs": [view]} if self.tells_logprobs else None


def _digest(tokens: Sequence[int], before: int = 0) -> int:
    return crc32(array("H", tokens).tobytes(), before)


def _choose(digest: int) -> tuple[int, int, float]:
    """Return the best and the second-best token, and how far they are apart."""
    return 1000 + digest % 500, 2000 + digest % 500, _TIE if digest % 13 == 0 else _GAP


@contextmanager
def running(model: Model) -> Iterator[str]:
    with serving_answers(model.get, model.post) as url:
        yield url


def check(server: Model, plain: Model | None = None) -> tuple[Result, dict[str, str]]:
    """Return what is printed, and the outcome of each kind of requests."""
    # Other words in the prompts would be other draws, of which some in a hundred hide a rare fault behind a tie.
    told = patch("secrets.token_hex", lambda count: "5a" * count)
    with told, running(server) as url, running(plain or Model(drafts=False)) as other:
        result = CliRunner().invoke(main, ["verify", url, "--answers", "--against", other, "--json"])
    (judged,) = json.loads(result.stdout)
    kinds = {"cached prefix": "cache", "tools": "tools", "JSON schema": "schema", "long context": "long"}
    found = {}
    for finding in judged["findings"]:
        kind = next(
            kind
            for words, kind in kinds.items()
            if f"with a {words}" in finding["message"] or words in finding["message"]
        )
        found[kind] = finding["code"].removeprefix("answers-")
    assert len(found) == len(kinds) == len(judged["findings"])
    return result, found


ALL = ("cache", "tools", "schema", "long")


@pytest.mark.parametrize(
    ("server", "differ", "unjudged", "says"),
    [
        (Model(), (), (), "12 of 12 answers with a cached prefix"),
        (Model(FAULTS["cache hits"][0]), ("cache",), (), "from output token 5 on"),
        (Model(FAULTS["tools"][0]), ("tools",), (), "tools-0 from output token 5 on"),
        (Model(breaks_json=True), ("schema",), (), "does not have the requested form"),
        (Model(flips=0.5), (), (), "almost equally likely"),
        (Model(mad=True), ("cache", "tools", "long"), (), "answers-differ"),
        (Model(refuses="tools"), ("tools",), (), "tools is not supported"),
        (Model(has_cache=False), (), ("cache",), "its prefix cache had no hit"),
        (Model(drafts=False), (), ALL, "verified no drafts"),
    ],
    ids=["right", "cache hits", "tools", "JSON", "unsteady", "mad", "refuses tools", "no cache", "no drafts"],
)
def test_each_kind_is_the_same_different_or_not_judged(
    server: Model, differ: Sequence[str], unjudged: Sequence[str], says: str
) -> None:
    result, found = check(server)
    wanted = {kind: "differ" if kind in differ else "not-judged" if kind in unjudged else "same" for kind in ALL}
    assert found == wanted
    assert says in result.stdout
    assert result.exit_code == int(bool(differ) or unjudged == ALL), "what nothing could judge does not pass"


def test_an_unsteady_plain_server_excuses_ties_and_nothing_else() -> None:
    assert set(check(Model(), Model(flips=0.5, drafts=False))[1].values()) == {"same"}
    assert check(Model(FAULTS["cache hits"][0]), Model(flips=0.5, drafts=False))[1]["cache"] == "differ"


def test_without_log_probabilities_a_rare_difference_is_not_judged_and_an_early_one_is() -> None:
    silent = Model(tells_logprobs=False, drafts=False)
    result, found = check(Model(lambda seen: seen.is_hit or seen.kind == "tools", tells_logprobs=False), silent)
    assert found == {"cache": "not-judged", "tools": "differ", "schema": "same", "long": "same"}
    assert "the servers return no log-probabilities by token; first cache-" in result.stdout


def test_a_plain_server_that_refuses_is_no_yardstick() -> None:
    result, found = check(Model(), Model(refuses="response_format", drafts=False))
    assert found["schema"] == "not-judged"
    assert "the plain server rejects such requests" in result.stdout


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("tells", [(True, True), (True, False), (False, False)], ids=["all", "no logprobs", "no ids"])
@pytest.mark.parametrize("flips", [0.0, 0.1])
def test_a_stubborn_server_is_never_the_same(name: str, tells: tuple[bool, bool], flips: float) -> None:
    wrong, kinds = FAULTS[name]
    for seed, wrong_at in enumerate((0, 5, 30)):
        told = {"tells_ids": tells[0], "tells_logprobs": tells[1], "flips": flips}
        plain = Model(drafts=False, seed=100 + seed, **{**told, "flips": 0.0})
        result, found = check(Model(wrong, wrong_at=wrong_at, seed=seed, **told), plain)
        told_of = {kind for kind, outcome in found.items() if outcome != "same"}
        assert kinds <= told_of if kinds else told_of
        assert "differ" in found.values() or not all(tells)
        assert result.exit_code == int("differ" in found.values() or set(found.values()) == {"not-judged"})
        for finding in json.loads(result.stdout)[0]["findings"]:
            assert finding["code"] != "answers-not-judged" or finding["fix"].startswith(("Pass", "Start", "Keep"))


@pytest.mark.parametrize("tells", [(True, True), (True, False), (False, False)], ids=["all", "no logprobs", "no ids"])
def test_a_server_whose_ties_flip_is_never_accused(tells: tuple[bool, bool]) -> None:
    for seed in range(6):
        told = {"tells_ids": tells[0], "tells_logprobs": tells[1]}
        plain = Model(drafts=False, flips=0.5 * (seed % 2), seed=100 + seed, **told)
        _, found = check(Model(flips=0.5 if all(tells) else 0.1, seed=seed, **told), plain)
        assert "differ" not in found.values()
        assert not all(tells) or set(found.values()) == {"same"}


@pytest.mark.parametrize("fault", [{"garbles": True}, {"ends": "tool_calls"}])
def test_right_tokens_that_become_another_answer_differ(fault: dict[str, Any]) -> None:
    assert check(Model(**{"ends": "stop"} | fault), Model(ends="stop", drafts=False))[1]["tools"] == "differ"


def test_a_plain_server_that_changes_sure_tokens_excuses_nothing() -> None:
    result, found = check(Model(FAULTS["cache hits"][0]), Model(mad=True, drafts=False))
    assert found["cache"] == "not-judged"
    assert "the plain server changed" in result.stdout


def test_an_absent_server_is_no_verdict() -> None:
    with running(Model()) as url:
        result = CliRunner().invoke(main, ["verify", "http://127.0.0.1:1", "--answers", "--against", url])
        other = CliRunner().invoke(main, ["verify", url, "--answers", "--against", "http://127.0.0.1:1"])
        alone = CliRunner().invoke(main, ["verify", url, "--answers"])
    for each in (result, other):
        assert each.exit_code != 0
        assert "same" not in each.output
    assert alone.exit_code == 2
