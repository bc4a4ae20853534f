"""Finds for each rule a short setup that meets it: `python -m catalogue.examples` writes data/examples.json.

Examples that still hold stay. For other rules it runs the tests of `check`, and takes the shortest setup, command or
file of theirs. With `--anew` it first tries vLLM's recipes, examples of known defects and configs of the methods'
pages, changed in one setting. The page of the rule and `explain` show the example.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from docs.site.examples import find_effect, run_example

import draftwise.setups.read
from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.examples import RuleExample, find_example
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.rules import VllmRule, all_rules
from draftwise.knowledge.vllm import Release, releases
from draftwise.plan.check import Context, judge
from draftwise.setups.read import SourceText, read_words, setup_reading, sources
from draftwise.setups.write import write_shell, write_words

ROOT = Path(__file__).parents[1]
DATA = ROOT / "src/draftwise/knowledge/data/examples.json"

TESTS = ("tests/plan/check", "tests/setups", "tests/cli/test_check.py", "tests/cli/test_sources.py")
"""Their setups become examples."""
LONGEST = 30
"""Lines of a file that is shown."""
KNOWN = ("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3")
"""Targets that a reader knows."""
KEPT = {"method", "model", "num_speculative_tokens"}
"""Keys of a speculative config that an example keeps."""
MOST_CHARS = 4000
"""Of the configs of a setup, before parts are left out."""

KEYS: Mapping[str, tuple[Any, ...]] = {
    "num_speculative_tokens": (0, 2, 4, 40, 5000, None),
    "draft_tensor_parallel_size": (1, 2, 3),
    "tensor_parallel_size": (2,),
    "max_model_len": (1024, 10_000_000),
    "quantization": ("fp8", "nonsense"),
    "disable_by_batch_size": (1, 8),
    "disable_padded_drafter_batch": (True,),
    "enforce_eager": (True,),
    "parallel_drafting": (True,),
    "prompt_lookup_min": (0, 9),
    "prompt_lookup_max": (0, 1),
    "rejection_sample_method": ("strict", "probabilistic", "synthetic", "block", "fly", "standard"),
    "synthetic_acceptance_length": (2.5, 99),
    "synthetic_acceptance_rate": (0.5,),
    "synthetic_acceptance_rates": ([0.5, 0.9, 0.1], [0.9, 0.5, 0.1]),
    "draft_sample_method": ("probabilistic", "greedy", "gumbel"),
    "use_heterogeneous_vocab": (True,),
    "use_local_argmax_reduction": (True,),
    "enable_adaptive_verification": (True,),
    "dspark_draft_topk": (4,),
    "num_speculative_tokens_per_batch_size": ([[1, 8, 3], [9, 64, 0]], [[1, 8, 3], [20, 64, 1]], [[1, 64, 9]]),
    "speculative_token_tree": ("[(0,), (0, 0)]",),
    "disable_eagle_block_drop": (True,),
    "disable_lookahead_block_hashes": (True,),
    "draft_lm_head_quantization": ("fp8",),
    "xpress_topc": (8, 10_000_000),
    "index_share_for_mtp_iteration": (True,),
    "kv_cache_dtype": ("fp8", "nonsense"),
    "attention_backend": ("FLASH_ATTN", "TRITON_ATTN", "flash_attn", "NONSENSE"),
    "moe_backend": ("nonsense", "triton"),
    "suffix_decoding_max_spec_factor": (-1, 2.0),
    "suffix_decoding_min_token_prob": (2,),
    "suffix_decoding_max_tree_depth": (0, 8),
    "suffix_decoding_max_cached_requests": (0,),
    "acceptance_method": ("typical_acceptance_sampler",),
    "posterior_threshold": (0.09,),
    "fly_window_size": (1, 9),
    "prompt_lookup_maximum": (4,),
    "code_revision": ("main",),
    "method": ("eagle", "medusa", "ngrm", "draft_model", "deepseek_mtp", "glm4_moe_mtp", "ngram_gpu", "suffix", None),
    "model": (
        "heads/eagle-llama-3.1",
        "org/drafter.v2",
        "[ngram]",
        "Qwen/Qwen3-0.6B",
        "meta-llama/Llama-3.2-1B-Instruct",
        None,
    ),
    "draft_load_config": ({"load_format": "dummy"}, {"load_format": "nonsense"}),
    "draft_model_config": ({"hf_config": {}},),
}
"""Keys of the speculative config and values to try; None leaves the key out."""
FLAGS = """
--tensor-parallel-size 2 | --tensor-parallel-size 3 | --pipeline-parallel-size 2 | --data-parallel-size 2 |
--enable-lora | --enable-expert-parallel | --enable-expert-parallel --enable-eplb | --enforce-eager |
--async-scheduling | --no-async-scheduling | --no-enable-prefix-caching | --enable-prefix-caching |
--no-enable-chunked-prefill | --enable-chunked-prefill | --max-num-seqs 4096 | --max-num-seqs 8 |
--max-num-batched-tokens 64 | --max-num-batched-tokens 512 | --max-model-len 1000000 | --max-model-len 256 |
--kv-cache-dtype fp8 | --kv-cache-dtype nonsense | --quantization fp8 | --quantization bitsandbytes |
--quantization gguf | --attention-backend FLASH_ATTN | --attention-backend flash_attn |
--attention-backend TRITON_ATTN | --attention-backend FLASHINFER | --attention-backend NONSENSE | --dtype float32 |
--dtype float16 | --block-size 128 | --disable-hybrid-kv-cache-manager | --kv-sharing-fast-prefill |
--use-v2-model-runner | --guided-decoding-backend lm-format-enforcer |
--structured-outputs-config '{"backend": "lm-format-enforcer"}' |
--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}' | --max-cudagraph-capture-size 64 |
--compilation-config '{"cudagraph_mode": "FULL"}' | --compilation-config '{"cudagraph_mode": "NONE"}' | -O0 |
--cuda-graph-sizes 7 | --speculative-model x/y | --num-speculative-tokens 5 | --spec-method ngram | --spec-tokens 4 |
--spec-model Qwen/Qwen3-0.6B | --gpu-memory-utilization 1.5 | --load-format dummy | --runner pooling | --task embed |
--hf-overrides '{"num_hidden_layers": 2}' | --scheduling-policy priority | --stream-interval 4 | --enable-sleep-mode |
--decode-context-parallel-size 2 | --enable-dbo | --disable-log-stats | --no-such-flag | --trust-remote-code |
--tokenizer-mode mistral | --reasoning-parser qwen3 | --logprobs-mode processed_logprobs |
--per-request-spec-decode-metrics detailed | --mamba-cache-mode align | --cpu-offload-gb 4 | --disable-cascade-attn |
--long-prefill-token-threshold 64 | --max-num-partial-prefills 2 | --num-scheduler-steps 4 | --swap-space 4 |
--enable-return-routed-experts
"""
"""Flags to try, one or two together."""


TARGETS = (
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "deepseek-ai/DeepSeek-V3.2",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
)
"""Models of other kinds, with each method."""
_FEWER = 300
"""Lines that are tried in each older release, the shortest first."""


def candidates() -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Yield target, speculative config and flags: every base, then each changed in one key or by one flag."""
    bases = [*_bases()]
    yield from bases
    kinds: dict[str | None, tuple[str, dict[str, Any], tuple[str, ...]]] = {}
    for target, spec, flags in bases:
        kinds.setdefault(spec.get("method"), (target, spec, flags))
    for target, spec, flags in kinds.values():
        for flag in FLAGS.split("|"):
            yield target, spec, (*flags, *shlex.split(flag))
        for key, values in KEYS.items():
            for value in values:
                changed = {name: each for name, each in {**spec, key: value}.items() if each is not None}
                yield target, changed, flags


def _bases() -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    methods = json.loads((ROOT / "docs/site/methods.json").read_text(encoding="utf-8")).values()
    for row in methods:
        for shape in row["shapes"]:
            yield row["target"], shape["config"], tuple(shape.get("flags", ()))
    for target in TARGETS:
        for row in methods:
            yield target, row["shapes"][0]["config"], ()
    for row in json.loads((ROOT / "tests/plan/check/recipes.json").read_text(encoding="utf-8")):
        yield from _parse([row["target"], *row["args"]])
    for defect in all_defects().values():
        for text in (defect.hit, defect.miss):
            yield from _parse(shlex.split(text)[2:])


def _parse(words: list[str]) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    for flag in ("--speculative-config", "-sc"):
        if flag in words:
            at = words.index(flag)
            try:
                yield words[0], json.loads(words[at + 1]), (*words[1:at], *words[at + 2 :])
            except ValueError:
                return


class Recorder:
    """Keeps the setups, commands and texts that tests judge, with the config.json of models that are not known."""

    def __init__(self) -> None:
        self.setups: dict[str, dict[str, Sketch]] = {}
        self.commands: set[tuple[str, tuple[str, ...]]] = set()
        self.texts: dict[str, str] = {}
        complete, read, words = Context.__post_init__, sources._read_text, setup_reading.read_words

        def keep_context(context: Context) -> None:
            complete(context)
            self._keep(context)

        def read_text(source: SourceText, asked: Any) -> Any:
            if source.text.count("\n") <= LONGEST:
                self.texts.setdefault(source.text, Path(source.name).name)
            return read(source, asked)

        def keep_words(given: Sequence[str], *, engine_version: str | None = None) -> Any:
            self.commands.add((engine_version or "", tuple(given)))
            return words(given, engine_version=engine_version)

        for place, name, kept in (
            (Context, "__post_init__", keep_context),
            (sources, "_read_text", read_text),
            (setup_reading, "read_words", keep_words),
            (draftwise.setups.read, "read_words", keep_words),
        ):
            setattr(place, name, kept)

    def _keep(self, context: Context) -> None:
        setup, spec, files = context.setup, dict(context.spec or {}), {}
        target = setup.target
        if context.target and context.target.origin != "table":
            target, files["target/config.json"] = "./target", dict(context.target.config)
        if context.draft_config and not (context.drafter and context.drafter.origin == "table"):
            spec["model"], files["drafter/config.json"] = "./drafter", dict(context.draft_config)
        sketch = Sketch(str(context.release), target, spec, dict(setup.args), dict(setup.env), files)
        if len(text := repr(replace(sketch, vllm=""))) < MOST_CHARS:
            self.setups.setdefault(text, {})[sketch.vllm] = sketch

    def choose(self) -> list[Sketch]:
        """Return the setups, the shortest first, each with its last, first and middle release."""
        order = {str(release): at for at, release in enumerate(releases())}
        chosen: dict[str, Sketch] = {}
        for text, each in self.setups.items():
            known = sorted(each, key=lambda name: order.get(name, 0))
            chosen |= {f"{text}{name}": each[name] for name in (known[-1], known[0], known[len(known) // 2])}
        return [chosen[text] for text in sorted(chosen, key=lambda text: (len(text), text))]


@dataclass(frozen=True, slots=True)
class Sketch:
    """A setup of a test, of which parts can be left out."""

    vllm: str
    target: str
    spec: Mapping[str, Any]
    args: Mapping[str, Any]
    env: Mapping[str, str]
    files: Mapping[str, Any]

    def draw(self) -> RuleExample:
        spec = SpecConfig.keep(self.spec) if self.spec else None
        setup = Setup(
            target=self.target, engine="vllm", engine_version=self.vllm, spec=spec, args=self.args, env=self.env
        )
        files = {name: json.dumps(value) for name, value in self.files.items()}
        if not self.env:
            return RuleExample(vllm=self.vllm, command=shlex.join(write_words(setup)), files=files)
        return RuleExample(vllm=self.vllm, command="serve.sh", files={**files, "serve.sh": f"{write_shell(setup)}\n"})

    def shrink(self) -> Iterator[Sketch]:
        """Yield it with each part left out."""
        yield from (replace(self, files=left) for left in _leave_out(self.files))
        yield from (replace(self, args=left) for left in _leave_out(self.args))
        yield from (replace(self, env=left) for left in _leave_out(self.env))
        yield from (replace(self, spec=left) for left in _leave_out(self.spec) if KEPT & set(self.spec) <= set(left))
        for name, value in self.files.items():
            yield from (replace(self, files={**self.files, name: left}) for left in _leave_out(value))

    def name_models(self) -> Iterator[Sketch]:
        """Yield it with a known target in place of its own."""
        files = {name: text for name, text in self.files.items() if not name.startswith("target/")}
        yield from (replace(self, target=name, files=files) for name in KNOWN)


def _leave_out(held: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key in held:
        yield {name: each for name, each in held.items() if name != key}


def find_codes(example: RuleExample) -> set[str]:
    """Return the codes that an example meets; none where it names a place of this machine."""
    if any(place in repr(example) for place in (tempfile.gettempdir(), str(ROOT))):
        return set()
    try:
        return {finding.code for finding in run_example(example)}
    except InvalidSetup as error:
        return {finding.code for finding in error.findings}
    except (OSError, ValueError, TypeError, SystemExit):
        return set()


def _depends(example: RuleExample, code: str) -> bool:
    """Whether the answer to an example depends on a rule."""
    return code in find_codes(example) or bool(find_effect(code, example))


def record() -> Recorder:
    """Run the tests of `check`, and return what they judged."""
    recorder = Recorder()
    pytest.main(["-q", "-p", "no:cacheprovider", *(str(ROOT / each) for each in TESTS)])
    return recorder


def find_recorded(recorder: Recorder, wanted: set[str]) -> dict[str, RuleExample]:
    """Return the shortest setup or text of a test for each wanted rule, without the parts that it does not need."""
    found: dict[str, RuleExample] = {}
    for sketch in recorder.choose():
        for code in sorted((wanted - set(found)) & find_codes(sketch.draw())):
            found[code] = _reduce(sketch, code).draw()
    drawn = [RuleExample(vllm=vllm, command=shlex.join(words)) for vllm, words in recorder.commands if words]
    drawn += [
        RuleExample(vllm="", command=name, files={name: text})
        for text, given in recorder.texts.items()
        if text.strip() and (name := given.replace(" ", "-") or _name(text))
    ]
    for example in sorted(drawn, key=lambda each: (len(repr(each)), repr(each))):
        for code in (wanted - set(found)) & find_codes(example):
            found[code] = example
    return found


def _reduce(sketch: Sketch, code: str) -> Sketch:
    while True:
        smaller = next((each for each in sketch.shrink() if code in find_codes(each.draw())), None)
        if smaller is None:
            break
        sketch = smaller
    named = (each for each in sketch.name_models() if code in find_codes(each.draw()))
    return sketch if sketch.target in KNOWN else next(named, sketch)


def _name(text: str) -> str:
    """Return a file name by which a text is read as what it is."""
    kinds = {
        "Dockerfile": "dockerfile",
        "vllm.container": "quadlet",
        "vllm.service": "unit",
        "serve.py": "python",
        "vllm.yaml": "yaml",
    }
    if text.lstrip().startswith(("{", "[")):
        return "setup.json"
    return next((name for name, kind in kinds.items() if sources.LAYOUTS[kind].search(text)), "serve.sh")


def find_examples() -> dict[str, dict[str, str]]:
    """Return the shortest command line that was found for each rule, and the newest release in which it meets it."""
    known = [release for release in releases() if release.added is None]
    lines = {
        shlex.join(["vllm", "serve", target, "--speculative-config", json.dumps(spec), *flags])
        for target, spec, flags in candidates()
    }
    shortest = sorted(lines, key=lambda line: (len(line), line))
    found: dict[str, dict[str, str]] = {}
    for release in reversed(known):
        wanted = {code for code, rule in all_rules().items() if _last(rule, known) == release}
        for line in shortest if release == known[-1] else shortest[:_FEWER]:
            if not wanted:
                break
            codes = {each.code for each in judge(read_words(shlex.split(line), engine_version=str(release))).findings}
            found |= {code: {"vllm": str(release), "command": line} for code in wanted & codes}
            wanted -= codes
        print(f"{release}: {len(found)} found", flush=True)
    return dict(sorted(found.items()))


def _last(rule: VllmRule, known: list[Release]) -> Release:
    return next(release for release in reversed(known) if rule.holds(release.version))


def main() -> None:
    codes = [*all_rules(), *all_findings()]
    kept = {code: row for code in codes if (row := find_example(code)) and not row.tested and _depends(row, code)}
    print(f"{len(kept)} examples still hold", flush=True)
    if "--anew" in sys.argv:
        kept |= {code: RuleExample(vllm=row["vllm"], command=row["command"]) for code, row in find_examples().items()}
    kept |= find_recorded(record(), set(all_rules()) - set(kept))
    rows = {code: {key: each for key, each in asdict(row).items() if each} for code, row in sorted(kept.items())}
    lines = ",\n".join(f" {json.dumps(code)}: {json.dumps(row)}" for code, row in rows.items())
    DATA.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{len(all_rules().keys() & kept.keys())} of {len(all_rules())} rules have an example")


if __name__ == "__main__":
    main()
