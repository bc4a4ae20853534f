import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.core import InvalidSetup
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.script import run_script
from draftwise.setups.read.shell.words import MAX_CHARS, split_words

PLAIN = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12)


def commands(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in run_script(text).commands]


@given(st.lists(PLAIN, min_size=1, max_size=6))
def test_reads_back_what_shlex_quotes(words):
    text = " ".join(shlex.quote(word) for word in ["run", *words])
    assert commands(text) == [["run", *words]]
    assert [word.text for word in split_words(text)] == ["run", *words]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b \\\n  c", [["a", "b", "c"]]),
        ("a 'b c' \"d e\" f'g'\"h\"", [["a", "b c", "d e", "fgh"]]),
        ('a "{\\"b\\": 1}"', [["a", '{"b": 1}']]),
        ("a # comment 'with a quote\nb", [["a"], ["b"]]),
        ("a; b && c || d | e &", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a > out 2>&1 < in b", [["a", "b"]]),
        ("cat <<EOF > x\nit's\nEOF\na", [["cat"], ["a"]]),
        ("X=1 a $X", [["X=1", "a", "$X"]]),
        ("export X='b c' Y=d\na $X \"$X\" ${Y}e", [["a", "b", "c", "b c", "de"]]),
        ("A=(--x 'y z')\nA+=(w)\na \"${A[@]}\"", [["a", "--x", "y z", "w"]]),
        ('E=\na $E "$E" b', [["a", "", "b"]]),
        ("a ${PORT:-8000} $HOST", [["a", "8000", "$HOST"]]),
        ("a <your model> b", [["a", "<your model>", "b"]]),
        ("a ''", [["a", ""]]),
        ("a\r\nb", [["a"], ["b"]]),
    ],
)
def test_splits_as_bash_does(text, expected):
    assert commands(text) == expected


def test_words_know_their_line():
    (command,) = run_script("a \\\n  b \\\n  'c\n d' e").commands
    assert [word.line for word in command.words] == [1, 2, 3, 4]


def test_words_name_what_is_not_known_of_them():
    (command,) = run_script('a $HOST "$(nproc)" `date` ${X:-1} $1 ${Y##*/} b').commands
    assert [word.unknown for word in command.words] == [
        (), ("HOST (not set in this text)",),
        ("$(nproc) (computed by the shell)",), ("`date` (computed by the shell)",),
        (), ("1 (an argument of the script)",), ("${Y##*/} (computed by the shell)",), (),
    ]  # fmt: skip


def test_what_is_not_known_goes_along_with_variables():
    (command,) = run_script('X=a$HOST\nX+=b\nA=(c "$X")\nrun "${A[@]}" d').commands
    assert [word.text for word in command.words] == ["run", "c", "a$HOSTb", "d"]
    assert [word.unknown for word in command.words] == [(), (), ("HOST (not set in this text)",), ()]


def test_a_shell_reads_its_environment():
    env = Environment(values={"X": "a b"}, unknown={"Y": "a secret"})
    (command,) = run_script('run "$X" $X ${Y:-default}', env=env).commands
    assert [word.text for word in command.words] == ["run", "a b", "a", "b", "${Y:-default}"]
    assert command.words[-1].unknown == ("Y (a secret)",)


def test_a_space_after_the_backslash_is_noted():
    (command,) = run_script("a \\ \n b").commands
    assert command.lost_continuations == (1,)
    assert [word.text for word in command.words] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ('a {"b": "c d", "e": 1} f', "unquoted-json"),
        ('a --x={"b":"c d"} f', "unquoted-json"),
        ('a "{"b": "c d", "e": 1}" f', "json-in-double-quotes"),
    ],
)
def test_json_that_the_shell_would_take_apart_is_read_as_meant(text, mistake):
    (command,) = run_script(text).commands
    assert [word.mistake for word in command.words] == ["", mistake, ""]
    assert command.words[1].text.removeprefix("--x=").startswith('{"b":')
    assert command.words[2].text == "f"


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a \"b 'c'", 'a "b \\" c', 'a "b\\'])
def test_an_open_quote_is_an_error(text):
    with pytest.raises(InvalidSetup) as error:
        commands(text)
    assert error.value.findings[0].code == "unclosed-quote"


def test_variables_cannot_blow_up():
    lines = ["A0=xxxxxxxxxx", *(f"A{n + 1}=$A{n}$A{n}$A{n}$A{n}" for n in range(40))]
    with pytest.raises(InvalidSetup) as error:
        commands("\n".join(lines))
    assert error.value.findings[0].code == "too-long"
    assert f"{MAX_CHARS:,}" in str(error.value)
