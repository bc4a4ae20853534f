"""What is rendered starts what was ordered: each file is read again as anybody's, and compared."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from tests.support.adopted import IMAGES, SPEED
from tests.support.combinations import tries
from tests.support.drawn_setups import TEXT
from tests.support.read_back_law import Case, check_law

from draftwise.core import Device, InvalidSetup, Setup, SpecConfig
from draftwise.deploying import TARGETS, deploy, make_order
from draftwise.deploying.observe.promise import make_baseline
from draftwise.deploying.order import RunEvidence
from draftwise.deploying.read_back import read_back

CONFIG = ("method: ngram", "num_speculative_tokens: 5")
"""Lines of a config that is written key by key."""
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=5)
SETUP = Setup(
    target="meta-llama/Llama-3.1-8B-Instruct",
    engine="vllm",
    engine_version="0.26.0",
    device=Device(name="H200", kind="cuda", count=2),
    spec=NGRAM,
    args={"tensor_parallel_size": 2},
)


@pytest.mark.parametrize("release", ["0.16.0", "0.33.0"])
@pytest.mark.parametrize("case", [Case(to=to) for to in TARGETS], ids=str)
def test_what_is_rendered_is_read_back(case: Case, release: str) -> None:
    # benchmarks/interop/deployed_files.py holds the same law against many more, in every layout.
    assert check_law(case, release, examples=tries(25)) > tries(5)


@pytest.mark.parametrize("to", ["kserve", "systemd"])
def test_nothing_is_imported_that_rendering_does_not_need(to: str, tmp_path: Path) -> None:
    command = ["deploy", SETUP.target, "--vllm", "0.26.0", "--gpu", "H200", "--to", to, "--out", str(tmp_path / "out")]
    command += ["-sc", '{"method": "ngram", "num_speculative_tokens": 5}']
    script = (
        f"import sys; from draftwise.cli import main; main({command!r}, standalone_mode=False); "
        "heavy = {'torch', 'numpy', 'scipy', 'httpx', 'asyncio', 'jsonschema'}; "
        "print({each.partition('.')[0] for each in sys.modules} & heavy, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "set()\n")


@pytest.mark.parametrize("to", TARGETS)
def test_a_file_that_starts_something_else_is_noticed(to: str) -> None:
    target = TARGETS[to]
    order = target.prepare(make_order(SETUP, image=IMAGES.get(to, "")))
    other = replace(order, setup=replace(order.setup, spec=replace(NGRAM, num_speculative_tokens=4)))
    (finding,) = read_back(target.render(other), order.setup, name=f"spec{target.suffix}", lost=target.lost)
    assert finding.code == "not-as-ordered"
    assert "has spec" in finding.message


@pytest.mark.parametrize("to", TARGETS)
def test_the_twin_differs_in_speculation_alone(to: str) -> None:
    setup = replace(SETUP, args={"max_num_seqs": 64, **SETUP.args})
    order = TARGETS[to].prepare(make_order(setup, image=IMAGES.get(to, "")))
    spec, plain = (TARGETS[to].render(each) for each in (order, order.without_speculation()))
    assert "speculative" in spec
    assert "speculative" not in plain
    changed = set(spec.splitlines()) ^ set(plain.splitlines())
    names = (
        "speculative",
        "pool",
        "plain",
        "draftwise.dev/setup",
        "draftwise.dev/revision",
        order.name,
        "tensor-parallel-size",
        *CONFIG,
    )
    assert [line for line in changed if not any(name in line for name in names)] == []


@given(TEXT)
@settings(deadline=None)
def test_no_variable_of_compose_or_systemd_is_filled_in(text: str) -> None:
    setup = replace(SETUP, env={"VLLM_X": f"$HOME %h ${{A}} {text}"}, device=Device(name="GPU", kind="cuda", count=2))
    order = replace(make_order(SETUP), setup=setup)
    for to in ("compose", "systemd"):
        assert read_back(TARGETS[to].render(order), setup, name=f"x{TARGETS[to].suffix}", lost=TARGETS[to].lost) == ()


def test_a_template_is_refused() -> None:
    order = make_order(SETUP)
    order = replace(order, setup=replace(order.setup, args={"chat_template": "{{ messages }}"}))
    with pytest.raises(InvalidSetup, match=r"contains \{\{"):
        deploy(order, "kubernetes")


def test_resources_follow_the_weights_and_the_gpus() -> None:
    (deployment, service) = yaml.safe_load_all(deploy(make_order(SETUP), "kubernetes").files["spec.yaml"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "2"
    assert int(limits["memory"].removesuffix("Gi")) > 16 + 4  # 16 GB of weights, and /dev/shm
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < deployment["spec"]["progressDeadlineSeconds"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert "nodeSelector" not in deployment["spec"]["template"]["spec"]  # no node is labelled "H200"


def test_a_gpu_by_its_label_selects_nodes() -> None:
    setup = replace(SETUP, device=Device(name="NVIDIA-H200", kind="cuda", count=2))
    deployment = next(yaml.safe_load_all(deploy(make_order(setup), "kubernetes").files["spec.yaml"]))
    assert deployment["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}


def test_the_folder_proves_itself(tmp_path: Path) -> None:
    folder = deploy(make_order(SETUP), "kubernetes")
    folder.write(tmp_path / "out")
    command = ["sha256sum", "-c", "--quiet", "CHECKSUMS"]
    assert subprocess.run(command, cwd=tmp_path / "out", check=False).returncode == 0
    (tmp_path / "out" / "spec.yaml").write_text("kind: Pod\n")
    assert subprocess.run(command, cwd=tmp_path / "out", capture_output=True, check=False).returncode == 1
    with pytest.raises(InvalidSetup, match="already exists"):
        folder.write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("setup", "code"),
    [
        (replace(SETUP, engine_version=""), "release-not-given"),
        (replace(SETUP, target=""), "target-not-named"),
        (replace(SETUP, device=Device(name="CPU", kind="cpu")), "no-cpu-service"),
        (replace(SETUP, spec=replace(NGRAM, num_speculative_tokens=0)), "value-out-of-range"),
    ],
)
def test_what_cannot_be_served_is_refused(setup: Setup, code: str) -> None:
    with pytest.raises(InvalidSetup) as refused:
        make_order(setup)
    assert code in [finding.code for finding in refused.value.findings]


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(InvalidSetup) as refused:
        make_order(replace(SETUP, engine_version="", target=""))
    assert [finding.code for finding in refused.value.findings] == ["release-not-given", "target-not-named"]


def test_what_does_not_fit_is_refused() -> None:
    big = replace(SETUP, target="meta-llama/Llama-3.1-70B-Instruct", device=Device(name="L4", kind="cuda"), args={})
    with pytest.raises(InvalidSetup):
        make_order(big)


def test_the_method_is_written_so_that_no_name_of_a_directory_decides_it() -> None:
    head = SpecConfig(model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", num_speculative_tokens=3)
    spec = make_order(replace(SETUP, spec=head)).setup.spec
    assert spec is not None
    assert spec.method == "eagle3"


def test_what_nobody_measured_is_said() -> None:
    guessed = make_order(SETUP)
    assert any("cold start" in gap for gap in guessed.evidence.unmeasured)
    assert "not-measured" in str(guessed.annotations)
    measured = make_order(SETUP, cold_start_s=431)
    assert measured.startup_s == 650
    assert measured.evidence.unmeasured == ()


ADOPTED = RunEvidence(run="r", headline="It pays.", rollback=(SPEED,))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"engine": "draftwise", "engine_version": "0.1.0"}, "the run measured draftwise 0.1.0"),
        ({"engine_version": "0.25.0"}, "the run measured vllm 0.25.0"),
        ({"target": "bundle/target"}, "the run measured bundle/target"),
        ({"target": ""}, "a model whose name it does not know"),
    ],
)
def test_numbers_of_another_engine_or_model_do_not_carry_over(change: dict[str, Any], told: str) -> None:
    left = ADOPTED.carry_over(replace(SETUP, **change), SETUP, hardware=("2 x NVIDIA H200",))
    assert left.rollback == ()
    assert told in " ".join(left.unmeasured)
    assert "When to roll back" in left.unmeasured[-1]
    assert told in make_baseline(left, "").why_no_limits


@pytest.mark.parametrize("hardware", [(), ("2 cores of a processor",), ("NVIDIA L4",)])
def test_nor_do_those_of_other_hardware(hardware: tuple[str, ...]) -> None:
    assert ADOPTED.carry_over(SETUP, SETUP, hardware=hardware).rollback == ()


def test_numbers_of_the_same_setup_stay() -> None:
    assert ADOPTED.carry_over(SETUP, SETUP, hardware=("NVIDIA H200, 143771 MiB",)) is ADOPTED


@pytest.mark.parametrize("to", TARGETS)
def test_a_schedule_is_served_as_it_was_decided(to: str) -> None:
    """Every file is read back; where a schedule cannot be said, it is refused and not left out."""
    schedule = [[1, 16, 5], [17, 64, 2]]
    spec = SpecConfig(
        method="ngram", num_speculative_tokens=5, options={"num_speculative_tokens_per_batch_size": schedule}
    )
    order = make_order(replace(SETUP, engine_version="0.33.0", spec=spec), image=IMAGES.get(to, ""))
    if to == "llminferenceservice":
        with pytest.raises(InvalidSetup) as refused:
            deploy(order, to)
        assert [finding.code for finding in refused.value.findings] == ["config-not-spelled"]
    else:
        text = deploy(order, to).files[f"spec{TARGETS[to].suffix}"]
        assert to == "ray-serve" or "[[1,16,5],[17,64,2]]" in text.replace("\\", "")
