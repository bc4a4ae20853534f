"""Where a rule draws its line: the last value that it lets pass, and the first that it does not."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.later_case import Case, codes, find_engine, find_later
from tests.support.made_checkpoints import DFLASH, LLAMA, judge, rejections, write

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SYNTHETIC = {**NGRAM, "rejection_sample_method": "synthetic"}
WIDE = {**LLAMA, "num_attention_heads": 16, "num_key_value_heads": 2}
XPRESS = {**DFLASH, "architectures": ["Qwen3XPressModel"]}
JAMBA = {**LLAMA, "architectures": ["JambaForCausalLM"], "model_type": "jamba"}


def asked(folder: Path, *, spec: Mapping[str, Any] = NGRAM, version: str = "0.32.0", **given: Any) -> list[str]:
    """Return why a target (LLAMA, or `target`) is refused with a drafter and flags."""
    target, drafter = (write(folder, name, given.pop(name, LLAMA)) for name in ("target", "drafter"))
    full = {**spec, "model": drafter} if "model" in spec else spec
    return rejections(judge(target, full, version, **given))


REFUSED: Mapping[str, tuple[Callable[[Any], Mapping[str, Any]], list[Any], list[Any]]] = {
    # what is refused -> a setup with a value, values that pass, values that do not
    "world-beyond-node": (lambda n: {"target": WIDE, "tensor_parallel_size": n}, [8], [16]),
    "target-decode-contexts": (
        lambda sizes: {"target": WIDE, "tensor_parallel_size": sizes[0], "decode_context_parallel_size": sizes[1]},
        [(4, 2), (8, 4)],
        [(2, 2), (4, 4), (8, 3)],
    ),
    "target-has-no-experts": (
        lambda n: {"target": {**LLAMA, "num_local_experts": n}, "enable_expert_parallel": True},
        [1],
        [0],
    ),
    "hybrid-needs-chunked-prefill": (
        lambda version: {"target": JAMBA, "version": version, "enable_chunked_prefill": False},
        ["0.27.1"],
        ["0.28.0"],
    ),
    "batch-limit-below-two": (
        lambda n: {"spec": {**NGRAM, "disable_by_batch_size": n}, "version": "0.9.2"},
        [2],
        [1],
    ),
    "tokens-not-positive": (lambda n: {"spec": {**NGRAM, "num_speculative_tokens": n}, "version": "0.11.0"}, [1], [0]),
    "lookup-below-one": (lambda n: {"spec": {**NGRAM, "prompt_lookup_min": n}, "version": "0.11.0"}, [1], [0]),
    "synthetic-rates": (
        lambda rates: {"spec": {**SYNTHETIC, "synthetic_acceptance_rates": rates}},
        [[1, 0.5, 0]],
        [[1.1, 0.5, 0], [1, 0.5, -0.1], [1, 0.5], [1, 0, 0.5]],
    ),
    "xpress-topc-range": (
        lambda n: {
            "spec": {"method": "dflash", "num_speculative_tokens": 3, "model": "drafter", "xpress_topc": n},
            "drafter": XPRESS,
            "version": "0.33.0",
        },
        [XPRESS["vocab_size"]],
        [XPRESS["vocab_size"] + 1],
    ),
}


@pytest.mark.parametrize("code", REFUSED)
def test_the_line_between_what_is_taken_and_what_is_refused(code: str, tmp_path: Path) -> None:
    setup, passing, refused = REFUSED[code]
    for number, value in enumerate([*passing, *refused]):
        assert (code in asked(tmp_path / str(number), **setup(value))) is (value in refused), value


LORA = {"enable_lora": True, "max_num_seqs": 512}
ANCHORED = Case(method="dspark", drafter={"sample_from_anchor": False})


@pytest.mark.parametrize(
    ("code", "case", "enough"),
    [
        ("lora-token-budget", Case(args=LORA), 512 * 4),
        ("draft-pass-limits-requests", Case(method="dflash", args={"max_num_seqs": 256}), 256 * 4),
        ("draft-pass-limits-requests", Case(method="dspark", args={"max_num_seqs": 256}), 256 * 3),
        ("draft-pass-limits-requests", ANCHORED.but(args={"max_num_seqs": 256}), 256 * 4),
    ],
)
def test_the_least_tokens_that_are_enough(code: str, case: Case, enough: int) -> None:
    for tokens in (enough - 1, enough):
        given = case.but(args={**case.args, "max_num_batched_tokens": tokens})
        assert (code in codes(find_engine(*given.seen_in("0.33.0")))) is (tokens < enough)


@pytest.mark.parametrize("used", [True, False])
def test_a_window_that_is_not_used_keeps_no_prefixes_from_v0(used: bool, tmp_path: Path) -> None:
    windowed = {**LLAMA, "sliding_window": 128, "use_sliding_window": used}
    spec = {"method": "draft_model", "model": "drafter", "num_speculative_tokens": 3}
    refused = asked(tmp_path, spec=spec, version="0.9.2", target=windowed, enable_prefix_caching=True)
    assert ("v0-rejects-prefixes-with-window" in refused) is used


@pytest.mark.parametrize(
    ("code", "entries", "told"),
    [
        ("schedule-clamped", [[1, 4, 3]], None),
        ("schedule-clamped", [[1, 4, 4]], "The entry [1, 4, 4] exceeds"),
        ("schedule-gap", [[1, 4, 3], [5, 8, 1]], None),
        ("schedule-gap", [[1, 4, 3], [6, 8, 1]], "batch sizes 5 to 5"),
        ("schedule-invalid", [[1, 4, 0]], None),
        ("schedule-invalid", [[0, 4, 3]], "names batch size 0"),
        ("schedule-invalid", [[1, 4, 3], [4, 8, 1]], "[1, 4, 3] and [4, 8, 1] overlap"),
    ],
)
def test_what_a_schedule_says_and_does_not_say(code: str, entries: list[list[int]], told: str | None) -> None:
    case = Case(spec={"num_speculative_tokens_per_batch_size": entries})
    messages = [each.message for each in find_later(*case.seen_in("0.33.0")) if each.code == code]
    assert len(messages) == (told is not None)
    assert told is None or told in messages[0]
