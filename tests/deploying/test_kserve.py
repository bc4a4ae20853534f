"""KServe: every layout starts what was ordered, is what the release takes, and is left by one element."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version
from tests.deploying.test_render import SETUP
from tests.support.adopted import limits_of
from tests.support.combinations import tries
from tests.support.read_back_law import Case, check_law

from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.deploying import TARGETS, Folder, Mode, Platform, ServiceOrder, deploy, make_order, read_layout
from draftwise.deploying.api_server import validate
from draftwise.deploying.read_back import compare_setups
from draftwise.deploying.rollback_plan import plan_rollback
from draftwise.deploying.weights_layout import Layout
from draftwise.setups.read import SourceText, read_setups
from draftwise.setups.read.manifests.inference_services import find_refusals

RELEASES = ["0.15.2", "0.16", "0.18", "0.20"]
LAYOUTS = ["one", "storage-uris", "modelcar:registry.local/llama:1", "pvc:models", "mixed:models"]
EAGLE = SpecConfig(method="eagle3", model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", num_speculative_tokens=3)
HEAD = replace(SETUP, spec=EAGLE)


def files_of(
    setup: Setup, release: str = "0.20", layout: str = "", mode: Mode = "Standard", start_s: float = 200
) -> Folder:
    platform = Platform(release=release, mode=mode, layout=read_layout(layout) if layout else None)
    return deploy(replace(make_order(setup, name="llama", cold_start_s=start_s), platform=platform), "kserve")


def service_of(folder: Folder, name: str = "spec.yaml") -> dict[str, Any]:
    service: dict[str, Any] = list(yaml.safe_load_all(folder.files[name]))[-1]
    return service


def refusal_of(setup: Setup, **how: Any) -> str:
    with pytest.raises(InvalidSetup) as refused:
        files_of(setup, **how)
    return refused.value.findings[0].code


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_back(layout: str) -> None:
    case = Case(to="kserve", platform=Platform(layout=read_layout(layout)))
    assert check_law(case, "0.26.0", examples=tries(30)) > tries(10)


@pytest.mark.parametrize("mode", ["Standard", "Knative"])
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_file_is_one_that_the_release_takes(layout: str, release: str, mode: Mode) -> None:
    if release == "0.15.2" and layout in ("storage-uris", "mixed:models"):
        assert refusal_of(HEAD, release=release, layout=layout) == "layout-too-new"
        return
    folder = files_of(SETUP if layout == "one" else HEAD, release, layout, mode)
    for name in ("spec.yaml", "plain.yaml"):
        runtime, service = yaml.safe_load_all(folder.files[name])
        assert [*validate(runtime, release), *validate(service, release)] == []
        assert runtime["metadata"]["name"] == service["spec"]["predictor"]["model"]["runtime"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_way_back_is_one_argument_and_the_drafters_mount(layout: str) -> None:
    folder = files_of(SETUP if layout == "one" else HEAD, layout=layout)
    spec, plain = (service_of(folder, name)["spec"]["predictor"] for name in ("spec.yaml", "plain.yaml"))
    (dropped,) = [arg for arg in spec["model"]["args"] if arg not in plain["model"]["args"]]
    assert dropped.startswith("--speculative-config={")
    assert [arg for arg in spec["model"]["args"] if arg != dropped] == plain["model"]["args"]
    uris = [entry["uri"] for entry in spec.get("storageUris", ()) if entry not in plain.get("storageUris", ())]
    assert uris == ([f"hf://{EAGLE.model}"] if layout in ("storage-uris", "mixed:models") else [])
    assert "EAGLE3" not in folder.files["plain.yaml"]


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_arguments_name_directories_that_the_layout_fills(layout: str) -> None:
    folder = files_of(HEAD, layout=layout)
    predictor = service_of(folder)["spec"]["predictor"]
    args = predictor["model"]["args"]
    mounted = [entry["mountPath"] for entry in predictor.get("storageUris", ())] or ["/mnt/models"]
    drafter = yaml.safe_load(args[-1].partition("=")[2])["model"]
    for path in (args[0], drafter):
        assert any(f"{path}/".startswith(f"{each}/") for each in mounted), path
    assert drafter.endswith(f"/{EAGLE.model}")  # the upstream name, by which vLLM tells methods
    assert f"--served-model-name={SETUP.target}" in args  # clients go on as before


@pytest.mark.parametrize(
    ("layout", "left"),
    [
        ("storage-uris", "Nothing: every start downloads"),
        ("modelcar:registry.local/llama:1", "The drafter's layer /mnt/models/yuhuili/EAGLE3"),
        ("pvc:models", "The drafter's directory /mnt/models/yuhuili/EAGLE3-LLaMA3.1-Instruct-8B on the claim models"),
        ("mixed:models", "Nothing of the drafter"),
    ],
)
def test_what_going_back_leaves_behind_is_that_of_the_layout(layout: str, left: str, tmp_path: Path) -> None:
    folder = files_of(HEAD, layout=layout)
    assert f"## What a rollback leaves behind\n\n- {left}" in folder.files["MEMO.md"]
    folder.write(tmp_path / "out")
    assert plan_rollback(tmp_path / "out").leaves.startswith(left)


def test_a_layout_is_chosen_and_its_alternatives_are_named() -> None:
    assert service_of(files_of(SETUP))["spec"]["predictor"]["model"]["storageUri"] == f"hf://{SETUP.target}"
    folder = files_of(HEAD)
    assert len(service_of(folder)["spec"]["predictor"]["storageUris"]) == 2
    memo = folder.files["MEMO.md"]
    assert "`storage-uris`: every checkpoint" in memo
    assert all(f"--layout {each}" in memo for each in ("modelcar:IMAGE", "pvc:CLAIM", "mixed:CLAIM"))
    assert "--layout one" not in memo
    assert refusal_of(HEAD, release="0.15") == "layout-not-chosen"


@pytest.mark.parametrize(
    ("setup", "how", "code"),
    [
        (HEAD, {"layout": "one"}, "layout-too-small"),
        (replace(SETUP, target="/models/llama"), {"layout": "one"}, "layout-cannot-fetch"),
        (SETUP, {"layout": "pvc"}, "no-such-layout"),
        (
            replace(SETUP, target="/a/llama", spec=replace(EAGLE, model="/b/llama")),
            {"layout": "pvc:models"},
            "layout-names-collide",
        ),
        (SETUP, {"layout": "one:models"}, "no-such-layout"),
        (SETUP, {"layout": "nfs"}, "no-such-layout"),
        (SETUP, {"release": "0.14"}, "platform-release-unknown"),
        (SETUP, {"release": "0.99"}, "platform-release-unknown"),
        (SETUP, {"release": "newest"}, "platform-release-unknown"),
    ],
)
def test_what_cannot_be_placed_is_refused(setup: Setup, how: dict[str, str], code: str) -> None:
    assert refusal_of(setup, **how) == code


@pytest.mark.parametrize(
    ("release", "mode", "name"),
    [("0.15", "Standard", "RawDeployment"), ("0.15", "Knative", "Serverless"), ("0.16", "Standard", "Standard")],
)
def test_modes_have_the_names_of_the_release(release: str, mode: Mode, name: str) -> None:
    annotations = service_of(files_of(SETUP, release, mode=mode))["metadata"]["annotations"]
    assert annotations["serving.kserve.io/deploymentMode"] == name


def test_a_long_start_is_granted_by_knative_and_told_for_standard() -> None:
    assert limits_of(files_of(SETUP, start_s=200)) == []
    (limit,) = limits_of(files_of(SETUP, start_s=431))
    assert limit.code == "progress-deadline-fixed"
    folder = files_of(SETUP, start_s=431, mode="Knative")
    assert limits_of(folder) == []
    predictor = service_of(folder)["spec"]["predictor"]
    assert predictor["annotations"] == {"serving.knative.dev/progress-deadline": "710s"}
    (container,) = next(yaml.safe_load_all(folder.files["spec.yaml"]))["spec"]["containers"]
    assert "startupProbe" not in container
    assert container["livenessProbe"]["initialDelaySeconds"] == 650


def test_what_knative_has_to_allow_is_told() -> None:
    (limit,) = limits_of(files_of(HEAD, layout="mixed:models", mode="Knative"))
    assert limit.code == "knative-features"
    assert "persistent-volume-claim" in limit.message


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_a_canary_is_the_running_twin_with_a_share_of_speculation(layout: str) -> None:
    folder = files_of(HEAD, "0.20", layout)
    text = folder.files["canary.yaml"]
    plain, spec = (each.setup for each in read_setups(SourceText(text=text, name="canary.yaml")))
    for found, name in ((plain, "rollback.yaml"), (spec, "spec.yaml")):
        (ordered,) = read_setups(SourceText(text=folder.files[name], name=name))
        assert list(compare_setups(ordered.setup, found, name=name)) == []
    service, twin = service_of(folder, "canary.yaml"), service_of(folder, "rollback.yaml")
    (canary,) = service["spec"].pop("canary")
    assert service == twin  # what runs is not touched
    assert canary["predictor"]["model"]["name"] == "kserve-container"
    assert "maxReplicas" not in canary["predictor"]


def test_knatives_canary_is_a_revision_of_the_twin() -> None:
    folder = files_of(HEAD, "0.18", mode="Knative")
    canary, twin = service_of(folder, "canary.yaml"), service_of(folder, "rollback.yaml")
    assert canary["spec"]["predictor"]["canaryTrafficPercent"] == 10
    assert canary["metadata"] == twin["metadata"]
    assert "canary.yaml" not in files_of(HEAD, "0.18").files


def test_an_image_and_a_claim_are_filled() -> None:
    dockerfile = files_of(HEAD, layout="modelcar:registry.local/llama:1").files["Dockerfile.modelcar"]
    assert f'COPY ["{EAGLE.model}", "/models/{EAGLE.model}"]' in dockerfile
    job = yaml.safe_load(files_of(HEAD, layout="pvc:models").files["stage-job.yaml"])
    pod = job["spec"]["template"]["spec"]
    assert [each["args"][0] for each in pod["containers"]] == [SETUP.target, EAGLE.model]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "models"
    mixed = yaml.safe_load(files_of(HEAD, layout="mixed:models").files["stage-job.yaml"])
    assert [each["args"][0] for each in mixed["spec"]["template"]["spec"]["containers"]] == [SETUP.target]


def test_revisions_are_those_of_the_setup() -> None:
    pinned = replace(HEAD, args={**HEAD.args, "revision": "abc"}, spec=replace(EAGLE, options={"revision": "def"}))
    uris = [entry["uri"] for entry in service_of(files_of(pinned))["spec"]["predictor"]["storageUris"]]
    assert uris == [f"hf://{SETUP.target}:abc", f"hf://{EAGLE.model}:def"]
    job = yaml.safe_load(files_of(pinned, layout="pvc:models").files["stage-job.yaml"])
    assert [each["args"][2] for each in job["spec"]["template"]["spec"]["containers"]] == ["abc", "def"]


def test_a_directory_of_the_operators_is_left_to_them() -> None:
    folder = files_of(replace(SETUP, target="/srv/llama"), layout="pvc:models")
    assert "stage-job.yaml" not in folder.files
    assert [limit.code for limit in limits_of(folder)] == ["stage-by-hand"]


def test_accounts_are_named_and_no_secret_is_written() -> None:
    platform = Platform(layout=Layout(kind="pvc", store="models"), service_account="hub")
    folder = deploy(replace(make_order(HEAD), platform=platform), "kserve")
    assert service_of(folder)["spec"]["predictor"]["serviceAccountName"] == "hub"
    job = yaml.safe_load(folder.files["stage-job.yaml"])["spec"]["template"]["spec"]
    assert job["serviceAccountName"] == "hub"
    account = yaml.safe_load(folder.files["account.yaml"])
    assert (account["kind"], account["metadata"]["name"]) == ("ServiceAccount", "hub")
    # KServe and the Job look for the same secret, which is the operator's to make.
    (secret,) = account["secrets"]
    assert {each["valueFrom"]["secretKeyRef"]["name"] for c in job["containers"] for each in c["env"]} == {
        secret["name"]
    }
    assert not any("kind: Secret" in text for text in folder.files.values())


def test_a_claim_has_room_for_both_checkpoints() -> None:
    claim = yaml.safe_load(files_of(HEAD, layout="pvc:models").files["claim.yaml"])
    job = yaml.safe_load(files_of(HEAD, layout="pvc:models").files["stage-job.yaml"])
    (volume,) = job["spec"]["template"]["spec"]["volumes"]
    assert claim["metadata"]["name"] == volume["persistentVolumeClaim"]["claimName"] == "models"
    assert 17 < int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) < 30  # 8B in bfloat16, a head
    unknown = replace(HEAD, target="somebody/else")
    assert "claim.yaml" not in files_of(unknown, layout="pvc:models").files


def test_an_image_needs_no_claim() -> None:
    assert "claim.yaml" not in files_of(HEAD, layout="modelcar:registry/llama:1").files


@pytest.mark.parametrize(
    ("uris", "code"),
    [
        ([("hf://a", "/mnt/models/a"), ("hf://b", "/mnt/models/b")], ""),
        ([("hf://a", "/mnt/a"), ("pvc://c", "/claim")], ""),
        ([("hf://a", "/a"), ("hf://b", "/b")], "storage-refused"),
        ([("hf://a", "/")], "storage-refused"),
        ([("hf://a", "/mnt/../a")], "storage-refused"),
        ([("", "/mnt/a")], "storage-refused"),
        ([("pvc://c", "/claim"), ("pvc://d", "/claim")], "storage-refused"),
        ([("pvc://c/llama", "/claim")], "claim-path-ignored"),
        ([("oci://a", "/mnt/models/a"), ("oci://b", "/mnt/models/b")], "storage-refused"),
        ([("oci://a", "/mnt/models/t/a"), ("oci://b", "/mnt/models/d/b")], ""),
    ],
)
def test_what_the_webhook_and_the_controllers_refuse_is_found(uris: list[tuple[str, str]], code: str) -> None:
    entries = [{"uri": uri, "mountPath": path} for uri, path in uris]
    predictor = {"storageUris": entries, "model": {}}
    assert [each.code for each in find_refusals(predictor, "spec.predictor")] == ([code] if code else [])


def test_one_way_of_naming_uris_is_taken() -> None:
    predictor = {"storageUris": [{"uri": "hf://a"}], "model": {"storageUri": "hf://a"}}
    (finding,) = find_refusals(predictor, "spec.predictor")
    assert finding.code == "storage-refused"


def test_check_finds_in_files_of_others_what_kserve_refuses() -> None:
    text = files_of(HEAD).files["spec.yaml"].replace("/mnt/models/meta-llama", "/target/meta-llama")
    (reading,) = read_setups(SourceText(text=text, name="spec.yaml"))
    (finding,) = [each for each in reading.findings if each.code == "storage-refused"]
    assert "no common directory" in finding.message
    assert finding.where.startswith("spec.yaml")
    assert "spec.predictor" in finding.where


def test_an_order_is_prepared_for_the_newest_release_by_default() -> None:
    order: ServiceOrder = TARGETS["kserve"].prepare(make_order(SETUP))
    assert Version(order.platform.release) >= Version("0.20")
