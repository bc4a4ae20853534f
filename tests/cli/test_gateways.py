"""`draftwise decide` through gateways: headers, keys, counters hidden or elsewhere, one URL for all arms."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.gateway import Gateway
from tests.support.virtual_network import virtual_network

from draftwise.cli import main

pytestmark = pytest.mark.usefixtures("undisturbed", "unplotted")

PLAIN = FakeScript(first_token_s=0.004, step_s=0.004)
FASTER = FakeScript(first_token_s=0.004, step_s=0.006, k=3, accepted=(3,))
SLOWER = FakeScript(first_token_s=0.004, step_s=0.024, k=3, accepted=(3,))
SECRET = "not-to-be-written-anywhere"
HEADER = ["--header", "X-Team: ${TEAM_KEY}"]
FAST = ["--candidate", 'fast={"method": "ngram", "num_speculative_tokens": 3}']
TOLD = ["--context", "hardware=1x H200", "--context", "precision=bfloat16"]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "max_tokens": 12}) + "\n" for i in range(8)))
    return str(path)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeBackend, FakeBackend, Gateway]]:
    """A plain server that is reached directly, a faster one, and the gateway in front of the latter."""
    monkeypatch.setenv("TEAM_KEY", SECRET)
    plain, faster = (FakeBackend(name, each) for name, each in (("plain", PLAIN), ("f", FASTER)))
    with virtual_network(plain, faster) as network:
        gateway = Gateway({"": faster.url}, wants=("x-team", SECRET))
        network.join(gateway)
        yield plain, faster, gateway


def decide(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["decide", "--repeats", "2", *FAST, *arguments])


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def codes(summary: dict) -> set[str]:
    found = [*summary["findings"], *(each for row in summary["comparisons"] for each in row["findings"])]
    return {each["code"] for each in found}


def test_without_counters_nothing_is_blocked_and_the_speculation_is_named_unproven(behind, prompts, tmp_path) -> None:
    plain, _, gateway = behind
    out = tmp_path / "run"
    arms = ["--url", plain.url, "--candidate-url", gateway.url, *HEADER]
    result = decide(*arms, *TOLD, "--workload", prompts, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "fast: its /metrics has no draft counters, so only its stream can show that it speculates." in result.stderr
    summary = summary_of(out)
    assert summary["comparisons"][0]["verdict"] != "blocked"
    assert "speculation: not proven by counters for fast" in summary["scope"]
    assert "speculation-unproven" in codes(summary)


def test_secrets_are_in_no_file_and_no_output_of_a_run(behind, prompts, tmp_path) -> None:
    plain, _, gateway = behind
    out = tmp_path / "run"
    arms = ["--url", plain.url, "--candidate-url", gateway.url, *HEADER]
    result = decide(*arms, "--workload", prompts, "--prompts", "2", "--out", str(out))
    files = [each for each in out.rglob("*") if each.is_file()]
    assert files
    assert not any(SECRET in each.read_text(errors="replace") for each in files)
    assert SECRET not in result.output
    assert json.loads((out / "manifest.json").read_text())["arms"][1]["header_names"] == ["X-Team"]


def test_a_named_page_of_counters_proves_it(behind, prompts, tmp_path) -> None:
    plain, faster, gateway = behind
    out = tmp_path / "run"
    arms = ["--url", plain.url, "--candidate-url", gateway.url, *HEADER, "--metrics-url", f"fast={faster.url}"]
    result = decide(*arms, *TOLD, "--workload", prompts, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "not proven" not in result.stdout
    assert summary_of(out)["comparisons"][0]["tokens_per_step"] >= 3


def test_exchanged_pages_of_counters_block(behind, prompts, tmp_path) -> None:
    plain, faster, gateway = behind
    out = tmp_path / "run"
    pages = ["--metrics-url", faster.url, "--metrics-url", plain.url]
    arms = ["--url", plain.url, "--candidate-url", gateway.url, *HEADER, *pages]
    result = decide(*arms, *TOLD, "--workload", prompts, "--out", str(out))
    assert result.exit_code in (1, 2, 3), result.output
    assert "the two servers are swapped" in result.output
    assert "Adopt fast" not in result.stdout


def test_exchanged_urls_do_not_pass_without_counters(prompts, tmp_path) -> None:
    """Speculation that loses, with the URLs exchanged: the plain server must not be adopted as the speculating one."""
    plain, slower = (FakeBackend(name, each) for name, each in (("p", PLAIN), ("s", SLOWER)))
    out = tmp_path / "run"
    with virtual_network(plain, slower) as network:
        one, other = Gateway({"": plain.url}), Gateway({"": slower.url})
        network.join(one, other)
        arms = ["--url", other.url, "--candidate-url", one.url]
        result = decide(*arms, *TOLD, "--workload", prompts, "--out", str(out))
    assert result.exit_code == 1, result.output
    assert "Adopt" not in result.stdout
    assert summary_of(out)["comparisons"][0]["verdict"] != "adopt"
    assert "swapped-servers" in codes(summary_of(out))


def test_one_address_leads_to_the_server_that_the_host_names(prompts, tmp_path) -> None:
    """As an ingress of KServe does; both arms have one URL."""
    plain, faster = (FakeBackend(name, each) for name, each in (("p", PLAIN), ("f", FASTER)))
    with virtual_network(plain, faster) as network:
        gateway = Gateway({"plain.example": plain.url, "fast.example": faster.url})
        network.join(gateway)
        hosts = ["--header", "plain=Host: plain.example", "--header", "fast=Host: fast.example"]
        arms = ["--url", gateway.url, "--candidate-url", gateway.url, *hosts]
        result = decide(*arms, *TOLD, "--workload", prompts, "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    found = summary_of(tmp_path / "run")
    assert not codes(found) & {"same-server", "not-speculating", "plain-speculates"}
    assert found["comparisons"][0]["tokens_per_step"] is None


def test_one_url_without_a_header_to_tell_the_arms_apart_is_refused_before_the_run(tmp_path) -> None:
    url = "http://127.0.0.1:1"
    result = decide("--url", url, "--candidate-url", f"{url}/v1/", "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert "plain and fast are one server" in result.stderr
    assert "the header that a gateway routes by (--header)" in result.stderr


def test_a_gateway_that_wants_a_header_says_how_to_give_it(behind, prompts, tmp_path) -> None:
    plain, _, gateway = behind
    arms = ["--url", plain.url, "--candidate-url", gateway.url, "--workload", prompts]
    result = decide(*arms, "--out", str(tmp_path / "run"))
    assert result.exit_code == 3
    assert "--header 'Name: ${VARIABLE}'" in result.stderr


def test_a_page_without_counters_is_an_error_in_seconds(behind, prompts, tmp_path) -> None:
    plain, _, gateway = behind
    arms = ["--url", plain.url, "--candidate-url", gateway.url, *HEADER, "--workload", prompts]
    result = decide(*arms, "--metrics-url", f"fast={gateway.url}", "--out", str(tmp_path / "run"))
    assert result.exit_code == 3
    assert "answered 404 without counters of a known server" in result.stderr


def test_a_continued_run_wants_its_headers_again(behind, prompts, tmp_path) -> None:
    plain, _, gateway = behind
    out = str(tmp_path / "run")
    arms = ["--url", plain.url, "--candidate-url", gateway.url, *HEADER, "--workload", prompts, "--prompts", "1"]
    assert decide(*arms, "--out", out).exit_code in (0, 1)
    again = CliRunner().invoke(main, ["decide", "--resume", out])
    assert again.exit_code == 2
    assert "When the run began, requests to plain had the headers X-Team" in again.stderr
    assert CliRunner().invoke(main, ["decide", "--resume", out, *HEADER]).exit_code in (0, 1)


def test_what_is_missing_is_asked_for_and_can_be_added_afterwards(behind, prompts, tmp_path) -> None:
    plain, _, gateway = behind
    out = tmp_path / "run"
    arms = ["--url", plain.url, "--candidate-url", gateway.url, *HEADER, "--workload", prompts]
    first = decide(*arms, "--out", str(out))
    missing = first.stdout.splitlines()[0]
    assert missing.startswith("NOT EVIDENCE: the run lacks its hardware, precision")
    assert "model" not in missing
    assert "Add it with `draftwise report RUN` and --context hardware=" in missing
    assert "hardware: unknown" in summary_of(out)["scope"]

    told = [*TOLD, "--context", "command.fast=serve f", "--context", "command.plain=serve p"]
    again = CliRunner().invoke(main, ["report", str(out), *told])
    assert "hardware" not in again.stdout.splitlines()[0]
    assert "hardware: 1x H200" in summary_of(out)["scope"]
    assert CliRunner().invoke(main, ["report", str(out)]).stdout == again.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--header", "no colon"], "a header must be NAME: VALUE"),
        (["--header", "X-A: ${NOT_SET_ANYWHERE}"], "NOT_SET_ANYWHERE is not set"),
        (["--header", "Content-Length: 3"], "The load generator sets"),
        (["--header", "nobody=X-A: b"], "There is no arm 'nobody'"),
        (["--api-key-env", "plain=NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
        (["--metrics-url", "http://127.0.0.1:3"], "You gave 1 metrics URLs, but there are 2 servers"),
        (["--metrics-url", "nobody=http://127.0.0.1:3"], "There is no arm 'nobody'"),
        (["--metrics-url", "x", "--metrics-url", "y"], "--metrics-url 'x' is not an http(s) URL"),
    ],
)
def test_mistakes_are_sentences(arguments, words, tmp_path) -> None:
    urls = ["--url", "http://127.0.0.1:1", "--candidate-url", "http://127.0.0.1:2"]
    result = decide(*urls, *arguments, "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert words in result.stderr
