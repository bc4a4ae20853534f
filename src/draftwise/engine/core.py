"""The engine: admits requests and turns them, step by step, into increments of text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import torch

from draftwise.core import Finding, InvalidSetup, Severity, SpecConfig
from draftwise.engine.config import EngineConfig
from draftwise.engine.memory.budget import activation_bytes, graph_budget, num_pages
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.memory.pages import PagePool
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.outputs import Delta, EngineStats
from draftwise.engine.proposers import make_proposer
from draftwise.engine.proposers.base import Proposer
from draftwise.engine.sampling.acceptance import Standard
from draftwise.engine.sampling.logits import check_params, encode_bad_words
from draftwise.engine.sampling.random import completion_seed, request_seed
from draftwise.engine.spec import resolve_spec
from draftwise.engine.spec_counter import SpecCounter
from draftwise.engine.startup import Startup, TimedStartup
from draftwise.engine.step.capture import CapturePlan, plan_capture
from draftwise.engine.step.launched import Launched, Outcome
from draftwise.engine.step.runner import Runner
from draftwise.engine.step.scheduler import PrefixUse, Schedule, Scheduler
from draftwise.engine.step.sequence import Request, Sequence
from draftwise.engine.step.table import SequenceTable
from draftwise.engine.text.detokenizer import IncrementalDetokenizer
from draftwise.engine.text.stopping import Stop, find_stop
from draftwise.engine.text.tokenizer import load_tokenizer

__all__ = ["Engine", "EngineStats", "Request"]


_KERNELS_A_LAYER = 9
_GRAPHS_A_SIZE = 6
"""Greedy, sampled and truncated batches, each with and without requests whose logits the host has a part in."""


class Engine:
    """A target, a page pool, a scheduler and, if asked for, a proposer; `step()` moves all of them once.

    Raises:
        InvalidSetup: the checkpoint, the configuration or the drafter cannot work.
    """

    def __init__(self, config: EngineConfig, spec: SpecConfig | None = None, *, startup: Startup | None = None) -> None:
        phase = (startup or TimedStartup()).phase
        self.spec = resolve_spec(spec) if spec is not None else None
        self.tokenizer = load_tokenizer(config.model, skip=config.skip_tokenizer_init)
        with phase("load weights"):
            model = load_model(
                config.model,
                dtype=config.dtype,
                device=config.device,
                load_format=config.load_format,
                quantization=config.quantization,
            )
        self.config = _resolve(config, model)
        self.shape = model.shape
        self.proposer: Proposer | None = None
        if self.spec is not None:
            with phase("load drafter"):
                self.proposer = make_proposer(self.spec, self.config, model)
        self._k = self.spec.k if self.spec else 0
        self._lags = model.device.type == "cuda"
        """Whether a step is collected by the next call, so that the device works meanwhile."""
        self._runs_ahead = self._lags and not (self.proposer and self.proposer.on_host)
        """Whether that call launches the next step before, so that the device never waits."""
        capture = self._plan_capture(model)
        self.findings: tuple[Finding, ...] = (*(self.spec.findings if self.spec else ()), *capture.findings)
        """What the operator should know of this configuration."""
        with phase("allocate KV cache"):
            self.num_pages = self._count_pages(model, capture)
            self.runner = self._make_runner(model, capture)
        self.scheduler = Scheduler(
            pool=PagePool(self.num_pages, enable_prefix_caching=config.enable_prefix_caching),
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            prefix=_prefix_use(self.proposer),
        )
        self._underway: deque[Launched] = deque()
        self._sequences: dict[str, list[Sequence]] = {}
        self._forks: dict[str, list[Sequence]] = {}
        """Completions 1..n-1 of a request, held until the first one has computed the prompt for all."""
        self._spec_counter = SpecCounter()
        self._prompt_tokens = 0
        self._generation_tokens = 0

    def _plan_capture(self, model: CausalLM) -> CapturePlan:
        """Return which steps are captured as CUDA graphs: none on a CPU."""
        config, shape, spec = self.config, self.shape, self.spec
        if not self._lags or config.enforce_eager:
            return CapturePlan(sizes=(), num_bytes=0)
        # The logits count twice: those of steps that the host has a part in are kept.
        row_values = shape.hidden_size * 8 + shape.intermediate_size * 3 + shape.vocab_size * 2
        return plan_capture(
            config.max_num_seqs,
            ks=sorted({spec.k_for(n) for n in range(1, config.max_num_seqs + 1)}) if spec else (0,),
            kernels_per_graph=_GRAPHS_A_SIZE * _KERNELS_A_LAYER * self._count_layers(),
            activation_bytes_per_seq=(self._k + 1) * row_values * model.dtype.itemsize,
            given=config.cudagraph_capture_sizes,
            budget_bytes=graph_budget(
                config,
                model,
                extra_bytes_per_token=self._state_bytes,
                activation_bytes=self._activation_bytes(model),
            ),
        )

    def _count_layers(self) -> int:
        """Return how many layers run in a step: the target's, and the drafter's for each guess."""
        drafter = self.proposer.num_layers if self.proposer else 0
        return self.shape.num_layers + self._k * drafter

    def _count_pages(self, model: CausalLM, capture: CapturePlan) -> int:
        return num_pages(
            self.config,
            model,
            extra_bytes_per_token=self._state_bytes,
            activation_bytes=self._activation_bytes(model),
            graph_bytes=capture.num_bytes,
        )

    def _activation_bytes(self, model: CausalLM) -> int:
        """Return what the largest step needs beside weights and pages."""
        config, proposer = self.config, self.proposer
        return activation_bytes(
            self.shape,
            rows=max(config.max_num_batched_tokens, config.max_num_seqs * (self._k + 1)),
            logits_rows=config.max_num_seqs * (self._k + 1),
            bytes_per_value=model.dtype.itemsize,
            num_taps=len(proposer.taps) if proposer else 0,
        )

    def _make_runner(self, model: CausalLM, capture: CapturePlan) -> Runner:
        config, proposer, num_pages = self.config, self.proposer, self.num_pages
        assert config.max_model_len is not None, "_resolve fills it in"
        if proposer is not None:
            proposer.allocate(num_pages=num_pages, block_size=config.block_size)
        kv_dtype = model.dtype if config.kv_cache_dtype == "auto" else torch.float8_e4m3fn
        table = SequenceTable(
            num_slots=config.max_num_seqs,
            max_model_len=config.max_model_len,
            block_size=config.block_size,
            scratch_page=num_pages,
            width=self._k + 1,
            num_features=len(proposer.taps) * model.shape.hidden_size if proposer else 0,
            dtype=model.dtype,
            device=model.device,
        )
        return Runner(
            model,
            PagedKV(
                model.shape, num_pages=num_pages, block_size=config.block_size, dtype=kv_dtype, device=model.device
            ),
            table,
            proposer,
            acceptance=self.spec.acceptance if self.spec else Standard(),
            end_ids=self.tokenizer.end_ids,
            capture_sizes=capture.sizes,
        )

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidSetup: the prompt is empty or too long, an id is unknown, or the request id is in use.
        """
        findings = list(self._check(request))
        if findings:
            raise InvalidSetup(findings)
        sequences = [self._make_sequence(request, index) for index in range(request.params.n)]
        self._sequences[request.request_id] = sequences
        self._prompt_tokens += len(request.prompt_token_ids)
        if self.config.enable_prefix_caching and len(sequences) > 1:
            self._forks[request.request_id] = sequences[1:]
            sequences = sequences[:1]
        for sequence in sequences:
            self.scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """Drop a request; nothing happens when it is unknown or finished."""
        held_back = self._forks.pop(request_id, [])
        for sequence in self._sequences.pop(request_id, []):
            if sequence not in held_back:
                self.scheduler.remove(sequence)

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._sequences)

    def step(self) -> list[Delta]:
        """Launch a step and return what became final by those before it.

        On a GPU the host is one step behind: the tokens of the step launched here come back from a later call, and a
        call may return nothing. On a CPU they come back from this one.
        """
        if not self.has_work():
            return []
        if self._awaits_first_tokens():
            return self._collect(len(self._underway))
        deltas: list[Delta] = []
        if not self._runs_ahead or self._needs_history():
            deltas += self._collect(len(self._underway))
        k = self._k_now()
        schedule = self.scheduler.schedule(k)
        if schedule is None:
            deltas += self._collect(len(self._underway))
            schedule = self.scheduler.schedule(k)
        assert schedule is not None, "with nothing under way a sequence is preempted instead"
        num_before = len(self._underway)
        self._launch(schedule, k)
        return deltas + self._collect(num_before if self._lags and schedule else len(self._underway))

    def stats(self) -> EngineStats:
        """Return a snapshot of counters and gauges."""
        scheduler = self.scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_cache_usage=scheduler.pool.usage,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_cache_queries=scheduler.num_cache_queries,
            prefix_cache_hits=scheduler.num_cache_hits,
            num_preemptions=scheduler.num_preemptions,
            spec=self._spec_counter.stats(),
        )

    def _check(self, request: Request) -> Iterable[Finding]:
        """Yield what makes a request impossible."""

        def error(code: str, message: str, fix: str) -> Finding:
            return Finding(code=code, severity=Severity.ERROR, where="prompt", message=message, fix=fix)

        ids, limit, vocab_size = request.prompt_token_ids, self.config.max_model_len, self.shape.vocab_size
        if request.request_id in self._sequences:
            yield error("request-id-in-use", f"request id {request.request_id!r} is in use.", "Choose another one.")
        if not ids:
            yield error("empty-prompt", "the prompt has no tokens.", "Give at least one token.")
        elif min(ids) < 0 or max(ids) >= vocab_size:
            yield error("unknown-token", f"token ids must lie in 0..{vocab_size - 1}.", "Use this model's tokenizer.")
        if limit is not None and len(ids) >= limit:
            yield error(
                "prompt-too-long",
                f"the prompt has {len(ids)} tokens, but prompt and output together may have {limit}.",
                "Shorten the prompt, or raise max_model_len if the model allows it.",
            )
        yield from check_params(request.params, vocab_size)

    def _make_sequence(self, request: Request, index: int) -> Sequence:
        params = request.params
        if params.seed is None:
            seed = request_seed(self.config.seed, request.request_id, index)
        else:
            seed = completion_seed(params.seed, index)
        return Sequence(
            request=request,
            index=index,
            seed=seed,
            max_tokens=self._max_tokens(request),
            tokens=list(request.prompt_token_ids),
            bad_words=encode_bad_words(params.bad_words, lambda text: self.tokenizer.encode(text, False)),
            detokenizer=IncrementalDetokenizer(
                self.tokenizer,
                stop_strings=params.stop_strings,
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
                prompt_token_ids=request.prompt_token_ids,
            ),
        )

    @property
    def _state_bytes(self) -> int:
        """What the proposer keeps of a token in its page; if anything, a page is complete once it was told of the
        token after it."""
        return self.proposer.kv_bytes_per_token if self.proposer else 0

    def _max_tokens(self, request: Request) -> int:
        """Return how many tokens a sequence of the request may have."""
        longest, wanted = self.config.max_model_len, request.params.max_tokens
        assert longest is not None, "_resolve fills it in"
        return longest if wanted is None else min(longest, len(request.prompt_token_ids) + wanted)

    def _k_now(self) -> int:
        """Return how many tokens to draft for each sequence in the next step."""
        return self.spec.k_for(len(self.scheduler.running)) if self.spec else 0

    def _awaits_first_tokens(self) -> bool:
        """Whether first tokens are under way and nothing else: then they come before what the host prepares next."""
        running = self.scheduler.running
        return bool(
            self._underway
            and not self.scheduler.waiting
            and running
            and all(sequence.is_decoding and sequence.num_output == 0 for sequence in running)
        )

    def _needs_history(self) -> bool:
        """Whether the next step's logits depend on tokens that the host must know first."""
        return any(sequence.params.needs_history for sequence in self.scheduler.running)

    def _launch(self, schedule: Schedule, k: int) -> None:
        """Hand a step to the device."""
        scheduler, runner = self.scheduler, self.runner
        runner.update(scheduler.released_slots, scheduler.page_changes)
        scheduler.released_slots, scheduler.page_changes = [], []
        if schedule.chunks:
            self._underway.append(runner.prefill(schedule.chunks))
        if schedule.decodes:
            self._underway.append(runner.decode(schedule.decodes, k))
        scheduler.launch(schedule, k)
        now = time.monotonic()
        for chunk in schedule.chunks:
            if chunk.sequence.scheduled_s is None:
                chunk.sequence.scheduled_s = now
            # The proposer has not been told of the token after the last page yet.
            known = chunk.end - 1 if self._state_bytes and chunk.is_last else chunk.end
            scheduler.publish(chunk.sequence, known)
        for sequence in schedule.decodes:
            if self._state_bytes:
                scheduler.publish(sequence)

    def _collect(self, count: int) -> list[Delta]:
        """Wait for the oldest `count` launches and return what became final by them."""
        return [
            self._advance(outcome, bound=launched.bound)
            for launched in [self._underway.popleft() for _ in range(count)]
            for outcome in launched.collect()
        ]

    def _advance(self, outcome: Outcome, *, bound: int) -> Delta:
        """Move a sequence on by what a step gave it; return the news for its reader."""
        sequence, emitted, scheduler = outcome.sequence, outcome.emitted, self.scheduler
        self._spec_counter.add(drafted=len(outcome.drafted), accepted=len(emitted) - 1)
        text, stop = find_stop(
            emitted,
            sequence.params,
            sequence.detokenizer,
            num_output=sequence.num_output,
            room=sequence.num_left,
            end_ids=self.tokenizer.end_ids,
        )
        emitted = emitted[: stop.num_tokens] if stop else emitted
        first = sequence.num_output == 0
        scheduler.advance(sequence, emitted, bound=bound)
        self._generation_tokens += len(emitted)
        if not self._state_bytes or sequence.num_underway:  # a step that is under way tells the proposer
            scheduler.publish(sequence)
        if first:
            for fork in reversed(self._forks.pop(sequence.request.request_id, [])):
                scheduler.add(fork, first=True)
        if stop is not None:
            self._finish(sequence)
        return self._delta(sequence, emitted, text, outcome, stop, first=first)

    def _delta(
        self, sequence: Sequence, emitted: list[int], text: str, outcome: Outcome, stop: Stop | None, *, first: bool
    ) -> Delta:
        wants_prompt = first and sequence.index == 0 and sequence.params.prompt_logprobs is not None
        return Delta(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=emitted,
            text=text,
            logprobs=None if outcome.logprobs is None else self._named(outcome.logprobs[: len(emitted)]),
            prompt_logprobs=[None, *self._named(sequence.prompt_logprobs)] if wants_prompt else None,
            finish_reason=stop.finish_reason if stop else None,
            stop_reason=stop.stop_reason if stop else None,
            num_cached_tokens=sequence.num_cached or 0,
            scheduled_s=sequence.scheduled_s,
        )

    def _finish(self, sequence: Sequence) -> None:
        proposer = self.proposer
        if proposer is not None and (proposer.needs_ending or self.scheduler.has_unpublished(sequence)):
            self.runner.tell_ending(sequence)
            self.scheduler.publish(sequence)
        self.scheduler.remove(sequence)
        siblings = self._sequences[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.request_id]

    def _named(self, positions: list) -> list:
        """Return log-probabilities with each candidate's text filled in."""
        decode = self.tokenizer.token_text
        return [
            {token: replace(entry, decoded_token=decode(token)) for token, entry in candidates.items()}
            for candidates in positions
        ]


def _prefix_use(proposer: Proposer | None) -> PrefixUse:
    """Return how much of a cached prefix the proposer can do without."""
    if proposer is None:
        return PrefixUse.ALL
    if proposer.needs_every_state:
        return PrefixUse.NONE
    return PrefixUse.BUT_LAST if proposer.taps and proposer.kv_bytes_per_token else PrefixUse.ALL


def _resolve(config: EngineConfig, model: CausalLM) -> EngineConfig:
    """Fill in what the checkpoint and the machine decide."""
    longest = model.shape.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise InvalidSetup.because(
            "context-too-long",
            f"{config.max_model_len} is more than the model's {longest} positions.",
            where="max_model_len",
            fix=f"Use {longest} or less.",
        )
    return replace(
        config,
        max_model_len=config.max_model_len or longest,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
    )
