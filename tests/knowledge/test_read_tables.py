"""The tables by which logs and metrics are read are whole."""

import re

from draftwise.backends.exposition import EngineReading
from draftwise.core import Counters, ServerLoad, SpecStats, Sums
from draftwise.knowledge.log_lines import read_log_facts
from draftwise.knowledge.metrics import read_server_metrics
from draftwise.knowledge.model_types import read_config_keys, read_speculators, types_with
from draftwise.knowledge.stored import read_data
from draftwise.knowledge.vllm import releases


def test_every_row_has_its_source() -> None:
    log = read_data("startup_log")
    rows = [*log["phases"], *log["values"], *read_data("server_metrics")["rows"]]
    assert all(row["source"] for row in rows)
    names = [row["name"] for row in [*log["phases"], *log["values"]]]
    assert len(names) == len(set(names))


def test_a_value_has_a_group_and_a_phase_has_none() -> None:
    assert all(mark.pattern.groups >= 1 for mark in read_log_facts().values)
    assert all(mark.pattern.groups == 0 for mark in read_log_facts().phases)
    assert read_log_facts().phases[-1].name == "ready"


def test_readings_are_fields_of_the_nouns_they_fill() -> None:
    fields = {
        name for noun in (Counters, SpecStats, ServerLoad, Sums, EngineReading) for name in noun.__dataclass_fields__
    }
    derived = {"verifications", "at_most", "ended", "answered"}  # labels or sums make readings of these
    assert {known.reading for known in read_server_metrics().values()} <= fields | derived


def test_vllm_samples_are_metrics_of_its_releases() -> None:
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_sum", "_count", "_bucket")}
    rows = read_data("vllm/metrics")
    exported = {row["key"] + suffix for row in rows for suffix in suffixes[row["value"]["kind"]]}
    infos = {"vllm:cache_config_info"}  # declared from a config's name, which no table of names has
    ours = {sample for sample in read_server_metrics() if sample.startswith("vllm:")}
    assert ours <= exported | infos


def test_a_source_names_the_releases_that_the_catalogue_knows_the_sample_of() -> None:
    rows = {row["key"]: row for row in read_data("vllm/metrics")}
    for row in read_data("server_metrics")["rows"]:
        name = re.sub("_(total|sum|count|bucket)$", "", row["sample"])
        known = rows.get(row["sample"]) or rows.get(name)
        if row["source"].startswith("vllm ") and known is not None:
            assert row["source"].startswith(f"vllm {known['since']}..") == (known["until"] is None)


def test_samples_are_names_as_prometheus_takes_them() -> None:
    assert all(re.fullmatch(r"[a-z_]+:?[a-z_]+", sample) for sample in read_server_metrics())


def test_every_trait_is_of_model_types_whose_inventory_was_checked() -> None:
    traits = read_data("model_types")
    assert all(row["about"] for name, row in traits.items() if name != "about")
    named = {kind for name, row in traits.items() if name != "about" for kind in row["types"]}
    unchecked = named - types_with("known")
    assert unchecked <= types_with("gated_query") | types_with("router_correction"), unchecked


def test_what_speculators_types_need_covers_those_that_the_newest_release_reads() -> None:
    newest = next(release for release in reversed(releases()) if release.added is None)
    assert set(read_speculators()["types"]) <= set(newest.table("speculators_types"))


def test_keys_of_config_json_are_of_one_kind() -> None:
    keys = read_config_keys()
    kinds = [{*keys["numbers"], *keys["limits"]}, set(keys["objects"]), set(keys["lists"])]
    assert sum(map(len, kinds)) == len(set.union(*kinds))
