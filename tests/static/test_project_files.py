"""Files that a repository is judged by: forms, licenses, the manual page; and that nothing is sent to anybody."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import yaml
from docs import manual, third_party
from packaging.utils import canonicalize_name

from draftwise.verbs import VERBS

ROOT = Path(__file__).parents[2]
FORMS = ROOT / ".github/ISSUE_TEMPLATE"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
OFFLINE = [
    ["--version"],
    ["check", "compose.yaml"],
    ["upgrade", "compose.yaml", "--from", "0.19.1", "--to", "newest"],
    ["size", MODEL, "--gpu", "H100"],
    ["pick", MODEL, "--gpu", "H200", "--workload", "code", "--concurrency", "8"],
    ["inspect", "bundle/eagle3", "--target", "bundle/target"],
    ["explain", "disable_by_batch_size"],
    ["facts"],
    ["schema", "check"],
    ["config"],
    ["report", "run"],
    ["compare", "run", "run"],
    ["forecast", "profile.json", "calibration.json", "--concurrency", "1"],
    ["deploy", "compose.yaml", "--to", "compose", "--out", "deployed"],
    ["verify", "deployed"],
    ["rollback", "deployed"],
    ["fetch"],
    ["skill", "install", "skill"],
]
WATCHED = """
import json, sys
def refuse(event, _):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"):
        print("OPENS", event, _, file=sys.stderr)
        raise AssertionError(event)
sys.addaudithook(refuse)
from draftwise.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        print("CODE", end.code, *words, file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import shutil

    for name, place in {
        "compose.yaml": "tests/static/documented/compose.yaml",
        "bundle": "bundle",
        "profile.json": "benchmarks/cpu/results/demo_profile.json",
        "calibration.json": "benchmarks/cpu/results/demo_calibration.json",
    }.items():
        (tmp_path / name).symlink_to(ROOT / place)
    shutil.copytree(ROOT / "tests/core/documents/run", tmp_path / "run")
    return tmp_path


def run_watched(commands: list[list[str]], folder: Path) -> str:
    import json

    done = subprocess.run(
        [sys.executable, "-c", WATCHED, json.dumps(commands)], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stderr


class TestNothingIsSent:
    def test_verbs_that_need_no_server_open_no_connection(self, folder: Path) -> None:
        errors = run_watched(OFFLINE, folder)
        assert "OPENS" not in errors
        codes = re.findall(r"^CODE (\d+)", errors, re.M)
        assert len(codes) == len(OFFLINE)
        assert set(codes) <= {"0", "1"}, errors  # each came to its answer

    def test_a_verb_that_is_given_a_server_asks_that_one_alone(self, folder: Path) -> None:
        opened = re.findall(r"^OPENS .*", run_watched([["watch", "http://127.0.0.1:9", "--once"]], folder), re.M)
        assert opened
        assert all("127.0.0.1" in each for each in opened)


class TestForms:
    def test_each_asks_for_what_is_needed(self) -> None:
        texts = {path.stem: path.read_text(encoding="utf-8") for path in FORMS.glob("*.yml")}
        assert texts.keys() == {"config", "bug", "wrong-judgement", "wrong-verdict"}
        assert "draftwise check ... --json" in texts["wrong-judgement"]
        for name, text in texts.items():
            form = yaml.safe_load(text)
            if name == "config":
                continue
            assert form.keys() >= {"name", "description", "body"}
            ids = [each["id"] for each in form["body"]]
            assert len(ids) == len(set(ids))
            for each in form["body"]:
                assert each["type"] in ("input", "textarea")
                assert each["attributes"]["label"]
            assert any(each.get("validations", {}).get("required") for each in form["body"])


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md")], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_links_of_pages_outside_docs_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (page.parent / link).exists(), link


LISTED = dict(re.findall(r"^\| (\S+) \| (.*) \| `", third_party.PAGE.read_text(encoding="utf-8"), re.M))
"""License of each package."""


def test_scripts_that_agents_are_sent_to_are_there() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    named = re.findall(r"python (?:-m )?([\w./]+)`", text)
    assert len(named) >= 4
    for name in named:
        path = ROOT / (name if name.endswith(".py") else name.replace(".", "/"))
        assert path.exists() or path.with_suffix(".py").exists(), name


class TestLicenses:
    def test_every_package_that_is_asked_for_is_listed(self) -> None:
        asked = {canonicalize_name(each.name) for needs in third_party.declared().values() for each in needs}
        assert asked <= LISTED.keys(), "run python -m docs.third_party"

    def test_those_installed_have_the_license_that_they_declare(self) -> None:
        for name, license_ in LISTED.items():
            try:
                about = metadata(name)
            except PackageNotFoundError:
                continue
            declared = third_party.license_of(about)  # a version declares "MIT", another "MIT License"
            assert license_.removesuffix(" License") == declared.removesuffix(" License")
            assert "GPL" not in license_.replace("LGPL", "")

    def test_the_wheel_holds_them(self) -> None:
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert {"LICENSE", "NOTICE", "THIRD-PARTY.md", "bundle/LICENSE.python.txt"} <= set(project["license-files"])


class TestManual:
    PAGE = "\n".join(manual.pages())

    def test_it_has_every_verb_and_its_options(self) -> None:
        for name in VERBS:
            assert f".SS draftwise {name}\n".replace("-", r"\-") in self.PAGE
        assert r".B \-\-fail\-on" in self.PAGE

    def test_roff_reads_nothing_else_as_a_request(self) -> None:
        requests = {line.split()[0] for line in self.PAGE.splitlines() if line[:1] in (".", "'")}
        assert requests <= {".TH", ".SH", ".SS", ".TP", ".B", ".I", ".PP"}
        assert manual.roff(".x\n'y\\n-") == "\\&.x\n\\&'y\\en\\-"
