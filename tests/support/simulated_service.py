"""A service whose servers are simulated request by request and step by step, and scraped as Prometheus scrapes vLLM.

Nothing here knows a rule or a formula of `draftwise.watching`. Requests arrive, wait, are prefilled with what the
prefix cache lacks, and decode in a shared batch, whose steps take what the tokens, contexts and draft passes in them
cost. Each request has a length and a disposition of its own to be drafted well, each draft token is accepted or not
by a draw, and requests that do not fit into the KV cache wait or are preempted. Counters are added up as vLLM does,
when tokens come or requests end, and are read off at the times of scrapes.

Costs are shaped like an 8B model's on one H200 (plain 4.7 ms at 1 and 13.8 ms at 256 requests).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numba import njit

PROMPT, OUTPUT, FIRST, DECAY, SHARED, ADAPTER_OF_CLASS = range(6)
CLASSES: Mapping[str, tuple[float, float, float, float, float, float]] = {
    # mean prompt and output tokens, log-odds of the first draft token, change by position, prefix share, adapter
    "code": (900.0, 320.0, 1.0, -0.05, 0.7, 0.0),
    "chat": (450.0, 260.0, -0.1, -0.05, 0.6, 0.0),
    "hot": (320.0, 300.0, -1.2, 0.0, 0.5, 0.0),
    "long": (9000.0, 260.0, 0.2, -0.05, 0.6, 0.0),
    "sql": (500.0, 220.0, -1.5, -0.1, 0.6, 1.0),
}
HEALTHY_MIX: Mapping[str, float] = {"code": 0.42, "chat": 0.53, "hot": 0.05}
POSITIONS = 8
COUNTERS = (
    *("generated", "drafts", "drafted", "accepted", "finished", "finished_tokens", "prompt_tokens"),
    *("decode_s", "prefill_s", "queue_s", "first_token_s", "first_tokens", "engine_steps", "preemptions"),
    *("queries", "hits", "running", "waiting", "kv", "adapter_seen_s"),
)


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server and what may be wrong with it."""

    rate: float = 14.0
    """Requests a second; 0 for a closed loop."""
    streams: float = 0.0
    """Of a closed loop: requests that are always in flight."""
    k: float = 3.0
    speculates: float = 1.0
    drafts_on: float = 1.0
    """0: the counters exist and no draft is made."""
    drift: float = 0.0
    """Added to the log-odds of every draft token: what the drafter has lost."""
    tail_drift: float = 0.0
    """The same, of every position but the first."""
    gate: float = 0.0
    """1: drafts are padding."""
    perfect: float = 0.0
    draftable: float = 0.99
    """Share of the requests for which drafts are made."""
    cut: float = 0.0
    """Share of the requests whose grammar leaves one draft token."""
    spread: float = 0.6
    """Standard deviation over requests of the log-odds."""
    context_loss: float = 0.9
    """Log-odds lost for each doubling of the context beyond 4,000 tokens."""
    machine: float = 1.0
    """Factor on every step."""
    prefill: float = 1.0
    """Factor on the work of prefilling."""
    kv_tokens: float = 400_000.0
    reserve: float = 16.0
    """Tokens kept free for each running request."""
    max_running: float = 256.0
    lost_block: float = 0.0
    """Share of a prefix hit that is dropped."""
    asleep: float = 0.0
    prompts: float = 1.0
    """Factor on prompt lengths."""
    outputs: float = 1.0
    shared: float = 1.0
    """Factor on the shared share of prompts."""
    uptime_s: float = 300_000.0
    mix: Mapping[str, float] = field(default_factory=lambda: dict(HEALTHY_MIX))

    def to_array(self) -> np.ndarray:
        """Return the numbers, in the order of the fields."""
        return np.array([float(getattr(self, each.name)) for each in fields(self) if each.name != "mix"])

    def weigh(self) -> np.ndarray:
        """Return the share of each class."""
        weights = np.array([self.mix.get(name, 0.0) for name in CLASSES])
        return weights / weights.sum()


PLAIN = Server(speculates=0.0)
_INDEX = {each.name: index for index, each in enumerate(fields(Server)) if each.name != "mix"}
# fmt: off
(RATE, STREAMS, K, SPECULATES, DRAFTS_ON, DRIFT, TAIL_DRIFT, GATE, PERFECT, DRAFTABLE, CUT, SPREAD, CONTEXT_LOSS,
 MACHINE, PREFILL, KV_TOKENS, RESERVE, MAX_RUNNING, LOST_BLOCK, ASLEEP, PROMPTS, OUTPUTS, SHARE,
 UPTIME) = _INDEX.values()
# fmt: on
EDGES_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Of vLLM's histogram of the mean time per output token of a request; the first edges of its 18."""
N_COUNTERS = len(COUNTERS) + POSITIONS + len(EDGES_S)
_TABLE = np.array(list(CLASSES.values()))
_BUDGET = 8192.0
"""Tokens that one step prefills."""
_NEVER = 1e18
_FIRST_POSITION = len(COUNTERS)
_FIRST_EDGE = _FIRST_POSITION + POSITIONS
_EDGES = np.array(EDGES_S)


@njit(cache=True)
def _step_ms(p: np.ndarray, decoding: int, tokens: float, context: float, prefill: float) -> float:
    """Return the cost of one step: weights and launches, tokens beyond what bandwidth hides, caches, draft passes."""
    cost = 4.45 + 0.004 * tokens + 0.045 * max(0.0, tokens - 220.0) + 3.2e-5 * context + 0.03 * prefill * p[PREFILL]
    if p[SPECULATES] > 0 and p[DRAFTS_ON] > 0 and decoding > 0:
        cost += p[K] * (0.3 + 0.0025 * decoding)
    return cost * p[MACHINE] * (1.0 + 0.03 * np.random.randn())


# fmt: off
(KIND, PROMPT_LENGTH, OUTPUT_LENGTH, DISPOSITION, IS_DRAFTED, IS_CUT, DONE, ARRIVED, SCHEDULED, FIRST_AT, TO_PREFILL,
 RESERVED) = range(12)
(GENERATED, DRAFTS, DRAFTED, ACCEPTED, FINISHED, FINISHED_TOKENS, PROMPT_TOKENS, DECODE_S, PREFILL_S, QUEUE_S,
 FIRST_TOKEN_S, FIRST_TOKENS, ENGINE_STEPS, PREEMPTIONS, QUERIES, HITS, RUNNING, WAITING, KV, ADAPTER) = range(20)
# fmt: on
HEAD, TAIL, NUM_BACK, NUM_RUNNING, KV_USED, ARRIVAL = range(6)
QUEUE = 200_000


@njit(cache=True)
def _draw_request(p: np.ndarray, row: np.ndarray, cumulative: np.ndarray, table: np.ndarray, arrived: float) -> None:
    kind = int(min(int(np.searchsorted(cumulative, np.random.random())), len(cumulative) - 1))
    row[:] = 0.0
    row[KIND] = kind
    row[PROMPT_LENGTH] = max(4.0, np.random.gamma(2.0, table[kind, PROMPT] * p[PROMPTS] / 2.0))
    row[OUTPUT_LENGTH] = max(1.0, np.floor(np.random.gamma(2.5, table[kind, OUTPUT] * p[OUTPUTS] / 2.5)))
    row[DISPOSITION] = np.random.randn() * p[SPREAD]
    row[IS_DRAFTED] = 1.0 if np.random.random() < p[DRAFTABLE] else 0.0
    row[IS_CUT] = 1.0 if np.random.random() < p[CUT] else 0.0
    row[ARRIVED] = arrived
    row[FIRST_AT] = -1.0


@njit(cache=True)
def _arrive(
    p: np.ndarray, s: np.ndarray, queue: np.ndarray, cumulative: np.ndarray, table: np.ndarray, now: float
) -> None:
    """Queue what has arrived: at its time, or as soon as a stream of a closed loop is free."""
    if p[RATE] == 0:
        while s[TAIL] - s[HEAD] + s[NUM_RUNNING] + s[NUM_BACK] < p[STREAMS] and p[ASLEEP] == 0:
            _draw_request(p, queue[int(s[TAIL]) % QUEUE], cumulative, table, now)
            s[TAIL] += 1
        return
    while s[ARRIVAL] <= now and s[TAIL] - s[HEAD] < QUEUE - 1:
        _draw_request(p, queue[int(s[TAIL]) % QUEUE], cumulative, table, s[ARRIVAL])
        s[TAIL] += 1
        s[ARRIVAL] += np.random.exponential(1.0 / p[RATE])


@njit(cache=True)
def _look_up_prefix(p: np.ndarray, c: np.ndarray, row: np.ndarray, table: np.ndarray) -> None:
    share = min(0.98, table[int(row[KIND]), SHARED] * p[SHARE] * (0.4 + 1.2 * np.random.random()))
    hit = np.floor(row[PROMPT_LENGTH] * share * (1.0 - p[LOST_BLOCK]) / 16.0) * 16.0
    c[QUERIES] += row[PROMPT_LENGTH]
    c[HITS] += hit
    row[TO_PREFILL] = max(1.0, row[PROMPT_LENGTH] - hit)


@njit(cache=True)
def _admit(
    p: np.ndarray,
    s: np.ndarray,
    c: np.ndarray,
    queue: np.ndarray,
    back: np.ndarray,
    run: np.ndarray,
    table: np.ndarray,
    now: float,
) -> None:
    """Start requests while there is room, those first that were preempted."""
    while s[NUM_RUNNING] < len(run) and p[ASLEEP] == 0 and (s[NUM_BACK] > 0 or s[TAIL] > s[HEAD]):
        is_back = s[NUM_BACK] > 0
        row = back[int(s[NUM_BACK]) - 1] if is_back else queue[int(s[HEAD]) % QUEUE]
        need = row[PROMPT_LENGTH] + row[DONE] + p[RESERVE]
        if s[KV_USED] + need > p[KV_TOKENS] and s[NUM_RUNNING] > 0:
            return
        mine = run[int(s[NUM_RUNNING])]
        mine[:] = row
        if is_back:
            s[NUM_BACK] -= 1
            mine[TO_PREFILL] = row[PROMPT_LENGTH] + row[DONE]
        else:
            s[HEAD] += 1
            mine[SCHEDULED] = now
            _look_up_prefix(p, c, mine, table)
        mine[RESERVED] = p[RESERVE]
        s[KV_USED] += need
        s[NUM_RUNNING] += 1


@njit(cache=True)
def _draft_length(p: np.ndarray, row: np.ndarray) -> int:
    if p[SPECULATES] == 0 or p[DRAFTS_ON] == 0 or row[IS_DRAFTED] == 0:
        return 0
    return int(min(p[K], 1.0)) if row[IS_CUT] > 0 else int(p[K])


@njit(cache=True)
def _plan_step(p: np.ndarray, run: np.ndarray, n: int) -> float:
    """Return how long the next step takes, in seconds."""
    tokens, context, prefill, decoding = 0.0, 0.0, 0.0, 0
    for i in range(n):
        context += run[i, PROMPT_LENGTH] + run[i, DONE]
        if run[i, TO_PREFILL] > 0:
            prefill += min(run[i, TO_PREFILL], max(0.0, _BUDGET - prefill))
        else:
            decoding += 1
            tokens += 1.0 + (p[K] if _draft_length(p, run[i]) else 0.0)
    return _step_ms(p, decoding, tokens, context, prefill) / 1000.0


@njit(cache=True)
def _verify(p: np.ndarray, c: np.ndarray, row: np.ndarray, table: np.ndarray) -> float:
    """Return the tokens that one decoding step gives a request."""
    k = _draft_length(p, row)
    if k == 0:
        return 1.0
    c[DRAFTS] += 1
    c[DRAFTED] += k
    kind, emitted = int(row[KIND]), 1.0
    far = max(0.0, np.log2((row[PROMPT_LENGTH] + row[DONE]) / 4000.0))
    for position in range(k):
        odds = table[kind, FIRST] + position * table[kind, DECAY] + row[DISPOSITION] + p[DRIFT] - p[CONTEXT_LOSS] * far
        odds += p[TAIL_DRIFT] if position > 0 else 0.0
        chance = 0.998 if p[PERFECT] > 0 else 1.0 / (1.0 + np.exp(-odds))
        if p[GATE] > 0 or np.random.random() >= chance:
            break
        c[ACCEPTED] += 1
        c[_FIRST_POSITION + position] += 1
        emitted += 1.0
    return emitted


@njit(cache=True)
def _prefill(c: np.ndarray, row: np.ndarray, budget: float, now: float) -> tuple[float, float]:
    """Return what a prefilling request takes of the budget of tokens, and the tokens that it is given."""
    chunk = min(row[TO_PREFILL], budget)
    row[TO_PREFILL] -= chunk
    if row[TO_PREFILL] > 0 or row[FIRST_AT] >= 0:
        return chunk, 0.0
    row[FIRST_AT] = now
    c[FIRST_TOKEN_S] += now - row[ARRIVED]
    c[FIRST_TOKENS] += 1
    return chunk, 1.0


@njit(cache=True)
def _finish(c: np.ndarray, row: np.ndarray, now: float) -> None:
    c[FINISHED] += 1
    c[FINISHED_TOKENS] += row[OUTPUT_LENGTH]
    c[PROMPT_TOKENS] += row[PROMPT_LENGTH]
    c[DECODE_S] += now - row[FIRST_AT]
    c[PREFILL_S] += row[FIRST_AT] - row[SCHEDULED]
    c[QUEUE_S] += row[SCHEDULED] - row[ARRIVED]
    per_token = (now - row[FIRST_AT]) / max(1.0, row[OUTPUT_LENGTH] - 1)  # of one token it is 0, as vLLM has it
    for i in range(len(_EDGES)):
        c[_FIRST_EDGE + i] += per_token <= _EDGES[i]


@njit(cache=True)
def _advance(p: np.ndarray, s: np.ndarray, c: np.ndarray, run: np.ndarray, table: np.ndarray, now: float) -> None:
    """Give every running request what the step computed for it."""
    budget, i = _BUDGET, 0
    while i < s[NUM_RUNNING]:
        row = run[i]
        if row[TO_PREFILL] > 0:
            taken, emitted = _prefill(c, row, budget, now)
            budget -= taken
        else:
            emitted = _verify(p, c, row, table)
        if table[int(row[KIND]), ADAPTER_OF_CLASS] > 0:
            c[ADAPTER] = now
        emitted = min(emitted, row[OUTPUT_LENGTH] - row[DONE])
        held = min(row[RESERVED], emitted)
        row[RESERVED] -= held
        row[DONE] += emitted
        s[KV_USED] += emitted - held
        c[GENERATED] += emitted
        if row[DONE] >= row[OUTPUT_LENGTH]:
            _finish(c, row, now)
            _remove(s, run, i)
        else:
            i += 1


@njit(cache=True)
def _remove(s: np.ndarray, run: np.ndarray, i: int) -> None:
    s[KV_USED] -= run[i, PROMPT_LENGTH] + run[i, DONE] + run[i, RESERVED]
    run[i] = run[int(s[NUM_RUNNING]) - 1]
    s[NUM_RUNNING] -= 1


@njit(cache=True)
def _preempt(p: np.ndarray, s: np.ndarray, c: np.ndarray, run: np.ndarray, back: np.ndarray) -> None:
    """Set the newest requests back until the others fit."""
    while s[KV_USED] > p[KV_TOKENS] and s[NUM_RUNNING] > 1:
        newest = int(np.argmax(run[: int(s[NUM_RUNNING]), SCHEDULED]))
        back[int(s[NUM_BACK])] = run[newest]
        s[NUM_BACK] += 1
        _remove(s, run, newest)
        c[PREEMPTIONS] += 1


@njit(cache=True)
def simulate(p: np.ndarray, weights: np.ndarray, table: np.ndarray, scrapes: np.ndarray, seed: int) -> np.ndarray:
    """Return the counters and gauges at the times of the scrapes, in seconds since the start.

    Args:
        p: a server's numbers.
        weights: of the classes.
        table: the classes.
        scrapes: ascending.
        seed: of all draws.
    """
    np.random.seed(seed)
    out, c, s = np.zeros((len(scrapes), N_COUNTERS)), np.zeros(N_COUNTERS), np.zeros(6)
    queue, run = np.zeros((QUEUE, 12)), np.zeros((int(p[MAX_RUNNING]), 12))
    back = np.zeros((len(run) + 1, 12))
    cumulative = np.cumsum(weights)
    s[ARRIVAL] = np.random.exponential(1.0 / p[RATE]) if p[RATE] > 0 else _NEVER
    now, index = 0.0, 0
    while index < len(scrapes):
        _arrive(p, s, queue, cumulative, table, now)
        _admit(p, s, c, queue, back, run, table, now)
        n = int(s[NUM_RUNNING])
        after = now + _plan_step(p, run, n) if n else (s[ARRIVAL] if p[ASLEEP] == 0 else _NEVER)
        while index < len(scrapes) and scrapes[index] <= after:
            c[RUNNING], c[WAITING], c[KV] = n, s[TAIL] - s[HEAD] + s[NUM_BACK], s[KV_USED] / p[KV_TOKENS]
            out[index] = c
            index += 1
        now = after
        if n:
            c[ENGINE_STEPS] += 1
            _advance(p, s, c, run, table, now)
            _preempt(p, s, c, run, back)
    return out


def run_server(server: Server, scrapes: np.ndarray, seed: int) -> np.ndarray:
    """Return a server's counters at the scrapes."""
    return simulate(server.to_array(), server.weigh(), _TABLE, scrapes, seed)


_SAMPLES = {
    "generated": "generation_tokens_total",
    "finished": "request_generation_tokens_count",
    "finished_tokens": "request_generation_tokens_sum",
    "prompt_tokens": "request_prompt_tokens_sum",
    "decode_s": "request_decode_time_seconds_sum",
    "prefill_s": "request_prefill_time_seconds_sum",
    "queue_s": "request_queue_time_seconds_sum",
    "first_token_s": "time_to_first_token_seconds_sum",
    "first_tokens": "time_to_first_token_seconds_count",
    "engine_steps": "iteration_tokens_total_count",
    "preemptions": "num_preemptions_total",
    "queries": "prefix_cache_queries_total",
    "hits": "prefix_cache_hits_total",
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv": "kv_cache_usage_perc",
}
_SPEC_SAMPLES = {
    "drafts": "spec_decode_num_drafts_total",
    "drafted": "spec_decode_num_draft_tokens_total",
    "accepted": "spec_decode_num_accepted_tokens_total",
}


def write_page(server: Server, row: np.ndarray, *, at_s: float, start_s: float) -> str:
    """Return vLLM's text of /metrics at one scrape.

    Args:
        server: whose counters these are.
        row: of `run_server`.
        at_s: time of the scrape, in seconds since the epoch.
        start_s: when the process started.
    """
    label = 'engine="0",model_name="m"'
    counts = dict(zip(COUNTERS, row, strict=False))
    samples = _SAMPLES | (_SPEC_SAMPLES if server.speculates else {})
    lines = [f"vllm:{sample}{{{label}}} {counts[name]:.9g}" for name, sample in samples.items()]
    if server.speculates:
        per_pos = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{per_pos}{{{label},position="{i}"}} {row[_FIRST_POSITION + i]:.0f}' for i in range(int(server.k))]
    bucket = "vllm:request_time_per_output_token_seconds_bucket"
    lines += [f'{bucket}{{{label},le="{edge}"}} {row[_FIRST_EDGE + i]:.0f}' for i, edge in enumerate(EDGES_S)]
    lines.append(f'{bucket}{{{label},le="+Inf"}} {counts["finished"]:.0f}')
    lines.append(f'vllm:engine_sleep_state{{{label},sleep_state="awake"}} {0 if server.asleep else 1}')
    if counts["adapter_seen_s"]:
        name = 'max_lora="4",running_lora_adapters="sql",waiting_lora_adapters=""'
        lines.append(f"vllm:lora_requests_info{{{name}}} {at_s:.0f}")
    lines.append(f"process_start_time_seconds {start_s:.2f}")
    return "\n".join(lines) + "\n"


def scrape(
    server: Server, *, seed: int, seconds: float, settle_s: float = 120.0, every_s: float = 15.0
) -> Iterator[tuple[float, str]]:
    """Yield times and pages of a server over a window, after it has settled.

    Args:
        server: the server.
        seed: of all draws.
        seconds: length of the window.
        settle_s: simulated before the first scrape: as long as a few requests take.
        every_s: between scrapes.
    """
    times = settle_s + np.arange(0.0, seconds + every_s / 2, every_s)
    rows = run_server(server, times, seed)
    epoch = 1_790_000_000.0
    for time, row in zip(times, rows, strict=True):
        at_s = epoch + time
        yield at_s, write_page(server, row, at_s=at_s, start_s=epoch - server.uptime_s)


def change(server: Server, **changes: object) -> Server:
    """Return a server with other numbers."""
    return replace(server, **changes)  # type: ignore[arg-type]


@njit(cache=True)
def _count_probe_steps(p: np.ndarray, row: np.ndarray, prompts: int, tokens: int, seed: int) -> np.ndarray:
    steps = np.zeros(prompts)
    for prompt in range(prompts):
        np.random.seed(seed * 1000 + prompt)
        disposition = np.random.randn() * p[SPREAD]
        draws = np.random.random((tokens, POSITIONS))
        done = 0
        while done < tokens:
            steps[prompt] += 1
            at = done
            done += 1
            if p[SPECULATES] == 0 or p[DRAFTS_ON] == 0 or p[GATE] > 0:
                continue
            for position in range(int(p[K])):
                odds = row[FIRST] + position * row[DECAY] + disposition + p[DRIFT]
                odds += p[TAIL_DRIFT] if position > 0 else 0.0
                chance = 0.998 if p[PERFECT] > 0 else 1.0 / (1.0 + np.exp(-odds))
                if draws[min(at, tokens - 1), position] >= chance:
                    break
                done += 1
    return steps


def simulate_probe(server: Server, prompts: int, seed: int, tokens: int = 64) -> np.ndarray:
    """Return the steps of each prompt of a probe at temperature 0: the same draws, whatever became of the drafter."""
    return _count_probe_steps(server.to_array(), np.array(CLASSES["chat"]), prompts, tokens, seed)
