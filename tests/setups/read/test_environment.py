"""Where the values behind variables come from, and what is said where they are not at hand."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.core import Effect
from draftwise.plan.check import judge
from draftwise.setups.read import SetupReading, read_setups
from draftwise.setups.read.manifests.references import COMPOSE, KUBERNETES, SYSTEMD, read_env_file
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.words import Word

SPEC = {"method": "ngram", "num_speculative_tokens": 5}
SPEC_TEXT = json.dumps(SPEC)
IMAGE = "vllm/vllm-openai:v0.20.0"
SECRET = "hush-hush-4711"


def read_one(text: str | Path, **given: str) -> SetupReading:
    (reading,) = read_setups(text, given=given)
    return reading


def unknowns(reading: SetupReading) -> list[str]:
    return [finding.message for finding in reading.findings if finding.code == "unresolved-variable"]


def is_open(reading: SetupReading) -> bool:
    """Say whether the verdict is neither "accepted" nor "rejected"."""
    return judge(reading).accepted is None


class TestKubernetes:
    @staticmethod
    def text(container: str, *more: str) -> str:
        pod = (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: llm}\nspec:\n  containers:\n"
            f"  - image: {IMAGE}\n" + "".join(f"    {line}\n" for line in container.splitlines())
        )
        return "\n---\n".join([pod, *more])

    CONFIG_MAP = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: llm}}\ndata:\n  tp: '2'\n  SPEC: '{SPEC_TEXT}'"
    STORED = f"apiVersion: v1\nkind: Secret\nmetadata: {{name: hf}}\nstringData:\n  KEY: {SECRET}"
    TP = "env: [{name: TP, valueFrom: {configMapKeyRef: {name: llm, key: tp}}}]\nargs: [m, '-tp=$(TP)']"

    def test_a_shell_in_the_container_reads_its_variables(self):
        reading = read_one(
            self.text(
                f"env: [{{name: MODEL, value: m}}, {{name: SPEC, value: '{SPEC_TEXT}'}}]\n"
                "command: [sh, -c, 'exec vllm serve $MODEL --speculative-config \"$SPEC\"']"
            )
        )
        assert (reading.setup.target, reading.setup.spec.to_dict(), reading.findings) == ("m", SPEC, ())

    def test_values_of_a_config_map_in_the_same_text(self):
        reading = read_one(self.text(self.TP, self.CONFIG_MAP))
        assert (dict(reading.setup.args), reading.findings) == ({"tensor_parallel_size": 2}, ())

    def test_all_of_a_config_map(self):
        reading = read_one(
            self.text("envFrom: [{prefix: A_, configMapRef: {name: llm}}]\nargs: [m, -sc, $(A_SPEC)]", self.CONFIG_MAP)
        )
        assert (reading.setup.spec.to_dict(), reading.findings) == (SPEC, ())

    def test_variables_refer_to_earlier_ones(self):
        reading = read_one(
            self.text(
                "env: [{name: A, value: m}, {name: B, value: 'x/$(A)'}, {name: C, value: '$$(A)'}]\n"
                "args: [$(B), --revision=$(C), --seed=$(D)]"
            )
        )
        assert (reading.setup.target, reading.setup.args["revision"]) == ("x/m", "$(A)")
        assert [finding.code for finding in reading.findings] == ["bad-flag-value"]  # Kubernetes leaves $(D) as it is

    @pytest.mark.parametrize(
        ("container", "part"),
        [
            (TP, "TP (key tp of ConfigMap llm, which is outside this text)"),
            ("envFrom: [{configMapRef: {name: far}}]\nargs: [m, '-tp=$(TP)']", "ConfigMap far"),
            ("env: [{name: TP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]\nargs: [m, '-tp=$(TP)']", "fieldRef"),
            (
                "env: [{name: D, valueFrom: {configMapKeyRef: {name: far, key: k}}}]\n"
                f'args: [m, -sc, \'{SPEC_TEXT.replace("ngram", "eagle").replace("}", "")}, "model": "$(D)"}}\']',
                "key k of ConfigMap far",
            ),
            ("command: [sh, -c, 'vllm serve m -tp $TP']", "TP (not set in this text)"),
            ("command: [sh, -c, 'vllm serve m $MORE']", "MORE"),
            ("command: [sh, -c, 'vllm serve $MORE m']", "MORE"),
            ("command: [sh, -c, 'vllm serve $MODEL']", "MODEL"),
            ("command: [sh, -c, 'vllm serve m --config $FILE']", "FILE"),
            ("command: [sh, -c, 'vllm serve m --speculative-config.method $METHOD']", "METHOD"),
            ("command: [sh, -c, 'VLLM_USE_V2_MODEL_RUNNER=$V2 vllm serve m']", "V2"),
            ("command: [sh, -c, 'vllm serve m -tp $(nvidia-smi -L | wc -l)']", "computed by the shell"),
        ],
    )
    def test_what_is_not_at_hand_is_neither_accepted_nor_rejected(self, container, part):
        reading = read_one(self.text(container))
        (message,) = unknowns(reading)
        assert part in message
        assert all(finding.effect is Effect.UNKNOWN for finding in reading.findings)
        assert is_open(reading)
        assert reading.unknown

    def test_the_operator_can_give_the_values(self):
        reading = read_one(self.text(self.TP), TP="4")
        assert (reading.setup.args["tensor_parallel_size"], reading.findings) == (4, ())

    def test_flags_that_take_any_text_need_no_value(self):
        reading = read_one(
            self.text(
                "env: [{name: K, valueFrom: {secretKeyRef: {name: hf, key: KEY}}}]\n"
                "args: [gpt2, --api-key, $(K), --served-model-name, $(K)]"
            )
        )
        assert (reading.findings, judge(reading).accepted) == ((), True)

    def test_no_value_of_a_secret_is_told(self):
        reading = read_one(
            self.text(
                "env: [{name: TP, valueFrom: {secretKeyRef: {name: hf, key: KEY}}}]\n"
                "envFrom: [{secretRef: {name: hf}}]\n"
                "args: [m, '-tp=$(TP)', '--hf-token=$(KEY)', '--api-key=$(KEY)', '--seed=$(KEY)']",
                self.STORED,
            )
        )
        assert is_open(reading)
        assert SECRET not in repr(judge(reading))
        assert "a secret" in unknowns(reading)[0]


class TestCompose:
    TEXT = f"""
services:
  a:
    image: vllm/vllm-openai:${{TAG:-v0.26.0}}
    command: --model ${{MODEL}} -tp $TP
  b:
    image: {IMAGE}
    environment: {{MODEL: m, SPEC: '{SPEC_TEXT}'}}
    env_file: [b.env, {{path: more.env, required: false}}]
    entrypoint: [sh, -c]
    command: ['vllm serve $$MODEL --speculative-config "$$SPEC" -tp $$TP']
"""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "compose.yaml").write_text(self.TEXT, encoding="utf-8")
        return tmp_path

    def test_files_beside_the_file(self, folder):
        (folder / ".env").write_text("TAG=v0.19.1\nMODEL='org/model' # ours\nexport TP=2\n", encoding="utf-8")
        (folder / "b.env").write_text("TP=4\n", encoding="utf-8")
        first, second = read_setups(folder / "compose.yaml")
        assert (first.setup.engine_version, first.setup.target, first.setup.args["tensor_parallel_size"]) == (
            "0.19.1", "org/model", 2,
        )  # fmt: skip
        assert (second.setup.target, second.setup.spec.to_dict()) == ("m", SPEC)
        assert (second.setup.args["tensor_parallel_size"], first.findings) == (4, ())
        assert [each.code for each in second.findings] == ["variables-elsewhere"]

    def test_without_them(self, folder):
        first, second = read_setups(folder / "compose.yaml")
        assert first.setup.engine_version == "0.26.0"
        assert ["docker compose" in message for message in unknowns(first)] == [True, True]
        assert "the env_file more.env, which does not exist" in unknowns(second)[0]
        assert is_open(first)
        assert is_open(second)

    def test_given_values_stand_in_for_the_file(self, folder):
        (folder / ".env").write_text("TAG=v0.19.1\nMODEL=a\nTP=2", encoding="utf-8")
        first, _ = read_setups(folder / "compose.yaml", given={"MODEL": "b", "TP": "1"})
        assert (first.setup.target, first.setup.engine_version) == ("b", "0.26.0")

    @pytest.mark.parametrize("image", ["vllm/vllm-openai:$TAG", "$IMAGE"])
    def test_an_image_that_is_not_known(self, image):
        reading = read_one(f"services:\n  a:\n    image: {image}\n    command: [--model, m, -tp, '2']")
        assert [*reading.unknown] == ["engine_version"]
        assert is_open(reading)


class TestSystemd:
    def test_files_of_variables(self, tmp_path):
        (tmp_path / "vllm.env").write_text(f"; ours\nSPEC='{SPEC_TEXT}'\nMORE=--seed 1\n", encoding="utf-8")
        unit = (
            f"[Service]\nEnvironment=SPEC=x M=m\nEnvironmentFile={tmp_path}/vllm.env\n"
            "ExecStart=/bin/vllm serve ${M} -sc ${SPEC} $MORE $NONE --revision=$M\n"
        )
        reading = read_one(unit)
        assert (reading.setup.target, reading.setup.spec.to_dict(), reading.findings) == ("m", SPEC, ())
        assert dict(reading.setup.args) == {"seed": 1, "revision": "$M"}

    @pytest.mark.parametrize(
        ("argument", "part"),
        [
            ("-sc ${SPEC}", "the EnvironmentFile /no/such/file"),
            ("$MORE", "MORE"),
            ("-tp %i", "a specifier"),
        ],
    )
    def test_what_is_not_at_hand(self, argument, part):
        reading = read_one(f"[Service]\nEnvironmentFile=-/no/such/file\nExecStart=vllm serve m {argument}\n")
        assert part in unknowns(reading)[0]
        assert is_open(reading)


class TestShell:
    def test_an_unset_variable(self):
        reading = read_one("vllm serve m --port $PORT -tp ${TP:-2}")
        assert (reading.unknown, reading.setup.args["tensor_parallel_size"]) == ({}, 2)
        assert is_open(reading)

    def test_a_given_one(self):
        reading = read_one("vllm serve m --port $PORT -tp ${TP:-2}", PORT="80", TP="1")
        assert dict(reading.setup.args) == {"port": 80, "tensor_parallel_size": 1}

    def test_arguments_of_a_nested_shell(self):
        reading = read_one(f"docker run --entrypoint bash {IMAGE} -c 'vllm serve \"$@\"' -- m --seed 1")
        assert (reading.setup.target, dict(reading.setup.args), reading.findings) == ("m", {"seed": 1}, ())

    def test_only_the_servers_own_words_count(self):
        reading = read_one(f"docker run -v $HOME/.cache:/root -e HF_TOKEN=$HF_TOKEN {IMAGE} --model gpt2")
        assert (reading.findings, judge(reading).accepted) == ((), True)


class TestReferences:
    ENV = Environment(values={"A": "1", "E": ""}, unknown={"U": "there"})

    @pytest.mark.parametrize(
        ("references", "text", "expected", "unknown"),
        [
            (COMPOSE, "$A ${A} $$A ${N:-d} ${E:-d} ${E-d} ${A:+x}", "1 1 $A d d  x", 0),
            (COMPOSE, '{"k": $U}', '{"k": $U}', 1),
            (COMPOSE, "${A:?e} ${A?e} ${E?e} ${E:?e} ${N?e} ${N:?e}", "1 1  ${E:?e} ${N?e} ${N:?e}", 3),
            (KUBERNETES, "$(A) $$(A) $(N) ${A} $(U)", "1 $(A) $(N) ${A} $(U)", 1),
            (SYSTEMD, "${A} $A $$A ${N}|${U}", "1 $A $A |${U}", 1),
        ],
    )
    def test_each_format(self, references, text, expected, unknown):
        word = references.fill_in(Word(text), self.ENV)
        assert (word.text, len(word.unknown)) == (expected, unknown)

    @given(st.text(st.characters(exclude_characters="$\0"), max_size=40))
    def test_text_without_references_stays(self, text):
        for references in (COMPOSE, KUBERNETES, SYSTEMD):
            assert references.fill_in(Word(text), self.ENV) == Word(text)

    @given(st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), st.from_regex(r"[!-~]{0,9}", fullmatch=True)))
    def test_files_of_variables(self, values):
        assert read_env_file("".join(f"{name}='{value}'\n" for name, value in values.items() if "'" not in value)) == {
            name: value for name, value in values.items() if "'" not in value
        }


VALUES = {"A": "1", "E": "", "B": "b-c"}
"""Of variables that are set; N and M are not."""


@st.composite
def templates(draw: st.DrawFn, depth: int = 3) -> tuple[str, str]:
    """Draw a text with references as compose has them, and what compose-go's rules make of it (template.go)."""
    text = result = ""
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["plain", "escape", "name", "braced", "operator", "operator"]))
        name = draw(st.sampled_from(["A", "E", "B", "N", "M"]))
        if kind == "plain":
            piece = value = draw(st.sampled_from(["x", "--flag ", '{"k":', "/", " ", "-", ":"]))
        elif kind == "escape":
            piece, value = "$$" + name, "$" + name
        elif kind in ("name", "braced") or depth == 0:
            piece, value = ("$" + name + " " if kind == "name" else f"${{{name}}}"), VALUES.get(name, "")
            value += " " if kind == "name" else ""
        else:
            operator = draw(st.sampled_from([":-", "-", ":+", "+"]))
            inner, inner_value = draw(templates(depth=depth - 1))
            is_set = bool(VALUES.get(name)) if operator[0] == ":" else name in VALUES
            other = VALUES.get(name, "") if operator[-1] == "-" else ""
            piece = f"${{{name}{operator}{inner}}}"
            value = inner_value if is_set is (operator[-1] == "+") else other
        text, result = text + piece, result + value
    return text, result


@given(templates())
def test_compose_fills_in_as_its_rules_have_it(drawn: tuple[str, str]):
    text, expected = drawn
    word = COMPOSE.fill_in(Word(text), Environment(values=VALUES))
    assert (word.text, word.unknown, word.assumed) == (expected, (), ())


@given(templates())
def test_what_the_caller_of_compose_may_set_is_named(drawn: tuple[str, str]):
    text, expected = drawn
    word = COMPOSE.fill_in(Word(text), Environment(values=VALUES, elsewhere="the caller"))
    assert word.unknown or word.text == expected  # what is taken as not set is taken so everywhere
    if (
        word.text == expected
        and not word.unknown
        and word.text != COMPOSE.fill_in(Word(text), Environment(values={**VALUES, "N": "set", "M": "set"})).text
    ):
        assert word.assumed


@pytest.mark.parametrize(
    "text",
    [
        "services: {v: {image: 'vllm/vllm-openai:v0.33.0', env_file: gone.env, command: '--model gpt2'}}",
        "docker run --env-file gone.env vllm/vllm-openai:v0.33.0 --model gpt2",
        "[Service]\nEnvironmentFile=/no/such/file\nExecStart=vllm serve gpt2\n",
    ],
)
def test_variables_that_nobody_sees_leave_the_server_unjudged(text: str) -> None:
    reading = read_one(text)
    assert [each.code for each in reading.findings] == ["variables-elsewhere"]
    assert {*reading.unknown} == {"env"}
