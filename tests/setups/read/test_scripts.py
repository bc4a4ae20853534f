"""Scripts that branch: every way through them is followed, and what is not known is never certain."""

import random
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from catalogue.oracle.scripts import Stub, break_law, draw_script, draw_settings

from draftwise.core import InvalidSetup
from draftwise.plan.check import judge
from draftwise.setups.read import read_setups
from draftwise.setups.read.shell.script import run_script

SPEC = r'"{\"method\":\"ngram\",\"num_speculative_tokens\":$K}"'
SERVE = f"vllm serve Qwen/Qwen3-8B --speculative-config {SPEC}"


def ways(text: str) -> dict[str, str]:
    """Return the ways to the last command: what was decided -> its words."""
    command = run_script(text).commands[-1]
    return {way.where: " ".join(word.text for word in way.words) for way in command.ways}


def verdict(text: str) -> tuple[bool | None, list[str]]:
    """Return whether a server is accepted, and what is said of its other ways."""
    (reading,) = read_setups(text)
    report = judge(reading)
    return report.accepted, [each.message for each in report.findings if each.code.endswith("on-a-way")]


@pytest.mark.parametrize("seed", range(4))
def test_bash_hands_over_what_is_reported(seed: int, tmp_path: Path):
    rng = random.Random(seed)
    stub, counts = Stub(tmp_path), Counter[str]()
    for number in range(8):
        script = draw_script(rng, closed=number % 2 == 1)
        for setting in draw_settings(rng, 2):
            calls = stub.run(script, setting)
            assert break_law(script, setting, calls or [], counts) == "", script
    assert counts["told as they are"] > 2


def test_a_reader_that_leaves_out_a_way_breaks_the_law(tmp_path: Path):
    script = 'k=4\n[ "$DEBUG" = 1 ] && k=0\nvllm serve m --k $k\n'
    calls = Stub(tmp_path).run(script, {"DEBUG": "1"})
    assert break_law(script, {"DEBUG": "1"}, calls or [], Counter()) == ""
    assert "bash hands over" in break_law("vllm serve m --k 4", {"DEBUG": "1"}, calls or [], Counter())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('K=4\n[ "$D" = 1 ] && K=0\nrun $K', {"": "run 4", "D=1, line 2": "run 0"}),
        ('K=4\ncase "${S:-}" in off|no) K=0 ;; esac\nrun $K', {"": "run 4", "S=no, line 2 or S=off, line 2": "run 0"}),
        ("S=$(cat <<'E'\n{\"k\": $K}\nE\n)\nrun \"$S\"", {"": 'run {"k": $K}'}),
        ('K=4\nS=$(cat <<E\n{"k": $K}\n\nE\n)\nrun "$S" $(echo "a  $K")', {"": 'run {"k": 4} a 4'}),
        ('cat() { :; }\nrun "$(cat <<E\n4\nE\n)" "$(cat f)"', {"": "run $(cat <<E\n4\nE\n) $(cat f)"}),
        (
            'if [ -n "$H" ]; then a+=(--h "$H"); fi\nrun x "${a[@]}"',
            {"": "run x", "H is set, line 1": "run x --h $H"},
        ),
        ("t=${T:-}\n: \"${t:=0.7}\"\nrun $t", {"": "run 0.7"}),
        ("M=spec\nif [ $M = spec ]; then K=4; else K=0; fi\nrun $K", {"": "run 4"}),
        ("f() { [ \"$M\" = spec ]; }\nif f; then K=4; else K=0; fi\nrun $K", {"": "run 0", "M=spec, line 1": "run 4"}),
        ("for n in a b; do a+=(--n $n); done\nrun \"${a[@]}\"", {"": "run --n a --n b"}),
        ("(K=4)\nK=3 | cat\nrun ${K:-1}", {"": "run 1"}),
        ("c='run --k $K'\nK=4\neval \"$c\"", {"": "run --k 4"}),
        ("set -- a b\nshift\nrun \"$@\" $#", {"": "run b 1"}),
        ("if [ \"$A\" = x ]; then echo x; fi\nif [ \"$B\" = y ]; then echo y; fi\nrun", {"": "run"}),
    ],
)  # fmt: skip
def test_ways_have_their_decisions(text: str, expected: dict[str, str]):
    assert ways(text) == expected


def test_a_decision_holds_for_the_rest_of_its_way():
    text = 'if [ "$M" = spec ]; then K=4; fi\nif [ "$M" = spec ]; then run $K; fi'
    assert ways(text) == {"M=spec, line 1": "run 4"}


@pytest.mark.parametrize(
    "text",
    [
        "K=$(nproc)\nrun $K",
        "read K\nrun $K",
        "while read -r K; do :; done < file\nrun $K",
        "eval \"$X\"\nK=$K\nrun $K",
        "for a in $X; do K=$a; done\nrun ${K}",
        'for a in $X; do set -- 1 2; done\nvllm serve x "$@"',
        "while getopts k: o; do K=$OPTARG; done\nrun $K",
        'while [ "$#" -gt 0 ]; do K=$1; shift; done\nrun $K',
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_unknown_on_some_way(text: str):
    command = run_script("K=\n" + text).commands[-1]
    assert any(word.unknown for way in command.ways for word in way.words)


@pytest.mark.parametrize(
    ("value", "is_known"),
    [
        (r"{\"a\":1,\"b\":2}", False),
        (r"{\"a\":1}", True),
        ("""{'"a"':1,b}""", False),
        ("""'{"a":1,"b":2}'""", True),
        (r"\{\"a\":1,\"b\":2\}", True),
        ("x{1..3}y", False),
        ('{"$A",b}', False),
    ],
)
def test_braces_may_be_several_words_where_what_they_enclose_is_quoted(value: str, *, is_known: bool):
    command = run_script(f"A=1\nrun --f {value}").commands[-1]
    assert is_known is not any(word.unknown for way in command.ways for word in way.words)


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        (r"S={\"a\":1,\"b\":2}", '{"a":1,"b":2}'),
        ('S={"a":1,"b":2}', "{a:1,b:2}"),
        ('S="{"a":1,"b":2}"', "{a:1,b:2}"),
        ('export S={"a":1}', "{a:1}"),
        (r"export S={\"a\":1,\"b\":2}", None),
        ("""export S='{"a":1,"b":2}'""", '{"a":1,"b":2}'),
    ],
)
def test_an_assignment_keeps_braces_and_loses_bare_quotes(assignment: str, value: str | None):
    (way,) = run_script(f'{assignment}\nrun "$S"').commands[-1].ways
    assert value is None if way.words[-1].unknown else way.words[-1].text == value


def test_a_file_that_is_read_may_set_anything():
    for first in ("K=4\n", ""):
        text = SERVE if first else SERVE.replace("${K}", "${K:-4}").replace("$K", "${K:-4}")
        (reading,) = read_setups(first + "source ./site.env\n" + text)
        assert [each.code for each in reading.findings] == ["file-may-set"]
        assert "site.env" in reading.findings[0].message
        assert judge(reading).accepted is None


@pytest.mark.parametrize("write", ["echo 'K=5' > a.env", "cat > ./a.env <<E\nK=5\nE"])
def test_a_file_that_the_script_writes_is_known(write: str):
    (reading,) = read_setups(f"K=4\n{write}\nset -a; . ./a.env; set +a\n" + SERVE)
    assert "taken-as-not-set" not in {each.code for each in reading.findings}
    assert reading.setup.spec is not None
    assert reading.setup.spec.num_speculative_tokens == 5


def test_what_a_reference_names_is_unknown():
    (reading,) = read_setups('f() { local -n out=$1; out=(--seed x); }\nA=()\nf A\nvllm serve m "${A[@]}"')
    assert [each.code for each in reading.findings] == ["unresolved-variable"]


def test_a_default_is_not_shown_where_it_does_not_hold():
    text = 'M="${M:-plain}"\nif [ "$M" = plain ]; then run a; else run "$M"; fi'
    (other,) = run_script(text).commands[-1].ways
    assert (other.words[-1].text, bool(other.words[-1].unknown), other.where) == (
        "${M:-plain}",
        True,
        "M is not plain, line 2",
    )


def test_arguments_of_the_caller_are_open_where_the_model_is_known():
    (reading,) = read_setups('vllm serve Qwen/Qwen3-8B --seed 1 "$@"')
    assert [each.code for each in reading.findings] == ["taken-as-not-set"]
    (reading,) = read_setups('vllm serve "$@"')
    assert [each.code for each in reading.findings] == ["unresolved-variable"]


def test_what_fails_on_every_way_is_rejected_and_on_the_usual_one_not_judged():
    assert verdict(f"K=4\n[ \"$D\" = 1 ] && K=0\n{SERVE}") == (
        True, ["The server fails if D=1, line 2: num_speculative_tokens must be greater than 0, got 0."],
    )  # fmt: skip
    assert verdict(f'K=0\n[ "$D" = 1 ] && K=4\n{SERVE}')[0] is None
    assert verdict(f'K=0\n[ "$D" = 1 ] && K=-1\n{SERVE}')[0] is False
    assert verdict(f'K=$(nproc)\n[ "$D" = 1 ] && K=0\n{SERVE}')[0] is None


SPECS = {
    "cannot be judged": '"$(cat spec.json)"',
    "not judged": """'{"method":"eagle3","model":"org/head","num_speculative_tokens":3}'""",
    "accepted": """'{"method":"ngram","num_speculative_tokens":4}'""",
    "fails later": """'{"method":"eagle3","model":"Qwen/Qwen3-0.6B","num_speculative_tokens":3}'""",
    "rejected": """'{"method":"ngram","num_speculative_tokens":0}'""",
}
"""Outcome -> what leads to it, the least known first."""


@pytest.mark.parametrize(("test", "is_of_caller"), [('[ "$D" = 1 ]', True), ("[ -f spec.json ]", False)])
@pytest.mark.parametrize(("usual", "other"), [*product(SPECS, repeat=2)])
def test_a_server_is_accepted_only_if_every_way_is_known_and_the_usual_one_works(
    usual: str, other: str, test: str, *, is_of_caller: bool
):
    text = f'S={SPECS[usual]}\nif {test}; then S={SPECS[other]}; fi\nvllm serve Qwen/Qwen3-8B --speculative-config "$S"'
    (reading,) = read_setups(text, engine_version="0.33.0")
    report = judge(reading)
    waits = is_of_caller and other == "cannot be judged" and usual in ("not judged", "accepted")
    ways = {usual, "not judged" if waits else other}
    failing = {usual} if is_of_caller else {usual, other}
    ways |= {"not judged"} if "accepted" in ways and failing & {"fails later", "rejected"} else set()
    assert report.outcome == next(each for each in SPECS if each in ways)
    assert report.fails("error") is (report.outcome not in ("not judged", "accepted"))
    assert bool(report.unchecked) is ("not judged" in (usual, other) and report.accepted is None)


@pytest.mark.parametrize(
    ("loop", "outcome"),
    [
        ('for a in "$@"; do K=${a#--k=}; done', "not judged"),
        ("for a; do K=$a; done", "not judged"),
        ('while [ "$#" -gt 0 ]; do K=$1; shift; done', "not judged"),
        ("while getopts k: o; do K=$OPTARG; done", "not judged"),
        ("while read -r k; do K=$k; done < ks", "cannot be judged"),
        ("for k in $(cat ks); do K=$k; done", "cannot be judged"),
    ],
)
def test_options_of_a_script_wait_for_its_caller(loop: str, outcome: str):
    (reading,) = read_setups(f"K=4\n{loop}\n{SERVE}", engine_version="0.33.0")
    assert judge(reading).outcome == outcome


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("read -r -d '' S <<'E' || true\n{\"a\":\n 1}\nE", '{"a":\n 1}'),
        ("K=4\nIFS= read -rd '' S <<E\n$K \nE", "4 \n"),
        ("read -r S <<E\nfirst \nsecond\nE", "first"),
        ('A=4; read -r S <<< "$A x"', "4 x"),
        ("mapfile -t A <<E\n--seed\n1 2\nE\nS=${A[1]}", "1 2"),
    ],
)
def test_what_is_read_from_a_text_in_the_script_is_known(text: str, words: str):
    (reading,) = read_setups(f'{text}\nvllm serve Qwen/Qwen3-8B --chat-template "$S"')
    assert (reading.setup.args, reading.unknown) == ({"chat_template": words}, {})


@pytest.mark.parametrize(
    "text", ["read A S <<< '4 5'", "read S <<< 'a\\b'", "IFS=: read -r S <<< a:b", "read S < file"]
)
def test_what_is_read_otherwise_is_unknown(text: str):
    (reading,) = read_setups(f'{text}\nvllm serve Qwen/Qwen3-8B --seed "$S"')
    assert [each.code for each in reading.findings] == ["unresolved-variable"]


@pytest.mark.parametrize("body", ['{"method":"ngram","num_speculative_tokens":0}', "--max-num-seqs 0"])
def test_a_text_for_a_command_is_no_server_without_a_model(body: str):
    (reading,) = read_setups(f"cat > spec <<E\n{body}\nE\nvllm serve Qwen/Qwen3-8B")
    assert reading.setup.target == "Qwen/Qwen3-8B"


FAILS_BY_DEFAULT = """[bash, -c, 'A=; if [ "$${D:-on}" != off ]; then A="--spec-method ngram --spec-tokens 0"; fi;
          exec vllm serve Qwen/Qwen3-8B $$A']"""


@pytest.mark.parametrize(
    ("env", "outcome"),
    [
        ("environment: [D]", "not judged"),
        ("environment: {D: }", "not judged"),
        ("environment: {D: '${D}'}", "not judged"),
        ("env_file: gone.env", "not judged"),
        ("environment: [D=off]", "accepted"),
        ("environment: [D=on]", "rejected"),
    ],
)
def test_a_variable_of_the_caller_may_be_anything(env: str, outcome: str):
    text = f"""services:
      v:
        image: vllm/vllm-openai:v0.31.0
        {env}
        entrypoint: {FAILS_BY_DEFAULT}"""
    (reading,) = read_setups(text)
    assert judge(reading).outcome == outcome


def test_ways_that_are_not_followed_are_not_accepted():
    text = "".join(f'[ "$F{n}" = 1 ] && A="$A --seed {n}"\n' for n in range(8)) + "vllm serve Qwen/Qwen3-8B $A"
    assert verdict(text)[0] is None


def test_a_setup_that_is_built_on_needs_one_way():
    (reading,) = read_setups(f'K=4\n[ "$D" = 1 ] && K=5\n{SERVE}')
    with pytest.raises(InvalidSetup, match="2 ways"):
        reading.require()
    (reading,) = read_setups(f'K=4\n[ "$D" = 1 ] && K=5\n{SERVE}', given={"D": "1"})
    assert reading.require().spec.num_speculative_tokens == 5


def test_many_conditions_stay_bounded():
    tests = "".join(f'[ -n "$V{n}" ] && a+=(--v{n} "$V{n}")\n' for n in range(40))
    (command,) = (each for each in run_script(tests + 'run "${a[@]}"').commands if each.words[0].text == "run")
    assert command.is_partial
    assert [word.text for word in command.words] == ["run"]


@pytest.mark.parametrize(
    "text",
    [
        "f() { f; f; }\nf\nrun",
        "while true; do run; done",
        "for i in $(seq 9); do for j in $(seq 9); do [ $i = $j ] && K=$i; done; done\nrun $K",
        "until [ -f x ]; do sleep 1; done\nrun",
        "case $a in\n" + "".join(f"x{n}) K=$K{n} ;;\n" for n in range(200)) + "esac\nrun $K",
    ],
)
def test_loops_and_calls_end(text: str):
    assert any(command.words[0].text == "run" for command in run_script(text).commands)


@pytest.mark.parametrize(
    "text", ["if you want", "case closed", "for the model", "done", "fi }", "((", "[[ a", "${", "$(", "f() {"]
)
def test_text_that_is_no_script_is_read_all_the_same(text: str):
    run = run_script(text + "\nvllm serve m")
    assert all(word.line <= 2 for command in run.commands for word in command.words)


BODY = "model: Qwen/Qwen3-8B\nmax-num-seqs: ${S:-8}\nspeculative-config:\n  method: ngram\n  num_speculative_tokens: $K"
ECHOES = "echo 'model: Qwen/Qwen3-8B' > {f}\necho \"max-num-seqs: $K\" >> {f}\n"


@pytest.mark.parametrize(
    ("script", "is_known"),
    [
        ("cat > {f} <<EOF\n{body}\nEOF\n", True),
        ("cat <<'EOF' > {f}\n{plain}\nEOF\n", True),
        ("tee {f} > /dev/null <<EOF\n{body}\nEOF\n", True),
        ("cat > {f} <<EOF\nmodel: other\nEOF\ncat > {f} <<EOF\n{body}\nEOF\n", True),
        ("cat > {f} <<EOF\n{body}\nEOF\necho 'seed: 3' >> {f}\nls -l {f}\n", True),
        ("cat > {f} <<-\tEOF\n\tmodel: Qwen/Qwen3-8B\n\tseed: $K\n\tEOF\n", True),
        (ECHOES, True),
        ('F={f}\nwrite() {{ cat > "$1" <<EOF\n{body}\nEOF\n}}\nwrite "$F"\n', True),
        ('if [ "$K" = 3 ]; then cat > {f} <<EOF\n{body}\nEOF\nelse cat > {f} <<EOF\nseed: 1\nEOF\nfi\n', True),
        ("cat > {f} <<EOF\n{body}\nEOF\nsed -i s/ngram/suffix/ {f}\n", False),
        ("(cat > {f} <<EOF\n{body}\nEOF\n)\n", False),
        ("cat <<EOF | tee {f} > /dev/null\n{body}\nEOF\n", False),
        ("{{ echo 'model: m'; echo 'seed: 2'; }} > {f}\n", False),
        ("echo 'model: m' > {f}\nfor k in $(seq 2); do echo \"model: $k\" > {f}; done\n", False),
        ("printf 'model: %s\\n' m > {f}\n", False),
        ("cat > {f}.in.yaml <<EOF\n{body}\nEOF\nmv {f}.in.yaml {f}\n", False),
        ("cat > {f} <<EOF\n{body}\nEOF\ncd ..\ncd work\n", False),
    ],
)
def test_a_config_that_a_script_writes_is_the_file_that_bash_writes(script: str, is_known: bool, tmp_path: Path):
    file = "c.yaml" if "cd" in script else f"{tmp_path}/c.yaml"
    plain = BODY.replace("$K", "3").replace("${S:-8}", "8")
    text = "K=3\n" + script.format(f=file, body=BODY, plain=plain)
    (reading,) = read_setups(f"{text}vllm serve --config {file} --port 1\n")
    told = {finding.code for way in (reading, *reading.others) for finding in way.findings}
    assert ("config-file-unread" not in told) == is_known
    calls = Stub(tmp_path).run(text + f"vllm serve --config {file}\n", {})
    assert calls == [["serve", "--config", file]]
    (on_disk,) = read_setups(f"vllm serve --config {tmp_path / 'work' / file} --port 1\n")
    if is_known:
        assert reading.setup == on_disk.setup
    assert on_disk.setup.target in ("Qwen/Qwen3-8B", "m", "2")


@pytest.mark.parametrize("starts", ["", "exec ", "bash -c '", "bash -c 'exec "])
@pytest.mark.parametrize("between", ["  # --enforce-eager \\\n", "\n", "  # a comment\n"])
def test_flags_behind_a_comment_or_a_blank_line_are_lost(between: str, starts: str, tmp_path: Path):
    text = f"{starts}vllm serve m --seed 1 \\\n{between}  --max-num-seqs 8{chr(39) * starts.count(chr(39))}\n"
    assert Stub(tmp_path).run(text, {}) == [["serve", "m", "--seed", "1"]]
    (reading,) = read_setups(text)
    assert [each.code for each in reading.findings] == ["lost-continuation"]
    assert "--max-num-seqs as a command" in reading.findings[0].message
    assert "max_num_seqs" not in reading.setup.args
