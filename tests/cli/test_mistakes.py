"""Every kind of mistake, with every verb: one envelope on stdout with --json, one table of exit codes, own options."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator
from tests.support.made_calibrations import make_calibration, make_profile

import draftwise
from draftwise.cli import main
from draftwise.core import InvalidSetup
from draftwise.core.documents import to_json
from draftwise.core.exit_codes import ExitCode
from draftwise.verbs import VERBS
from draftwise.verbs.sources import flags_of_vllm

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
CHECK = ["--speculative-config", NGRAM]
GPU = ["--gpu", "H200"]
MISSING, LOCKED, FOLDER, TEXT, TAKEN, URL = "{missing}", "{locked}", "{folder}", "{text}", "{taken}", "{url}"
DEEP, BROKEN = "{deep}", "/proc/self/mem"
"""What stands for a path or an address: not there, unreadable, a folder, of another format, there already, nested
too deeply, and a file that the system opens and does not read."""

GOOD: dict[str, list[str]] = {
    "check": [MODEL, *CHECK],
    "pick": [MODEL, *GPU],
    "size": [MODEL, *GPU],
    "inspect": ["{model}"],
    "upgrade": [MODEL, *CHECK, "--from", "0.26.0", "--to", "0.33.0"],
    "explain": ["ngram"],
    "facts": [],
    "schema": [],
    "fetch": [],
    "config": [],
    "skill": ["install", "{new}"],
    "decide": ["{model}", "--candidate", NGRAM],
    "compare": ["{run}", "{run}"],
    "report": ["{run}"],
    "replay": ["{log}", "--target", "{model}", "--candidate", NGRAM],
    "calibrate": ["{model}", "--candidate", NGRAM],
    "forecast": ["{profile}", "{calibration}"],
    "schedule": ["{profile}", "{calibration}"],
    "deploy": [MODEL, *CHECK, *GPU, "--to", "compose", "--out", "{new}"],
    "verify": ["{deployed}"],
    "rollback": ["{deployed}"],
    "bundle": ["make", "{deployed}", "--out", "{new}"],
    "watch": [URL, "--once"],
    "guard": [URL, "--once", "--state", "{new}"],
    "mcp": [],
    "ui": ["{folder}"],
    "serve": ["{model}"],
    "warm-up": ["{model}", "--out", "{new}"],
    "train": ["eagle3", "--target", "{model}", "--data", "{text}", "--out", "{new}"],
    "export": ["{model}", "--target", "{model}", "--out", "{new}"],
}
"""A command line of each verb in which every word is one that the verb takes; mistakes are put into it."""

PATHS: dict[str, list[int | str]] = {
    "check": [0, "--speculative-config", "--env-file", "--config-from"],
    "pick": ["--calibration", "--drafter"],
    "size": ["--speculative-config"],
    "inspect": [0, "--target"],
    "upgrade": [0, "--speculative-config", "--env-file"],
    "decide": ["--resume", "--profile", "--calibration", "--workload"],
    "compare": [0, 1],
    "report": [0],
    "replay": [0, "--target"],
    "calibrate": ["--resume", "--from"],
    "forecast": [0, 1, "--against", "--traffic"],
    "schedule": [0, 1],
    "deploy": [0, "--edit", "--start-log", "--env-file"],
    "verify": [0, "--setup", "--log", "--baseline", "--kubectl"],
    "rollback": [0],
    "bundle": [1, "--wheel"],
    "watch": ["--baseline", "--setup", "--log", "--start-log"],
    "guard": ["--baseline"],
    "mcp": ["--read"],
    "ui": [0],
    "serve": [0],
    "warm-up": [0],
    "train": ["--target", "--data"],
    "export": [0, "--target"],
}
"""Where a verb takes a file or folder that must be there: the place of an argument, or an option."""

OCCUPIED: dict[str, str] = {
    "deploy": "--out", "bundle": "--out", "export": "--out", "decide": "--out", "calibrate": "--run",
}  # fmt: skip
"""Options that name a new folder."""
UNREACHABLE: dict[str, list[str]] = {
    "decide": ["--url", URL, "--candidate-url", URL],
    "calibrate": ["--url", URL, "--candidate-url", URL],
    "watch": [URL, "--once", "--interval", "0.2"],
    "verify": [URL, "--setup", "{setup}"],
    "replay": [*GOOD["replay"], "--draft-url", URL],
}
UNKNOWN: dict[str, list[list[str]]] = {
    "check": [["no-such-model", *CHECK], [MODEL, *CHECK, "--vllm", "99.0"], [MODEL, *CHECK, "--gpu", "H1000"]],
    "pick": [[MODEL, "--gpu", "H1000"], [MODEL, *GPU, "--vllm", "99.0"]],
    "size": [["no/such", *GPU], [MODEL, "--gpu", "H1000"], [MODEL, *GPU, "--vllm", "99.0"]],
    "inspect": [["{model}", "--vllm", "99.0"]],
    "upgrade": [[MODEL, *CHECK, "--from", "99.0", "--to", "0.33.0"], [MODEL, *CHECK, "--from", "0.33.0", "--to", "9"]],
    "explain": [["no-such-name"], ["a message that nobody has ever logged"]],
    "facts": [["remove", "vllm==99.0"], ["add", "vllm-99.whl"]],
    "schema": [["--vllm", "99.0"], ["no-such-verb"]],
    "fetch": [["no-such-model"]],
    "schedule": [["{profile}", "{calibration}", "--vllm", "99.0"]],
    "deploy": [["no-such-model", *CHECK, "--to", "compose", "--out", "{new}"], [MODEL, "--to", "nowhere"]],
    "train": [["no-such-method"]],
    "serve": [["no/such"]],
}
WRONG_VALUES: dict[str, list[list[str]]] = {
    "check": [["--fail-on", "nothing"], ["--format", "xml"]],
    "pick": [["--concurrency", "0"], ["--temperature", "warm"], ["--gpus", "-1"], ["--workload", "dreams"]],
    "size": [["--num-speculative-tokens", "0"], ["--tp", "1.5"]],
    "upgrade": [["--fail-on", "nothing"]],
    "facts": [["--older-than", "-1"]],
    "decide": [["--repeats", "0"], ["--minutes", "nan"], ["--rate", "fast"], ["--phases", "x"], ["--margin", "2"],
               ["--concurrency", "9" * 400], ["--concurrency", "1e400"], ["--temperature", "9" * 400]],
    "compare": [["--changed", "mind"]],
    "report": [["--export", "pdf=x"], ["--context", "x"]],
    "replay": [["--k", "0"], ["--device", "abacus"], ["--group-by", "mood"]],
    "calibrate": [["--minutes", "0"], ["--concurrency", "0"]],
    "forecast": [["--concurrency", "x"], ["--output-tokens", "0"]],
    "schedule": [["--max-num-seqs", "0"], ["--format", "xml"]],
    "deploy": [["--to", "moon"], ["--share", "101"], ["--max-replicas", "1"], ["--layout", "x"]],
    "verify": [["--prompts", "1"], ["--expected", "0"]],
    "watch": [["--interval", "0"], ["--header", "x"]],
    "guard": [["--every", "0"], ["--act", "x=y"], ["--min-spec", "-1"]],
    "mcp": [["--http", "70000"]],
    "ui": [["--port", "70000"]],
    "serve": [["--port", "70000"], ["--dtype", "float7"], ["-sc", "{"]],
    "warm-up": [["--dtype", "float7"], ["-sc", "{"]],
    "train": [["--steps", "x"], ["--optimizer", "sgd"]],
    "export": [["--format", "onnx"], ["--num-speculative-tokens", "0"]],
    "bundle": [["--from", "x"]],
}  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what stands for the names in braces."""
    at = tmp_path_factory.mktemp("places")
    (at / "empty").mkdir()
    (at / "text").write_text("this is no document\n: [\n")
    (at / "deep.json").write_text("[" * 100_000)
    (at / "taken").mkdir()
    (at / "locked").symlink_to(at / "locked")  # which nobody can open, root included
    (at / "taken" / "file").write_text("there")
    (at / "log.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (at / "profile.json").write_text(json.dumps(to_json(make_profile())))
    (at / "calibration.json").write_text(json.dumps(to_json(make_calibration())))
    draftwise.deploy(MODEL, speculative_config=NGRAM, gpu="H200", vllm="0.33.0", to="compose", out=at / "deployed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    names = {
        "missing": "no-such-file.json", "deep": "deep.json", "folder": "empty", "text": "text", "locked": "locked",
        "taken": "taken", "new": "new",
        "log": "log.jsonl", "profile": "profile.json", "calibration": "calibration.json", "deployed": "deployed",
        "setup": "deployed/setup.json", "run": "no-run", "model": "no-model",
    }  # fmt: skip
    return {**{name: str(at / path) for name, path in names.items()}, "url": url}


def run(places: dict[str, str], words: Sequence[str]) -> Result:
    filled = [re.sub(r"\{(\w+)\}", lambda found: places[found[1]], word) for word in words]
    return CliRunner().invoke(main, filled, env={"COLUMNS": "200"}, input="")


def options_of(verb: str, words: Sequence[str]) -> set[str]:
    command: click.Command | None = main.get_command(click.Context(main), verb)
    names: set[str] = set()
    while command is not None:
        names |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        inner = getattr(command, "get_command", None)
        try:
            command = inner(click.Context(command), words[0]) if inner and words else None
        except InvalidSetup:  # methods of `train` know their options where the engine is installed
            command = None
        words = words[1:]
    return names | {"--help"}


def check_envelope(verb: str, words: Sequence[str], result: Result, codes: Sequence[ExitCode]) -> None:
    said = f"{verb} {words}: {result.stdout[-800:]} {result.stderr[-1500:]}"
    assert result.exit_code in codes, said
    assert "Traceback" not in result.stderr, said
    if result.exit_code in (ExitCode.GOOD, ExitCode.FINDINGS, ExitCode.FAILED) and '{"error"' not in result.stdout:
        json.loads(result.stdout)  # an answer, which is bad news
        return
    (line,) = result.stdout.splitlines()
    error = json.loads(line)["error"]
    Draft7Validator(SCHEMA).validate({"error": error})
    assert error["message"], said
    assert error["fix"], said
    assert error["url"] == f"https://draftwise.dev/findings/{error['code']}/"
    assert draftwise.explain(error["code"]), said
    for each in (error, *error.get("others", ())):
        check_options(verb, words, f"{each['message']} {each['fix']}")


def check_options(verb: str, words: Sequence[str], text: str) -> None:
    """Only options of the verb, of vLLM and of another command that is written out are named."""
    own, text = options_of(verb, words), re.sub(r"`[^`]*`|'[^']*'", "", text)
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - set(words)
    assert named <= own | set(flags_of_vllm()), f"{verb} {words} blames {named - own}: {text}"


SCHEMA: dict[str, Any] = json.loads(CliRunner().invoke(main, ["schema", "error"]).stdout)
USAGE = (ExitCode.USAGE,)


def put(verb: str, place: int | str, value: str) -> list[str]:
    words = list(GOOD[verb])
    if isinstance(place, int):
        words[place] = value
    elif place in words:
        words[words.index(place) + 1] = value
    else:
        words += [place, value]
    return words


def cases() -> Iterator[tuple[str, list[str], tuple[ExitCode, ...]]]:
    for verb in VERBS:
        good = GOOD[verb]
        if verb != "explain":  # whose NAME may be an option
            yield verb, [*good, "--no-such-option"], USAGE
            yield verb, [*good, "--jso"], USAGE
        if good and verb != "ui":  # "" is the current folder
            yield verb, ["", *good[1:]], USAGE
        for place in PATHS.get(verb, ()):
            yield verb, put(verb, place, MISSING), USAGE
        for words in UNKNOWN.get(verb, ()):
            yield verb, words, USAGE
        for more in WRONG_VALUES.get(verb, ()):
            yield verb, [*good, *more], USAGE
        if verb in OCCUPIED:
            yield verb, put(verb, OCCUPIED[verb], TAKEN), USAGE
        if verb in UNREACHABLE:
            yield verb, UNREACHABLE[verb], (ExitCode.FAILED, ExitCode.USAGE)


CASES = list(cases())


@pytest.mark.parametrize(
    ("verb", "words", "codes"), CASES, ids=[" ".join((verb, *words))[:90] for verb, words, _ in CASES]
)
def test_a_mistake_has_an_envelope_and_its_exit_code(
    places: dict[str, str], verb: str, words: list[str], codes: tuple[ExitCode, ...]
) -> None:
    check_envelope(verb, words, run(places, [verb, *words, "--json"]), codes)


WRONG_FILES = [
    (verb, place, kind) for verb in PATHS for place in PATHS[verb] for kind in (FOLDER, TEXT, LOCKED, DEEP, BROKEN)
    if (place, kind) not in {("--env-file", TEXT), ("--env-file", DEEP), ("--read", FOLDER)}  # NAME passes a variable
    and (verb, kind) != ("ui", FOLDER)
]  # fmt: skip
ENDS = (ExitCode.USAGE, ExitCode.FINDINGS, ExitCode.FAILED)


@pytest.mark.parametrize(("verb", "place", "kind"), WRONG_FILES)
def test_a_file_of_another_kind_has_an_envelope(places: dict[str, str], verb: str, place: int | str, kind: str) -> None:
    words = put(verb, place, kind)
    check_envelope(verb, words, run(places, [verb, *words, "--json"]), ENDS)


@pytest.mark.parametrize(("verb", "place"), [(verb, place) for verb in PATHS for place in PATHS[verb]])
def test_a_url_in_the_place_of_a_file_is_named_as_it_was_written(
    places: dict[str, str], verb: str, place: int | str
) -> None:
    result = run(places, [verb, *put(verb, place, "http://127.0.0.1:9/x"), "--json"])
    assert result.exit_code in ENDS
    assert not re.search("http:/[^/]", result.output), result.output


def test_one_look_tells_all_missing_options_and_how_files_are_named() -> None:
    def say(*words: str) -> str:
        return " ".join(CliRunner().invoke(main, words).stderr.split())

    assert "Missing option '--out'. New directory for the result. Also missing: --target." in say("export", "x")
    assert "Also missing" not in say("export", "x", "--target=y")
    assert "or give its memory, such as 48GiB." in say("size", MODEL)
    assert say("check", "-f", "x.yaml").endswith("Name a file without an option: draftwise check FILE.")
    assert "Put vLLM flags" not in say("check", "x.yaml", "--force")


@pytest.mark.parametrize(("words", "said"), [
    (["deploy", "x", "--to", "k8s"], "Did you mean kubernetes?"),
    (["deploy", "x", "--to", "docker-compose"], "Did you mean compose?"),
    (["deploy", "x", "--to", "Argo"], "Did you mean argo-rollouts?"),
    (["check", "x", "--format", "jsn"], "Did you mean json?"),
    (["roll", "x"], "Did you mean rollback?"),
    (["deploy", "x", "--out", "o", "--force"], "Name another --out, or move the old one away."),
    (["export", "x", "--overwrite"], "Name another --out, or move the old one away."),
    (["rollback", "x", "--force"], "pass --yes."),
    (["watch", "--interval", "1x"], "'1x' is not a time, such as 500ms, 30s or 5m."),
    (["guard", "--every", "nan"], "nan is not a finite number."),
])  # fmt: skip
def test_a_word_that_is_nearly_right_is_told_what_is(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words, env={"COLUMNS": "200"})
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.rstrip().endswith(said)


@pytest.mark.parametrize(
    "words", [["deploy", "x", "--to", "moon"], ["deploy", "x", "--to", "k9s"], ["check", "--force"]]
)
def test_a_word_that_is_near_nothing_gets_no_advice_that_is_wrong(words: list[str]) -> None:
    said = CliRunner().invoke(main, words, env={"COLUMNS": "200"}).stderr
    assert "Did you mean" not in said or "'--format'" in said
    assert "move the old one" not in said


def test_a_folder_that_cannot_be_rolled_back_is_told_without_the_name_of_an_exception(places: dict[str, str]) -> None:
    for path in (places["text"], places["folder"], places["missing"]):
        for verb in ("rollback", "verify"):
            said = run(places, [verb, path]).stderr
            assert said.startswith("error: ")
            assert not re.search(r"\w(Error|Exception)\b", said), said


ANSWERED = ("check", "pick", "size", "upgrade", "explain", "facts", "schema", "fetch", "config")
FLAGS = [
    (verb, param.opts[0])
    for verb in ANSWERED
    for param in getattr(main.get_command(click.Context(main), verb), "params", ())
    if getattr(param, "is_flag", False) and param.opts[0] not in {"--hub", "--json"}
]


@pytest.mark.parametrize(("verb", "flag"), FLAGS)
def test_with_json_stdout_is_json_whatever_else_is_asked(places: dict[str, str], verb: str, flag: str) -> None:
    json.loads(run(places, [verb, *GOOD[verb], flag, "--json"]).stdout)


def test_a_huge_value_is_shown_in_part() -> None:
    result = CliRunner().invoke(main, ["size", MODEL, "--gpu", "x" * 100_000, "--json"])
    assert json.loads(result.stdout)["error"]["code"] == "unknown-gpu"
    assert "(100,0" in result.stdout
    assert max(len(result.stdout), len(result.stderr)) < 3000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(("redirected", "code"), [
    ("explain ngram --json > /dev/full", ExitCode.FAILED),
    ("explain no-such-name --json > /dev/full", ExitCode.FAILED),
    ("explain no-such-name 2> /dev/full", ExitCode.USAGE),
    ("check - --json <&-", ExitCode.USAGE),
    ("explain - --json <&-", ExitCode.USAGE),
    ("explain no-such-name >&- 2>&-", ExitCode.USAGE),
])  # fmt: skip
def test_streams_that_are_closed_or_full_end_with_a_sentence(redirected: str, code: ExitCode) -> None:
    words = [sys.executable, "-m", "draftwise"]
    done = subprocess.run(["bash", "-c", f"{shlex.join(words)} {redirected}"], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert ("stdout cannot be written" in done.stderr) == (code == ExitCode.FAILED)
    if redirected.endswith("--json <&-"):
        assert json.loads(done.stdout)["error"]["fix"]


def test_every_verb_has_json_and_a_command_line() -> None:
    assert set(GOOD) == set(VERBS)
    for verb in VERBS:
        command = main.get_command(click.Context(main), verb)
        assert command is not None
        commands = getattr(command, "commands", None) or {"": command}
        for each in commands.values() if verb != "train" else ():
            assert "--json" in {name for param in each.params for name in param.opts}, verb


def test_help_and_documentation_have_the_table_of_exit_codes() -> None:
    shown = " ".join(CliRunner().invoke(main, ["--help"]).stdout.split())
    pages = [page.read_text() for page in (Path(__file__).parents[2] / "docs").rglob("*.md")]
    page = next(text for text in pages if "# Exit codes" in text)
    for code in ExitCode:
        assert f"{int(code)} {code.meaning}" in shown
        assert f"| {int(code)} | {code.meaning} |" in page


def test_an_unknown_verb_has_an_envelope() -> None:
    result = CliRunner().invoke(main, ["chekc", "--json"])
    assert json.loads(result.stdout)["error"]["code"] == "unknown-verb"
    assert result.exit_code == ExitCode.USAGE


def test_without_json_stdout_stays_empty() -> None:
    result = CliRunner().invoke(main, ["size", "no/such", "--gpu", "H200"])
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert "no/such" in result.stderr


@pytest.mark.parametrize(("raised", "code", "name"), [
    (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted"),
    (RuntimeError("odd"), ExitCode.INTERNAL, "internal-error"),
    (PermissionError(13, "Permission denied", "/x"), ExitCode.USAGE, "unreadable-file"),
    (OSError(28, "No space left on device", "/x"), ExitCode.FAILED, "cannot-write"),
])  # fmt: skip
def test_an_end_from_outside_has_an_envelope(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: ExitCode, name: str
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr("draftwise.verbs.explain.look_up", fail)
    result = CliRunner().invoke(main, ["explain", "ngram", "--json"])
    assert result.exit_code == code
    assert json.loads(result.stdout)["error"]["code"] == name
