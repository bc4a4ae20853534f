import json
from pathlib import Path

import pytest

from draftwise.core import Effect, Ruling, Stage
from draftwise.knowledge.flag_types import read_old_flags
from draftwise.knowledge.vllm import get_release, releases
from draftwise.setups.read.arguments.command_line import Arguments, read_arguments
from draftwise.setups.read.shell.words import Word

HERE = Path(__file__).parent
UNSEEN = {"model_tag", "model", "speculative_config", "spec_method", "spec_model", "spec_tokens"}


def read(*words: str, release: str = "newest", entry: str = "serve", folder: Path | None = None) -> Arguments:
    return read_arguments([Word(word) for word in words], get_release(release), entry, folder=folder)


def codes(found: Arguments) -> list[str]:
    return [finding.code for finding in found.findings]


def is_refused(found: Arguments) -> bool:
    rulings = [each for each in found.findings if isinstance(each, Ruling) and each.stage is Stage.CLI]
    return any(ruling.effect is Effect.REJECTED for ruling in rulings)


def disagreement(release: str, case: dict) -> str:
    found = read(*case["argv"], release=release)
    if is_refused(found) != ("error" in case):
        return f"{case}: {codes(found)}"
    values = case.get("values", {})
    spec = values.get("speculative_config")
    if isinstance(spec, dict) and not spec.items() <= (found.spec or {}).items():
        return f"{case}: {found.spec}"
    missed = {name for name in values if name not in UNSEEN and found.args.get(name) != values[name]}
    return f"{case}: {missed}" if missed else ""


@pytest.mark.parametrize("path", sorted(HERE.glob("vllm_arguments_*.json")), ids=lambda path: path.stem)
def test_agrees_with_the_parser_of_vllm(path):
    golden = json.loads(path.read_text(encoding="utf-8"))
    assert len(golden["cases"]) >= 300
    assert [text for case in golden["cases"] if (text := disagreement(golden["vllm"], case))] == []


@pytest.mark.parametrize("release", releases(), ids=str)
def test_the_common_command_line_is_read_for_every_release(release):
    spec = '{"method": "ngram", "num_speculative_tokens": 5}'
    found = read(
        "m", "-tp", "2", "--max_model_len=8k", "--speculative-config", spec, "--no-enable-prefix-caching",
        release=str(release),
    )  # fmt: skip
    assert found.findings == []
    assert found.args == {"tensor_parallel_size": 2, "max_model_len": 8000, "enable_prefix_caching": False}
    assert (found.model, found.spec) == ("m", json.loads(spec))


@pytest.mark.parametrize("release", releases(), ids=str)
def test_no_release_has_the_flags_of_old_guides(release):
    table = release.table("flags")
    names = {*table, *(alias for row in table.values() for alias in row["aliases"])}
    assert not names & set(read_old_flags())


def test_old_flags_become_one_json():
    found = read(
        "m", "--speculative-model", "[ngram]", "--num_speculative_tokens=5", "--ngram-prompt-lookup-max", "4",
        "--typical-acceptance-sampler-posterior-alpha", "0.3", "--enforce-eager",
        release="0.19.1",
    )  # fmt: skip
    assert codes(found) == ["flag-from-before-0.9"]
    expected = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    assert json.dumps(expected) in found.findings[0].fix
    assert found.spec == expected
    assert found.args == {"enforce_eager": True}


def test_old_keys_stay_where_a_release_has_them():
    words = ("m", "--speculative-model", "x", "--spec-decoding-acceptance-method", "typical_acceptance_sampler")
    assert "acceptance_method" in (read(*words, release="0.9.2").spec or {})
    assert read(*words, release="0.10.2").spec == {"model": "x"}


@pytest.mark.parametrize(
    ("words", "release", "code", "fix"),
    [
        (["--tensor-paralel-size", "2"], "newest", "unknown-flag", "--tensor-parallel-size"),
        (["-sc", "{}"], "0.18.1", "flag-of-other-release", ""),
        (["--spec-tokens", "3"], "0.21.0", "flag-of-other-release", ""),
        (["--num-lookahead-slots", "3"], "newest", "flag-of-other-release", ""),
        (["--sp", "3"], "newest", "ambiguous-flag", "Write the flag in full"),
        (["--tensor-par", "2"], "newest", "abbreviated-flag", "--tensor-parallel-size"),
        (["--enforce-eager=true"], "newest", "switch-with-value", "--no-enforce-eager"),
        (["--enforce-eager", "true"], "newest", "switch-with-value", "--no-flag"),
        (["--gpu-memory-utilization", "0,9"], "newest", "bad-flag-value", ""),
        (["--dtype", "bf16"], "newest", "not-a-choice", ""),
        (["--max-num-seqs"], "newest", "flag-needs-value", ""),
        (["--max-num-seqs", "--seed", "1"], "newest", "flag-needs-value", ""),
        (["--max-model-len 8192"], "newest", "flag-and-value-in-one", "two arguments"),
        (["\u2014max-model-len", "8192"], "newest", "typographic-dash", "--max-model-len"),
        (["\u2013tp", "2"], "newest", "typographic-dash", "-tp"),
        (["--seed", "1", "--seed", "2"], "newest", "flag-given-twice", ""),
        (["-sc", "{}", "-sc.method", "ngram"], "newest", "json-and-dotted-keys", ""),
        (["-sc", '{"method": 1, "method": 2}'], "newest", "flag-json-duplicate", ""),
        (["-sc", "[1]"], "newest", "spec-not-an-object", ""),
        (["-sc", "{'method': 'ngram'}"], "newest", "flag-json-invalid", "double quotes"),
        (["--spec-method", "ngram", "-sc", '{"method": "x"}'], "0.22.0", "spec-flag-repeats-key", ""),
        (["--config=a.yaml"], "newest", "config-file-with-equals", "two words"),
        (["stray"], "newest", "stray-argument", ""),
        (["--disable-lora"], "0.32.0", "flag-of-other-release", ""),
    ],
)
def test_a_mistake_is_named_and_nothing_else(words, release, code, fix):
    found = read("m", *words, release=release)
    assert codes(found) == [code]
    assert fix in found.findings[0].fix


@pytest.mark.parametrize("words", [["--no-such", "3", "m"], ["--no-such=3", "m"], ["m", "--no-such", "3"]])
def test_the_value_of_an_unknown_flag_is_not_the_model(words):
    found = read(*words)
    assert (found.model, codes(found)) == ("m", ["unknown-flag"])


def test_one_mistake_does_not_hide_the_next():
    found = read("m", "--max-num-seqs", "--enforce-eager=1", "--seed", "x", "--no-such-flag", "-tp", "2")
    assert sorted(codes(found)) == ["bad-flag-value", "flag-needs-value", "switch-with-value", "unknown-flag"]
    assert found.args == {"tensor_parallel_size": 2}


def test_the_newest_release_pairs_its_switches():
    assert read("m", "--disable-lora", release="0.33.0").args == {"enable_lora": False}


def test_context_length_auto_came_late():
    assert read("m", "--max-model-len", "auto", release="0.14.0").args == {"max_model_len": -1}
    assert codes(read("m", "--max-model-len", "auto", release="0.13.0")) == ["bad-flag-value"]


def test_dotted_keys_make_up_the_json():
    found = read(
        "m", "--speculative-config.method", "ngram", "--speculative_config.num_speculative_tokens=5",
        "--speculative-config.a.b+", "x,y", "--speculative-config.limit", "8k",
    )  # fmt: skip
    assert found.spec == {"method": "ngram", "num_speculative_tokens": 5, "a": {"b": ["x", "y"]}, "limit": 8000}
    assert read("m", "-sc.limit", "8k", release="0.19.1").spec == {"limit": "8k"}


def test_secrets_are_not_kept():
    found = read("m", "--api-key", "s3cret", "--hf-token", "hf_abc")
    assert "s3cret" not in str(found)
    assert "hf_abc" not in str(found)


class TestModel:
    def test_serve_takes_it_in_front(self):
        assert read("m", "--seed", "1").model == "m"

    @pytest.mark.parametrize(
        ("release", "code"), [("0.11.0", "serve-refuses-model-flag"), ("0.11.1", "serve-model-flag-deprecated")]
    )
    def test_serve_and_the_model_flag(self, release, code):
        found = read("--seed", "1", "--model", "m", release=release)
        assert (found.model, codes(found)) == ("m", [code])

    def test_the_module_ignores_it_in_front(self):
        found = read("m", entry="api_server")
        assert codes(found) == ["positional-model-ignored"]
        assert found.findings[0].becomes == "Qwen/Qwen3-0.6B"

    def test_the_image_changed_its_entry_point(self):
        assert codes(read("m", entry="image", release="0.11.0")) == ["positional-model-ignored"]
        assert codes(read("m", entry="image", release="0.20.0")) == []

    def test_without_one_the_default_is_served(self):
        found = read("--seed", "1")
        assert (found.model, codes(found)) == ("Qwen/Qwen3-0.6B", ["no-model-given"])

    @pytest.mark.parametrize("words", [("",), ("--model", "")])
    def test_an_empty_name_is_not_the_default(self, words: tuple[str, ...]):
        assert "model-empty" in codes(read(*words))

    def test_a_name_alone_is_refused(self):
        assert "served-name-without-model" in codes(read("--served-model-name", "x", release="0.17.0"))
        assert "served-name-without-model" not in codes(read("--served-model-name", "x", release="0.16.0"))


def test_the_flag_without_a_value_is_named_as_it_was_written_and_not_one_of_its_neighbors():
    found = read("m", "--seed", "1", "--max-model", "--dtype", "auto")
    (told,) = (each for each in found.findings if each.code == "flag-needs-value")
    assert told.message.startswith("--max-model has no value")
    assert told.where == "--max-model"


class TestConfigFile:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "c.yaml").write_text(
            "model: other\ntensor-parallel-size: 2\nseed: 1\nenable-prefix-caching: false\n"
            "speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n"
        )
        return tmp_path

    def test_its_flags_come_before_those_of_the_command_line(self, folder):
        found = read("m", "--seed", "7", "--config", "c.yaml", folder=folder)
        assert (found.model, found.args["seed"], found.args["tensor_parallel_size"]) == ("m", 7, 2)
        assert found.args["enable_prefix_caching"] is False
        assert found.spec == {"method": "ngram", "num_speculative_tokens": 3}

    def test_it_names_the_model(self, folder):
        assert read("--config", "c.yaml", folder=folder).model == "other"

    @pytest.mark.parametrize("null", ["null", "~", ""])
    def test_vllm_gets_null_as_none(self, null, tmp_path):
        (tmp_path / "c.yaml").write_text(f"quantization: {null}\n")
        assert read("m", "--config", "c.yaml", folder=tmp_path).args["quantization"] is None

    def test_false_was_left_out(self, folder):
        found = read("m", "--config", "c.yaml", folder=folder, release="0.27.1")
        assert "enable_prefix_caching" not in found.args
        assert [finding.where for finding in found.findings if finding.code == "config-file-false"] == [
            f"{folder / 'c.yaml'}:4 enable-prefix-caching"
        ]

    def test_nested_mappings_came_late(self, folder):
        assert "config-file-nested" in codes(read("m", "--config", "c.yaml", folder=folder, release="0.15.1"))

    def test_out_of_reach(self):
        found = read("m", "--config", "c.yaml")
        assert codes(found) == ["config-file-unread"]
        assert found.findings[0].effect is Effect.UNKNOWN

    def test_out_of_reach_it_may_name_the_model(self):
        found = read("--config", "c.yaml")
        assert codes(found) == ["config-file-unread", "unresolved-variable"]
        assert found.unknown["model"] is found.findings[1]
        assert not found.model

    def test_missing(self, tmp_path):
        assert codes(read("m", "--config", "no.yaml", folder=tmp_path)) == ["unreadable-file"]

    def test_other_kind(self, tmp_path):
        (tmp_path / "c.json").write_text("{}")
        assert "config-file-refused" in codes(read("m", "--config", "c.json", folder=tmp_path))


def messages(found: Arguments) -> list[str]:
    return [finding.message for finding in found.findings]


@pytest.mark.parametrize(("count", "read_on"), [(19, True), (20, False)])
def test_after_twenty_refusals_the_rest_is_not_read(count, read_on):
    """argparse is asked again after each refusal, so that their number is bounded."""
    found = read("m", *["--enforce-eager=true"] * count, "--seed", "1")
    assert codes(found)[:count] == ["switch-with-value"] * count
    assert found.args == ({"seed": 1} if read_on else {})


@pytest.mark.parametrize(("count", "counted"), [(20, []), (21, ["vLLM does not understand 1 more words."])])
def test_twenty_words_that_nothing_takes_are_explained(count, counted):
    found = read("m", *(f"--nonsense-{index:02}=1" for index in range(count)))
    assert codes(found)[:20] == ["unknown-flag"] * 20
    assert messages(found)[20:] == counted


def test_a_lone_dash_is_not_blamed_for_an_abbreviated_flag_before_it():
    (finding,) = read("m", "--tensor-parallel-si", "--seed", "1", "-").findings[:1]
    assert finding.code == "flag-needs-value"
    assert finding.message.startswith("--tensor-parallel-si ")


def test_an_ambiguous_flag_names_six_candidates_at_most():
    (finding,) = read("m", "--max", "3").findings[:1]
    assert finding.code == "ambiguous-flag"
    assert finding.message.count("--") == 7, "the flag as written, and six that it may stand for"


def test_a_number_below_zero_is_no_flag():
    assert codes(read("m", "-1x")) == ["stray-argument"]


def test_long_words_are_cut():
    (stray,) = read("m", "x" * 61).findings
    assert repr("x" * 60) in stray.message
    (unknown,) = read("m", "--" + "y" * 79).findings
    assert unknown.message.endswith(" --" + "y" * 78 + ".")
    assert unknown.where == "--" + "y" * 78


def test_a_short_name_may_be_cut_to_one_letter():
    found = read("m", "-t", "2")
    assert (codes(found), found.args) == ([], {"tensor_parallel_size": 2})


def test_releases_in_a_row_are_told_as_one_run():
    (finding,) = read("m", "--spec-tokens", "3", release="0.21.0").findings
    assert f"; 0.22.0 to {releases()[-1]} have it." in finding.message
