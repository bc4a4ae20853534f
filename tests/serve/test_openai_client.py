"""What the official client gets from the server, by endpoint."""

import pytest
from tests.support.fake_engine import FakeEngine
from tests.support.serving import serving

REPLY = "Hello, world"


def test_a_completion_is_typed_and_counted(shared):
    answer = shared.client.completions.create(model="m", prompt="Say", max_tokens=5)
    assert answer.object == "text_completion"
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [(0, "Hello", "length")]
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 5, 8)
    assert usage.prompt_tokens_details.cached_tokens == 2


@pytest.mark.parametrize(
    ("prompt", "prompt_tokens"),
    [("ab", [2]), (["ab", "c"], [2, 1]), ([65, 66, 67], [3]), ([[65], [66, 67]], [1, 2])],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_every_kind_of_prompt(shared, prompt, prompt_tokens):
    before = len(shared.engine.prompts)
    answer = shared.client.completions.create(model="m", prompt=prompt, n=2, max_tokens=2)
    assert [len(ids) for ids in shared.engine.prompts[before:]] == prompt_tokens
    assert [c.index for c in answer.choices] == list(range(2 * len(prompt_tokens)))
    assert answer.usage.prompt_tokens == sum(prompt_tokens)
    assert answer.usage.completion_tokens == 4 * len(prompt_tokens)


def test_completions_default_to_sixteen_tokens_and_chat_to_the_rest_of_the_context(shared):
    shared.client.completions.create(model="m", prompt="ab")
    assert shared.engine.params[-1].max_tokens == 16
    shared.client.completions.create(model="m", prompt="a" * 60, max_tokens=16)
    assert shared.engine.params[-1].max_tokens == 4
    shared.client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    assert shared.engine.params[-1].max_tokens == 64 - len(shared.engine.prompts[-1])


@pytest.mark.parametrize("per_step", [1, 3, 20])
def test_a_stream_brings_the_same_text_and_the_usage_last(checkpoint, per_step):
    with serving(FakeEngine(checkpoint, per_step=per_step)) as server:
        chunks = list(
            server.client.completions.create(
                model="m", prompt="Say", stream=True, stream_options={"include_usage": True}, max_tokens=40
            )
        )
    *texts, usage = chunks
    assert "".join(chunk.choices[0].text for chunk in texts) == REPLY
    assert [chunk.choices[0].finish_reason for chunk in texts] == [None] * (len(texts) - 1) + ["stop"]
    assert len(texts) == -(-(len(REPLY) + 1) // per_step)
    assert usage.choices == []
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (3, len(REPLY) + 1)


def test_running_usage_and_token_ids_tell_how_many_tokens_a_chunk_brought(checkpoint):
    with serving(FakeEngine(checkpoint, per_step=5)) as server:
        chunks = list(
            server.client.completions.create(
                model="m",
                prompt="Say",
                stream=True,
                stream_options={"include_usage": True, "continuous_usage_stats": True},
                extra_body={"return_token_ids": True},
            )
        )
    assert [chunk.usage.completion_tokens for chunk in chunks] == [5, 10, 13, 13]
    assert [len(chunk.choices[0].token_ids) for chunk in chunks[:-1]] == [5, 5, 3]
    assert chunks[0].choices[0].prompt_token_ids == server.engine.prompts[0]
    assert server.engine.tokenizer.decode(chunks[0].choices[0].token_ids) == "Hello"


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_tells_its_prompts_token_ids_once_if_asked(shared, stream):
    ask = {"model": "m", "messages": [{"role": "user", "content": "A"}], "n": 2, "stream": stream}
    answer = shared.client.chat.completions.create(**ask, extra_body={"return_token_ids": True})
    parts = list(answer) if stream else [answer]
    told = [part.prompt_token_ids for part in parts if hasattr(part, "prompt_token_ids")]
    assert told == [shared.engine.prompts[-1]] * (2 if stream else 1), "with the opening of each choice, or the answer"
    plain = shared.client.chat.completions.create(**ask)
    assert not any(getattr(part, "prompt_token_ids", None) for part in (plain if stream else [plain]))


def test_tokens_may_be_named_by_their_ids(shared):
    by_id = {"return_tokens_as_token_ids": True}
    ask = {"model": "m", "max_tokens": 2}
    told = shared.client.completions.create(**ask, prompt="a", logprobs=1, extra_body=by_id).choices[0].logprobs
    h, e = (shared.engine.tokenizer.encode(each)[0] for each in "He")
    assert told.tokens == [f"token_id:{h}", f"token_id:{e}"]
    assert list(told.top_logprobs[0]) == [f"token_id:{h}", f"token_id:{h + 1}"]
    assert told.text_offset == [0, 1]
    messages = [{"role": "user", "content": "A"}]
    chat = shared.client.chat.completions.create(**ask, messages=messages, logprobs=True, extra_body=by_id)
    first = chat.choices[0].logprobs.content[0]
    assert (first.token, bytes(first.bytes)) == (f"token_id:{h}", b"H")


def test_a_stop_string_ends_the_text_before_it(shared):
    answer = shared.client.completions.create(model="m", prompt="a", stop=[", w", "zz"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello", "stop")
    assert answer.choices[0].stop_reason == ", w"
    kept = shared.client.completions.create(
        model="m", prompt="a", stop=", w", extra_body={"include_stop_str_in_output": True}
    )
    assert kept.choices[0].text == "Hello, w"


def test_completion_logprobs_with_echo(shared):
    answer = shared.client.completions.create(model="m", prompt="ab", max_tokens=2, logprobs=1, echo=True)
    choice = answer.choices[0]
    assert choice.text == "abHe"
    assert choice.logprobs.tokens == ["a", "b", "H", "e"]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]
    assert choice.logprobs.token_logprobs == [None, -0.75, -0.75, -0.75]
    assert choice.logprobs.top_logprobs == [
        None,
        {"b": -0.75, "c": -0.5},
        {"H": -0.75, "I": -0.5},
        {"e": -0.75, "f": -0.5},
    ]
    assert choice.prompt_logprobs[1]["65"] == {"logprob": -0.75, "rank": 2, "decoded_token": "b"}


def test_echo_without_tokens_scores_the_prompt_alone(shared):
    answer = shared.client.completions.create(model="m", prompt="ab", max_tokens=0, logprobs=0, echo=True)
    assert (answer.choices[0].text, answer.choices[0].logprobs.tokens) == ("ab", ["a", "b"])


def test_streamed_logprobs_continue_their_offsets(shared):
    chunks = list(shared.client.completions.create(model="m", prompt="a", stream=True, logprobs=0, stop="lo"))
    told = [chunk.choices[0].logprobs for chunk in chunks]
    assert [token for each in told for token in each.tokens] == ["H", "e", "l", "l", "o"]
    assert [offset for each in told for offset in each.text_offset] == [0, 1, 2, 3, 4]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hel"


def test_a_chat_goes_through_the_models_template(shared):
    answer = shared.client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}],
        max_completion_tokens=5,
    )
    assert answer.choices[0].message.content == "Hello"
    prompt = shared.engine.tokenizer.decode(shared.engine.prompts[-1], skip_special_tokens=False)
    assert prompt == "<|user|>A\nB<|end|><|assistant|>"


def test_template_variables_cannot_replace_the_messages(shared):
    shared.client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "A"}],
        extra_body={"chat_template_kwargs": {"messages": [], "self": 1, "add_generation_prompt": True}},
    )
    assert shared.engine.tokenizer.decode(shared.engine.prompts[-1]) == "A"


def test_chat_logprobs_are_sorted_and_carry_bytes(shared):
    answer = shared.client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "x"}], max_tokens=1, logprobs=True, top_logprobs=2
    )
    (token,) = answer.choices[0].logprobs.content
    assert (token.token, token.logprob, token.bytes) == ("H", -0.75, [72])
    assert [(top.token, top.logprob) for top in token.top_logprobs] == [("I", -0.5), ("H", -0.75)]


def test_a_chat_stream_opens_with_the_role_of_each_choice(shared):
    chunks = list(
        shared.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True, n=2, max_tokens=3
        )
    )
    assert [c.choices[0].delta.role for c in chunks[:2]] == ["assistant"] * 2
    for index in (0, 1):
        mine = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert "".join(choice.delta.content for choice in mine) == "Hel"
        assert mine[-1].finish_reason == "length"


def test_sampling_fields_reach_the_engine(shared):
    extra = {
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "bad_words": ["no"],
        "stop_token_ids": [250],
        "min_tokens": 1,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "prompt_logprobs": 1,
    }
    shared.client.completions.create(
        model="m",
        prompt="a",
        temperature=0.3,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        seed=4,
        logit_bias={"65": -100},
        extra_body=extra,
    )
    params = shared.engine.params[-1]
    given = extra | {"temperature": 0.3, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 4}
    assert {name: getattr(params, name) for name in given} == given
    assert params.logit_bias == {65: -100.0}


def test_seeds_and_biases_have_vllms_limits(shared):
    for given, seed in ((-1, None), (-7, 2**63 - 7), (2**63 - 1, 2**63 - 1)):
        shared.client.completions.create(model="m", prompt="a", seed=given, logit_bias={"65": 1e299, "66": -1e299})
        assert (shared.engine.params[-1].seed, shared.engine.params[-1].logit_bias) == (seed, {65: 100.0, 66: -100.0})
    chat = {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 0}
    assert shared.http.post("/v1/chat/completions", json=chat).status_code == 200


def test_generation_config_fills_in_what_is_left_out(shared):
    shared.client.completions.create(model="m", prompt="a")
    assert shared.engine.params[-1].temperature == 0.6
    shared.client.completions.create(model="m", prompt="a", temperature=0)
    assert shared.engine.params[-1].temperature == 0


def test_unknown_fields_are_ignored_with_a_warning(shared, caplog):
    shared.client.completions.create(model="m", prompt="a", user="me", extra_body={"colour": "red"})
    assert "colour" in caplog.text
    assert "user" not in caplog.text.replace("user.", "")


def test_models_version_and_health(shared):
    (model,) = shared.client.models.list().data
    assert (model.id, model.max_model_len) == ("m", 64)
    about = shared.http.get("/version").json()
    assert about["engine"] == "draftwise"
    assert {"version", "dtype", "device", "speculative_config"} <= about.keys()
    assert shared.http.get("/health").status_code == 200
