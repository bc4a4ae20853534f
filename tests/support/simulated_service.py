"""A service whose servers are simulated request by request and step by step, and scraped as Prometheus scrapes vLLM.

Nothing here knows a rule or a formula of `draftwise.watch`. Requests arrive, wait, are prefilled with what the prefix
cache lacks, and decode in a shared batch, whose steps take what the tokens, contexts and draft passes in them cost.
Each request has a length and a disposition of its own to be drafted well, each draft token is accepted or not by a
draw, and requests that do not fit into the KV cache wait or are preempted. Counters are added up as vLLM does, when
tokens come or requests end, and are read off at the times of scrapes.

Costs are shaped like an 8B model's on one H200 (plain 4.7 ms at 1 and 13.8 ms at 256 requests).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numba import njit

PROMPT, OUTPUT, FIRST, DECAY, SHARED, ADAPTER = range(6)
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
 MACHINE, PREFILL, KV_TOKENS, RESERVE, MAX_RUNNING, LOST_BLOCK, ASLEEP, PROMPTS, OUTPUTS, SHARE, UPTIME) = _INDEX.values()
# fmt: on
N_COUNTERS = len(COUNTERS) + POSITIONS
_TABLE = np.array(list(CLASSES.values()))
_CHUNK = 2048.0


@njit(cache=True)
def _step_ms(p: np.ndarray, decoding: int, tokens: float, context: float, prefill: float) -> float:
    """Return the cost of one step: weights and launches, tokens beyond what bandwidth hides, caches, draft passes."""
    cost = 4.45 + 0.004 * tokens + 0.045 * max(0.0, tokens - 220.0) + 3.2e-5 * context + 0.03 * prefill * p[PREFILL]
    if p[SPECULATES] > 0 and p[DRAFTS_ON] > 0 and decoding > 0:
        cost += p[K] * (0.3 + 0.0025 * decoding)
    return cost * p[MACHINE] * (1.0 + 0.03 * np.random.randn())


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
    n_max = int(p[MAX_RUNNING])
    queue_max = 200_000
    out = np.zeros((len(scrapes), N_COUNTERS))
    c = np.zeros(N_COUNTERS)
    # of a request: class, prompt, output, disposition, draftable, cut, done, arrival, scheduled, first token, to prefill
    queue = np.zeros((queue_max, 12))
    head, tail = 0, 0
    back = np.zeros((n_max + 1, 12))
    n_back = 0
    run = np.zeros((n_max, 12))
    n = 0
    now, index = 0.0, 0
    arrival = np.random.exponential(1.0 / p[RATE]) if p[RATE] > 0 else 1e18
    kv = 0.0
    cumulative = np.cumsum(weights)
    while True:
        # arrivals
        while arrival <= now or (p[RATE] == 0 and (tail - head) + n + n_back < p[STREAMS] and p[ASLEEP] == 0):
            kind = min(np.searchsorted(cumulative, np.random.random()), len(weights) - 1)
            row = queue[tail % queue_max]
            row[0] = kind
            row[1] = max(4.0, np.random.gamma(2.0, table[kind, PROMPT] * p[PROMPTS] / 2.0))
            row[2] = max(1.0, np.floor(np.random.gamma(2.5, table[kind, OUTPUT] * p[OUTPUTS] / 2.5)))
            row[3] = np.random.randn() * p[SPREAD]
            row[4] = 1.0 if np.random.random() < p[DRAFTABLE] else 0.0
            row[5] = 1.0 if np.random.random() < p[CUT] else 0.0
            row[6] = 0.0
            row[7] = arrival if p[RATE] > 0 else now
            row[9] = -1.0
            tail += 1
            if p[RATE] > 0:
                arrival += np.random.exponential(1.0 / p[RATE])
            if tail - head >= queue_max - 1:
                return out
        # admission: preempted requests first
        while n < n_max and p[ASLEEP] == 0 and (n_back > 0 or tail > head):
            row = back[n_back - 1] if n_back > 0 else queue[head % queue_max]
            need = row[1] + row[6] + p[RESERVE]
            if kv + need > p[KV_TOKENS] and n > 0:
                break
            run[n] = row
            if n_back > 0:
                n_back -= 1
                run[n, 10] = row[1] + row[6]
            else:
                head += 1
                share = min(0.98, table[int(row[0]), SHARED] * p[SHARE] * (0.4 + 1.2 * np.random.random()))
                hit = np.floor(row[1] * share * (1.0 - p[LOST_BLOCK]) / 16.0) * 16.0
                c[14] += row[1]
                c[15] += hit
                run[n, 8] = now
                run[n, 10] = max(1.0, row[1] - hit)
            run[n, 11] = p[RESERVE]
            kv += need
            n += 1
        if n == 0:
            after = arrival if p[ASLEEP] == 0 else 1e18
        else:
            tokens, context, prefill, decoding = 0.0, 0.0, 0.0, 0
            for i in range(n):
                context += run[i, 1] + run[i, 6]
                if run[i, 10] > 0:
                    prefill += min(run[i, 10], max(0.0, 4 * _CHUNK - prefill))
                else:
                    decoding += 1
                    tokens += 1.0
                    if p[SPECULATES] > 0 and p[DRAFTS_ON] > 0 and run[i, 4] > 0:
                        tokens += p[K]
            after = now + _step_ms(p, decoding, tokens, context, prefill) / 1000.0
        while index < len(scrapes) and scrapes[index] <= after:
            c[16], c[17] = n, (tail - head) + n_back
            c[18] = kv / p[KV_TOKENS]
            out[index] = c
            index += 1
        if index == len(scrapes):
            return out
        now = after
        if n == 0:
            continue
        c[12] += 1
        budget = 4 * _CHUNK
        i = 0
        while i < n:
            r = run[i]
            emitted = 0.0
            if r[10] > 0:
                chunk = min(r[10], budget)
                budget -= chunk
                r[10] -= chunk
                if r[10] <= 0 and r[9] < 0:
                    r[9] = now
                    emitted = 1.0
                    c[10] += now - r[7]
                    c[11] += 1
            else:
                emitted = 1.0
                if p[SPECULATES] > 0 and p[DRAFTS_ON] > 0 and r[4] > 0:
                    k = int(min(p[K], 1.0 if r[5] > 0 else p[K]))
                    c[1] += 1
                    c[2] += k
                    kind = int(r[0])
                    far = max(0.0, np.log2((r[1] + r[6]) / 4000.0))
                    for position in range(k):
                        odds = table[kind, FIRST] + position * table[kind, DECAY] + r[3] + p[DRIFT]
                        odds -= p[CONTEXT_LOSS] * far
                        if position > 0:
                            odds += p[TAIL_DRIFT]
                        chance = 1.0 / (1.0 + np.exp(-odds))
                        if p[PERFECT] > 0:
                            chance = 0.998
                        if p[GATE] > 0 or np.random.random() >= chance:
                            break
                        c[3] += 1
                        c[20 + position] += 1
                        emitted += 1.0
            if table[int(r[0]), ADAPTER] > 0:
                c[19] = now
            emitted = min(emitted, r[2] - r[6])
            r[6] += emitted
            held = min(r[11], emitted)
            r[11] -= held
            kv += emitted - held
            c[0] += emitted
            if r[6] >= r[2]:
                c[4] += 1
                c[5] += r[2]
                c[6] += r[1]
                c[7] += now - r[9]
                c[8] += r[9] - r[8]
                c[9] += r[8] - r[7]
                kv -= r[1] + r[6] + r[11]
                run[i] = run[n - 1]
                n -= 1
            else:
                i += 1
        while kv > p[KV_TOKENS] and n > 1:
            last = 0
            for j in range(n):
                if run[j, 8] > run[last, 8]:
                    last = j
            kv -= run[last, 1] + run[last, 6] + run[last, 11]
            back[n_back] = run[last]
            n_back += 1
            run[last] = run[n - 1]
            n -= 1
            c[13] += 1


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
        lines += [f'{per_pos}{{{label},position="{i}"}} {row[20 + i]:.0f}' for i in range(int(server.k))]
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
