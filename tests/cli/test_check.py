import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.made_gguf import LLAMA as LLAMA_GGUF
from tests.support.made_gguf import write_gguf

from draftwise.cli import main

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
BUNDLE = Path(__file__).parents[2] / "bundle"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 5}'
DFLASH = '{"method": "dflash", "model": "z-lab/some-dflash", "num_speculative_tokens": 7}'


def run(*arguments):
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def judged(*arguments):
    return json.loads(run("check", "--json", *arguments).stdout)


def test_a_config_is_judged_for_each_release_that_is_named():
    answers = judged(LLAMA, "-sc", DFLASH, "--vllm", "0.19.1", "--vllm", "0.20.0")
    assert [(each["vllm"], each["accepted"]) for each in answers] == [("0.19.1", False), ("0.20.0", None)]
    assert "unknown-method" in {finding["code"] for finding in answers[0]["findings"]}


def test_all_releases_are_judged_at_once():
    answers = judged(LLAMA, "-sc", '{"method": "medusa", "model": "x/y", "num_speculative_tokens": 2}', "--vllm", "all")
    assert len(answers) >= 40
    assert {each["vllm"] for each in answers if not each["accepted"]} >= {"0.33.0"}


def test_exit_code_is_one_for_an_error_and_can_be_made_stricter():
    assert run("check", LLAMA, "-sc", NGRAM, "--vllm", "0.32.0").exit_code == 0
    assert run("check", LLAMA, "-sc", NGRAM, "--vllm", "0.32.0", "--fail-on", "warning").exit_code == 1
    assert run("check", LLAMA, "-sc", '{"method": "ngram"}', "--vllm", "0.32.0").exit_code == 1
    assert run("check", LLAMA, "-sc", '{"method": "ngram"}', "--vllm", "0.32.0", "--fail-on", "never").exit_code == 0


def test_engine_flags_behind_the_dashes_take_part():
    wrong = '{"method": "ngram", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 3}'
    answer = judged(LLAMA, "-sc", wrong, "--vllm", "0.32.0", "--", "--tensor-parallel-size", "2")[0]
    assert answer["args"]["tensor_parallel_size"] == 2


def test_a_target_without_modules_is_not_advised_to_draft_with_itself():
    (finding,) = [
        each
        for each in judged("Qwen/Qwen3-8B", "-sc", '{"method": "mtp", "num_speculative_tokens": 1}')[0]["findings"]
        if each["severity"] == "error"
    ]
    assert finding["message"] == "The target has no modules for mtp: its config.json is of type 'qwen3'."
    assert "draft_model" not in finding["fix"]


def test_a_refused_config_says_nothing_of_what_the_engine_would_have_changed():
    answer = judged(LLAMA, "-sc", '{"num_speculative_tokens": 5}', "--vllm", "0.19.1")[0]
    assert [each["code"] for each in answer["findings"]] == ["model-missing"]
    assert "The config needs the key `method` or `model`" in answer["findings"][0]["message"]


SUFFIX = '{"method": "suffix"}'


@pytest.mark.parametrize(
    ("flags", "accepted", "code"),
    [
        ([], None, "suffix-package"),
        (["--installed", "torch, Arctic_Inference"], True, None),
        (["--installed", "arctic-inference==0.1.1"], True, None),
        (["--installed", ""], False, "suffix-needs-arctic"),
    ],
)
def test_a_package_that_suffix_needs_is_spoken_of_until_it_is_known_to_be_there(flags, accepted, code):
    answer = judged(LLAMA, "-sc", SUFFIX, "--vllm", "0.33.0", *flags)[0]
    found = {finding["code"] for finding in answer["findings"]} & {"suffix-package", "suffix-needs-arctic"}
    assert (answer["accepted"], found) == (accepted, {code} - {None})


@pytest.mark.parametrize("packages", ["NONSENSE", "artic-inference,vllm-ascend", "0.33.0", "vllm,vllm_ascent"])
def test_a_package_that_no_rule_asks_for_is_refused(packages):
    ended = run("check", LLAMA, "-sc", SUFFIX, "--installed", packages)
    assert ended.exit_code == 2
    counted = ended.stderr.partition("Packages that count: ")[2].rstrip(".\n").split(", ")
    assert counted == sorted(counted)
    assert {"arctic-inference", "deep-ep", "nixl", "terratorch", "vllm-ascend"} <= {*counted}


@pytest.mark.parametrize("verb", [("check",), ("upgrade", "--from", "0.30.0", "--to", "0.33.0")])
@pytest.mark.parametrize("name", ["NONSENSE", "./missing", "missing/model/3"])
def test_a_target_that_is_nothing_is_refused(verb, name):
    ended = run(*verb, LLAMA, "-sc", NGRAM, "--target", name)
    assert ended.exit_code == 2
    assert f"--target: {name!r} is neither a directory here nor a model." in ended.stderr


def test_what_is_no_name_of_a_package_is_refused():
    ended = run("check", LLAMA, "-sc", SUFFIX, "--installed", "arctic inference")
    assert ended.exit_code == 2
    assert "--installed: 'arctic inference' is not a package; write name or name==version." in ended.stderr


def test_a_config_may_lie_in_a_file(tmp_path):
    (tmp_path / "spec.json").write_text(NGRAM)
    answer = judged(LLAMA, "-sc", str(tmp_path / "spec.json"), "--vllm", "0.32.0")[0]
    assert answer["resolved"]["method"] == "ngram"
    assert answer["resolved"]["prompt_lookup_min"] == answer["resolved"]["prompt_lookup_max"] == 5


def test_the_image_tag_of_a_compose_file_names_the_release(tmp_path):
    (tmp_path / "compose.yaml").write_text(
        "services:\n  llm:\n    image: vllm/vllm-openai:v0.19.1\n    command:\n"
        f"      - --model={LLAMA}\n      - --speculative-config\n      - {NGRAM!r}\n"
    )
    answer = judged(str(tmp_path / "compose.yaml"))[0]
    assert answer["vllm"] == "0.19.1"
    assert "llm" in answer["where"]


def test_flags_of_old_guides_are_rejected_with_the_json_that_replaces_them():
    answer = judged(f"vllm serve {LLAMA} --speculative-model meta-llama/Llama-3.2-1B --num-speculative-tokens 4")[0]
    assert not answer["accepted"]
    fixes = " ".join(finding.get("fix", "") for finding in answer["findings"])
    assert '"model": "meta-llama/Llama-3.2-1B"' in fixes
    assert '"num_speculative_tokens": 4' in fixes


def test_sarif_is_a_document_of_its_own():
    text = run("check", LLAMA, "-sc", '{"method": "ngram"}', "--vllm", "0.32.0", "--format", "sarif").stdout
    document = json.loads(text)
    assert document["version"] == "2.1.0"
    assert document["runs"][0]["results"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("check",), "Give a model"),
        (("check", LLAMA, "-sc", "no-such-file.json"), "neither a JSON object nor a file"),
        (("check", LLAMA, "-sc", "{"), "has an unclosed brace"),
        (("check", LLAMA, "-sc", NGRAM, "--vllm", "0.5.0"), "older than 0.9.2"),
        (("check", LLAMA, "-sc", NGRAM, "--vllm", "banana"), "not a version"),
        (("upgrade", LLAMA, "-sc", NGRAM, "--from", "0.19.1", "--to", "x"), "not a version"),
        (("explain", "dflush"), "Did you mean dflash"),
    ],
)
def test_mistakes_become_one_clear_line(arguments, says):
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert says in result.output
    assert "Traceback" not in result.output


def test_the_table_says_accepted_and_shows_what_is_resolved():
    text = run("check", LLAMA, "-sc", NGRAM, "--vllm", "0.32.0").stdout
    assert "vLLM 0.32.0" in text
    assert "method ngram  k 5" in text


def test_a_file_of_json_lines_is_judged_line_by_line(tmp_path):
    lines = [
        {"target": LLAMA, "speculative_config": json.loads(NGRAM)},
        {"target": LLAMA, "speculative_config": {"method": "ngram"}, "args": {"tensor_parallel_size": 2}},
    ]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    answers = judged(str(tmp_path / "many.jsonl"), "--vllm", "0.32.0")
    assert [each["accepted"] for each in answers] == [True, False]
    assert answers[1]["where"].endswith("many.jsonl:2")


def test_a_config_without_a_target_is_judged_as_far_as_it_goes():
    answer = judged(NGRAM, "--vllm", "0.32.0")[0]
    assert answer["outcome"] == "not judged"
    assert "no-target" in {finding["code"] for finding in answer["findings"]}


def test_a_target_may_be_its_config_json(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "vocab_size": 2000, "intermediate_size": 512, "max_position_embeddings": 2048,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for source in (json.dumps(config), str(tmp_path / "config.json"), str(tmp_path)):
        answer = judged(source, "-sc", NGRAM, "--vllm", "0.32.0", "--", "--max-model-len", "4096")[0]
        assert "target-too-long" in {finding["code"] for finding in answer["findings"]}
        assert answer["speculative_config"] == json.loads(NGRAM)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://huggingface.co/Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B"])
def test_a_url_is_no_model(url: str):
    spec = json.dumps({"method": "eagle3", "model": url, "num_speculative_tokens": 3})
    for code, answer in (
        ("target-config-unreadable", judged(url, "-sc", NGRAM)[0]),
        ("drafter-config-unreadable", judged(LLAMA, "-sc", spec)[0]),
    ):
        found = {finding["code"]: finding for finding in answer["findings"]}
        assert not answer["accepted"]
        assert found[code]["message"].startswith(f"{url} is a URL")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("Qwen3-8B", "Write Qwen/Qwen3-8B."),
        ("qwen3:8b", "Did you mean Qwen/Qwen3-8B"),
        ("my model", "Write ORG/NAME"),
        ("org/name-", "Write ORG/NAME"),
    ],
)
def test_a_name_that_no_model_of_the_hub_has_is_not_accepted(name: str, fix: str):
    spec = json.dumps({"method": "draft_model", "model": name, "num_speculative_tokens": 3})
    for answer in (judged(f"vllm serve {name!r}")[0], judged(LLAMA, "-sc", spec)[0]):
        (finding,) = (each for each in answer["findings"] if each["code"] == "name-not-of-hub")
        assert not answer["accepted"]
        assert finding["fix"].startswith(fix)


@pytest.mark.parametrize("name", ["gpt2", "qwen/qwen3-8b", "org/name", "name", "/mnt/models", "./here", "models/a/b"])
def test_a_name_that_a_model_may_have_is_accepted_only_if_it_is_known(name: str):
    known = name in ("gpt2", "qwen/qwen3-8b")
    assert judged(f"vllm serve {name}")[0]["outcome"] == ("accepted" if known else "not judged")


def test_an_object_store_is_a_place_for_models():
    answer = judged("s3://bucket/model", "-sc", NGRAM)[0]
    assert "target-config-unreadable" not in {finding["code"] for finding in answer["findings"]}


def test_a_mount_can_be_told_what_it_stands_for():
    line = """vllm serve /mnt/models --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""
    unknown, known = judged(line, "--vllm", "0.32.0")[0], judged(line, "--vllm", "0.32.0", "--target", LLAMA)[0]
    assert "target-not-here" in {finding["code"] for finding in unknown["findings"]}
    assert "target-not-here" not in {finding["code"] for finding in known["findings"]}
    assert known["resolved"]["target_architectures"] == ["LlamaForCausalLM"]


LIGHT = """
import sys
from draftwise.cli import main
main(["check", {target!r}, "-sc", {spec!r}, "--vllm", "0.32.0"], standalone_mode=False)
heavy = {{name.partition(".")[0] for name in sys.modules}} & {{"torch", "numpy", "httpx", "asyncio", "scipy", "yaml"}}
sys.exit(f"imported: {{heavy}}" if heavy or "draftwise.measure" in sys.modules else 0)
"""


@pytest.mark.parametrize(
    ("target", "model"),
    [(LLAMA, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"), (str(BUNDLE / "target"), str(BUNDLE / "eagle3"))],
)
def test_nothing_is_imported_that_a_check_does_not_need(target, model):
    spec = json.dumps({"method": "eagle3", "model": model, "num_speculative_tokens": 3})
    script = LIGHT.format(target=target, spec=spec)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_import_that_a_check_does_not_need_is_noticed():
    script = LIGHT.format(target=LLAMA, spec=NGRAM).replace("import sys\n", "import sys, numpy\n", 1)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "numpy" in done.stderr


def test_help_in_a_command_starts_nothing():
    for flag in ("--help", "-h"):
        answer = judged(f"vllm serve {LLAMA} {flag}")[0]
        assert not answer["accepted"]
        assert any("starts nothing" in finding["message"] for finding in answer["findings"])


def test_a_refused_speculative_config_changes_nothing_later():
    answer = judged(LLAMA, "-sc", '{"num_speculative_tokens": 5}', "--vllm", "0.19.1")[0]
    assert [finding["code"] for finding in answer["findings"]] == ["model-missing"]
    accepted = judged(
        LLAMA, "-sc", '{"num_speculative_tokens": 5, "model": "meta-llama/Llama-3.2-1B"}', "--vllm", "0.19.1"
    )
    assert "async-switched-off" in {finding["code"] for finding in accepted[0]["findings"]}


def test_a_target_without_modules_of_its_own_is_not_told_to_draft_for_itself():
    answer = judged("Qwen/Qwen3-8B", "-sc", '{"method": "mtp", "num_speculative_tokens": 1}', "--vllm", "0.33.0")[0]
    (fix,) = [finding["fix"] for finding in answer["findings"] if finding["code"] == "drafter-fits-no-method"]
    assert "draft_model" not in fix


def test_what_several_setups_have_to_know_is_told_once(tmp_path):
    row = json.dumps({"target": LLAMA, "speculative_config": json.loads(NGRAM)})
    (tmp_path / "many.jsonl").write_text(f"{row}\n" * 20)
    text = run("check", str(tmp_path / "many.jsonl"), "--vllm", "0.32.0").stdout
    alone = run("check", LLAMA, "-sc", NGRAM, "--vllm", "0.32.0").stdout
    notes = [line for line in alone.splitlines() if line.startswith("  · ")]
    assert notes
    for note in notes:
        assert text.count(note.split("  ")[1]) == 1
    assert text.count(LLAMA) == text.count("vLLM 0.32.0  accepted") == 20
    assert "Of 20 of 20 setups" in text


def test_a_gguf_target_is_judged_by_what_vllm_itself_loads(tmp_path):
    def judge(architecture, version):
        metadata = {key.replace("llama", architecture): value for key, value in LLAMA_GGUF.items()}
        metadata |= {"general.architecture": architecture}
        file = write_gguf(tmp_path / "model.gguf", metadata, {"token_embd.weight": ("F32", (64, 32), bytes(8192))})
        (answer,) = judged(str(file), "-sc", NGRAM, "--vllm", version)
        return answer["accepted"], {each["code"] for each in answer["findings"] if "gguf" in each["code"]}

    assert judge("llama", "0.23.0") == (True, {"gguf-experimental"})
    assert judge("llama", "0.24.0") == (None, {"gguf-needs-plugin"})  # what the server has installed is not known
    assert judge("qwen3", "0.9.2") == (None, {"gguf-architecture-unread", "gguf-experimental"})
    assert judge("qwen3", "0.11.0") == (True, {"gguf-experimental"})
    assert judge("gemma3", "0.20.0") == (None, {"gguf-not-read-here"})


_TYPO = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.26.0
        startUpProbe: {httpGet: {path: /health, port: 8000}}
        args: [meta-llama/Llama-3.1-8B-Instruct]
"""


@pytest.mark.parametrize(("typo", "codes"), [("startUpProbe", ["field-unknown"]), ("startupProbe", [])])
def test_a_field_that_an_api_server_drops_is_a_warning(tmp_path, typo, codes):
    """Which release takes the object is not known: what none of those known here has may be newer."""
    (tmp_path / "llama.yaml").write_text(_TYPO.replace("startUpProbe", typo))
    result = CliRunner().invoke(main, ["check", str(tmp_path / "llama.yaml"), "--json"], catch_exceptions=False)
    findings = [each for row in json.loads(result.stdout) for each in row["findings"]]
    found = [each for each in findings if each["code"].startswith("field-")]
    assert [each["code"] for each in found] == codes
    assert all(each["severity"] == "warning" and "startupProbe" in each["fix"] for each in found)
    assert result.exit_code == 0


def test_what_was_said_already_is_not_said_again(tmp_path):
    wrong = {"modelFormat": {"name": "vLLM"}, "storageUris": [{"uri": "hf://a/b"}]}
    service = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "x"},
               "spec": {"predictor": {"model": wrong}}}  # fmt: skip
    (tmp_path / "x.yaml").write_text(json.dumps(service))
    result = CliRunner().invoke(main, ["check", str(tmp_path / "x.yaml"), "--json"], catch_exceptions=False)
    places = [each["where"] for row in json.loads(result.stdout) for each in row["findings"]]
    assert len([each for each in places if str(each).endswith("model.storageUris")]) == 1
