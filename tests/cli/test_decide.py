"""`draftwise decide` and `draftwise report` as a user types them, against fakes."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.gateway import running
from tests.support.reports import UNPLOTTED
from tests.support.virtual_network import virtual_network

from draftwise.cli import main
from draftwise.core import InvalidSetup
from draftwise.measure import measurement

SCRIPTS = {
    "plain": FakeScript(first_token_s=0.02, step_s=0.004),
    "faster": FakeScript(first_token_s=0.02, step_s=0.006, k=3, accepted=(3,)),
    "slower": FakeScript(first_token_s=0.02, step_s=0.010, k=3, accepted=(0, 1)),
}
pytestmark = pytest.mark.usefixtures("undisturbed", "unplotted")
PATIENCE_S = 300
"""For a machine under load: it ends a test that hangs."""
CONTEXT = ["--context", "hardware=2 cores", "--context", "precision=float32", "--context", "command.plain=serve"]


@pytest.fixture
def urls() -> Iterator[dict[str, str]]:
    """Serve the scripts without sockets, on virtual time."""
    backends = {name: FakeBackend(name, script) for name, script in SCRIPTS.items()}
    with virtual_network(*backends.values()):
        yield {name: backend.url for name, backend in backends.items()}


@pytest.fixture
def listening() -> Iterator[dict[str, FakeBackend]]:
    """Serve the scripts to other processes, in real time: no verdict may rest on that."""
    backends = {name: FakeBackend(name, script, real_time=True) for name, script in SCRIPTS.items()}
    with running(*backends.values()):
        yield backends


def test_what_its_release_rejects_ends_the_command_before_a_server_starts(tmp_path) -> None:
    out = tmp_path / "run"
    wrong = '{"method": "ngram", "num_speculative_tokens": 3, "no_such_key": 1}'
    vllm = ["--engine", "vllm", "--vllm", f"{sys.executable} x/vllm:v0.26.0", "--gpus", "0,1"]
    result = run("decide", "some/model", *vllm, "--candidate", wrong, "--out", str(out))
    assert result.exit_code == 1
    assert re.search(r"error: ngram k=3 .*no_such_key", result.stderr), result.stderr
    assert not out.exists()


class Hold:
    """Lets a fake answer so many more of the workload's requests, then keeps its whole thread waiting until released.

    How many requests come before them, while servers warm up until they are steady, is the machine's affair.
    """

    def __init__(self, backend: FakeBackend, after: int) -> None:
        self._engine, self._handle, self._left = backend.engine, backend.engine.handle, after
        self.reached, self._released = threading.Event(), threading.Event()
        self._engine.handle = self._hold

    def _hold(self, request, outlet):
        if re.search(rb'"prompt": ?"p\d"', request.body):
            self._left -= 1
            if self._left < 0:
                self.reached.set()
                self._released.wait(3 * PATIENCE_S)
        return self._handle(request, outlet)

    def release(self) -> None:
        self._engine.handle = self._handle
        self._released.set()


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "max_tokens": 12}) + "\n" for i in range(8)))
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_a_faster_and_a_slower_server_are_told_apart(urls, prompts, tmp_path) -> None:
    out = str(tmp_path / "run")
    arms = ["--candidate-url", urls["faster"], "--candidate-url", urls["slower"]]
    arms += ["--candidate", 'faster={"method": "ngram", "num_speculative_tokens": 3}']
    arms += ["--candidate", 'slower={"method": "suffix"}']
    told = [*CONTEXT, "--context", "command.faster=serve f", "--context", "command.slower=serve s"]
    whole = ["--workload", prompts, "--repeats", "2", "--no-adaptive", "--out", out]
    result = run("decide", "--url", urls["plain"], *arms, *told, *whole)
    assert result.exit_code == 0, result.output
    assert re.search(r"^own +faster +adopt ", result.stdout, re.MULTILINE)
    assert re.search(r"^ +slower +reject ", result.stdout, re.MULTILINE)
    assert "faster answers own " in result.stdout
    assert "NOT EVIDENCE" not in result.stdout
    assert f"Report: {out}/report.html" in result.stderr
    assert "3 arms x as many of 8 own prompts, drawn with seed 0, as " in result.stderr
    assert "slower gets each prompt once, because it could remember answers: suffix drafts from" in result.stderr

    before = (Path(out) / "summary.json").read_bytes()
    again = run("report", out, "--json")
    assert json.loads(again.stdout) == json.loads(before)
    assert (Path(out) / "summary.json").read_bytes() == before
    assert "adopt" in again.stderr


def test_a_candidate_that_does_not_answer_is_left_out_with_its_finding(urls, prompts, tmp_path) -> None:
    out = tmp_path / "run"
    arms = ["--url", urls["plain"], "--candidate-url", "http://127.0.0.1:9", "--candidate-url", urls["faster"]]
    result = run("decide", *arms, *CONTEXT, "--workload", prompts, "--repeats", "2", "--out", str(out))
    assert result.exit_code == 1, result.output
    assert re.search(r"^own +candidate 2 +adopt ", result.stdout, re.MULTILINE)
    told = re.search(
        r"^error candidate 1 was not measured because its server failed: .*127\.0\.0\.1:9", result.stdout, re.MULTILINE
    )
    assert told, result.stdout
    assert "Left out: candidate candidate 1: its server did not start" in result.stderr
    summary = json.loads((out / "summary.json").read_text())
    (found,) = [each for each in summary["findings"] if each["severity"] == "error"]
    assert found["code"] == "server-failed"
    assert "server-failed" in (out / "report.html").read_text()


def test_the_minutes_count_from_the_command_on(monkeypatch) -> None:
    seen: list[float] = []

    def prepare(spec, tell, *, began_s: float) -> None:
        seen.append(began_s)
        raise InvalidSetup.because("nothing", "enough seen.")

    monkeypatch.setattr(measurement, "prepare", prepare)
    before = time.monotonic()
    run("decide", "some/model")
    assert before <= seen[0] <= time.monotonic()


def test_without_context_the_first_line_says_not_evidence(urls, prompts, tmp_path) -> None:
    arms = ["--url", urls["plain"], "--candidate-url", urls["faster"], "--workload", prompts]
    result = run("decide", *arms, "--prompts", "2", "--repeats", "1", "--out", str(tmp_path / "run"))
    assert result.stdout.splitlines()[0].startswith("NOT EVIDENCE: the run lacks its hardware, precision and serve")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "Pass either TARGET or --url with --candidate-url."),
        (["target", "--url", "http://127.0.0.1:1"], 2, "Pass either TARGET or --url"),
        (["--url", "http://127.0.0.1:1"], 2, "--url needs at least one --candidate-url"),
        (["target", "--candidate-url", "http://127.0.0.1:1"], 2, "--candidate-url needs --url"),
        (["nowhere"], 2, "error: There is no folder nowhere. Pass a model's folder, --url and --candidate-url"),
        (["."], 2, "error: . is not a Hugging Face checkpoint"),
        ([__file__], 2, "is a file. Pass the model's folder, or --url and --candidate-url of running servers."),
        (["target", "--candidate", "{"], 2, "error: --candidate: The text has an unclosed brace."),
        (["target", "--candidate", "a={method: ngram}"], 2, "Or give the name of a file with the JSON"),
        (["target", "--candidate", "plain={}"], 2, "'plain' is the name of another arm"),
        (["target", "--workload", "proze"], 2, "Did you mean prose?"),
        (["target", "--prompts", "0"], 2, "--prompts"),
        (["--resume", "nowhere"], 2, "is not a run directory"),
        (["target", "--resume", "nowhere", "--repeats", "9"], 2, "Leave out --repeats, TARGET."),
        (["--url", "here", "--candidate-url", "http://127.0.0.1:1"], 2, "'here' is not an http(s) URL"),
        (["--url", "http://127.0.0.1:1", "--candidate-url", "http://127.0.0.1:2"], 3, "does not answer"),
        (
            ["--url", "http://[::1", "--candidate-url", "http://127.0.0.1:1"],
            2,
            "--url 'http://[::1' is not an http(s) URL",
        ),
        (["--url", "http://127.0.0.1:1", "--candidate-url", "x"], 2, "--candidate-url 'x' is not an http(s) URL"),
        (["target", "--serve-args", "'--dtype"], 2, "is not a valid command line (No closing quotation)"),
        (["target", "--minutes", "nan"], 2, "nan is not a finite number"),
        (["target", "--margin", "nan"], 2, "nan is not a finite number"),
        (["target", "--margin", "1"], 2, "1.0 is not in the range 0<=x<1"),
        (["target", "--slo-tpot-ms", "0"], 2, "0.0 is not in the range x>0"),
        (["target", "--slo-ttft-ms", "inf"], 2, "inf is not a finite number"),
        (["target", "--context", "hardwear=x"], 2, "Did you mean 'hardware'?"),
        (["target", "--context", "hardware"], 2, "--context takes KEY=VALUE"),
        (["target", "--api-key-env", "NO_SUCH_VARIABLE"], 2, "NO_SUCH_VARIABLE is not set"),
        (["--candidate", '{"method": "ngram", "num_speculative_token": 3}'], 2, "Did you mean 'num_spec"),
        (["--candidate", '{"metod": "ngram"}'], 2, "'metod' is not a key of the speculative config."),
    ],
)
def test_mistakes_are_sentences_with_an_exit_code(arguments, code, words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text("{}")
    result = run("decide", *arguments)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_an_interrupted_run_keeps_what_it_measured_and_can_go_on(listening, prompts, tmp_path) -> None:
    """By Ctrl-C; `tests/measure/test_kills.py` ends runs by other signals."""
    out, slower = tmp_path / "run", listening["slower"]
    hold = Hold(slower, after=4)
    arms = ["--url", listening["plain"].url, "--candidate-url", slower.url, "--workload", prompts, "--out", str(out)]
    arms += ["--candidate", '{"method": "ngram", "num_speculative_tokens": 3}']
    arms += ["--warmup", "1", "--repeats", "3", "--no-adaptive"]
    process = subprocess.Popen(
        [sys.executable, "-c", UNPLOTTED, "decide", *arms],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets what it runs in the background ignore Ctrl-C, and a process hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert hold.reached.wait(PATIENCE_S)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        hold.release()
    assert process.returncode == 130, rest
    assert f"To continue: draftwise decide --resume {out}" in rest
    kept = (out / "requests.jsonl").read_text().splitlines()
    assert 4 <= len(kept) < 48
    assert (out / "report.html").exists()

    result = run("decide", "--resume", str(out))
    lines = (out / "requests.jsonl").read_text().splitlines()
    assert lines[: len(kept)] == kept
    assert len({(row["arm"], row["repeat"], row["prompt_id"]) for row in map(json.loads, lines)}) == 48
    assert re.search(r"^own +ngram k=3 +\w", result.stdout, re.MULTILINE), "a verdict, whichever"


def test_deciding_on_running_servers_does_not_import_torch(listening, prompts, tmp_path) -> None:
    code = "import sys; from draftwise.cli import main; main(sys.argv[1:], standalone_mode=False)"
    code = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {code}"
    urls = ["--url", listening["plain"].url, "--candidate-url", listening["faster"].url]
    arms = ["decide", *urls, "--workload", prompts]
    short = ["--prompts", "1", "--repeats", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *arms, *short], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False"
