"""The ledger in the verbs beside `check`: facts, upgrade, watch, pick, deploy and its proxies."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.made_windows import SPEC, make_window

from draftwise.cli import main
from draftwise.core import Effect, Ruling, Setup, SpecConfig
from draftwise.deploying.deployment import _tell_defects
from draftwise.deploying.proxies.pool_policy import find_policy
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.vllm import releases
from draftwise.plan.release_changes import compare_releases
from draftwise.setups.read import read_words
from draftwise.watching.configured import read_side_info
from draftwise.watching.diagnose import diagnose

SPEC_CONFIG = SpecConfig.parse({"method": "ngram", "num_speculative_tokens": 3})
SETUP = Setup(target="Qwen/Qwen3-8B", engine="vllm", engine_version="0.24.0", spec=SPEC_CONFIG)
HYBRID = (
    "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --enable-prefix-caching --async-scheduling "
    """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'"""
)


def run(*words: str) -> str:
    result = CliRunner().invoke(main, ["facts", "defects", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_facts_lists_every_row_and_filters_by_release_and_method() -> None:
    listed = json.loads(run("--json"))
    assert [row["code"] for row in listed["defects"]] == list(all_defects())
    for release in ("0.16.0", str(releases()[-1])):
        for method in ("mtp", "qwen3_next_mtp", "ngram"):
            codes = {row["code"] for row in json.loads(run("--json", "--vllm", release, "--method", method))["defects"]}
            name = "ngram" if method == "ngram" else "mtp"
            version = next(each.version for each in releases() if str(each) == release)
            assert codes == {
                row.code
                for row in all_defects().values()
                if (not row.methods or name in row.methods) and row.state_in(version) is not None
            }
    shown = run("--vllm", "0.28.0", "--method", "mtp")
    assert "hybrid-prefix-cache-mtp-corrupts  correctness, reported from 0.21.0 to 0.28.0  mtp, dflash" in shown
    assert "vllm-project/vllm#53912" in shown


def test_facts_refuses_a_method_that_does_not_exist() -> None:
    result = CliRunner().invoke(main, ["facts", "defects", "--method", "nope"])
    assert result.exit_code == 2
    assert "Unknown method 'nope'" in result.output


def test_an_upgrade_says_which_defects_appear_and_disappear() -> None:
    old, new = (read_words(shlex.split(HYBRID), engine_version=each) for each in ("0.23.0", "0.28.0"))
    found, back = compare_releases(old, new), compare_releases(new, old)
    appearing, disappearing = ({each.code for each in rows} for rows in (found.appearing, found.disappearing))
    assert "accepted-counts-race-async" not in appearing | disappearing  # align mode does not meet it
    assert "prompt-as-long-as-verify-step" in appearing
    assert {each.code for each in back.appearing} == disappearing
    assert {each.code for each in back.disappearing} == appearing
    # What was reported up to 0.28.0 is not known of 0.29.0: it neither appears nor disappears.
    later = compare_releases(new, read_words(shlex.split(HYBRID), engine_version="0.29.0"))
    assert "hybrid-prefix-cache-mtp-corrupts" not in {each.code for each in (*later.appearing, *later.disappearing)}
    for each in (*found.other, *found.gone):
        assert not (isinstance(each, Ruling) and each.effect is Effect.DEFECT), each.code


def test_what_only_counters_tell_is_a_candidate_of_watch(tmp_path: Path) -> None:
    setup = tmp_path / "serve.sh"
    words = "vllm serve meta-llama/Llama-3.1-8B-Instruct --enable-prefix-caching --speculative-config"
    spec = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}
    setup.write_text(f"{words} '{json.dumps(spec)}'\n")
    log = tmp_path / "start.log"
    log.write_text("INFO 11-23 07:56:20 [utils.py:297] vLLM API server version 0.19.1\n")
    info = read_side_info(setup, log)
    assert "eagle-acceptance-falls-over-hours" in info.suspects["acceptance-fell"]
    silent = read_side_info(setup, None)
    assert info.rulings is not None
    assert "eagle-acceptance-falls-over-hours" not in info.rulings
    fell = make_window(replace(SPEC, positions=(0.0,) * 3))
    told = {each.code: each.candidates for each in diagnose({"spec": [fell]}, asked=replace(silent, suspects={
        "zero-acceptance": ["draft-head-not-shared-multimodal"], "kv-squeeze": ["ascend-kv-pool-leak"],
    }))}  # fmt: skip
    assert told["zero-acceptance"][0] == "draft-head-not-shared-multimodal"
    assert all("ascend-kv-pool-leak" not in candidates for candidates in told.values())


@pytest.mark.parametrize(("release", "kept"), [("0.24.0", True), ("0.25.0", False)])
def test_a_proxy_keeps_what_a_defect_breaks_from_the_speculative_pool(release: str, kept: bool) -> None:
    setup = replace(SETUP, engine_version=release, args={**SETUP.args, "reasoning_parser": "qwen3"})
    assert ("escape the grammar" in find_policy(setup).structured) is kept


def test_a_field_that_a_defect_breaks_is_kept_away_by_name() -> None:
    assert "Bad words are applied" not in str(find_policy(replace(SETUP, engine_version="0.14.0")).parameters)
    assert "bad_words" in find_policy(replace(SETUP, engine_version="0.13.0")).parameters


def test_the_memo_lists_what_is_met_and_what_is_to_be_watched_for() -> None:
    spec = SpecConfig.parse({"method": "mtp", "num_speculative_tokens": 3})
    target = "Qwen/Qwen3.5-27B"
    setup = replace(SETUP, target=target, spec=spec, args={"enable_prefix_caching": True}, engine_version="0.27.1")
    told = list(_tell_defects(setup))
    assert any(each.startswith("`hybrid-prefix-cache-mtp-corrupts`: Known defect") for each in told)
    assert any(each.startswith("`stream-drops-words`, to watch for: Known defect") for each in told)
