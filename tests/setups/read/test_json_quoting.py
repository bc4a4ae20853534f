"""JSON in shell words, in every way of quoting: held against what bash itself hands to `vllm`."""

import json
import random
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from catalogue.oracle.scripts import Stub

from draftwise.core import InvalidSetup, Severity
from draftwise.plan.check import judge
from draftwise.setups.read import read_setups

SPECS: tuple[Mapping[str, Any], ...] = (
    {"method": "ngram", "num_speculative_tokens": 5},
    {"num_speculative_tokens": 3},
    {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    {"method": "eagle3", "model": "org/it's a $HOME head", "num_speculative_tokens": 3},
    {
        "method": "draft_model",
        "model": "a b/c*d",
        "num_speculative_tokens": 2,
        "draft_load_config": {"load_format": "auto"},
    },
    {"model": "x\\y`z`", "num_speculative_tokens": 1, "rejection_sample_method": "strict"},
    {"method": "suffix", "suffix_decoding_max_spec_factor": 1.5, "num_speculative_tokens": 16},
)
SERVE = "vllm serve Qwen/Qwen3-8B --seed 1 --speculative-config"
Draw = random.Random


def escape(text: str, characters: str) -> str:
    return "".join(f"\\{each}" if each in characters else each for each in text)


def dump(draw: Draw, spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, **draw.choice(({}, {"separators": (",", ":")}, {"indent": draw.choice((1, 2, 4))})))


def double(text: str) -> str:
    return f'"{escape(text, chr(34) + "$`" + chr(92))}"'


def single(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def ansi(text: str) -> str:
    return "$'" + escape(text, "'\\").replace("\n", "\\n") + "'"


def mixed(text: str) -> str:
    """Quotes that close and open again around each value."""
    return (
        "".join(f"{single(part)}" if index % 2 else double(part) for index, part in enumerate(text.split(":")))
        if ":" in text
        else single(text)
    )


QUOTES: tuple[Callable[[str], str], ...] = (
    double,
    single,
    ansi,
    shlex.quote,
    lambda text: text,  # bare
    lambda text: escape(text, '"'),
    lambda text: escape(text, "\"{},$`\\ \n*'"),
    lambda text: escape(text, '"{}'),
    lambda text: f'"{text}"',
    lambda text: f"'{text}'",
    lambda text: f"'{double(text)}'",
    lambda text: f'"{single(text)}"',
    lambda text: "'" + "'\"'\"'".join(text.split("'")) + "'",
    lambda text: single(text[: len(text) // 2]) + double(text[len(text) // 2 :]),
    lambda text: single(text).replace(", ", ",\\\n"),
    lambda text: double(text.replace("\n", "")).replace(", ", ", \\\n"),
    lambda text: f'"{escape(text, chr(34))}"',
    lambda text: "{" + single(text[1:-1]) + "}",
    lambda text: "\\{" + single(text[1:-1]) + "\\}",
    lambda text: text.replace('"', "'\"'"),
    lambda text: double(text).replace("5", "${K:-5}").replace("3", "${K:-3}"),
    lambda text: single(text).replace("5", "'${K:-5}'"),
    lambda text: single(text).replace("5", "'\"$K\"'"),
    lambda text: double(text).replace("ngram", "$METHOD"),
)
"""Ways to write a text as one word, right and wrong ones."""

FORMS: tuple[str, ...] = (
    "{serve} {word}",
    "{serve}={word}",
    "{serve} \\\n  {word} \\\n  --max-num-seqs 8  # a comment",
    'S={word}\n{serve} "$S"',
    "S={word}\n{serve} $S",
    "S={word}; {serve} ${{S}}",
    'export S={word}\n{serve} "${{S}}"',
    'declare S={word}\n{serve} "$S"',
    'A=({flag} {word})\n{plain} "${{A[@]}}"',
    "A=({flag} {word})\n{plain} ${{A[@]}}",
    'S=${{SPEC:-{word}}}\n{serve} "$S"',
    'S="${{SPEC:-{word}}}"\n{serve} "$S"',
    "S=${{SPEC-{word}}}\n{serve} $S",
    'f() {{ {serve} "$1"; }}\nf {word}',
    "f() {{ {serve} $1; }}\nf {word}",
    'f() {{ vllm serve m "$@"; }}\nf {flag} {word}',
    "bash -c {nested}",
    "sh -c {nested}",
    "eval {nested}",
    "eval {serve} {word}",
    "bash <<'EOF'\n{serve} {word}\nEOF",
    "bash <<EOF\n{serve} {word}\nEOF",
    "S=$(cat <<'EOF'\n{text}\nEOF\n)\n{serve} \"$S\"",
    'S=$(cat <<EOF\n{text}\nEOF\n)\n{serve} "$S"',
    "read -r -d '' S <<'EOF'\n{text}\nEOF\n{serve} \"$S\"",
    'S=$(echo {word})\n{serve} "$S"',
    'S={word} {serve} "$S"',
    'set -- {word}\n{serve} "$1"',
    'C="{serve} {word}"\n$C',
    "C='{serve}'\n$C {word}",
    "env S=1 {serve} {word}",
    "( {serve} {word} ) &",
    'for s in {word}; do {serve} "$s"; done',
    "exec {serve} {word} 2>&1 | cat",
    "{serve} {word} || true",
    "nohup {serve} {word} > /dev/null &",
    "if true; then {serve} {word}; fi",
    "S={word}\nbash -c \"{serve} '$S'\"",
    'S={word}\nbash -c "{serve} $S"',
    "export S={word}\nbash -c '{serve} \"$S\"'",
    'S={word}\nA=(--seed 1 {flag} "$S")\nvllm serve m "${{A[@]}}"',
    'S={word}\nARGS="{flag} $S"\n{plain} $ARGS',
    'S={word}\nARGS="{flag} \'$S\'"\neval "{plain} $ARGS"',
)


def write(draw: Draw, form: str) -> str:
    text = dump(draw, draw.choice(SPECS))
    word = draw.choice(QUOTES)(text)
    plain, flag = SERVE.rsplit(" ", 1)
    nested = draw.choice((single, double))(f"{SERVE} {single(text) if form[:2] == 'sh' else word}")  # dash has no $''
    return form.format(serve=SERVE, word=word, text=text, plain=plain, flag=flag, nested=nested) + "\n"


OF_WORDS = {"flag-json-invalid", "unknown-flag", "stray-argument", "spec-not-an-object", "flag-needs-value"}


def break_law(script: str, calls: list[list[str]]) -> str:
    """Return how the reading differs from what bash hands over, or nothing: what is unknown breaks no law."""
    good = [spec for spec in map(find_spec, calls) if spec is not None]
    try:
        readings = read_setups(script)
    except InvalidSetup as error:
        return f"{error}, but it starts {good}" if good else ""
    for reading in readings:
        ways, report = [reading, *reading.others], judge(reading)
        refused = {each.code for each in report.findings if each.severity is Severity.ERROR} & OF_WORDS
        told = [None if way.setup.spec is None else way.setup.spec.to_dict() for way in ways]
        if any(way.unknown for way in ways):
            continue
        if refused and good:
            return f"{refused}, but vLLM takes {good}"
        if not refused and (not good or all(each not in good for each in told)):
            return f"read as {told}, but vLLM gets {good or calls}"
    return ""


def find_spec(call: list[str]) -> Any:
    """Return the object that vLLM's parser makes of the words; None where it refuses them."""
    words, spec, models = iter(call[1:]), None, 0
    for word in words:
        flag, joined, value = word.partition("=")
        models += flag[:2] != "--"
        value = value if joined or flag[:2] != "--" else next(words, "")
        if flag == "--speculative-config":
            try:
                spec = json.loads(value)
            except ValueError:
                return None
        elif flag[:2] == "--" and (flag not in ("--seed", "--max-num-seqs") or not value.isdecimal()):
            return None
    return spec if isinstance(spec, dict) and models == 1 else None


@pytest.mark.parametrize("form", FORMS)
def test_a_word_is_read_as_bash_hands_it_over(form: str, tmp_path: Path) -> None:
    stub = Stub(tmp_path)
    for seed in range(4):
        script = write(random.Random(f"{form}{seed}"), form)
        calls = stub.run(script, {})
        assert break_law(script, calls or []) == "", script


SERVED = ("--model", "Qwen/Qwen3-8B", "--speculative-config")
IMAGE = "vllm/vllm-openai:v0.33.0"


def to_yaml(draw: Draw, value: Any) -> str:
    style, width = draw.choice((None, "'", '"')), draw.choice((20, 80, 10_000))
    return yaml.safe_dump(value, default_style=style, width=width, allow_unicode=draw.random() < 0.5)


def in_pod(draw: Draw, text: str) -> str:
    container = {"name": "a", "image": IMAGE, "args": [*SERVED, text]}
    return to_yaml(
        draw, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container]}}
    )


def in_pod_shell(draw: Draw, text: str) -> str:
    script = f"vllm serve Qwen/Qwen3-8B --speculative-config {draw.choice((single, double))(text)}"
    container = {"name": "a", "image": IMAGE, "command": ["/bin/sh", "-c"], "args": [script]}
    return to_yaml(
        draw, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container]}}
    )


def in_compose(draw: Draw, text: str) -> str:
    words = [each.replace("$", "$$") for each in (*SERVED, text)]
    command = draw.choice((words, shlex.join(words)))
    return to_yaml(draw, {"services": {"llm": {"image": IMAGE, "command": command}}})


def in_systemd(_draw: Draw, text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "$$").replace("\n", " ")
    return f"[Service]\nExecStart=/opt/bin/vllm serve Qwen/Qwen3-8B \\\n  --speculative-config '{quoted}'\n"


def in_dockerfile(draw: Draw, text: str) -> str:
    text = text.replace("\n", " ")
    shell = f"ENTRYPOINT []\nCMD vllm serve Qwen/Qwen3-8B --speculative-config {draw.choice((single, double))(text)}"
    return f"FROM {IMAGE}\n{draw.choice((shell, 'CMD ' + json.dumps([*SERVED, text])))}\n"


def in_python(draw: Draw, text: str) -> str:
    given = f"(model='Qwen/Qwen3-8B', speculative_config={json.loads(text)!r})"
    call = f"from vllm import LLM\nllm = LLM{given}\n"
    words = ["vllm", "serve", "Qwen/Qwen3-8B", "--speculative-config", text]
    spec = f"import json\nfrom vllm import x\nSPEC = {json.loads(text)!r}\n"
    dumped = spec + "run(['vllm', 'serve', 'Qwen/Qwen3-8B', '--speculative-config', json.dumps(SPEC)])\n"
    engine = f"from vllm import AsyncEngineArgs\nAsyncEngineArgs{given}\n"
    return draw.choice((call, engine, f"import vllm\nimport subprocess\nsubprocess.run({words!r})\n", dumped))


def in_sky(draw: Draw, text: str) -> str:
    run = f"vllm serve Qwen/Qwen3-8B \\\n  --speculative-config {draw.choice((single, double))(text)}\n"
    return to_yaml(draw, {"resources": {"accelerators": "H100:1"}, "setup": "pip install vllm==0.33.0", "run": run})


def in_ansible(draw: Draw, text: str) -> str:
    task = {"name": "x", "community.docker.docker_container": {"name": "v", "image": IMAGE, "command": [*SERVED, text]}}
    shell = {"name": "x", "ansible.builtin.shell": f"vllm serve Qwen/Qwen3-8B --speculative-config {single(text)}"}
    return to_yaml(draw, [{"hosts": "gpu", "tasks": [draw.choice((task, shell))]}])


def in_stack(draw: Draw, text: str) -> str:
    model = {
        "name": "a", "repository": "vllm/vllm-openai", "tag": "v0.33.0", "modelURL": "Qwen/Qwen3-8B",
        "vllmConfig": {"extraArgs": ["--speculative-config", text]},
    }  # fmt: skip
    return to_yaml(draw, {"servingEngineSpec": {"modelSpec": [model]}})


def in_ray(draw: Draw, text: str) -> str:
    config = {
        "model_loading_config": {"model_id": "Qwen/Qwen3-8B"},
        "engine_kwargs": {"speculative_config": json.loads(text)},
    }
    return to_yaml(draw, {"applications": [{"name": "a", "args": {"llm_configs": [config]}}]})


def in_nomad(_draw: Draw, text: str) -> str:
    words = json.dumps([*SERVED, text])
    config = f'config {{\n image = "{IMAGE}"\n args = {words}\n }}'
    return f'job "a" {{\n group "a" {{\n task "a" {{\n driver = "docker"\n {config}\n}}\n}}\n}}\n'


def in_terraform(_draw: Draw, text: str) -> str:
    words = json.dumps([*SERVED, text])
    return f'resource "docker_container" "a" {{\n  name = "a"\n  image = "{IMAGE}"\n  command = {words}\n}}\n'


def in_ecs(_draw: Draw, text: str) -> str:
    return json.dumps(
        {"family": "a", "containerDefinitions": [{"name": "a", "image": IMAGE, "command": [*SERVED, text]}]}
    )


def in_config(draw: Draw, text: str) -> str:
    spec = draw.choice((json.loads(text), text))
    return to_yaml(draw, {"model": "Qwen/Qwen3-8B", "speculative-config": spec})


def in_supervisor(_draw: Draw, text: str) -> str:
    line = f"vllm serve Qwen/Qwen3-8B --speculative-config {shlex.quote(text)}".replace("%", "%%").replace("\n", " ")
    return f"[program:vllm]\ncommand={line}\nautostart=true\n"


FILES = (in_pod, in_pod_shell, in_compose, in_systemd, in_dockerfile, in_python, in_sky, in_ansible, in_stack, in_ray,
         in_nomad, in_terraform, in_ecs, in_config, in_supervisor)  # fmt: skip


@pytest.mark.parametrize("write_file", FILES, ids=lambda each: each.__name__)
def test_a_file_of_each_tool_holds_the_config_that_was_written(write_file: Callable[[Draw, str], str]) -> None:
    """What YAML's own writer, shlex and json make of a config is read back as that config, or not known."""
    known = 0
    for seed in range(24):
        draw = Draw(f"{write_file.__name__}{seed}")
        spec = SPECS[seed % len(SPECS)]
        text = write_file(draw, dump(draw, spec))
        (reading,) = read_setups(text)
        if reading.unknown:
            continue
        known += 1
        assert reading.setup.spec is not None, text
        assert (reading.setup.target, reading.setup.spec.to_dict()) == ("Qwen/Qwen3-8B", spec), text
    assert known > 6
