"""`draftwise verify` on files: a folder proves itself, every planted difference is found, and nothing else is."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.support.adopted import IMAGES, ORDER

from draftwise.cli import main
from draftwise.core import Device, Setup, SpecConfig
from draftwise.deploying import TARGETS, Platform, deploy, make_order, read_layout
from draftwise.deploying.api_server import compare_returned
from draftwise.setups.read import SourceText

SETUP = Setup(
    target="meta-llama/Llama-3.1-8B-Instruct",
    engine="vllm",
    engine_version="0.26.0",
    device=Device(name="GPU", kind="cuda"),
    spec=SpecConfig(method="ngram", num_speculative_tokens=5),
)


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)], input=stdin, catch_exceptions=False)


def codes(*arguments: str | Path, stdin: str | None = None) -> set[str]:
    judged = json.loads(run(*arguments, "--json", stdin=stdin).stdout)
    return {f["code"] for each in judged for f in each["findings"] if f["severity"] != "info"}


@pytest.fixture(params=TARGETS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    deploy(make_order(SETUP, name="llama", image=IMAGES.get(request.param, "")), request.param).write(tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    deploy(make_order(SETUP, name="llama"), "kubernetes").write(tmp_path / "out")
    return tmp_path / "out" / "spec.yaml"


def get_file(folder: Path, side: str) -> Path:
    return folder / json.loads((folder / "deployment.json").read_text())[side]["file"]


def test_a_folder_as_it_was_written_has_no_difference(folder: Path) -> None:
    result = run(folder)
    assert result.exit_code == 0
    assert "not as it was written" not in result.stdout
    assert codes(folder) <= {"async-switched-off"}  # what `check` says of this setup


@pytest.mark.parametrize("side", ["spec", "plain"])
def test_either_twin_is_held_against_its_own_setup(folder: Path, side: str) -> None:
    file = get_file(folder, side)
    assert run(file).exit_code == 0
    other = get_file(folder, "plain" if side == "spec" else "spec")
    file.write_text(other.read_text())
    assert "not-as-ordered" in codes(file)
    assert codes(folder) >= {"file-changed", "not-as-ordered"}
    assert run(folder).exit_code == 1


def test_where_files_put_the_weights_they_are_judged_by_their_names(tmp_path: Path) -> None:
    platform = Platform(layout=read_layout("pvc:models"))
    deploy(replace(ORDER, platform=platform), "kserve").write(tmp_path / "out")
    assert "target-not-here" not in codes(tmp_path / "out")


def test_files_that_go_come_and_change_are_named(folder: Path) -> None:
    (folder / "MEMO.md").unlink()
    (folder / "more.yaml").touch()
    assert codes(folder) >= {"file-gone", "file-added"}


def test_sums_that_were_made_anew_do_not_hide_a_change(spec: Path) -> None:
    import hashlib

    sums = spec.parent / "CHECKSUMS"
    before = hashlib.sha256(spec.read_bytes()).hexdigest()
    spec.write_text(spec.read_text().replace('"num_speculative_tokens":5', '"num_speculative_tokens":7'))
    sums.write_text(sums.read_text().replace(before, hashlib.sha256(spec.read_bytes()).hexdigest()))
    found = codes(spec.parent)
    assert "file-changed" not in found
    assert "not-as-ordered" in found


def test_what_the_release_refuses_and_what_does_not_fit_is_said(spec: Path) -> None:
    assert "does-not-fit" in codes(spec, "--gpu", "L4")
    spec.write_text(spec.read_text().replace('"num_speculative_tokens":5', '"num_speculative_tokens":0'))
    assert "value-out-of-range" in codes(spec)


def test_any_manifest_is_held_against_a_setup(spec: Path, tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --speculative-config "
    script.write_text(command + """'{"method": "ngram", "num_speculative_tokens": 5}'\n""")
    result = run(script, "--setup", spec.parent / "setup.json")
    assert result.exit_code == 0
    assert "does not show how many GPUs the server gets or which vLLM release it starts" in result.stdout
    script.write_text(script.read_text().replace("ngram", "suffix"))
    assert "not-as-ordered" in codes(script, "--setup", spec.parent / "setup.json")


def test_formats_are_those_of_check(spec: Path) -> None:
    spec.write_text(spec.read_text().replace("8B-Instruct", "70B-Instruct"))
    sarif = json.loads(run(spec, "--format", "sarif").stdout)
    assert "not-as-ordered" in {each["ruleId"] for each in sarif["runs"][0]["results"]}
    assert "::error file=" in run(spec, "--format", "github").stdout


def test_usage_is_exit_code_two(tmp_path: Path, spec: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = tmp_path / "bare.yaml"
    bare.write_text(spec.read_text())
    assert run(empty).exit_code == 2
    assert run(bare).exit_code == 2
    assert run(tmp_path / "gone.yaml", "--setup", spec.parent / "setup.json").exit_code == 2
    assert run(spec.parent, "--setup", spec.parent / "setup.json").exit_code == 2
    for text in ("{}", '{"target": "Qwen/Qwen3-8B"}'):
        (spec.parent / "setup.json").write_text(text)
        assert run(spec).exit_code == 2


def test_nothing_is_imported_that_a_file_does_not_need(spec: Path) -> None:
    script = (
        "import sys; from draftwise.cli import main; "
        f"main(['verify', {str(spec)!r}], standalone_mode=False); "
        "print({each.partition('.')[0] for each in sys.modules} & {'torch', 'numpy', 'httpx'}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "set()\n")


def returned(spec: Path, change: object = None) -> str:
    """Return what a server prints of a manifest: its objects as a list, with defaults, and quantities written anew."""
    deployment, service = yaml.safe_load_all(spec.read_text())
    deployment["metadata"] |= {"uid": "1", "generation": 1, "creationTimestamp": None}
    deployment["spec"]["revisionHistoryLimit"] = 10
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["terminationMessagePath"] = "/dev/termination-log"
    memory = container["resources"]["limits"]["memory"]
    container["resources"]["limits"]["memory"] = f"{int(memory.removesuffix('Gi')) * 1024}Mi"
    container["volumeMounts"].insert(0, {"name": "kube-api-access", "mountPath": "/var/run/secrets"})
    service["spec"]["clusterIP"] = "10.0.0.1"
    if callable(change):
        change(deployment)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [deployment, service]}, indent=1)


def test_what_a_server_adds_or_writes_anew_is_no_finding(spec: Path) -> None:
    assert codes(spec, "--returned", "-", stdin=returned(spec)) <= {"async-switched-off"}


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        (("spec", "template", "spec", "containers", 0, "args"), "field-dropped"),
        (("spec", "template", "spec", "containers", 0, "startupProbe"), "field-dropped"),
        (("spec", "template", "spec", "containers", 0, "volumeMounts", 1), "field-dropped"),
        (("spec", "progressDeadlineSeconds"), "field-dropped"),
        (("metadata", "annotations", "draftwise.dev/setup"), "field-dropped"),
    ],
)
def test_what_a_server_drops_is_found_with_its_line(spec: Path, keys: tuple[str | int, ...], code: str) -> None:
    def drop(deployment: dict) -> None:
        *way, last = keys
        place: object = deployment
        for key in way:
            place = place[key]  # type: ignore[index]
        del place[last]  # type: ignore[attr-defined]

    result = run(spec, "--returned", "-", "--json", stdin=returned(spec, drop))
    findings = [f for each in json.loads(result.stdout) for f in each["findings"] if f["code"] == code]
    assert len(findings) == 1
    assert f"{spec}:" in findings[0]["where"]
    assert result.exit_code == 1


def test_a_value_that_a_webhook_changes_is_a_warning(spec: Path) -> None:
    def mirror(deployment: dict) -> None:
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror.local/vllm:v0.26.0"

    assert "field-changed" in codes(spec, "--returned", "-", stdin=returned(spec, mirror))


def test_a_false_that_is_left_out_is_only_noted(tmp_path: Path) -> None:
    sent, back = tmp_path / "sent.yaml", tmp_path / "back.json"
    thing = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"hostNetwork": False, "x": None}}
    sent.write_text(yaml.safe_dump(thing))
    back.write_text(json.dumps(thing | {"spec": {}}))
    assert codes(sent, "--returned", back) == set()
    assert "may equal the default" in run(sent, "--returned", back).stdout


def test_a_refusal_and_silence_are_said(spec: Path) -> None:
    status = {"kind": "Status", "apiVersion": "v1", "message": "strict decoding error", "code": 400}
    assert "refused-by-server" in codes(spec, "--returned", "-", stdin=json.dumps(status))
    assert run(spec, "--returned", "-", stdin="").exit_code == 2
    assert codes(spec, "--returned", "-", stdin='{"kind": "Pod", "metadata": {"name": "b"}}') >= {"object-not-returned"}


def test_an_empty_manifest_is_not_returned_whole(tmp_path: Path) -> None:
    sent, back = tmp_path / "sent.yaml", tmp_path / "back.json"
    for text in ("", "# nothing", "- 1"):
        sent.write_text(text)
        for answer in ('{"kind": "List", "items": []}', "{}", "null"):
            back.write_text(answer)
            assert run(sent, "--returned", back).exit_code == 2


def test_objects_one_behind_the_other_are_read(spec: Path) -> None:
    items = json.loads(returned(spec))["items"]
    stream = "".join(f"{json.dumps(item, indent=4)}\n" for item in items)
    assert codes(spec, "--returned", "-", stdin=stream) <= {"async-switched-off"}


UNITS = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        *((f"3{larger}", f"3000{smaller}", True) for smaller, larger in pairwise(UNITS)),
        *((f"3{larger}", f"300{smaller}", False) for smaller, larger in pairwise(UNITS)),
        *((f"2{larger}i", f"2048{smaller}i", True) for smaller, larger in pairwise("KMGTPE")),
        ("1Ki", "1024", True), ("1.5", "1500m", True), ("1K", "1k", False), ("1", True, False),
    ],
)  # fmt: skip
def test_quantities_are_the_same_however_they_are_written(before: str, after: object, is_same: bool) -> None:
    thing = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    sent, back = (
        SourceText(text=json.dumps(thing | {"spec": {"amount": value}}), name=name)
        for value, name in ((before, "sent"), (after, "back"))
    )
    assert [each.code for each in compare_returned(sent, back)] == ([] if is_same else ["field-changed"])


def test_documents_that_hold_no_object_are_passed_over(spec: Path) -> None:
    """Such as a warning of kubectl that went to the same file, or a separator at the end."""
    objects = returned(spec)
    spec.write_text(f"{spec.read_text()}---\n# nothing\n---\njust a text\n")
    printed = f"a warning without a key\n---\n{objects}\n---\n"
    assert codes(spec, "--returned", "-", stdin=printed) <= {"async-switched-off"}


def test_a_field_that_no_kind_knows_is_found_before_a_server_drops_it(tmp_path: Path) -> None:
    deploy(make_order(SETUP, name="llama"), "kserve").write(tmp_path / "out")
    file = tmp_path / "out" / "spec.yaml"
    file.write_text(file.read_text().replace("  predictor:\n", "  predictors: {}\n  predictor:\n"))
    assert "field-unknown" in codes(file)


def test_one_of_several_servers_is_compared(spec: Path) -> None:
    other = spec.with_name("plain.yaml").read_text()
    several = spec.with_name("several.yaml")
    several.write_text(f"{spec.read_text()}---\n{other}")
    assert "several-servers" in codes(several)
    assert run(several, "--select", "llama").exit_code == 0
    assert "not-as-ordered" in codes(several, "--select", "llama-plain")
    assert run(several, "--select", "nobody").exit_code == 2
    for words in ((spec.parent,), ("http://127.0.0.1:1",), ("--log", several, "--setup", several)):
        assert "apply to a single file" in run(*words, "--select", "llama").output


def test_all_servers_of_one_command_are_compared(spec: Path) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 5}'
    loop = spec.with_name("run.sh")
    for words, code in (("--max-num-seqs 8", 1), ("", 0)):
        text = f"  N=$N vllm serve {SETUP.target} {words} \\\n    --speculative-config '{config}' &\n"
        loop.write_text(f"for N in 1 2; do\n{text}done\n")
        assert run(loop, "--setup", spec.with_name("setup.json")).exit_code == code
