import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import draftwise
from draftwise.cli import main
from draftwise.cli.explain_command import find_options
from draftwise.core import InvalidSetup
from draftwise.core.document_schema import json_schema
from draftwise.core.exit_codes import ExitCode
from draftwise.deploying.observe.alert_rules import ALERTS
from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.terms import read_terms
from draftwise.knowledge.vllm import all_keys
from draftwise.knowledge.vllm_messages import find_messages
from draftwise.plan.explanations import explain, find_tasks, show_template
from draftwise.verbs import VERBS, load_verb
from draftwise.verbs.explain import find_key


def explained(name):
    result = CliRunner().invoke(main, ["explain", name, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("outputs-differ", "finding"),
        ("dflash", "method"),
        ("k-by-cost", "advice"),
        ("disable_by_batch_size", "key"),
        ("--tensor-parallel-size", "flag"),
        ("--tensor-parallel-size=2", "flag"),
        ("--speculative-eagle-topk 4 --max-num-seqs -1", "flag"),
        ('--speculative-config {"method": "ngram"}', "flag"),
        ("LlamaForCausalLM", "architecture"),
        ("vllm:spec_decode_num_drafts_total", "metric"),
    ],
)
def test_every_kind_of_name_is_found(name, kind):
    assert kind in {each["kind"] for each in explained(name)}


def test_a_flag_that_is_given_twice_is_explained_once():
    assert len(explained("--max-num-seqs 4 --max-num-seqs 5")) == len(explained("--max-num-seqs 4"))


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("--speculative-model", "flag", "as model"),
        ("speculative_max_model_len", "flag", "as max_model_len"),
        ("--disable-logprobs-during-spec-decoding", "flag", "No key replaces it"),
        ("spec_decode_draft_acceptance_rate", "metric", "spec_decode_num_draft_tokens_total"),
        ("vllm:spec_decode_num_emitted_tokens_total", "metric", "spec_decode_num_drafts_total"),
        ("vllm:spec_decode_efficiency", "metric", "It has no replacement"),
    ],
)
def test_what_old_guides_name_is_explained_by_what_there_is_now(name: str, kind: str, said: str) -> None:
    (found,) = explained(name)
    assert (found["kind"], said in found["text"]) == (kind, True)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("dflash2", "variant", '"method": "dflash"'),
        ("LiLiCorr", "variant", "dflash"),
        ("xpress", "variant", "xpress_topc"),
        ("fly", "mode", "lossy"),
        ("block", "value", "rejection_sample_method"),
        ("block", "mode", "lossless"),
        ("synthetic", "value", "rejection_sample_method"),
        ("TLI", "idea", "use_heterogeneous_vocab"),
        ("p-eagle", "variant", "parallel_drafting"),
        ("PARD", "variant", "draft_model"),
        ("NEXTN", "other name", '"method": "mtp"'),
        ("VLLM_USE_V1", "variable", "V0"),
        ("VLLM_USE_V2_MODEL_RUNNER", "variable", "Model Runner V2"),
        ("VLLM_PP_LAYER_PARTITION", "variable", "environment variable"),
        ("acceptance", "idea", "falls with k"),
        ("k", "quantity", "num_speculative_tokens"),
        ("Time to first token", "quantity", "prefill"),
        ("TPOT", "quantity", "after the first"),
        ("ITL", "quantity", "several tokens"),
        ("latency", "quantity", "TTFT"),
        ("throughput", "quantity", "--concurrency"),
        ("goodput", "quantity", "--slo-ttft-ms"),
        ("tree", "idea", "several continuations"),
        ("lookahead", "not in vLLM", ""),
        ("prefix caching", "idea", "prefill"),
        ("not-best", "idea", "another candidate"),
        ("hybrid-prefix-cache-mtp-corrupts", "defect", "vllm-project/vllm#53912"),
        ("--speculative-eagle-topk", "flag", "A flag of SGLang, not of vLLM."),
        ("--draft-max", "flag", "A flag of llama.cpp, not of vLLM. In vLLM, set num_speculative_tokens in"),
    ],
)
def test_words_of_the_field_and_variables_are_explained(name: str, kind: str, said: str) -> None:
    assert any(each["kind"] == kind and said in each["text"] for each in explained(name))


def test_every_name_that_is_listed_can_be_explained() -> None:
    result = CliRunner().invoke(main, ["explain", "--list", "--json"], catch_exceptions=False)
    listed = json.loads(result.stdout)
    assert len(listed) > 2000
    kinds = {}
    for each in listed:
        kinds.setdefault(each["kind"], []).append(each["name"])
    for kind, names in kinds.items():
        for name in names[:: max(1, len(names) // 40)]:
            assert draftwise.explain(name).explanations, (kind, name)
    for term in read_terms():
        for name in (*term.names, *term.see):
            assert explain(name), name
    assert "DFlash2" in CliRunner().invoke(main, ["explain", "--list"]).stdout


def fill(template: str, value: str) -> str:
    return template.replace("{}", value)


@pytest.mark.parametrize("value", ["7", "['a b', None]", "x" * 80])
@pytest.mark.parametrize(
    "frame", ["{}", "(EngineCore pid=7) ERROR 11-23 07:56:26 [vllm.py:72] {}", "ValueError: {} [x]"]
)
def test_every_message_of_vllm_is_found_whatever_its_values(value: str, frame: str) -> None:
    templates = all_keys("messages")
    assert len(templates) > 1500
    missed = []
    for template in templates[::29]:
        pasted = frame.replace("{}", fill(template, value), 1)
        found = [each.template.lower() for each in find_messages(f"Traceback:\n  line 3\n{pasted}", most=99)]
        if not any(template.lower() == each or template.lower() in each for each in found):
            missed.append((template, found))
    assert [each for each in missed if sum(map(str.isalpha, max(each[0].split("{}"), key=len))) >= 12] == []


@pytest.mark.parametrize(
    ("pasted", "code", "said"),
    [
        ("ValueError: num_speculative_tokens:4 must be divisible by n_predict=3", "tokens-not-divisible", "ValueError"),
        (
            "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested",
            "target-without-aux-states",
            "Use ngram, suffix, eagle",
        ),
        (
            "  Value error, FLy requires num_speculative_tokens to be\n  at least 2. [type=value_error]",
            "fly-needs-two-tokens",
            "",
        ),
    ],
)
def test_a_pasted_error_leads_to_the_rule_and_its_fix(pasted: str, code: str, said: str) -> None:
    (found, *_) = explained(pasted)
    assert found["kind"] == "message"
    assert code in {rule["code"] for rule in found["related"]}
    assert said in found["text"]


def test_a_pasted_log_line_leads_to_known_defects() -> None:
    found = explained("ERROR 11-23 [backend.py:1] Failed to advance FSM for request chatcmpl-1 for tokens 12, 13")
    assert {"message", "defect"} <= {each["kind"] for each in found}
    found = explained("ERROR Unexpected: grammar rejected tokens [1, 2] for request r. Terminating request.")
    assert "structured-output-at-reasoning-end" in {each["name"] for each in found}
    found = explained("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
    assert {each["kind"] for each in found} == {"defect"}


def test_a_condition_that_check_reads_is_no_missing_rule() -> None:
    (found, *_) = explained("ValueError: Cannot set both `pooling_type` and `seq_pooling_type`")
    assert "`draftwise check` has read from vLLM" in found["text"]


@pytest.mark.parametrize(
    ("pasted", "name"),
    [
        ("TimeoutError: RPC call to sample_tokens timed out.", "RPC call timed out"),
        (
            "assert self.version\nAssertionError: FlashAttention version not detected.",
            "FlashAttention version not detected",
        ),
        ("Exception: WorkerProc initialization failed due to an exception", "WorkerProc initialization failed"),
        ("WARNING [backend_guidance.py:231] LLMatcher error: Parser Error", "LLMatcher error"),
    ],
)
def test_a_line_without_a_rule_leads_to_its_term(pasted: str, name: str) -> None:
    assert name in {each["name"] for each in explained(pasted)}


@pytest.mark.parametrize(
    "pasted",
    [
        "Spectre V1 : Mitigation: barriers for speculative execution",
        "[    0.123] Speculative Store Bypass: disabled via prctl",
        "kernel: Speculative Return Stack Overflow: Mitigation: Safe RET",
    ],
)
def test_a_line_of_the_kernel_is_no_question(pasted: str) -> None:
    with pytest.raises(InvalidSetup):
        explain(pasted)


@pytest.mark.parametrize("pasted", ["my dog ate it", "ValueError: the frobnicator of the engine is not aligned", "a b"])
def test_an_unknown_message_is_said_to_be_unknown(pasted: str) -> None:
    with pytest.raises(InvalidSetup) as raised:
        explain(pasted)
    assert [each.code for each in raised.value.findings] == ["unknown-message"]


def test_a_large_log_is_read_in_bounded_time() -> None:
    with pytest.raises(InvalidSetup):
        explain("nothing of it is known, at all\n" * 200_000)


def test_history_tells_first_and_last_release():
    spans = next(each for each in explained("disable_by_batch_size") if each["kind"] == "key")["history"]
    assert spans[-1]["until"] == "0.16.0"
    spans = next(each for each in explained("dflash") if each["kind"] == "method")["history"]
    assert (spans[0]["since"], spans[0]["until"]) == ("0.20.0", None)


def test_every_rule_can_be_explained_and_shown():
    for code, rule in all_rules().items():
        assert explained(code)[0]["text"] == rule.explains
    text = CliRunner().invoke(main, ["explain", next(iter(all_rules()))], catch_exceptions=False).stdout
    assert "source:" in text


def test_every_code_that_is_printed_can_be_explained() -> None:
    for kind, registry in (("finding", all_findings()), ("rule", all_rules()), ("advice", all_advice())):
        for code in registry:
            found = next(each for each in explain(code) if each.kind == kind)
            assert found.text, code
            assert found.link == f"https://draftwise.dev/findings/{code}/"


def test_a_finding_is_shown_with_its_fix_its_threshold_and_the_page() -> None:
    text = CliRunner().invoke(main, ["explain", "client-sends-late"], catch_exceptions=False).stdout
    assert "The load generator sent requests late" in text
    assert "Use more client processes" in text
    assert "error or warning, beyond the threshold client_late, from: measurement validity" in text
    assert "more: https://draftwise.dev/findings/client-sends-late/" in text
    (told,) = explained("client-sends-late")
    assert told["finding"]["severities"] == ["error", "warning"]
    assert told["finding"]["room"] == "Measurement validity"


def test_a_finding_is_shown_with_what_a_test_typed_and_saw() -> None:
    text = CliRunner().invoke(main, ["explain", "not-a-baseline"], catch_exceptions=False).stdout
    assert "example, setup.json:\n  {}\n" in text
    assert "example: draftwise watch http://127.0.0.1:1 --baseline setup.json --once" in text
    assert "draftwise says:\n  error: setup.json is not a baseline." in text
    assert 'checked by the test "bad input names its fix" of tests/cli/test_watch.py' in text
    (told,) = explained("not-a-baseline")
    assert told["example"]["tested"].startswith("tests/cli/test_watch.py::")


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [("output-differs", "outputs-differ"), ("unknown-keys", "unknown-key"), ("k-by-costs", "k-by-cost")],
)
def test_the_nearest_names_of_every_registry_are_suggested(mistyped: str, meant: str) -> None:
    with pytest.raises(InvalidSetup, match=f"Did you mean.* {meant}"):
        explain(mistyped)


def test_texts_of_rules_have_names_in_the_place_of_values_and_single_braces() -> None:
    assert show_template("{k} of {share:.0%}: {{{{}}}}") == "<k> of <share>: {{}}"
    for rule in all_rules().values():
        shown = show_template(f"{rule.message} {rule.fix} {rule.becomes}")
        assert "{{" not in shown or "{{" in rule.explains, rule.code


def test_every_verb_exit_code_and_json_key_can_be_explained() -> None:
    for verb in VERBS:
        assert draftwise.explain(verb).explanations[0].kind == "verb"
        schema = json_schema(load_verb(verb).result, title=verb)
        for owner in (schema, *schema.get("definitions", {}).values()):
            for name in owner.get("properties", {}):
                assert any(each.text and verb in each.text for each in find_key(name)), name
    assert draftwise.explain("speedup_range").explanations[0].kind == "JSON key"
    for code in ExitCode:
        for spelling in (f"{int(code)}", f"exit code {int(code)}", f"Exit {int(code)}"):
            assert code.meaning in {each.text for each in draftwise.explain(spelling).explanations}


def test_every_option_can_be_explained_by_its_help() -> None:
    options = {}
    for verb in VERBS:
        command = main.get_command(click.Context(main), verb)
        for param in getattr(command, "params", ()):
            if isinstance(param, click.Option) and not param.hidden and param.help:
                options |= dict.fromkeys((*param.opts, *param.secondary_opts), param.help.partition("  [")[0])
    assert len(options) > 150
    for name, text in options.items():
        assert any(" ".join(text.split()) in " ".join(each.text.split()) for each in find_options(name, main)), name
    said = CliRunner().invoke(main, ["explain", "--max-num-seqs", "--json"])
    assert {"option", "flag"} <= {each["kind"] for each in json.loads(said.stdout)}


def test_every_term_of_the_glossary_and_every_alert_can_be_explained() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/glossary.md").read_text()
    terms = [name for bold in re.findall(r"\*\*(.+?)\*\*", page) for name in re.split(" / | and |, ", bold)]
    assert len(terms) > 40
    for term in terms:
        assert draftwise.explain(term).explanations, term
    for alert in ALERTS:
        (found,) = draftwise.explain(alert.name).explanations
        assert (found.kind, found.see) == ("alert", (alert.code,))
        for record in re.findall(r"draftwise:[\w:]+", alert.expression):
            assert draftwise.explain(record).explanations[0].kind == "series"


@pytest.mark.parametrize(("question", "meant"), [
    ("why is it slower with speculative decoding", "fell-below-break-even"),
    ("Acceptance rate dropped after upgrade?", "after-upgrade"),
    ("what is k", "k"),
    ("what must be set to use eagle3?", "eagle3"),
    ("which flags must not be combined with eagle3?", "flags-refused"),
    ("how do I roll back", "rollback"),
    ("nothing accepted since the server was asleep", "woke-without-weights"),
    ("requests queue up since I enabled eagle3", "queue-grew"),
    ("is ngram better than suffix", "ngram"),
    ("the server does not speculate", "spec-off"),
    ("Why is my acceptance rate low with eagle3?", "low acceptance"),
    ("how many speculative tokens should I use for eagle3", "how many tokens to draft"),
    ("my drafter is not faster", "no speed-up"),
    ("which draft model for Qwen3-32B", "which speculative method"),
    ("does speculation change the output", "answers differ"),
    ("how can I train my own eagle3 head", "train a drafter"),
    ("how do I run this on Windows", "windows"),
    ("why is decode slower with mtp and 4 tokens than with 2 at 8 concurrent requests", "how many tokens to draft"),
])  # fmt: skip
def test_a_question_leads_to_a_finding_or_a_name(question: str, meant: str) -> None:
    found = draftwise.explain(question).explanations
    assert meant in {each.name for each in found}
    assert not [name for each in found for name in (each.name, *each.see) if name.isdigit()]  # no exit code


def test_every_wording_of_a_task_leads_to_it_and_names_what_explain_and_the_verbs_know() -> None:
    tasks = [term for term in read_terms() if term.kind == "task"]
    assert tasks
    assert not find_tasks("what is the speed of the cheese")
    for term in tasks:
        for wording in term.names:
            assert term.names[0] in {each.name for each in draftwise.explain(f"{wording}?").explanations}, wording
        for name in term.see:
            assert draftwise.explain(name).explanations, name
        page = Path(__file__).parents[2] / term.source
        assert page.is_file(), term.source
        for verb, options in re.findall(r"`draftwise (\w+)([^`]*)`", term.text):
            shown = CliRunner().invoke(main, [verb, "--help"]).output
            assert all(option in shown for option in re.findall(r"--[a-z-]+", options)), (verb, options)


def test_a_finding_that_lacks_the_name_in_a_question_is_no_answer() -> None:
    found = {each.name for each in draftwise.explain("min_p requests are refused").explanations}
    assert "default-min-p-refused" in found
    assert "rate-limited" not in found
    assert "rate-limited" in {each.name for each in draftwise.explain("requests are refused").explanations}
    with pytest.raises(InvalidSetup):
        draftwise.explain("top_k requests are refused")


def test_an_unknown_question_says_what_was_nearest() -> None:
    with pytest.raises(InvalidSetup, match=r"Nearest: .*acceptance"):
        draftwise.explain("accpetance of pizza")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "NotImplementedError: Speculative Decoding with draft models or parallel drafting does not support "
            "multimodal models yet",
            "draft-model-with-multimodal-target",
        ),
        ("Speculative Decoding with draft models does not support M-RoPE yet", "draft-with-mrope"),
        (
            "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.",
            "requests-refused",
        ),
        ("as sampling parameters are not yet supported with specul", "requests-refused"),
        ("Model Runner V2 does not yet support: ngram/ngram_gpu speculative decoding", "runner-v2-rejected"),
        ("ValueError: Sequence parallelism requires num_tokens to be a multiple of tensor parallel size", None),
    ],
)
def test_a_message_leads_to_the_rule_of_its_function_and_to_no_other(line: str, code: str | None) -> None:
    related = {rule.code for each in explain(line) for rule in each.related}
    assert related == ({code} if code else set())


def test_a_message_with_words_left_out_is_found_and_other_words_find_none() -> None:
    found = explain("max_num_scheduled_tokens is set to -1792, which does not allow any tokens to be scheduled")
    assert {each.name[:50] for each in found} == {"max_num_scheduled_tokens is set to {} based on the"}
    (found,) = explain("draft_tensor_parallel_size=2 cannot be other than 1 or target model tensor_parallel_size")
    assert {rule.code for rule in found.related} == {"draft-tensor-parallel"}
    with pytest.raises(InvalidSetup):
        draftwise.explain("max_num_scheduled_tokens is set to nothing, and tokens do not allow any to be scheduled")


@pytest.mark.parametrize(
    "text",
    [
        "ValidationError: Unexpected keyword argument 'disable_by_batch_size'",
        "1 validation error for SpeculativeConfig\ndisable_by_batch_size\n  Unexpected keyword argument "
        "[type=unexpected_keyword_argument, input_value=8, input_type=int]",
    ],
)
def test_a_refused_key_is_explained_with_its_releases(text: str) -> None:
    (found,) = [each for each in explain(text) if each.name == "disable_by_batch_size"]
    assert str(found.history[-1].until) == "0.16.0"


def test_an_architecture_that_a_release_lacks_is_explained_with_its_releases() -> None:
    found = explain("Value error, Model architectures ['DFlash2DraftModel'] are not supported for now.")
    (told,) = [each for each in found if each.kind == "architecture"]
    assert (told.name, told.history[-1].until) == ("DFlash2DraftModel", None)


@pytest.mark.parametrize(
    ("end", "advice"),
    [("(40) must be divisible by tensor parallel size (3).", "divisor of 40."), ("(40", "divisor of <heads>.")],
)
def test_the_fix_of_a_pasted_message_has_its_values_and_a_placeholder_only_without(end: str, advice: str) -> None:
    (found,) = explain(f"ValueError: Total number of attention heads {end}")
    assert advice in found.text
    assert re.findall(r"<\w+>|\{\w+\}", found.text) == re.findall(r"<\w+>", advice)
    assert found.text.count("Tensor parallelism splits query heads evenly.") == 1
