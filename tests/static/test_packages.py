"""Releases and images: links that hold anywhere, the version of the tag, manifests whose commands are right."""

import json
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from docs import package_page

from draftwise.cli import main
from draftwise.version import tell_install

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REPOSITORY = "https://host.example/owner/draftwise"
DOCUMENTS = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
MANIFESTS = [each for each in DOCUMENTS if each.name != "guard-rights.yaml"]


class TestPackagePage:
    MADE = package_page.absolute_links(README, REPOSITORY, "v0.1.0")

    def test_no_link_is_relative(self) -> None:
        links = re.findall(r"\]\(([^)]+)\)", self.MADE) + re.findall(r'<img [^>]*src="([^"]+)"', self.MADE)
        assert len(links) > 10
        assert all(link.startswith(("https://", "#")) for link in links)

    def test_each_leads_to_a_file_of_the_repository(self) -> None:
        paths = re.findall(rf"{REPOSITORY}/(?:blob|raw)/v0.1.0/([^)#\"]+)", self.MADE)
        assert {"LICENSE", "docs/assets/demo-real.svg"} <= set(paths)
        assert [path for path in paths if not (ROOT / path).exists()] == []

    def test_addresses_are_added(self) -> None:
        project = package_page.add_urls((ROOT / "pyproject.toml").read_text(encoding="utf-8"), REPOSITORY)
        assert tomllib.loads(project)["project"]["urls"] == {
            "Documentation": "https://draftwise.dev/",
            "Source": REPOSITORY,
            "Issues": f"{REPOSITORY}/issues",
            "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        }

    def test_the_version_is_the_tag_s(self) -> None:
        module = (ROOT / "src/draftwise/version.py").read_text(encoding="utf-8")
        names: dict[str, str] = {}
        exec(package_page.set_version(module, "v1.2.3rc1"), names)
        assert names["__version__"] == "1.2.3rc1"

    @pytest.mark.parametrize("tag", ["main", "0.1.0", "v1", 'v1.2.3"; import os', "v1.2.3-beta", "v1.2.3\n"])
    def test_a_tag_that_is_no_version_is_refused(self, tag: str) -> None:
        with pytest.raises(ValueError, match="is not a version"):
            package_page.set_version("", tag)


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        (None, 'Run: pip install "draftwise[ui]".'),
        ({"url": ROOT.as_uri(), "dir_info": {}}, f'[ui] @ {ROOT.as_uri()}".'),
        (
            {"url": "file:///of/an/image/a.whl", "archive_info": {}},
            'In a clone of draftwise, run: pip install ".[ui]".',
        ),
        ({"url": "https://x.dev/d", "vcs_info": {"vcs": "git"}}, '[ui] @ git+https://x.dev/d".'),
        ("no JSON", 'In a clone of draftwise, run: pip install ".[ui]".'),
        (PackageNotFoundError(), 'In a clone of draftwise, run: pip install ".[ui]".'),
    ],
    ids=["index", "clone", "gone", "repository", "unreadable", "not-installed"],
)
def test_an_extra_comes_from_where_the_installation_came_from(origin: Any, told: str, monkeypatch: Any) -> None:
    class Origin:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"  # PEP 610
            return origin if origin is None or isinstance(origin, str) else json.dumps(origin)

    def find(_name: str) -> Origin:
        if isinstance(origin, Exception):
            raise origin
        return Origin()

    monkeypatch.setattr("importlib.metadata.distribution", find)
    assert tell_install("ui").endswith(told)


def test_no_page_says_that_an_index_has_draftwise() -> None:
    """Until it is published: somebody else could take the name."""
    assert "draftwise is not on the package index yet" in README, "then this test goes"
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob(".ci/*.yml")]
    pages += [each for each in ROOT.glob("src/draftwise/**/*.py") if each.name != "version.py"]
    pages += [ROOT / "CHANGELOG.md", *ROOT.glob("src/draftwise/knowledge/data/findings/*.json")]
    told = [(page.name, line) for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    assert [each for each in told if re.search(r"pip install (--\S+ )*['\"]?draftwise\b", each[1])] == []


def test_the_source_distribution_holds_the_package_and_no_weights(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (made,) = tmp_path.iterdir()
    with tarfile.open(made) as packed:
        names = {each.name.partition("/")[2] for each in packed}
    assert {"pyproject.toml", "README.md", "NOTICE", "bundle/LICENSE.python.txt", "src/draftwise/version.py"} <= names
    assert [each for each in names if each.endswith((".safetensors", ".gguf", ".bin"))] == []
    assert made.stat().st_size < 10_000_000


class TestRelease:
    WORKFLOW: Any = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))

    def test_it_is_built_once_tested_and_then_published(self) -> None:
        jobs = self.WORKFLOW["jobs"]
        assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == ("build", "test")
        builds = [name for name, job in jobs.items() for step in job["steps"] if "-m build" in step.get("run", "")]
        assert builds == ["build"]
        matrix = jobs["test"]["strategy"]["matrix"]
        assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
        assert matrix["file"] == ["*.whl", "*.tar.gz"]
        assert jobs["publish"]["if"] == "startsWith(github.ref, 'refs/tags/v')"

    def test_only_publishing_has_rights_and_none_has_a_secret(self) -> None:
        assert self.WORKFLOW["permissions"] == {"contents": "read"}
        assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
        assert [name for name, job in self.WORKFLOW["jobs"].items() if "permissions" in job] == ["publish"]

    def test_its_commands_are_commands(self) -> None:
        (trial,) = (s["run"] for s in self.WORKFLOW["jobs"]["test"]["steps"] if "draftwise check" in s.get("run", ""))
        for words in re.findall(r"^draftwise ([a-z].*?)(?: && draftwise (.*))?$", trial, re.M):
            for line in filter(None, words):
                parse(shlex.split(line))


def pods(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the specs of the pods of a manifest."""
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        spec = document.get("spec", {})
        spec = spec.get("jobTemplate", {"spec": spec})["spec"]
        if "template" in spec:
            yield spec["template"]["spec"]


def parse(words: list[str]) -> None:
    """Parse a command line, which runs nothing."""
    command = main.get_command(click.Context(main, info_name="draftwise"), words[0])
    assert command is not None
    command.make_context(words[0], words[1:])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
class TestManifests:
    def test_their_commands_can_be_parsed(self, path: Path) -> None:
        (pod,) = pods(path)
        (container,) = pod["containers"]
        parse(container["args"])

    def test_they_have_no_rights_and_write_only_what_is_mounted(self, path: Path) -> None:
        (pod,) = pods(path)
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not container["image"].endswith(":latest")
        mounted = {each["name"]: each for each in container["volumeMounts"]}
        assert mounted.keys() == {each["name"] for each in pod["volumes"]}
        paths = re.findall(r"=(?:log:)?(/\w+)/", " ".join(container["args"]))
        assert set(paths) <= {each["mountPath"] for each in mounted.values()}
        written = re.findall(r"--(?:out|state)=(/\w+)/", " ".join(container["args"]))
        assert set(written) <= {each["mountPath"] for each in mounted.values() if not each.get("readOnly")}


@pytest.mark.parametrize("release", ["1.27", "1.37"])
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_manifests_meet_the_schemas_of_kubernetes(path: Path, release: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        validator.validate(document, release, strict=True)
        damaged = document | {"specs": {}}
        with pytest.raises(validator.ValidationError):
            validator.validate(damaged, release, strict=True)


def test_the_image_runs_as_nobody_and_gets_nothing_but_the_wheel() -> None:
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    assert lines.count("FROM ${BASE} AS build") == lines.count("FROM ${BASE}") == 1
    assert "USER 65532:65532" in lines
    assert (ROOT / ".containerignore").read_text().split() == ["*", "!dist/*.whl"]
