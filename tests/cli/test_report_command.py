"""`draftwise report` and `draftwise compare` as they are typed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.made_runs import CONTEXT, Truth, gains, make_run, save_run

from draftwise.cli import main

pytestmark = pytest.mark.usefixtures("unplotted")

SAMPLES = Path(__file__).parents[1] / "deciding" / "interchange" / "samples"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("runs") / "before", make_run({"ngram k=3": gains(1.5)}))


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with another version, on which speculation no longer pays."""
    servers = {name: each | {"version": {"version": "fake-2"}} for name, each in CONTEXT["servers"].items()}
    slower = make_run({"ngram k=3": gains(0.7)}, seed=1, context=CONTEXT | {"servers": servers})
    return save_run(tmp_path_factory.mktemp("runs") / "after", slower)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)


def test_report_writes_the_page_and_what_was_asked_for(run: Path, tmp_path: Path) -> None:
    result = call(
        "report", run, "--json", "--markdown", tmp_path / "pr.md", "--export", f"vllm-bench={tmp_path}/bench/"
    )
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((run / "summary.json").read_text())
    assert (
        (tmp_path / "pr.md")
        .read_text()
        .startswith("**On 2 cores of imaginary with fake, one request at a time, ngram k=3 answers")
    )
    assert sorted(each.name for each in (tmp_path / "bench").iterdir()) == [
        "code-c=1-ngram-k=3.json",
        "code-c=1-plain.json",
    ]
    assert "</html>" in (run / "report.html").read_text()


def test_markdown_on_stdout_has_nothing_else_there(run: Path) -> None:
    result = call("report", run, "--markdown", "-")
    assert result.stdout.startswith("**On 2 cores of imaginary with fake, one request at a time, ngram k=3 answers")
    assert result.stdout.rstrip().endswith("</details>")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--json", "--markdown", "-"), 2, "give --markdown a file"),
        (("--export", "excel=x"), 2, "is not FORMAT=FILE with one of vllm-bench, aiperf"),
        (("--export", "vllm-bench"), 2, "is not FORMAT=FILE"),
        (("--markdown", "/nowhere/x.md"), 3, "cannot be written"),
        (("--export", "aiperf=/nowhere/x"), 3, "cannot be written"),
        (("--export", "aiperf=/dev/null/x/"), 3, "cannot be created"),
    ],
)
def test_what_cannot_be_done_is_said(run: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = call("report", run, *arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())


def test_compare_says_that_an_answer_is_no_longer_true(run: Path, upgraded: Path) -> None:
    result = call("compare", run, upgraded)
    assert result.exit_code == 1
    assert result.stdout.index("version.plain.version") < result.stdout.index("adopt -> reject")
    assert "The answer is no longer true: 1 no longer true of 1 verdicts." in result.stdout


def test_compare_with_itself_is_still_true_in_all_forms(run: Path) -> None:
    assert call("compare", run, run).exit_code == 0
    document = json.loads(call("compare", run, run, "--json").stdout)
    assert document["still_true"] is True
    assert [change["ratio"]["value"] for change in document["cells"][0]["changes"]] == [1.0] * 5
    assert call("compare", run, run, "--markdown").stdout.startswith("**The answer is still true")


def test_compare_reads_results_of_other_tools() -> None:
    result = call("compare", SAMPLES / "guidellm-0.5.4.json", SAMPLES / "guidellm-0.5.4.json")
    assert result.exit_code == 0
    assert "No verdicts to compare" in result.stdout


def test_a_run_of_two_arms_has_nothing_in_common_with_a_single_result(run: Path) -> None:
    result = call("compare", run, SAMPLES / "vllm-bench-0.32.json")
    assert result.exit_code == 2
    assert "no workload, load and arm in common" in result.stderr


def test_what_is_no_measurement_is_refused(tmp_path: Path) -> None:
    result = call("compare", tmp_path, tmp_path)
    assert result.exit_code == 2
    assert "Give a run directory" in result.stderr


def test_a_faster_machine_is_not_like_for_like_unless_asked(run: Path, tmp_path: Path) -> None:
    other = make_run(
        {"ngram k=3": gains(3.0), "plain": Truth(step_s=lambda prompt, condition: 0.005)},
        context=CONTEXT | {"hardware": {"cpu": "another"}},
    )
    path = save_run(tmp_path / "other", other)
    assert "NOT LIKE FOR LIKE: the two also differ in hardware" in call("compare", run, path).stdout
    assert "If you changed this on purpose too, pass --changed hardware." in call("compare", run, path).stdout
    assert call("compare", run, path, "--changed", "hardware").exit_code == 0
