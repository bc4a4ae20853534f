"""Whatever became of a file, it is read as it was or refused in a sentence: no other exception, no half-read state."""

import json
import random
import re
import resource
import shutil
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.crafted import damage
from tests.support.every_method import WITH_MODEL, make_config
from tests.support.tiny_models import FAMILIES, write_family

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import load_model
from draftwise.engine.models.checkpoint import _NUMBERS, _ROPE_NUMBERS, _SIZES, _SWITCHES
from draftwise.engine.proposers import make_proposer
from draftwise.engine.resolved_spec import resolve_spec
from draftwise.engine.text.tokenizer import ChatTemplate, load_tokenizer
from draftwise.serve.calls import Defaults
from draftwise.training.run_folder import RunFolder

VALUES = [
    None, True, -1, 0, 1, 0.5, 2**16, 2**30, 2**31, 10**12, 10**30, 1e308, float("nan"), float("inf"), "", "x", [], [1],
    ["a"], {}, {"a": 1}, "{% for %}", "(a+)+$", "deep", "long",
]  # fmt: skip
WRITTEN = {'"deep"': "[" * 5000 + "]" * 5000, '"long"': "9" * 5000}
"""What is written in the place of some values: JSON that Python does not write."""
OF_PYTHON = re.compile("NoneType|no attribute|indices must|maximum recursion|operand|hashable|codec|set_int_max")
LAW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])


KEYS = [
    *_SIZES, *_NUMBERS, *_SWITCHES, "layer_types", "architectures", "model_type", "hidden_act", "quantization_config",
    "dtype", "torch_dtype", "eos_token_id", "mlp_only_layers", "rope_parameters", "rope_scaling",
]  # fmt: skip
ROPE = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["default", "linear", "llama3", "yarn", "dynamic", "x"])},
    optional={name: st.sampled_from([*VALUES, 2.0, 8192]) for name in _ROPE_NUMBERS},
)
MEMORY = 2**30


@contextmanager
def little_memory():
    """Let this process take `MEMORY` more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def used_or_refused():
    """Let a sentence pass that has no words of Python in it."""
    told = ""
    try:
        yield
    except InvalidSetup as error:
        told = str(error)
    assert not OF_PYTHON.search(told)


def write_changed(path, content):
    """Write a JSON file in the place of a link."""
    path.unlink()
    text = json.dumps(content)
    for name, written in WRITTEN.items():
        text = text.replace(name, written)
    path.write_text(text)


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
    "generation_config.json": lambda path: (use_tokenizer(path), Defaults.from_checkpoint(path)),
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
    write_changed(path / name, put(content, place, data.draw(st.sampled_from(VALUES))))
    with used_or_refused():
        USES[name](path)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def families(tiny_target, tmp_path_factory):
    """A checkpoint of each kind of config."""
    folder = tmp_path_factory.mktemp("families")
    return [tiny_target, *(write_family(folder / family, family) for family in FAMILIES)]


@LAW
@given(data=st.data())
def test_a_config_of_any_values_takes_little_memory(families, tmp_path_factory, data):
    source, path = data.draw(st.sampled_from(families)), tmp_path_factory.mktemp("mutated")
    for file in source.iterdir():
        (path / file.name).symlink_to(file)
    changed = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES) | ROPE, min_size=1, max_size=3)
    config = json.loads((source / "config.json").read_text()) | data.draw(changed)
    write_changed(path / "config.json", config)
    with used_or_refused(), little_memory():
        load_model(path, device="cpu")
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def heads(tiny_target, tiny_draft, tmp_path_factory):
    """A target, and the speculative config and folder of each kind of drafter."""
    folder = tmp_path_factory.mktemp("heads")
    made = [make_config(name, tiny_target, tiny_draft, folder / str(i)) for i, name in enumerate(WITH_MODEL)]
    return load_model(tiny_target, device="cpu"), made


@LAW
@given(data=st.data())
def test_a_drafter_of_any_config_is_built_or_refused(heads, tmp_path_factory, data):
    (target, made), path = heads, tmp_path_factory.mktemp("mutated")
    spec = data.draw(st.sampled_from(made))
    for file in Path(spec["model"]).iterdir():
        (path / file.name).symlink_to(file)
    config = json.loads((path / "config.json").read_text())
    place = data.draw(st.sampled_from([*list_places(config)]) | st.sampled_from(KEYS).map(lambda key: (key,)))
    config = put(config | dict.fromkeys(place[:1]) | config, place, data.draw(st.sampled_from(VALUES)))
    write_changed(path / "config.json", config)
    with used_or_refused(), little_memory():
        resolved = resolve_spec(SpecConfig.parse(spec | {"model": str(path)}))
        make_proposer(resolved, EngineConfig(model="target", max_model_len=64), target)
    shutil.rmtree(path)


EXPRESSIONS = st.sampled_from([
    "1 / 0", "messages[99].role", "x.y.z", "messages | sort", "'%d' % 'x'", "raise_exception(5)", "'a' | center(99)",
    "10 ** 400 * 0.5", "{}[[]]", "messages.__class__", "m.content + 1", "messages | tojson", "none()", "x()",
    "'a' | nothing", "[1] | first | upper | list", "range(10 ** 9)", "lipsum(n=1)", "caller()", "super()", "self.b()",
    "strftime_now(5)", "strftime_now('%Y\\ud800')", "messages | join(5)", "messages | map('x') | list", "namespace(5)",
    "f(f)", "messages.append(1)", "cycler()", "joiner()", "'{}{}'.format(1)", "'\\udc00'", "dict(a=1).a.b.c",
])  # fmt: skip
PIECES = st.recursive(
    EXPRESSIONS.map("{{{{ {} }}}}".format) | st.sampled_from(["{% endfor %}", "{{", "{% x %}", "\x00", "{# ", "é"]),
    lambda inner: st.one_of(
        *(
            st.tuples(EXPRESSIONS, inner).map(lambda drawn, form=form: form.format(*drawn))
            for form in (
                "{{% for m in {} %}}{}{{% endfor %}}",
                "{{% if {} %}}{}{{% else %}}b{{% endif %}}",
                "{{% macro f(a={}) %}}{}{{{{ f() }}}}{{% endmacro %}}{{{{ f() }}}}",
                "{{% set x = {} %}}{}",
                "{{% for m in messages recursive %}}{{{{ loop({}) }}}}{}{{{{ loop(messages) }}}}{{% endfor %}}",
                "{{% filter upper %}}{{{{ {} }}}}{}{{% endfilter %}}",
                "{{% include {} %}}{}",
                "{{% generation %}}{{{{ {} }}}}{}{{% endgeneration %}}",
            )
        ),
        st.tuples(inner, inner).map("".join),
    ),
    max_leaves=6,
)


@LAW
@given(source=PIECES)
def test_a_template_of_any_kind_renders_or_is_refused(tiny_target, source):
    tokenizer = load_tokenizer(tiny_target, skip=False)
    tokenizer.chat_template = ChatTemplate(source)
    tokenizer.chat_template.is_bounded_here = True  # one process for all of them
    with suppress(InvalidSetup):
        assert isinstance(tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]), str)


TABLES = {
    "ids far apart": lambda model: model["vocab"].update({"far": 10**9}),
    "ids of 64 bits": lambda model: model["vocab"].update({"far": 2**63}),
    "ids below zero": lambda model: model["vocab"].update({"far": -1}),
    "one id for two": lambda model: model["vocab"].update({"twice": 1}),
    "a token of a million characters": lambda model: model["vocab"].update({"a" * 10**6: 900}),
    "a merge of tokens that are not there": lambda model: model["merges"].append("x1 y2"),
    "a merge of three": lambda model: model["merges"].append("a b c"),
    "many tokens": lambda model: model["vocab"].update({f"t{i}": 1000 + i for i in range(50_000)}),
    "no tokens": lambda model: model["vocab"].clear(),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_tokenizer_of_any_table_is_used_or_refused(tiny_target, tmp_path, case):
    content = json.loads((tiny_target / "tokenizer.json").read_text())
    TABLES[case](content["model"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    try:
        use_tokenizer(tmp_path)
    except InvalidSetup:
        return
    tokenizer = load_tokenizer(tmp_path, skip=False)
    assert tokenizer.vocab_size <= 2**31
    assert tokenizer.token_text(10**9 + 1) == ""


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
    folder.log.write_text('{"step": 1, "loss": 2.0}\n')
    folder.save(state)
    file = folder.path / "checkpoint.pt"
    file.write_bytes(damage(file.read_bytes(), random.Random(seed)))
    try:
        read = folder.load()
    except InvalidSetup:
        return
    assert str(read) == str(state)
