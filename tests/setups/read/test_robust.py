"""Whatever is given, the readers answer with readings or with InvalidSetup, and soon."""

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pkgutil import ModuleInfo, walk_packages
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.bounded import STEPS, run_bounded

from draftwise import deploying, setups
from draftwise.core import InvalidSetup
from draftwise.setups.read import SetupReading, SourceText, read_setups
from draftwise.setups.read.manifests.yaml_text import read_yaml
from draftwise.setups.read.shell import open_texts, script_runner
from draftwise.setups.read.shell.environment import NOTHING_SET
from draftwise.setups.read.shell.open_texts import Holes
from draftwise.setups.read.shell.paths import PathState
from draftwise.setups.read.shell.script import run_script
from draftwise.setups.read.shell.script_runner import Shell
from draftwise.setups.read.shell.syntax import parse
from draftwise.setups.read.windows_scripts import to_shell

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

SEEDS = (
    "VLLM_X=1 vllm serve m -tp 2 --max_model_len=8k -sc '{\"method\": \"ngram\", \"num_speculative_tokens\": 5}' # x",
    "docker run --gpus '\"device=0\"' -e A=b vllm/vllm-openai:v0.19.1 --model m --speculative-config.method ngram",
    "A=(--x 'y z')\nexport M=m\nbash -c \"vllm serve $M ${A[@]} ${P:-1}\" \\\n > log 2>&1",
    "services:\n  a: &x\n    image: vllm/vllm-openai:v0.20.0\n    command: ['--model', m, --port, 8000]\n"
    "  b: {<<: *x, gpus: 2}\n",
    "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args: ['--model=$(M)']\n"
    "    env: [{name: M, value: m}]\n    resources: {limits: {nvidia.com/gpu: 2}}\n",
    "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nspec:\n  predictor:\n"
    "    storageUris: [{uri: 'hf://a/b'}]\n"
    "    model: {modelFormat: {name: vLLM}, runtimeVersion: v0.20.0, args: [--seed=1]}\n",
    "kind: LLMInferenceService\napiVersion: v1\nspec:\n  model: {uri: hf://a/b}\n  parallelism: {tensor: 2}\n"
    "  template: {containers: [{name: main, args: [--seed, '1']}]}\n",
    "[Service]\nEnvironment=\"A=b\" C=d\nExecStart=-/bin/vllm serve ${C} \\\n --seed 1\n",
    '{"target": "m", "speculative_config": {"method": "ngram"}, "args": {"seed": 1}, "env": {"A": 1}}',
    "model: m\nseed: 1\nspeculative-config: {method: ngram}\nenforce-eager: false\nmiddleware: [a]\n",
    "servingEngineSpec:\n  modelSpec:\n"
    "  - {modelURL: m, tag: v0.20.0, vllmConfig: {maxModelLen: 1, extraArgs: [--seed=1]}}\n",
    "- hosts: a\n  tasks:\n  - docker_container: {image: vllm/vllm-openai, env: {A: b}, command: --model m}\n",
    "resources: {a: b}\nenvs: {MODEL: m}\nrun: |\n  vllm serve $MODEL --seed 1\n",
    'job "llm" {\n  config {\n    image = "vllm/vllm-openai"\n    args = ["--model", "m", "--port", "${A}"]\n  }\n}\n',
    "spec: 1\napplications: [{llm_configs: [{model_loading_config: {model_id: m}, engine_kwargs: {seed: 1}}]}]",
)  # fmt: skip
PIECES = (
    *"'\"\\${}[]()<>|&;#:,-=\n\t !*%@`~", "--", "{{", "}}", "$(", "<<EOF\n", "&a ", "*a", "<<: ", "- ", "\u2014",
    "\x00", "\ufeff", "1e999", "0x", ".nan", "null", "~", "!!int ", "9" * 30, "\u00e9", "\U0001f600",
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> str:
    rng = random.Random(draw(st.integers(0, 2**32)))
    text = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 6)):
        at, length = rng.randrange(len(text) + 1), rng.randrange(12)
        piece = rng.choice((rng.choice(PIECES), text[at : at + length], rng.choice(SEEDS)[:40]))
        text = text[:at] + piece + text[at + rng.choice((0, length)) :]
    return text


def read(text: str) -> tuple[SetupReading, ...]:
    try:
        return read_setups(text)
    except InvalidSetup:
        return ()


@pytest.mark.parametrize("text", SEEDS)
def test_the_seeds_are_read(text):
    assert read(text)


@QUICK
@given(st.text(max_size=300))
@example("apiVersion: v1\nkind: InferenceService\nspec: [1]")
@example("services: {a: [1], b: {image: [], command: {}}}")
@example('{"target": 1, "args": [1], "env": 3, "speculative_config": "x"}')
@example("servingEngineSpec: {modelSpec: [1, {vllmConfig: 1}]}")
@example("kind: [a]\napiVersion: {}\nvllm: {image: vllm/vllm-openai, args: true, command: {a: b}}")
@example("--model")
@example("vllm serve --speculative-config.")
@example("vllm serve m -O.x")
@example("docker run -e --gpus")
def test_any_text(text):
    read(text)


@QUICK
@given(mutated())
def test_anything_near_what_people_write(text):
    for reading in read(text):
        assert isinstance(reading.setup.target, str)
        assert all(finding.code and finding.message for finding in reading.findings)


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (BOMB, "too-many-aliases"),
        (MERGE_BOMB, "too-many-aliases"),
        ("a: &a [*a]", "too-many-aliases"),
        ("[" * 5_000, "too-deep"),
        ("a: " * 5_000, "not-yaml"),
        ("- " * 5_000, "too-deep"),
        ("x" * 1_000_001, "too-long"),
        ("\x00", "not-yaml"),
        ("a: *b", "not-yaml"),
    ],
)
def test_hostile_yaml_is_refused(text, code):
    with pytest.raises(InvalidSetup) as error:
        read_yaml(text)
    assert error.value.findings[0].code == code


@pytest.mark.parametrize("unit", ["-", "(", "not ", "lambda: "])
def test_python_that_is_nested_too_deeply_is_refused(unit):
    with pytest.raises(InvalidSetup) as error:
        read_setups(SourceText(text=f"import vllm\nvllm.LLM({unit * 20_000}1)", name="serve.py"))
    assert error.value.findings[0].code in ("too-deep", "not-python")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Secret\ndata: {vllm: " + "Ab1/" * 40_000 + "}\n", "Pass the command"),
        ("# vllm by old.sh\nexec /opt/start.sh # not by stop.sh\n", "It seems to run start.sh"),
    ],
    ids=["secret", "script"],
)
def test_a_text_without_a_server_is_refused_however_long_its_words_are(text, told):
    with pytest.raises(InvalidSetup) as error:
        read_setups(text)
    assert error.value.findings[0].code == "no-server"
    assert error.value.findings[0].fix.startswith(told)


COMPOSE = SEEDS[3].partition("    command:")[0] + "    environment:\n"
POD = SEEDS[4].partition("    env:")[0] + "    env:\n"


def _repeat(unit: str, count: int) -> str:
    """Return a text again and again, with a number of its own in the place of each `#`."""
    return "".join(unit.replace("#", str(each)) for each in range(count))


@pytest.mark.parametrize("unit", ["A=1 ", "for ((\n"])
def test_steps_grow_no_faster_than_a_script(unit, monkeypatch):
    monkeypatch.setattr(script_runner, "_MAX_STEPS", 20)
    _, few, many = (
        run_bounded(lambda count=count: run_script(unit * count + "\nvllm serve m"), 9 * STEPS)
        for count in (70, 71, 284)
    )
    assert many < 1.6 * 4 * few


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        ("[Service]\n", "ExecStart=/bin/vllm serve m\n" + 40 * "Nice=1\n"),
        ("[Service]\nExecStart=/bin/vllm serve m\n", "".join(f"[X{each}-#]\nA=1\n" for each in range(20))),
        ("[Service]\nExecStart=/bin/vllm serve m\n", "".join(f"Environment=A{each}_#=1\n" for each in range(20))),
        ("vllm: a\n", "---\nrun: vllm serve m\n"),
        (COMPOSE, "".join(f"    - A{each}_#=1\n" for each in range(20))),
        ("vllm serve m ", 40 * 'A={"a":'),
    ],
    ids=["unit", "sections", "variables", "documents", "compose", "json"],
)
def test_steps_grow_no_faster_than_a_text(head, unit):
    _, few, many = (
        run_bounded(lambda count=count: read_setups(head + _repeat(unit, count)), 40 * STEPS) for count in (9, 10, 40)
    )
    assert many < 1.6 * 4 * few


@pytest.mark.parametrize("text", ["---\nrun: vllm serve m\n" * 300, "import vllm\n" + "vllm.LLM('m')\n" * 300])
def test_the_servers_of_a_whole_file_are_counted(text):
    with pytest.raises(InvalidSetup) as refused:
        read_setups(text)
    assert refused.value.findings[0].code == "too-many-servers"


def test_functions_that_call_each_other_twice_are_looked_at_once(monkeypatch):
    monkeypatch.setattr(script_runner, "_MAX_STEPS", 20)
    calls = "".join(f"f{each}() {{ f{each + 1}; f{each + 1}; }}\n" for each in range(40))
    run_bounded(lambda: run_script(calls + "for i in $x; do f0; done\nvllm serve m"), STEPS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (_repeat("A#=1\n", 400) + "vllm serve m", 96),
        (("A+=(" + 20 * "x " + ")\n") * 400 + "vllm serve m", 39),
        ("FROM vllm/vllm-openai\n" + _repeat("ENV A#=1\n", 400) + 'CMD ["--model", "m"]', 96),
        (POD + _repeat("    - {name: A#, value: b}\n", 400), 103),
    ],
    ids=["script", "array", "dockerfile", "pod"],
)
def test_a_text_with_too_many_steps_is_refused_with_its_line(text, line, monkeypatch):
    monkeypatch.setattr(open_texts, "_MAX_WORK", 100_000)
    with pytest.raises(InvalidSetup) as refused:
        read_setups(text)
    (finding,) = refused.value.findings
    assert (finding.code, finding.where) == ("too-long", f"line {line}")
    assert "100,000" in finding.message


def test_a_loop_leaves_nothing_of_its_turns_behind():
    shell = Shell(NOTHING_SET, Holes())
    shell.run_all(parse("for i in a b; do c; done\n" * 20), PathState())
    assert {len(turn) for _, turn in shell.reached} == {2}


@pytest.mark.parametrize("use", ["$(A)", "'$(A)'"])
def test_the_variables_of_make_are_filled_in_up_to_a_length(use):
    text = "A = b\n" + "A += b\n" * 2_000 + f"run:\n\tvllm serve m {use * 2_000}\n"
    with pytest.raises(InvalidSetup) as refused:
        to_shell(text, ".mk")
    assert refused.value.findings[0].code == "too-long"


def test_no_pattern_begins_anew_at_each_of_many_empty_lines():
    modules = [import_module(each.name) for root in (setups, deploying) for each in _list_modules(root)]
    patterns = [each for module in modules for value in vars(module).values() for each in _list_patterns(value)]
    assert len(patterns) > 100
    assert not [each for each in patterns if re.search(r"\^\\s[*+]", each)]


def _list_modules(package: ModuleType) -> Iterable[ModuleInfo]:
    return walk_packages(package.__path__, f"{package.__name__}.")


def _list_patterns(value: Any) -> Iterator[str]:
    """Yield the patterns in a constant that may be searched in each line of a text."""
    if isinstance(value, re.Pattern):
        yield value.pattern if value.flags & re.MULTILINE else ""
    elif isinstance(value, str):
        yield value
    elif isinstance(value, tuple | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _list_patterns(each)
