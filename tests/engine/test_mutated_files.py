"""Whatever became of a file, it is read as it was or refused in a sentence: no other exception, no half-read state."""

import json
import random
import shutil
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwise.core import InvalidSetup
from draftwise.engine.models import load_model
from draftwise.engine.text.tokenizer import load_tokenizer
from draftwise.training.run_folder import RunFolder

VALUES = [
    None, True, -1, 0, 1, 0.5, 2**31, 10**12, 10**30, 1e308, float("nan"), float("inf"), "", "x", [], [1], ["a"], {},
    {"a": 1}, "{% for %}", "(a+)+$",
]  # fmt: skip
LAW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])


def list_places(value, place=()):
    yield place
    entries = value.items() if isinstance(value, dict) else enumerate(value[:20]) if isinstance(value, list) else ()
    for key, inner in [*entries][:40]:
        yield from list_places(inner, (*place, key))


def put(value, place, new):
    if not place:
        return new
    copy = value.copy()
    copy[place[0]] = put(value[place[0]], place[1:], new)
    return copy


def use_tokenizer(path):
    tokenizer = load_tokenizer(path, skip=False)
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    except InvalidSetup:
        text = "hi"
    tokenizer.decode(tokenizer.encode(text, True), False)


USES = {
    "config.json": partial(load_model, device="cpu"),
    "tokenizer.json": use_tokenizer,
    "tokenizer_config.json": use_tokenizer,
}


@pytest.mark.parametrize("name", USES)
@LAW
@given(data=st.data())
def test_a_value_that_changed_is_used_or_refused(tiny_target, tmp_path_factory, name, data):
    content = json.loads((tiny_target / name).read_text())
    place = data.draw(st.sampled_from([*list_places(content)]))
    path = tmp_path_factory.mktemp("mutated")
    for file in tiny_target.iterdir():
        (path / file.name).symlink_to(file)
    (path / name).unlink()
    (path / name).write_text(json.dumps(put(content, place, data.draw(st.sampled_from(VALUES)))))
    try:
        USES[name](path)
    except InvalidSetup:
        pass
    finally:
        shutil.rmtree(path)


@LAW
@given(seed=st.integers(0, 2**32))
def test_bytes_that_changed_in_weights_are_refused_or_make_weights(tiny_target, tmp_path_factory, seed):
    path, chance = tmp_path_factory.mktemp("mutated"), random.Random(seed)
    shutil.copytree(tiny_target, path, dirs_exist_ok=True)
    file = next(path.glob("*.safetensors"))
    file.write_bytes(damage(file.read_bytes(), chance))
    try:
        weights = load_model(path, device="cpu").weights
        assert weights.embedding_VH.isfinite().all()
    except InvalidSetup:
        pass
    finally:
        shutil.rmtree(path)


@LAW
@given(seed=st.integers(0, 2**32))
def test_a_damaged_training_state_is_refused_or_what_it_was(tmp_path_factory, seed):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    state = {"step": 3, "model": {"w": torch.arange(64.0)}, "optimizer": [torch.ones(3), 1e-3]}
    folder.path.mkdir()
    folder.log.write_text('{"step": 1}\n')
    folder.save(state)
    file = folder.path / "checkpoint.pt"
    file.write_bytes(damage(file.read_bytes(), random.Random(seed)))
    try:
        read = folder.load()
    except InvalidSetup:
        return
    assert str(read) == str(state)


def damage(content: bytes, chance: random.Random) -> bytes:
    """Return a file's content cut off, with other bytes in one place, or with a piece missing."""
    start = chance.randrange(min(len(content), chance.choice([64, 4096, len(content)])))
    length = chance.choice([1, 8, 300])
    kind = chance.choice(["cut", "changed", "missing"])
    if kind == "cut":
        return content[:start]
    return content[:start] + (chance.randbytes(length) if kind == "changed" else b"") + content[start + length :]
