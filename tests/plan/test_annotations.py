import json

from draftwise.core import Effect, Finding, Ruling, Setup, Severity, Stage
from draftwise.plan.annotations import to_github, to_gitlab
from draftwise.plan.check.check_report import Report

ODD = Finding(
    code="some-finding", severity=Severity.WARNING, message="a: 50 % is odd,\nsays who.",
    where="my,files/compose.yaml:12 services.a", fix="Mend it.",
)  # fmt: skip
RULING = Ruling(
    code="unknown-flag", severity=Severity.ERROR, message="No release has it.", where="--x", effect=Effect.REJECTED,
    stage=Stage.CLI,
)  # fmt: skip
NOTE = Finding(code="some-note", severity=Severity.INFO, message="This is worth knowing.")


def report(*findings: Finding, **fields: str) -> Report:
    return Report(setup=Setup(target="m"), findings=findings, resolved=None, **{"version": "0.19.1", **fields})


def test_github_gets_a_workflow_command_for_each_error_and_warning() -> None:
    reports = [report(ODD, RULING, NOTE), report(RULING, version="0.33.0", asked="0.34.0")]
    assert list(to_github(reports, places=["a.sh:3", ""])) == [
        "::warning file=my%2Cfiles/compose.yaml,line=12,title=draftwise%3A some-finding::"
        "vLLM 0.19.1: my,files/compose.yaml:12 services.a: a: 50 %25 is odd,%0Asays who. Mend it.",
        "::error file=a.sh,line=3,title=draftwise%3A unknown-flag::vLLM 0.19.1: --x: No release has it.",
        "::error title=draftwise%3A unknown-flag::vLLM 0.34.0, judged as 0.33.0: --x: No release has it.",
    ]


def test_gitlab_gets_what_its_report_requires() -> None:
    issues = to_gitlab([report(ODD, RULING, NOTE)], places=["./deploy/a.sh"])
    assert [issue["severity"] for issue in issues] == ["minor", "critical", "info"]
    assert [issue["location"] for issue in issues] == [
        {"path": "my,files/compose.yaml", "lines": {"begin": 12}},
        {"path": "deploy/a.sh", "lines": {"begin": 1}},
        {"path": "deploy/a.sh", "lines": {"begin": 1}},
    ]
    for issue in json.loads(json.dumps(issues)):
        assert issue.keys() == {"description", "check_name", "fingerprint", "severity", "location"}


def test_a_fingerprint_is_unique_and_stays_when_lines_move() -> None:
    moved = report(Finding(code=ODD.code, severity=ODD.severity, message=ODD.message, where="f.yaml:99 services.a"))
    first = report(Finding(code=ODD.code, severity=ODD.severity, message=ODD.message, where="f.yaml:12 services.a"))
    (one,), (other,) = to_gitlab([first], places=[""]), to_gitlab([moved], places=[""])
    assert one["fingerprint"] == other["fingerprint"]
    twice = to_gitlab([first, moved, report(ODD, RULING)], places=["", "", ""])
    assert len({issue["fingerprint"] for issue in twice}) == len(twice)


def test_a_finding_without_a_file_has_a_place_all_the_same() -> None:
    (issue,) = to_gitlab([report(NOTE)], places=[""])
    assert issue["location"] == {"path": "command line", "lines": {"begin": 1}}
