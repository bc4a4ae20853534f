"""Random traffic over every method, engine after engine, looking for leaks, hangs and wrong answers.

    python benchmarks/h200/soak.py --minutes 20 --out benchmarks/h200/results/soak.json
    python benchmarks/h200/soak.py --minutes 2 --device cpu --dtype float32

Requests arrive and are aborted at random, with random lengths and sampling parameters, into a pool so small that
sequences are preempted. Checked: every request ends or was aborted, and gets nothing afterwards; nothing is left in
the pool when an engine is drained; known greedy answers come back (in bfloat16 the plain engine judges differences:
a numerical tie is counted, anything else fails); memory neither grows while an engine runs nor from one round over
all methods to the next. A line every ten seconds; the exit code is 1 when something failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from draftwise import LLM, SamplingParams
from draftwise.core import SpecConfig
from draftwise.engine.core import Engine, Pending
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.engine_outputs import Delta
from draftwise.engine.step.scheduler import EngineRequest
from draftwise.engine.text.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from greedy_equality import MAY_TIE, METHODS, NEAR, TIE_GAP, add_bundle, gap_below_best, provenance, write


@dataclass(frozen=True, slots=True)
class Known:
    """A prompt and what plain greedy decoding answers."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def read_texts(folder: Path, tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Return the token ids of the first prompts of each workload."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()[:count])
    return [
        tokenizer.encode(each["prompt"])
        if "prompt" in each
        else tokenizer.encode(tokenizer.apply_chat_template(each["messages"]), False)
        for each in map(json.loads, lines)
    ]


class Traffic:
    """Makes requests; the same seed makes the same ones.

    Args:
        texts: token ids that prompts are cut from; many share a prefix.
        known: prompts with known answers.
        longest: longest prompt plus output.
    """

    def __init__(self, texts: list[list[int]], known: list[Known], *, longest: int, seed: int) -> None:
        self._texts, self._known, self._longest = texts, known, longest
        self.rng = random.Random(seed)
        self._count = 0

    def next(self) -> tuple[EngineRequest, tuple[int, ...] | None]:
        """Return a request, and the answer that it must get if that is known."""
        rng = self.rng
        self._count += 1
        if rng.random() < 0.4:
            known = rng.choice(self._known)
            limit = rng.randint(1, len(known.answer))
            # Asking for log-probabilities must not change the answer.
            logprobs = rng.choice((None, None, None, 0, 3))
            params = SamplingParams(temperature=0, max_tokens=limit, logprobs=logprobs, ignore_eos=True)
            return self._request(list(known.prompt), params), known.answer[:limit]
        prompt = self._prompt()
        return self._request(prompt, self._params(self._longest - len(prompt))), None

    def _request(self, prompt: list[int], params: SamplingParams) -> EngineRequest:
        return EngineRequest(request_id=f"r{self._count}", prompt_token_ids=prompt, params=params)

    def _prompt(self) -> list[int]:
        """Return a prompt of one token to nearly the context: texts after each other, cut somewhere."""
        rng = self.rng
        length = rng.choice((1, rng.randint(2, 40), rng.randint(40, 200), rng.randint(200, self._longest - 2)))
        tokens = list(rng.choice(self._texts))
        while len(tokens) < length:
            tokens += rng.choice(self._texts)
        return tokens[:length]

    def _params(self, room: int) -> SamplingParams:
        """Return random sampling parameters."""
        rng = self.rng
        chosen: dict[str, Any] = {
            "max_tokens": max(1, min(room, rng.choice((1, 8, 32, 96, 160)))),
            "temperature": rng.choice((0, 0, 0.3, 0.8, 1.0, 1.5)),
        }
        for name, make, share in self._extras():
            if rng.random() < share:
                chosen[name] = make()
        if chosen.get("min_tokens", 0) > chosen["max_tokens"]:
            del chosen["min_tokens"]
        return SamplingParams(**chosen)

    def _extras(self) -> tuple[tuple[str, Callable[[], Any], float], ...]:
        """Return what else a request may ask for, how to choose it, and how often it does."""
        rng = self.rng
        return (
            ("top_p", lambda: rng.choice((0.5, 0.9, 0.99)), 0.3),
            ("top_k", lambda: rng.choice((1, 5, 40)), 0.3),
            ("min_p", lambda: rng.choice((0.02, 0.2)), 0.15),
            ("repetition_penalty", lambda: rng.choice((0.9, 1.1, 1.3)), 0.15),
            ("presence_penalty", lambda: rng.choice((-0.5, 0.7)), 0.1),
            ("frequency_penalty", lambda: rng.choice((-0.5, 0.7)), 0.1),
            ("logit_bias", lambda: {rng.randrange(4096): rng.choice((-5.0, 3.0)) for _ in range(3)}, 0.1),
            ("bad_words", lambda: [" the", "return"], 0.08),
            ("stop", lambda: rng.choice((["\n\n"], ["def", "class"], ["."])), 0.2),
            ("include_stop_str_in_output", lambda: True, 0.1),
            ("stop_token_ids", lambda: [rng.randrange(4096) for _ in range(2)], 0.1),
            ("ignore_eos", lambda: True, 0.3),
            ("min_tokens", lambda: rng.choice((2, 10)), 0.1),
            ("seed", lambda: rng.randrange(2**31), 0.3),
            ("n", lambda: rng.choice((2, 3)), 0.12),
            ("logprobs", lambda: rng.choice((0, 1, 5)), 0.25),
            ("prompt_logprobs", lambda: rng.choice((0, 2)), 0.08),
            ("num_speculative_tokens", lambda: rng.choice((0, 1, 3)), 0.15),
        )


MAX_MODEL_LEN, MAX_NUM_SEQS, NUM_PAGES = 640, 16, 220
MOST_OPEN = 40
"""Requests in the engine at once, running and waiting."""
DRAIN_S = 60
GROWTH_BYTES = {"device": 64 << 20, "rss": 192 << 20}
"""How much more memory may be in use later than earlier, before that counts as a leak."""

Row = dict[str, Any]


@dataclass(slots=True)
class Open:
    """A request inside the engine."""

    n: int
    max_tokens: int
    expected: tuple[int, ...] | None
    abort_after: int | None
    """Deltas after which it is aborted; None: never."""
    known_prompt: tuple[int, ...]
    deltas: int = 0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)


class Watch:
    """What is counted over all engines, and what went wrong."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("sent", "ended", "aborted", "tokens", "known", "differing", "ties"), 0)
        self.failures: list[str] = []
        self.differences: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []
        """Prompt, expected and received tokens."""

    def fail(self, text: str) -> None:
        """Note a failure; the first hundred are kept."""
        print("FAILED", text, flush=True)
        if len(self.failures) < 100:
            self.failures.append(text)


class Period:
    """One engine from start to drained."""

    def __init__(self, method: str, engine: Engine, traffic: Traffic, watch: Watch) -> None:
        self.method, self._engine, self._traffic, self._watch = method, engine, traffic, watch
        self._pending: Pending = ()
        self._open: dict[str, Open] = {}
        self._memory: list[dict[str, int]] = []

    def run(self, seconds: float, say: Any) -> Row:
        """Send requests for so long, drain, check, and return a row."""
        began, before = time.monotonic(), dict(self._watch.counts)
        while time.monotonic() - began < seconds:
            self._arrive()
            self._step()
            if not self._memory or time.monotonic() - self._memory[-1]["at"] > 0.5:
                self._memory.append({"at": time.monotonic()} | memory())  # type: ignore[arg-type]
            say(self)
        self._drain()
        stats = self._engine.stats()
        self._check_memory()
        counts = {name: self._watch.counts[name] - before[name] for name in before}
        return {
            "method": self.method,
            "seconds": round(time.monotonic() - began, 1),
            "preemptions": stats.num_preemptions,
            "cached_tokens": stats.prefix_cache_hits,
            "acceptance_length": stats.spec.acceptance_length,
        } | counts

    def _arrive(self) -> None:
        """Add requests: bursts now and then, nothing for a while at times."""
        rng = self._traffic.rng
        for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2, 6))):
            if len(self._open) >= MOST_OPEN or rng.random() < 0.3:
                return
            request, expected = self._traffic.next()
            params = request.params
            abort_after = rng.randint(0, 20) if rng.random() < 0.15 else None
            self._open[request.request_id] = Open(
                params.n, params.max_tokens or 0, expected, abort_after, tuple(request.prompt_token_ids)
            )
            self._engine.add(request)
            self._watch.counts["sent"] += 1
            if abort_after == 0:
                self._abort(request.request_id)

    def _step(self) -> None:
        self._pending, deltas = self._engine.step(self._pending)
        for delta in deltas:
            self._take(delta)
        for request_id, request in list(self._open.items()):
            if request.abort_after is not None and request.deltas >= request.abort_after:
                self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        self._engine.abort(request_id)
        del self._open[request_id]
        self._watch.counts["aborted"] += 1

    def _take(self, delta: Delta) -> None:
        """Check an increment and keep its tokens."""
        request = self._open.get(delta.request_id)
        if request is None or delta.index in request.ended:
            self._watch.fail(f"{self.method}: a delta came for {delta.request_id}, which had ended")
            return
        request.deltas += 1
        tokens = request.tokens.setdefault(delta.index, [])
        tokens += delta.token_ids
        self._watch.counts["tokens"] += len(delta.token_ids)
        if len(tokens) > request.max_tokens:
            self._watch.fail(f"{self.method}: {len(tokens)} tokens where {request.max_tokens} were allowed")
        if delta.finish_reason is None:
            return
        request.ended.add(delta.index)
        if len(request.ended) == request.n:
            del self._open[delta.request_id]
            self._watch.counts["ended"] += 1
            self._compare(request)

    def _compare(self, request: Open) -> None:
        if request.expected is None:
            return
        self._watch.counts["known"] += 1
        got = tuple(request.tokens[0])
        if got != request.expected:
            self._watch.counts["differing"] += 1
            self._watch.differences.append((request.known_prompt, request.expected, got))

    def _drain(self) -> None:
        """Let everything end, or abort it in one case of three, and check that nothing stays behind."""
        if self._traffic.rng.random() < 1 / 3:
            for request_id in list(self._open):
                self._abort(request_id)
        until = time.monotonic() + DRAIN_S
        while self._engine.has_work() and time.monotonic() < until:
            self._step()
        self._pending = ()  # what was still on its way when the last request was aborted
        pool, left = self._engine.scheduler.pool, len(self._open)
        if left or self._engine.has_work():
            self._watch.fail(f"{self.method}: {left} requests had not ended {DRAIN_S} s after the last arrival")
        if pool.usage:
            self._watch.fail(f"{self.method}: {round(pool.usage * pool.num_pages)} pages are held by nobody")
        pool.check_integrity()

    def _check_memory(self) -> None:
        """Compare the least in use in the third quarter of the period with that of the fourth."""
        quarter = len(self._memory) // 4
        for kind in ("device", "rss") if quarter >= 4 else ():
            third, fourth = (min(each[kind] for each in self._memory[i * quarter :][:quarter]) for i in (2, 3))
            if fourth - third > GROWTH_BYTES[kind]:
                self._watch.fail(f"{self.method}: {kind} memory grew by {(fourth - third) >> 20} MiB in a quarter")


def memory() -> dict[str, int]:
    """Return the bytes in use: torch's on the device, and the process's own."""
    device = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    reserved = torch.cuda.memory_reserved() if torch.cuda.is_available() else 0
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    return {"device": device, "reserved": reserved, "rss": pages * 4096}


class Soak:
    """All methods round after round until the time is over."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.watch = args, Watch()
        self.began = time.monotonic()
        self.rows: list[Row] = []
        self._said = 0.0
        settings = {"device": args.device, "dtype": args.dtype, "num_gpu_blocks_override": 4 * NUM_PAGES}
        plain = LLM(str(args.bundle / "target"), max_model_len=MAX_MODEL_LEN, **settings)
        texts = read_texts(args.workloads, plain.get_tokenizer(), 12)
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
        short = [text for text in texts if len(text) < 300]
        answers = plain.generate([{"prompt_token_ids": ids} for ids in short], params)
        known = [Known(tuple(p), tuple(a.outputs[0].token_ids)) for p, a in zip(short, answers, strict=True)]
        self.traffic = Traffic(texts, known, longest=MAX_MODEL_LEN, seed=args.seed)

    def run(self) -> Row:
        """Return the result; it is also written after every engine."""
        seconds, turn = 60 * self.args.minutes, 0
        each_s = self.args.switch_s or min(60.0, seconds / (3 * len(self.args.methods)))
        while self.elapsed() < seconds:
            method = self.args.methods[turn % len(self.args.methods)]
            try:
                row = self._period(method, min(each_s, max(seconds - self.elapsed(), 2.0)))
            except Exception:
                traceback.print_exc()
                self.watch.fail(f"{method}: {traceback.format_exc()[-700:]}")
                row = {"method": method, "error": True}
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.rows.append(row | {"round": turn // len(self.args.methods), "after": memory()})
            turn += 1
            self.write()
        self._judge_differences()
        self._check_rounds()
        return self.write()

    def elapsed(self) -> float:
        """Return seconds since the start."""
        return time.monotonic() - self.began

    def _period(self, method: str, seconds: float) -> Row:
        folder = self.args.bundle / method
        spec = None if method == "plain" else METHODS[method] | ({"model": str(folder)} if folder.is_dir() else {})
        config = EngineConfig.from_settings(
            model=str(self.args.bundle / "target"),
            device=self.args.device,
            dtype=self.args.dtype,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=256,
            num_gpu_blocks_override=NUM_PAGES,
        )
        engine = Engine(config, None if spec is None else SpecConfig.parse(json.dumps(spec)))
        return Period(method, engine, self.traffic, self.watch).run(seconds, self._say)

    def _say(self, period: Period) -> None:
        if time.monotonic() - self._said > 10:
            self._said = time.monotonic()
            used = {name: f"{value >> 20} MiB" for name, value in memory().items()}
            print(f"[{self.elapsed():.0f} s] {period.method} {self.watch.counts} {used}", flush=True)

    def _judge_differences(self) -> None:
        """Ask the plain engine how close the choice was where a known answer did not come back."""
        if not self.watch.differences:
            return
        settings = {"device": self.args.device, "dtype": self.args.dtype, "num_gpu_blocks_override": 4 * NUM_PAGES}
        plain = LLM(str(self.args.bundle / "target"), max_model_len=MAX_MODEL_LEN, **settings)
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=NEAR)
        parted = []
        for prompt, expected, got in self.watch.differences:
            at = next((i for i, (x, y) in enumerate(zip(expected, got, strict=False)) if x != y), None)
            if at is None:
                self.watch.fail(f"a known answer has {len(got)} tokens instead of {len(expected)}")
            else:
                parted.append((at, [*prompt, *expected[:at]], expected[at], got[at]))
        answers = plain.generate([{"prompt_token_ids": ids} for _, ids, _, _ in parted], params)
        for (at, _, wanted, taken), answer in zip(parted, answers, strict=True):
            gap = gap_below_best((answer.outputs[0].logprobs or [])[0], wanted, taken)
            if self.args.dtype in MAY_TIE and gap <= TIE_GAP[self.args.dtype]:
                self.watch.counts["ties"] += 1
            else:
                self.watch.fail(f"a known answer differs at token {at}, where its token is {gap} below the best")

    def _check_rounds(self) -> None:
        """Compare what is left in use once an engine is gone: on the device always, of the process from round 1 on."""
        on_device = self.rows[0]["after"]["device"]
        first = {row["method"]: row["after"]["rss"] for row in self.rows if row["round"] == 1}
        for row in self.rows:
            name, kept = row["method"], row["after"]["device"] - on_device
            grown = row["after"]["rss"] - first.get(name, sys.maxsize) if row["round"] > 1 else 0
            if kept > GROWTH_BYTES["device"]:
                self.watch.fail(f"{kept >> 20} MiB more than at first stay in use on the device after {name}")
            if grown > GROWTH_BYTES["rss"]:
                self.watch.fail(f"the process has {grown >> 20} MiB more after {name} than in round 1")

    def write(self) -> Row:
        """Write what is known so far, and return it."""
        result = provenance(self.args.device) | {
            "minutes": round(self.elapsed() / 60, 2),
            "counts": self.watch.counts,
            "failures": self.watch.failures,
            "periods": self.rows,
        }
        write(self.args.out, result)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--switch-s", type=float, help="seconds an engine lives; left out: three rounds, 60 at most")
    parser.add_argument("--methods", nargs="+", choices=["plain", *METHODS], default=["plain", *METHODS])
    add_bundle(parser)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=TIE_GAP)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    soak = Soak(parser.parse_args())
    result = soak.run()
    print(json.dumps({"counts": result["counts"], "failures": result["failures"][:10]}, indent=1))
    sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
