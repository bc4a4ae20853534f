"""Refusals of vLLM: each is read, ruled, waited for or out of reach; where vLLM refused a line, none is accepted."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from catalogue.oracle.compare import predict, read_lines
from catalogue.oracle.models import write_models

from draftwise.core import CheckOutcome, Device
from draftwise.knowledge.validators import Coverage, find_refusal, list_conditions, list_refusals
from draftwise.knowledge.vllm import get_release, releases
from draftwise.plan.check import judge
from draftwise.plan.check.cli.condition_values import names_in, reads_in
from draftwise.setups.read import read_setups, read_words
from draftwise.verbs.facts import KnownValidators, facts

LINES = list(read_lines(Path(__file__).with_name("oracle_outcomes") / "refusal_lines.jsonl"))
NAMES = {
    "flags", "objects", "env", "envs", "packages", "spec", "speculates", "drafter", "target", "connectors",
    "target_name", "runner", "gpu", "captures_graphs", "caches_prefixes", "mamba_mode", "current_platform",
    "reasoning_parsers", "exchanges",
    "any", "len", "max", "int", "str", "bool", "list", "dict", "set", "sorted", "isinstance", "matches", "is_pattern",
    "item", "bound", "part",
}  # fmt: skip
"""What `find_refusals` knows; a condition with another name can hold, and nobody can see whether it does."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def test_no_refusal_of_a_shipped_release_is_unread() -> None:
    answer = facts(validators=True).answer
    assert isinstance(answer, KnownValidators)
    assert [row.unread for row in answer.validators] == [()] * len(releases("validators"))
    assert min(row.read + row.by_rules for row in answer.validators) > 60


def test_each_condition_is_of_a_refusal_that_nothing_else_reads() -> None:
    for row in list_conditions():
        found = {key: each for each in releases() if row.refusal for key in find_refusal(each, row)}
        assert found, row.refusal
    newest = get_release("0.33.0")
    assert {*list_refusals(newest)[1].values()} == {*Coverage} - {Coverage.NOT}


def test_a_condition_with_a_name_that_nobody_knows_says_what_it_needs() -> None:
    for row in list_conditions():
        asks_server = not names_in(row.when) <= NAMES or bool({"packages", "gpu"} & names_in(row.when))
        assert asks_server is bool(row.needs), row.refusal


def test_each_condition_asks_for_something_that_a_line_gives() -> None:
    given = {"flags", "objects", "env", "spec", "connectors", "mamba_mode", "target"}
    assert [row.refusal for row in list_conditions() if not given & {read[0] for read in reads_in(row.when)}] == []


@pytest.mark.parametrize(
    "flags",
    [
        "-tp 4 -pcp 2 -dcp 4",
        "--profiler-config.profiler torch",
        "--profiler-config.profiler cuda --profiler-config.torch_profiler_dir /x",
        "--headless --data-parallel-hybrid-lb -dp 4 -dpl 2",
    ],
)
@pytest.mark.parametrize("release", ["0.33.0", "0.26.0"])
def test_each_refusal_is_told_once(flags: str, release: str) -> None:
    words = ["vllm", "serve", "Qwen/Qwen3-8B", *flags.split()]
    found = judge(read_words(words, engine_version=release))
    told = [each for each in found.findings if each.code in ("config-refused", "flag-json-refused", "settings-refused")]
    assert found.outcome is CheckOutcome.REJECTED
    assert len(told) == 1


@pytest.mark.parametrize("row", LINES, ids=lambda each: each["id"])
def test_a_line_ends_as_vllm_ended_it_or_waits(row: dict[str, Any], models: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(models)
    case = {"spec": None, "target": row["line"][0], "env": {}, **row}
    found = predict(case, row["release"], "cuda")
    assert not found.crash
    if row.get("waits"):
        assert found.unjudged
        assert found.accepted
    else:
        assert (found.accepted, found.unjudged) == (row["accepted"], False)


def test_the_lines_meet_both_sides() -> None:
    accepted = [row["accepted"] for row in LINES]
    assert min(accepted.count(True), accepted.count(False)) > 150


@pytest.mark.parametrize("version", ["0.33.0", "0.32.0"])
@pytest.mark.parametrize(
    "line",
    [
        "--mm-encoder-attn-dtype fp8 --mm-encoder-fp8-scale-path /scales.json",
        "--mm-encoder-attn-dtype fp8 --mm-encoder-fp8-scale-save-path /scales.json",
        "--video-pruning-rate 0.5 --video-pruning-method vidcom2",
    ],
)
def test_what_only_the_server_shows_is_not_accepted(
    line: str, version: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    report = judge(read_words(["vllm", "serve", "gemma3-vision", *line.split()], engine_version=version))
    assert report.outcome is CheckOutcome.NOT_JUDGED
    assert report.unchecked["server"] == 1
    other = judge(read_words(["vllm", "serve", "llama", *line.split()], engine_version=version))
    assert other.outcome is CheckOutcome.ACCEPTED


NIXL = '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}'
PACKAGES = [
    ("0.33.0", "mixtral -dp 2 --all2all-backend deepep_low_latency", "deep-ep", "accepted"),
    ("0.33.0", "mixtral -dp 2 --all2all-backend deepep_v2", "deep-ep", "not judged"),
    ("0.33.0", "mixtral -dp 2 --all2all-backend mori_low_latency", "mori", "accepted"),
    ("0.33.0", "mixtral -dp 2 --all2all-backend moonep", "moonep", "not judged"),
    ("0.33.0", "mixtral -dp 2 --all2all-backend nixl_ep", "nixl-ep", "accepted"),
    ("0.15.0", "mixtral -dp 2 --all2all-backend pplx", "pplx-kernels", "accepted"),
    ("0.33.0", f"llama {NIXL}", "nixl", "accepted"),
    ("0.33.0", "llama --load-format runai_streamer", "runai-model-streamer", "accepted"),
    ("0.18.0", "llama --distributed-executor-backend ray", "ray", "accepted"),
    ("0.19.1", "unsloth/Llama-3.1-8B-Instruct-bnb-4bit", "bitsandbytes", "accepted"),
    ("0.33.0", "llama --distributed-executor-backend ray", "ray", "accepted"),
]


@pytest.mark.parametrize(("version", "line", "package", "outcome"), PACKAGES)
def test_a_package_that_vllm_does_not_install_is_asked_for(
    version: str, line: str, package: str, outcome: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    reading = read_words(["vllm", "serve", *line.split()], engine_version=version)
    for installed in (None, frozenset({"arctic-inference"})):  # nobody said that the list is whole
        report = judge(reading, installed=installed)
        assert report.outcome is CheckOutcome.NOT_JUDGED
        unseen = next(each for each in report.findings if each.code == "package-unseen")
        assert f" {package}. " in unseen.message
    for whole in (frozenset(), frozenset({"vllm"})):
        missing = judge(reading, installed=whole)
        assert missing.outcome in (CheckOutcome.REJECTED, CheckOutcome.FAILS_LATER)
        assert unseen.stage in {each.stage for each in missing.findings if each.code == "package-missing"}
    assert judge(reading, installed=frozenset({"vllm", package})).outcome == outcome
    assert judge(reading, installed=frozenset({f"{package}-cu12"})).outcome == outcome


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.33.0", "llama -dp 2 --all2all-backend deepep_low_latency"),
        ("0.33.0", "mixtral -tp 2 -ep --all2all-backend deepep_low_latency"),
        ("0.17.0", "mixtral -dp 2 --all2all-backend pplx"),
        ("0.17.0", "llama --distributed-executor-backend ray"),
    ],
)
def test_no_package_is_asked_for_where_vllm_uses_none(
    version: str, line: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    found = judge(read_words(["vllm", "serve", *line.split()], engine_version=version)).findings
    assert not {"package-unseen", "package-missing"} & {each.code for each in found}


SERVE = "vllm serve Qwen/Qwen3-8B --distributed-executor-backend ray"
BUILT = 'FROM vllm/vllm-openai:v{}\nRUN {}\nCMD ["Qwen/Qwen3-8B", {}]\n'
LWS = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: a\n    command: [sh, -c, '{}']\n"
RAY = (
    "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: a}\nspec:\n  serveConfigV2: |\n    applications:\n"
    "    - args:\n        llm_configs:\n        - model_loading_config: {model_id: Qwen/Qwen3-8B}\n"
    "          engine_kwargs: {distributed_executor_backend: ray}\n"
)
BY_RAY, BY_NIXL = '"--distributed-executor-backend", "ray"', json.dumps(NIXL.split(" "))[1:-1]
STREAMED = '"--load-format", "runai_streamer"'
SHOWN = [
    (RAY, True),
    (f"ray start --head && {SERVE}", True),
    (LWS.format(f"bash /x/multi-node-serving.sh leader --ray_cluster_size=2; {SERVE}"), True),
    (f"pip install 'ray[default]>=2.48'\n{SERVE}", True),
    (f"uv pip install -q ray\n{SERVE}", True),
    (f"bash -c 'python3 -m pip install ray && {SERVE}'", True),
    (BUILT.format("0.33.0", "pip install lmcache ray==2.50", BY_RAY), True),
    (BUILT.format("0.33.0", "--mount=type=cache,target=/c uv pip install --system nixl-cu13", BY_NIXL), True),
    (BUILT.format("0.33.0", "pip install 'vllm[runai]==0.33.0'", STREAMED), True),
    (BUILT.format("0.27.0", "true", STREAMED), True),
    (BUILT.format("0.20.0", "true", '"--quantization", "bitsandbytes"'), True),
    (SERVE, False),
    (f"pip install ray\npip uninstall -y ray\n{SERVE}", False),
    (f"pip install --target /x ray\n{SERVE}", False),
    (f"pip install -r ray\n{SERVE}", False),
    (f"pip install raydp\n{SERVE}", False),
    (f"pip install ray\nsource x/bin/activate\n{SERVE}", False),
    (f"pip install ray\nconda activate x\n{SERVE}", False),
    (f"pip install ray\nssh host '{SERVE}'", False),
    (f"pip install ray\ndocker run vllm/vllm-openai:v0.33.0 {SERVE.removeprefix('vllm serve')}", False),
    (BUILT.format("0.33.0", "pip install ray && pip uninstall -y ray", BY_RAY), False),
    (BUILT.format("0.33.0", "if [ $A ]; then pip install ray; fi", BY_RAY), False),
    (BUILT.format("0.33.0", "pip install nixl-ep", BY_NIXL), False),
    (BUILT.format("0.27.0", "pip uninstall -y runai-model-streamer", STREAMED), False),
    (BUILT.format("0.33.0", "true", STREAMED), False),
    (BUILT.format("0.27.0-rocm", "true", STREAMED), False),
    (BUILT.format("0.33.0", "pip install ray\nFROM vllm/vllm-openai:v0.33.0", BY_RAY), False),
]  # fmt: skip


@pytest.mark.parametrize(("text", "is_shown"), SHOWN, ids=range(len(SHOWN)))
def test_a_package_counts_where_the_text_shows_it(text: str, is_shown: bool) -> None:
    (reading,) = read_setups(text, engine_version=None if text.startswith("FROM") else "0.33.0")
    report = judge(reading)
    assert ("package-unseen" in {each.code for each in report.findings}) is not is_shown, report.findings
    assert (report.outcome is CheckOutcome.ACCEPTED) is is_shown, report.findings
    assert "package-missing" in {each.code for each in judge(reading, installed=frozenset({"vllm"})).findings}


def test_one_package_does_not_stand_for_another(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    reading = read_words(["vllm", "serve", "llama", *NIXL.split()], engine_version="0.33.0")
    for other in ("nixl-ep", "nixl-tools"):
        assert judge(reading, installed=frozenset({other})).outcome is CheckOutcome.NOT_JUDGED


def test_a_refusal_is_told_in_words() -> None:
    for row in list_conditions():
        for release in releases("validators"):
            texts = [row.says or key.partition(": ")[2] for key in find_refusal(release, row)]
            assert all(" " in text for text in texts), row.refusal


def test_what_was_said_of_the_server_decides(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    words = ["mixtral", "--enable-elastic-ep", "--enable-eplb", "--enable-expert-parallel", "--data-parallel-size", "2"]
    reading = read_words(["vllm", "serve", *words, "--data-parallel-backend", "ray"], engine_version="0.33.0")
    assert judge(reading).outcome is CheckOutcome.NOT_JUDGED
    assert judge(reading, installed=frozenset({"vllm"})).outcome is CheckOutcome.REJECTED
    assert judge(reading, installed=frozenset({"vllm", "nixl", "ray"})).outcome is CheckOutcome.ACCEPTED
    ours = replace(reading, setup=replace(reading.setup, args={}))
    assert judge(ours).outcome is CheckOutcome.ACCEPTED


OLD = [
    ("0.12.0", "llama --reasoning-parser foo", "llama --reasoning-parser qwen3", {}),
    ("0.18.1", "llama --async-scheduling --distributed-executor-backend ray", "llama --async-scheduling", {}),
    ("0.14.0", "mixtral --enable-dbo", "mixtral --enable-dbo --all2all-backend deepep_low_latency", {}),
    ("0.19.1", "llama --max-num-partial-prefills 2 --long-prefill-token-threshold 100000",
     "llama --long-prefill-token-threshold 100000", {}),
    ("0.10.2", "llama --kv-sharing-fast-prefill", "llama", {"VLLM_USE_V1": "0"}),
    ("0.10.0", "llama --prefix-caching-hash-algo sha256", "llama", {"VLLM_USE_V1": "0"}),
]  # fmt: skip


@pytest.mark.parametrize(("version", "meets", "misses", "env"), OLD)
def test_refusals_of_older_releases_are_judged(
    version: str, meets: str, misses: str, env: dict[str, str], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    for line, is_refused in ((meets, True), (misses, False)):
        reading = read_words(["vllm", "serve", *line.split()], engine_version=version)
        found = judge(replace(reading, setup=replace(reading.setup, env=env))).findings
        assert ("settings-refused" in {each.code for each in found}) is is_refused


MIXTRAL, EXPERTS, OTHER = "mixtral", "--moe-backend flashinfer_moe_ep_cutedsl", "moe-backend-of-other-weights"
ONE_SIDED = "--all2all-backend flashinfer_nvlink_one_sided"
CODES = (OTHER, "moe-ep-needs-blackwell", "refusal-waits", "settings-refused")
SETTINGS = [
    ("0.33.0", MIXTRAL, EXPERTS, {OTHER}, CheckOutcome.FAILS_LATER),
    ("0.33.0", MIXTRAL, '--kernel-config {"moe_backend":"deep-gemm"}', {OTHER}, CheckOutcome.FAILS_LATER),
    ("0.26.0", MIXTRAL, "--moe-backend cutlass", {OTHER}, CheckOutcome.FAILS_LATER),
    ("0.26.0", MIXTRAL, "--moe-backend humming", set(), CheckOutcome.ACCEPTED),
    ("0.19.1", MIXTRAL, "--moe-backend triton", set(), CheckOutcome.ACCEPTED),
    ("0.19.1", MIXTRAL, "--moe-backend cutlass -q fp8", set(), CheckOutcome.ACCEPTED),
    ("0.19.1", "llama", "--moe-backend cutlass", set(), CheckOutcome.ACCEPTED),
    ("0.33.0", "nvidia/Qwen3-235B-A22B-NVFP4", "--moe-backend cutlass", {"refusal-waits"}, CheckOutcome.NOT_JUDGED),
    ("0.33.0", "nvidia/DeepSeek-V3.1-NVFP4", "--moe-backend cutlass -q modelopt_fp4", set(), CheckOutcome.ACCEPTED),
    ("0.33.0", "x/Qwen3-30B-A3B-MXFP4", "--moe-backend b12x", {"refusal-waits"}, CheckOutcome.NOT_JUDGED),
    ("0.18.1", "openai/gpt-oss-20b", "--moe-backend cutlass", {"refusal-waits"}, CheckOutcome.NOT_JUDGED),
    ("0.33.0", "gpt-oss", f"{EXPERTS} -q mxfp4", {"moe-ep-needs-blackwell", "refusal-waits"}, CheckOutcome.FAILS_LATER),
    ("0.33.0", "gpt-oss", f"{EXPERTS} -q mxfp4 --gpu B200", {"refusal-waits"}, CheckOutcome.NOT_JUDGED),
    ("0.33.0", MIXTRAL, f"{EXPERTS} --all2all-backend deepep_v2", {"settings-refused"}, CheckOutcome.REJECTED),
    ("0.31.0", MIXTRAL, "--moe-backend flashinfer_moe_ep_mega_cutedsl", {"settings-refused"}, CheckOutcome.REJECTED),
    ("0.33.0", MIXTRAL, f"{ONE_SIDED} -dp 2", {"refusal-waits"}, CheckOutcome.NOT_JUDGED),
    ("0.33.0", MIXTRAL, f"{ONE_SIDED} -ep", set(), CheckOutcome.ACCEPTED),
]  # fmt: skip


@pytest.mark.parametrize(("version", "target", "flags", "codes", "outcome"), SETTINGS)
def test_kernels_and_exchange_of_experts_are_judged_or_left_open(
    version: str, target: str, flags: str, codes: set[str], outcome: CheckOutcome, models: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(models)
    line, _, gpu = flags.partition(" --gpu ")
    reading = read_words(["vllm", "serve", target, *line.split()], engine_version=version)
    report = judge(reading.with_fields(device=Device(name=gpu or "H200", kind="cuda", count=8)))
    told = {each.code for each in report.findings} & {*CODES}
    assert (codes <= told, report.outcome) == (True, outcome), told
    assert codes or not told
    advice = "".join(each.message for each in report.findings if each.code == OTHER)
    assert not {"auto", "aiter"} & {*re.findall(r"\w+", advice)}


NGRAM = '--speculative-config|{"method":"ngram","num_speculative_tokens":3}'


@pytest.mark.parametrize(("version", "line", "code", "is_told"), [
    ("0.16.0", "Qwen/Qwen3-30B-A3B|--all2all-backend|pplx", "all2all-backend-replaced", False),
    ("0.17.0", "Qwen/Qwen3-30B-A3B|--all2all-backend|pplx", "all2all-backend-replaced", True),
    ("0.18.1", "Qwen/Qwen3-30B-A3B|--all2all-backend|naive", "all2all-backend-replaced", False),
    ("0.33.0", "Qwen/Qwen3-30B-A3B|--all2all-backend|naive", "all2all-backend-replaced", True),
    ("0.33.0", "Qwen/Qwen3-30B-A3B|--all2all-backend|deepep_v2", "all2all-backend-replaced", False),
    ("0.33.0", "deepseek-ai/DeepSeek-V3.2|--attention-backend|FLASHMLA", "backend-of-other-attention", True),
    ("0.33.0", "deepseek-ai/DeepSeek-V3.2|--attention-backend|FLASHMLA_SPARSE", "backend-of-other-attention", False),
    ("0.33.0", "Qwen/Qwen3-8B|--enable-auto-tool-choice|--tool-call-parser|hermess", "tool-parser-unknown", True),
    ("0.33.0", "Qwen/Qwen3-8B|--enable-auto-tool-choice|--tool-call-parser|hermes", "tool-parser-unknown", False),
    ("0.33.0", "Qwen/Qwen3-8B|--tool-call-parser|hermess", "tool-parser-unknown", False),
    ("0.33.0", "Qwen/Qwen3-8B|-n|2|-r|1|-tp|16|--headless|--enable-auto-tool-choice|--tool-call-parser|hermess",
     "tool-parser-unknown", False),
    ("0.33.0", "Qwen/Qwen3-8B|--attention-backend|FLASH_ATTN_MLA", "backend-of-other-attention", True),
    ("0.33.0", "Qwen/Qwen3-8B|--attention-backend|flashinfer", "backend-of-other-attention", False),
    ("0.33.0", "deepseek-ai/DeepSeek-V3|--attention-backend|FLASH_ATTN", "backend-of-other-attention", True),
    ("0.33.0", "deepseek-ai/DeepSeek-V3|--attention-backend|FLASHMLA", "backend-of-other-attention", False),
    ("0.33.0", "deepseek-ai/DeepSeek-V4-Flash|--attention-backend|FLASHMLA_SPARSE",
     "backend-of-other-attention", False),
    ("0.33.0", f"Qwen/Qwen3-8B|--runner|pooling|{NGRAM}", "speculation-while-pooling", True),
    ("0.33.0", f"Qwen/Qwen3-8B|--convert|embed|{NGRAM}", "speculation-while-pooling", True),
    ("0.33.0", f"BAAI/bge-m3|{NGRAM}", "speculation-while-pooling", True),
    ("0.9.2", f"Qwen/Qwen3-8B|--task|embed|{NGRAM}", "speculation-while-pooling", True),
    ("0.33.0", f"Qwen/Qwen3-8B|{NGRAM}", "speculation-while-pooling", False),
    ("0.33.0", "Qwen/Qwen3-8B|--runner|pooling", "speculation-while-pooling", False),
])  # fmt: skip
def test_what_is_replaced_or_never_drafts_is_told(version: str, line: str, code: str, is_told: bool) -> None:
    report = judge(read_words(["vllm", "serve", *line.split("|")], engine_version=version))
    assert (code in {each.code for each in report.findings}) is is_told


@pytest.mark.parametrize(("value", "is_told"), [("0", False), ("1", True)])
def test_latent_attention_is_switched_off_by_1_alone(value: str, is_told: bool) -> None:
    line = f"VLLM_MLA_DISABLE={value} vllm serve deepseek-ai/DeepSeek-V3 --attention-backend FLASHMLA"
    (reading,) = read_setups(line, engine_version="0.33.0")
    assert ("backend-of-other-attention" in {each.code for each in judge(reading).findings}) is is_told


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("hermess", "Did you mean hermes?"),
        ("deepseek", "Did you mean deepseek_v4 or deepseek_v3 or deepseek_v41?"),
        ("zzzqq", "Use one that `vllm serve --help=tool-call-parser` lists, or pass --tool-parser-plugin."),
    ],
)
def test_an_unknown_parser_leads_to_the_nearest_or_to_the_list(name: str, fix: str) -> None:
    words = f"vllm serve Qwen/Qwen3-8B --enable-auto-tool-choice --tool-call-parser {name}".split()
    (found,) = judge(read_words(words, engine_version="0.33.0")).findings
    assert found.fix == fix


@pytest.mark.parametrize(
    "flags",
    [
        "--enable-auto-tool-choice --tool-call-parser own --tool-parser-plugin own.py",
        "--reasoning-parser own --reasoning-parser-plugin own.py",
    ],
)
def test_a_parser_that_only_a_plugin_may_have_is_not_accepted(flags: str) -> None:
    report = judge(read_words(["vllm", "serve", "Qwen/Qwen3-8B", *flags.split()], engine_version="0.33.0"))
    assert report.outcome is CheckOutcome.NOT_JUDGED
    assert "refusal-waits" in {each.code for each in report.findings}


@pytest.mark.parametrize(("version", "line", "is_async"), [
    ("0.33.0", "Qwen/Qwen3-8B", True),
    ("0.33.0", "Qwen/Qwen3-8B|--runner|pooling", False),
    ("0.33.0", "Qwen/Qwen3-8B|--convert|embed", False),
    ("0.33.0", "Qwen/Qwen3-8B|--runner|pooling|--async-scheduling", True),
    ("0.33.0", "BAAI/bge-m3", False),
    ("0.33.0", "Qwen/Qwen3-Embedding-0.6B", None),  # the files of Sentence Transformers decide
    ("0.33.0", "Qwen/Qwen3-Embedding-0.6B|--runner|generate", True),
    ("0.19.1", "Qwen/Qwen3-8B|--runner|pooling", True),  # the older release does not ask what the server does
])  # fmt: skip
def test_a_pooling_server_does_not_schedule_asynchronously_unless_asked(
    version: str, line: str, is_async: bool | None
) -> None:
    spec = NGRAM.replace("ngram", "ngram_gpu").split("|")
    resolved = judge(read_words(["vllm", "serve", *line.split("|"), *spec], engine_version=version)).resolved
    assert resolved is not None
    assert resolved.async_scheduling is is_async
