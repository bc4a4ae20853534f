"""Synthetic workloads and reshaped ones: the statistics that were asked for are the ones that come out."""

import random
import re
import statistics
from pathlib import Path

import pytest
from tests.support.loaded import load_workload

from draftwise.core import InvalidSetup, Prompt
from draftwise.workloads import check_workloads, load_workloads, profile_workload
from draftwise.workloads.reshape import prompt_length
from draftwise.workloads.text_lengths import EstimatedTokens, parse_length


def lengths(text: str) -> list[int]:
    return [prompt_length(prompt, EstimatedTokens()) for prompt in load_workload(text).prompts]


@pytest.mark.parametrize(
    ("text", "mean", "low", "high"),
    [
        ("40", 40, 40, 40),
        ("30-90", 60, 30, 90),
        ("uniform:30:90", 60, 30, 90),
        ("100±10", 100, 50, 150),
        ("100+-10", 100, 50, 150),
        ("normal:100:10", 100, 50, 150),
        # The mean of a lognormal is its median times exp(sigma^2 / 2), here sigma = ln 1.5.
        ("lognormal:100:1.5", 108.6, 15, 700),
    ],
)
def test_lengths_follow_the_distribution_that_was_written(text: str, mean: float, low: int, high: int) -> None:
    rng = random.Random(0)
    drawn = [parse_length(text).draw(rng) for _ in range(4000)]
    assert statistics.mean(drawn) == pytest.approx(mean, rel=0.03)
    assert low <= min(drawn) <= max(drawn) <= high


@pytest.mark.parametrize("text", ["", "0", "-5", "90-30", "normal:5", "lognormal:5:0.5", "1e3", "5+-", "0+-4"])
def test_what_is_no_length_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a length in tokens, one of 512 \(fixed\)"):
        parse_length(text)


@pytest.mark.parametrize("source", ["code", "prose", "random"])
def test_prompts_have_the_length_asked_for(source: str) -> None:
    assert all(abs(length - 300) <= 2 for length in lengths(f"synthetic:prompt=300,n=20,source={source}"))
    assert all(abs(length - 9) <= 2 for length in lengths(f"synthetic:prompt=9,n=20,source={source}"))


def test_a_synthetic_workload_is_made_of_whole_functions_and_no_two_begin_alike() -> None:
    workload = load_workload("synthetic:prompt=400,output=20-40,source=code,n=50")
    texts = [prompt.text or "" for prompt in workload.prompts]
    assert len({text[:24] for text in texts}) == 50
    for text in texts:
        for function in re.split(r"\n{3,}", text)[1:-1]:  # all but the opening line and the one that is cut
            compile(function, "x", "exec")
    assert all(20 <= prompt.max_tokens <= 40 and prompt.ignore_eos for prompt in workload.prompts)
    assert workload.description == (
        "synthetic, seed 0; prompt tokens 400, output tokens 20-40; texts recombined from code; "
        "tokens estimated at 4 characters each"
    )


def test_a_text_file_is_a_source(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("First thing.\n\nSecond thing.\n\n\nThird thing.\n")
    (prompt,) = load_workload(f"synthetic:prompt=20,n=1,source={path}").prompts
    assert {part[:5] for part in (prompt.text or "").split("\n\n")} <= {"First", "Secon", "Third"}
    with pytest.raises(InvalidSetup, match="is neither code, prose, random nor a readable text file"):
        load_workload("synthetic:source=/no/such")
    path.write_text(" \n")
    with pytest.raises(InvalidSetup, match="holds no text"):
        load_workload(f"synthetic:source={path}")


def test_seeds_decide_texts_and_lengths() -> None:
    text = "synthetic:prompt=100+-30,n=10"
    assert load_workload(text).sha256 == load_workload(text).sha256 != load_workload(f"{text},seed=1").sha256


def test_random_tokens_are_refused_where_acceptance_is_measured_and_only_there() -> None:
    workloads = [load_workload("synthetic:source=random,n=4"), load_workload("code")]
    (finding,) = check_workloads(workloads, measures_acceptance=True)
    assert (finding.code, finding.severity, finding.where) == ("random-tokens", "error", workloads[0].name)
    assert "#33497" in finding.source
    assert check_workloads(workloads, measures_acceptance=False) == []


def test_repeated_prompts_and_missing_arrivals_are_found(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a"}\n' * 3)
    workload = load_workload(str(path))
    codes = [finding.code for finding in check_workloads([workload], measures_acceptance=True, needs_arrivals=True)]
    assert codes == ["no-arrivals", "repeated-prompts"]
    assert profile_workload(workload).distinct == 1


def test_common_prefixes_are_shared_by_groups() -> None:
    workload = load_workload("code#prefix=200x4")
    heads = [(prompt.text or "")[:780] for prompt in workload.prompts]
    assert len(set(heads)) == 4
    assert all(head == heads[place % 4] for place, head in enumerate(heads))
    assert "every prompt begins with one of 4 common texts of 200 tokens" in workload.description


def test_a_chats_prefix_is_its_only_system_message(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    user = '{"role": "user", "content": "hi"}'
    path.write_text(
        f'{{"messages": [{{"role": "system", "content": "Be kind."}}, {user}]}}\n{{"messages": [{user}]}}\n'
    )
    with_own, without = load_workload(f"{path}#prefix=50").prompts
    assert [message["role"] for message in with_own.messages] == ["system", "user"]
    assert with_own.messages[0]["content"] == without.messages[0]["content"] + "\n\nBe kind."


def test_forms_turn_texts_into_chats_and_back() -> None:
    texts, chats = load_workload("code"), load_workload("code#form=chat")
    assert [prompt.messages[0]["content"] for prompt in chats.prompts] == [prompt.text for prompt in texts.prompts]
    assert all(prompt.text and not prompt.messages for prompt in load_workload("rewrite#form=completion").prompts)


def test_length_buckets_share_a_workload_out() -> None:
    whole = load_workload("rewrite")
    parts = load_workloads("rewrite#split=60/120")
    assert [part.name for part in parts] == ["rewrite-prompt=0-60", "rewrite-prompt=60-120", "rewrite-prompt=120-"]
    together = [prompt for part in parts for prompt in part.prompts]
    assert sorted(prompt.id for prompt in together) == sorted(prompt.id for prompt in whole.prompts)
    assert all(prompt_length(prompt, EstimatedTokens()) < 60 for prompt in parts[0].prompts)
    one = load_workload("rewrite#prompt=60-120")
    assert one.prompts == parts[1].prompts
    with pytest.raises(InvalidSetup, match="holds no prompts of 90000 tokens or more"):
        load_workload("rewrite#prompt=90000-")


@pytest.mark.engine
def test_counts_are_exact_with_a_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    workload = load_workload("synthetic:prompt=37,n=5,source=prose", tokenizer=tmp_path)
    counts = [len(tokenizer.encode(prompt.text or "").ids) for prompt in workload.prompts]
    assert counts == [37] * 5
    assert workload.description.endswith("tokens counted with tokenizer.json")
    asked = load_workload(f"synthetic:prompt=37,n=5,source=prose,tokenizer={tmp_path}")
    assert asked.prompts == workload.prompts


@pytest.mark.engine
def test_a_damaged_tokenizer_that_was_asked_for_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidSetup, match="cannot be read"):
        load_workload(f"code#tokenizer={tmp_path}")


def test_a_tokenizer_that_was_not_asked_for_need_not_be_there(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for hint in (tmp_path, tmp_path / "none", Path("meta-llama/Llama-3.1-8B")):
        assert "estimated" in load_workload("synthetic:n=1", tokenizer=hint).description


@pytest.mark.parametrize("text", ["synthetic:n=1000000000", "synthetic:prompt=99999999"])
def test_more_text_than_a_machine_holds_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidSetup, match="asks for more than 50 MB of text"):
        load_workload(text)


def test_a_part_of_the_prompts() -> None:
    first = load_workload("code#n=5").prompts
    assert first == load_workload("code").prompts[:5]
    drawn = load_workload("code#sample=5,seed=3").prompts
    places = [load_workload("code").prompts.index(prompt) for prompt in drawn]
    assert places == sorted(places) != [0, 1, 2, 3, 4]


def test_answers_can_be_given_a_length() -> None:
    prompts: tuple[Prompt, ...] = load_workload("code#output=7,force").prompts
    assert {(prompt.max_tokens, prompt.ignore_eos) for prompt in prompts} == {(7, True)}
    assert not load_workload("synthetic:force=no,n=1").prompts[0].ignore_eos


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("synthetic:promt=5", "which is no option of a synthetic workload. Did you mean prompt?"),
        ("code#turns=all", "--workload has 'turns', which is no option of a bundled workload."),
        ("code#n=0", "--workload's n must be a positive whole number, got '0'."),
        ("code#n=3,sample=4", "code#n=3,sample=4 has both n and sample, which exclude each other."),
        ("code#prompt=9", "--workload's prompt must be a range of tokens such as 0-1000"),
        ("code#split=9/5", "must be rising edges in tokens such as 512/2048"),
        ("code#prefix=x4", "must be TOKENS or TOKENSxGROUPS"),
        ("code#form=talk", "must be chat, completion, got 'talk'."),
        ("code#force=maybe", "must be yes or no"),
        ("code#name=a/b", "must be of letters"),
        ("code#output=logged", "--workload's output must be a length in tokens, one of 512 (fixed)"),
    ],
)
def test_a_wrong_option_is_explained(text: str, words: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload(text)
    assert words in str(caught.value)


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload("synthetic:promt=5,output=0,n=-3,form=x")
    assert len(caught.value.findings) == 4


def test_names_tell_workloads_apart(tmp_path: Path) -> None:
    path = tmp_path / "my log #2.jsonl"
    path.write_text('{"prompt": "a"}\n')
    assert load_workload(str(path)).name == "my-log-2"
    assert load_workload("code#n=5,name=short").name == "short"
    assert load_workload("code#n=5").name == "code-n=5"
