"""What each planted fault is called, from windows without noise; the simulated services are `test_simulated.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.made_windows import ASKED_SPEC, EXPECTED, HEALTHY, PLAIN_WINDOW, make_fingerprint, make_window
from tests.support.production import FAULTS, PLAIN, SPEC, Fault, K, Server

from draftwise.core import Diagnosis, ServerLoad, SpecConfig, Window
from draftwise.watching.diagnose import SideInfo, diagnose

SAME = make_fingerprint(1)
DIFFERS = make_fingerprint(44, change=-0.3)
ALONE = replace(DIFFERS, alone=True)
ASKED = SideInfo(spec=ASKED_SPEC, probe=SAME)


def judge(*windows: Window, asked: SideInfo = ASKED, plain: Window | None = PLAIN_WINDOW) -> list[Diagnosis]:
    """Return what is found, with every reading at hand unless told otherwise."""
    return list(diagnose({"spec": windows}, EXPECTED, [plain] if plain else [], asked))


def name(found: list[Diagnosis]) -> list[str]:
    return [each.code for each in found if not each.follows_from]


def change(**rates: object) -> Window:
    return make_window(replace(SPEC, **rates))  # type: ignore[arg-type]


@pytest.mark.parametrize("load", [0.02, 0.25, 1.0, 3.0])
@pytest.mark.parametrize("seconds", [60.0, 300.0, 3600.0])
def test_a_healthy_service_is_silent(load: float, seconds: float) -> None:
    spec = make_window(SPEC.under(load), seconds=seconds)
    plain = make_window(PLAIN.under(load), pool="plain", instance="p", seconds=seconds)
    assert set(name(judge(spec, plain=plain))) <= {"no-traffic"}


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if each.rates and each.simulated is not None], ids=lambda fault: fault.diagnosis
)
def test_a_planted_fault_is_named_first(fault: Fault) -> None:
    changed = make_window(replace(SPEC, **fault.rates or {}), instance="b")  # type: ignore[arg-type]
    windows = (HEALTHY, changed) if fault.last_only else (changed,)
    asked = replace(ASKED, probe=ALONE) if fault.diagnosis == "drafter-noise" else ASKED
    assert name(judge(*windows, asked=asked))[0] in {fault.diagnosis, *fault.also}


def test_the_flag_is_lost_on_all_servers_or_on_one() -> None:
    assert name(judge(make_window(PLAIN))) == ["spec-off"]
    assert name(judge(HEALTHY, make_window(PLAIN, instance="b"))) == ["partial-rollout"]


def test_a_rank_that_does_not_draft_is_told_from_a_server_that_does_not() -> None:
    silent = make_window(replace(SPEC, coverage=0.0), engine="1")
    (found, *_) = judge(HEALTHY, silent)
    assert found.code == "rank-silent"
    assert "Engine 1 of a" in found.message


@pytest.mark.parametrize(
    ("change_of_window", "code"),
    [
        ({"restarted": True}, "counter-reset"),
        ({"sleeping": True, "counters": make_window(replace(SPEC, steps=0.0)).counters}, "asleep"),
    ],
)
def test_what_windows_cannot_say_is_said(change_of_window: dict[str, object], code: str) -> None:
    assert code in name(judge(make_window(SPEC, **change_of_window)))


def test_a_pool_without_servers_has_no_data() -> None:
    assert name(list(diagnose({"spec": ()}))) == ["scrape-gap"]


def test_acceptance_zero_after_sleep_is_the_wake_up() -> None:
    window = make_window(replace(SPEC, positions=(0.0,) * 3), sleeping=True)
    assert name(judge(window)) == ["woke-without-weights"]


def test_the_probe_tells_the_drafter_from_the_traffic() -> None:
    fallen = change(positions=(0.3, 0.12, 0.05))
    assert name(judge(fallen))[0] == "traffic-changed"
    assert name(judge(fallen, asked=replace(ASKED, probe=DIFFERS)))[0] == "drafter-changed"
    assert name(judge(HEALTHY, asked=replace(ASKED, probe=DIFFERS))) == ["drafter-changed"]


def test_a_new_release_is_named_where_nothing_else_changed_and_it_accepts_less() -> None:
    upgraded = replace(ASKED, probe=DIFFERS, releases=("0.26.0", "0.33.0"))
    found = judge(change(positions=(0.3, 0.12, 0.05)), asked=upgraded)
    assert name(found)[0] == "after-upgrade"
    assert "when vLLM 0.33.0 replaced 0.26.0" in found[0].message
    as_good = replace(upgraded, probe=replace(DIFFERS, change=0.0))
    assert name(judge(HEALTHY, asked=as_good)) == ["drafter-changed"]


GATE = {"context-gate": "The drafter takes 2048 tokens and the server 8192."}


@pytest.mark.parametrize(
    ("known", "code"),
    [
        ({}, "zero-acceptance"),
        ({"probe": DIFFERS}, "zero-acceptance"),  # a long sequence beside it may have stopped the probe's drafts, too
        ({"probe": ALONE}, "drafter-noise"),
        ({"probe": DIFFERS, "rulings": {}}, "drafter-noise"),
        ({"probe": DIFFERS, "rulings": GATE}, "context-gated"),
        ({"probe": ALONE, "rulings": GATE}, "drafter-noise"),
        ({"probe": SAME, "rulings": GATE}, "context-gated"),
    ],
)
def test_nothing_accepted_is_the_drafter_or_a_long_sequence_once_a_reading_says_so(
    known: dict[str, object], code: str
) -> None:
    for first in (0.0, 0.009):  # padding was accepted as often beside a long sequence on vLLM 0.32
        zero = change(positions=(first, 0.0, 0.0))
        assert name(judge(zero, asked=SideInfo(spec=ASKED_SPEC, **known))) == [code]  # type: ignore[arg-type]


def test_a_long_sequence_now_and_then_leaves_later_positions_as_they_were() -> None:
    asked = replace(ASKED, rulings=GATE)
    assert name(judge(change(positions=(0.25, 0.125, 0.065)), asked=asked)) == ["context-gated"]
    assert name(judge(change(positions=(0.25, 0.08, 0.02)), asked=asked))[0] == "traffic-changed"
    assert name(judge(HEALTHY, asked=asked)) == []


def test_more_runs_at_once_than_the_run_measured_leaves_steps_unknown() -> None:
    (found, *_) = judge(change(running=80.0, step_s=0.2))
    assert found.code == "above-crossover"
    assert (
        found.evidence[1]
        == "only steps with up to 64 running requests were measured, so it is unknown whether these are slower"
    )


def test_prefill_explains_no_more_of_a_step_than_the_time_it_takes() -> None:
    def crowd(prefill_s: float) -> Window:
        longer = change(prompt_tokens=2_500.0, step_s=0.06)
        return replace(longer, sums=replace(longer.sums, prefill_s=prefill_s * longer.duration_s))

    assert name(judge(crowd(0.7)))[0] == "prefill-crowds-steps"
    assert name(judge(crowd(0.1)))[0] == "step-cost-up"


@pytest.mark.parametrize(("requests", "stopped"), [(4.0, False), (5.0, True)])
def test_a_few_requests_without_a_draft_are_no_sign_that_drafting_stopped(requests: float, stopped: bool) -> None:
    window = change(coverage=0.0, step_s=0.02, running=0.0)
    few = replace(window, sums=replace(window.sums, finished=requests))
    assert ("drafts-stopped" in name(judge(few))) is stopped


def test_prompts_and_adapters_tell_kinds_of_traffic() -> None:
    longer = change(positions=(0.3, 0.12, 0.05), prompt_tokens=2_500.0)
    assert name(judge(longer))[0] == "context-grew"
    adapted = replace(change(positions=(0.3, 0.12, 0.05)), adapters=frozenset({"sql"}))
    assert name(judge(adapted))[0] == "lora-changed"


def test_a_schedule_that_stops_drafting_is_no_fault() -> None:
    rows = [[1, 4, 3], [5, 64, 0]]
    spec = SpecConfig(
        method="eagle3", num_speculative_tokens=3, options={"num_speculative_tokens_per_batch_size": rows}
    )
    asked = SideInfo(spec=spec, rulings={}, probe=SAME)
    assert name(judge(change(coverage=0.0), asked=asked)) == ["schedule-zero"]
    assert "schedule-ignored" not in name(judge(change(running=3.0), asked=asked))
    rows[1][2] = 1
    assert "schedule-ignored" in name(judge(HEALTHY, asked=asked))


def test_the_crossover_counts_what_runs() -> None:
    crowded = replace(HEALTHY, load=ServerLoad(running=8.0, waiting=90.0, kv_usage=0.4))
    assert "above-crossover" not in name(judge(crowded))


def test_the_same_counters_lose_or_gain_by_the_break_even_of_the_run() -> None:
    """No fixed acceptance decides: operators' guides draw the line at 0.5, where code gained and chat lost."""
    window = change(positions=(0.35, 0.05, 0.0))
    assert window.counters.spec.acceptance_rate is not None
    assert window.counters.spec.acceptance_rate < 0.5
    assert "fell-below-break-even" not in [each.code for each in judge(window)]
    lower = change(positions=(0.25, 0.05, 0.0))
    assert "fell-below-break-even" in [each.code for each in judge(lower)]


def test_without_a_baseline_the_methods_band_is_a_note_and_with_one_it_is_not_said() -> None:
    window = change(positions=(0.4, 0.16, 0.06))
    (found,) = [each for each in diagnose({"spec": [window]}, asked=SideInfo(spec=ASKED_SPEC)) if not each.follows_from]
    assert (found.code, found.severity) == ("acceptance-low", "info")
    assert "acceptance-low" not in name(judge(window))
    found = {each.code: each.message for each in diagnose({"spec": [change(positions=(0.13, 0.05, 0.02))]})}
    assert "all methods: 30% to 92%" in found["acceptance-low"]
    assert diagnose({"spec": [window]}) == ()
    probed = SideInfo(spec=ASKED_SPEC, probe=DIFFERS)  # it needs no window of the good time
    assert name(list(diagnose({"spec": [window]}, asked=probed))) == ["drafter-changed"]


@pytest.mark.parametrize("spec", [Server(finished=0.0), Server(steps=0.2, finished=0.01)])
def test_little_traffic_is_said_to_be_little(spec: Server) -> None:
    window = make_window(replace(spec, positions=(0.0,) * 3), seconds=60.0)
    assert set(name(judge(window))) <= {"no-traffic", "zero-acceptance"}


def test_the_evidence_names_the_position_of_each_rate() -> None:
    """Positions count from 0, as the label of vLLM's counter does."""
    dead = change(positions=(0.6, 0.3, 0.02))
    (last,) = [each for each in judge(dead) if each.code == "tail-dead"]
    assert last.evidence == (f"accepted at position 2 {dead.rate_per_pos[2]:.3g}",)
    fallen = change(positions=(0.5, 0.1, 0.06))
    (fell,) = [each for each in judge(fallen) if each.code == "tail-fell"]
    rates = enumerate(zip(fallen.conditional_rate_per_pos, HEALTHY.conditional_rate_per_pos, strict=True))
    assert fell.evidence == tuple(
        f"conditional at position {index} {now:.3g}, expected {then:.3g}" for index, (now, then) in rates
    )


def test_the_last_position_of_one_k_is_not_judged_by_the_drafts_of_another() -> None:
    short, long = change(positions=(0.6, 0.3)), change(positions=(0.6, 0.3, 0.02))
    assert "tail-dead" in {each.code for each in judge(long)}
    assert "tail-dead" not in {each.code for each in judge(short, replace(long, instance="b"))}


def test_drafts_of_varying_length_without_positions_tell_no_k() -> None:
    """llama.cpp and SGLang end drafts anywhere, and count no positions."""
    window = change(k=2.4)
    bare = replace(window, counters=replace(window.counters, spec=replace(window.counters.spec, accepted_per_pos=())))
    found = diagnose({"spec": [bare]}, EXPECTED, [PLAIN_WINDOW], SideInfo())
    assert "k-changed" not in [each.code for each in found]


def _summed(window: Window, **sums: float | None) -> Window:
    return replace(window, sums=replace(window.sums, **sums))


def _with_tail(window: Window, *, beyond: float) -> Window:
    """Return a window whose requests take 20 to 40 ms a token, but for a share that takes more than 100 ms."""
    total = window.sums.finished or 0.0
    tail = ((edge, beyond * total) for edge in (0.04, 0.1))
    return replace(window, slower_than=((0.0, total), (0.02, total), *tail, (0.2, 0.0)))


@pytest.mark.parametrize(
    ("ill", "running", "where"),
    [((0, 1, 2), 8.0, "spec"), ((1,), 8.0, "b"), ((1,), 20.0, "")],
    ids=["all", "one", "one with other load"],
)
def test_a_tail_is_told_of_those_that_have_it_under_the_load_of_the_plain_pool(
    ill: tuple[int, ...], running: float, where: str
) -> None:
    beyond = [0.06 if number in ill else 0.0 for number in range(3)]
    windows = [
        _with_tail(replace(HEALTHY, instance=name), beyond=each) for name, each in zip("abc", beyond, strict=True)
    ]
    windows[1] = replace(windows[1], load=replace(windows[1].load, running=running))
    found = diagnose({"spec": windows}, plain=[_with_tail(ALIKE, beyond=0.0)])
    assert [each.where for each in found if each.code == "p99-worse"] == ([where] if where else [])


DRAFTING_PLAIN = make_window(SPEC, pool="plain", instance="p")
FULL = change(waiting=12.0, kv=0.97, finished=1.4)
WAITING = _summed(FULL, queue_s=3.0 * (FULL.sums.finished or 0.0))
ALIKE = _summed(
    PLAIN_WINDOW,
    finished_tokens=HEALTHY.sums.finished_tokens,
    decode_s=2 * (PLAIN_WINDOW.sums.decode_s or 0.0),
)
AGED = {"uptime_s": 864_000.0}
SUFFIX = SpecConfig(method="suffix", num_speculative_tokens=K)
SYNTHETIC = replace(ASKED_SPEC, options={"rejection_sample_method": "synthetic", "synthetic_acceptance_rate": 0.6})


@pytest.mark.parametrize(
    ("code", "windows", "plain", "asked"),
    [
        ("pools-swapped", [make_window(PLAIN)], DRAFTING_PLAIN, ASKED),
        ("plain-pool-drafts", [HEALTHY], DRAFTING_PLAIN, ASKED),
        ("k-changed", [change(k=5.0, positions=(0.5, 0.25, 0.13, 0.05, 0.02))], PLAIN_WINDOW, ASKED),
        (
            "revisions-differ",
            [
                *(replace(HEALTHY, instance=name, revision="6f9d") for name in "ab"),
                *(replace(change(positions=(0.3, 0.1, 0.04)), instance=name, revision="7c2e") for name in "cd"),
            ],
            PLAIN_WINDOW,
            ASKED,
        ),
        (
            "metrics-differ",
            [*(replace(HEALTHY, instance=name) for name in "ab"), _summed(HEALTHY, decode_s=None, prefill_s=None)],
            PLAIN_WINDOW,
            ASKED,
        ),
        ("p99-worse", [_with_tail(HEALTHY, beyond=0.06)], _with_tail(ALIKE, beyond=0.0), ASKED),
        (
            "fades-with-uptime",
            [
                *(replace(HEALTHY, instance=name, uptime_s=3600.0) for name in "bc"),
                replace(change(positions=(0.3, 0.12, 0.06)), **AGED),
            ],
            PLAIN_WINDOW,
            ASKED,
        ),
        (
            "suffix-cold",
            [replace(change(positions=(0.3, 0.12, 0.06)), uptime_s=600.0)],
            PLAIN_WINDOW,
            replace(ASKED, spec=SUFFIX, rulings={}),
        ),
        ("synthetic-left-on", [HEALTHY], PLAIN_WINDOW, replace(ASKED, spec=SYNTHETIC, rulings={})),
        ("queue-grew", [WAITING], PLAIN_WINDOW, ASKED),
        ("admission-squeezed", [WAITING], PLAIN_WINDOW, ASKED),
        ("decode-is-little", [_summed(HEALTHY, prefill_s=4 * (HEALTHY.sums.decode_s or 0.0))], PLAIN_WINDOW, ASKED),
        ("outputs-short", [_summed(HEALTHY, finished_tokens=9 * (HEALTHY.sums.finished or 0.0))], None, ASKED),
        (
            "models-differ",
            [
                *(replace(HEALTHY, instance=name, model="llama") for name in "ab"),
                replace(HEALTHY, instance="c", model="qwen"),
            ],
            PLAIN_WINDOW,
            ASKED,
        ),
        ("models-differ", [replace(HEALTHY, model="m/llama")], replace(PLAIN_WINDOW, model="qwen"), ASKED),
    ],
)
def test_it_is_named(code: str, windows: list[Window], plain: Window | None, asked: SideInfo) -> None:
    assert code in {each.code for each in judge(*windows, plain=plain, asked=asked)}
    assert code not in {each.code for each in judge(HEALTHY)}
