"""Prepares an engine for its first requests by running every kind of step once, on made-up sequences.

On a GPU, a step's kernels depend on the number of decoding sequences, their sampling, and the prompt lengths in the
same pass. `Rehearsal` runs all combinations, so no compilation remains and every graph is captured. The sequences hold
no pages: their writes go to the scratch page.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product

import torch

from draftwise.engine.attention import attend
from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.compilers import Compilers
from draftwise.engine.core import Engine
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.memory.transfer import upload
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.startup_phases import Startup
from draftwise.engine.step.capture import Graphs, capture_sizes
from draftwise.engine.step.prompt_passes import MOST_DECODE_ROWS, PromptSize
from draftwise.engine.step.scheduler import Chunk, EngineRequest, Sequence, StepSchedule

logger = logging.getLogger("draftwise.engine")

Launch = Callable[[StepSchedule], object]
"""Launched part of a step."""

_TOKEN = 0
_FEW, _MANY = 64, 1024
"""Rows of a pass above which only library kernels depend on their number, without and with a mixture of experts."""
_CHUNK = 8
"""Tokens of each half of a prompt computed in two chunks."""
_GREEDY = SamplingParams(temperature=0)
_SAMPLED = SamplingParams(temperature=1)
_TRUNCATED = SamplingParams(temperature=1, top_k=20, top_p=0.9, min_p=0.01)
_PLAIN = (_GREEDY, _SAMPLED, _TRUNCATED)
"""Requests whose steps never involve the host, one per kind of graph."""
_RANKED = tuple(SamplingParams(temperature=0, logprobs=k) for k in (5, 20))
"""Requests with log-probabilities. They are rare, so their steps are captured on first use."""
_ADJUSTED = tuple(
    SamplingParams(
        temperature=p.temperature, top_k=p.top_k, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1,
        logit_bias={_TOKEN: -1.0}, min_tokens=2, logprobs=k, prompt_logprobs=1,
    )
    for p, k in zip(_PLAIN, (5, 20, 5), strict=True)
)  # fmt: skip
"""Requests of the same kinds whose logits the host changes, which widens them."""


class Rehearsal:
    """Runs all kinds of steps of an engine.

    Args:
        engine: engine without any requests so far.
    """

    def __init__(self, engine: Engine) -> None:
        config, runner = engine.config, engine.runner
        assert config.max_model_len is not None, "the engine fills it in"
        self._runner, self._admission = runner, engine.admission
        self._k_for: Callable[[int], int] = engine.spec.k_for if engine.spec else lambda _: 0
        self._kvs = [kv for kv in (runner.kv, engine.proposer.kv) if kv is not None]
        self._most_seqs = config.num_slots
        self._most_tokens = config.num_step_tokens
        self._longest = max(1, config.max_model_len - 2)
        self._made: dict[tuple[int, int, int], Sequence] = {}
        # Nobody looks at what comes out, and later layers launch what the first ones do.
        layers, num_layers = runner.model.weights.layers, runner.model.shape.num_layers
        first_aux = min((i for i in runner.confirmations.aux_layers if i < num_layers), default=0)
        first = {(type(layer.mlp), layer.kind): layer for layer in reversed(layers)}
        some = {id(layer): layer for layer in (*layers[: max(2, first_aux + 1)], *first.values())}
        self._some_layers = replace(runner.model.weights, layers=tuple(some.values()))

    @property
    def sizes(self) -> list[int]:
        """Batch sizes of decoding steps."""
        return sorted({*(self._runner.capture_sizes or capture_sizes(self._most_seqs)), self._most_seqs})

    def run(self, *, briefly: bool = False) -> None:
        """Run all prompts and steps.

        Args:
            briefly: run each kind of kernel once and capture no graphs, to record what to compile.
        """
        runner = self._runner
        graphs = runner.graphs
        if briefly:
            runner.graphs = Graphs(enabled=False)
        try:
            with torch.inference_mode():  # first, as these take longest to compile
                for kv, window in product(self._kvs, self._runner.model.windows):
                    self._attend(kv, window)
            sizes, times = self.sizes, 2 if runner.graphs.enabled else 1
            for before, size in pairwise((0, *sizes)):
                some = size in (*sizes[:2], 16, sizes[-1])
                for k in sorted({self._k_for(count) for count in range(before + 1, size + 1)}):
                    self._prefill([1] * size, _GREEDY)
                    self._decode(size, k, _PLAIN if some or not briefly else _PLAIN[:1], times)
                    if some:
                        self._decode(size, k, _RANKED, 1)
                if some:
                    for params in (*_PLAIN[1:], *_ADJUSTED):
                        self._prefill([1] * size, params)
                    self._decode(size, self._k_for(size), _ADJUSTED, 1)
            self._prefill_in_part()
            for whole in runner.prompt_sizes:
                if whole.num_decodes:
                    continue
                lengths = self._share_out(whole.num_rows, least=min(2, whole.num_seqs))
                for time in range(times if len(lengths) <= min(whole.num_seqs, self._most_seqs) else 0):
                    self._prefill(lengths, _GREEDY, captured=time > 0)
            self._mix(times)
            for lengths in self._prompts(briefly):
                self._prefill(lengths, _GREEDY)
            self._prefill([1], _GREEDY)
            runner.confirmations.end(self._sequence(0, 1, _GREEDY), for_pages=True)
            self.forget()
        finally:
            runner.graphs = graphs

    def _decode(
        self, size: int, k: int, kinds: tuple[SamplingParams, ...], times: int, *, launch: Launch | None = None
    ) -> None:
        """Run a step of `size` sequences for each kind of request, as often as it takes to capture it."""
        for params in kinds:
            sequences = [self._sequence(slot, 1, params) for slot in range(size)]
            for time in range(times):
                self._run([], sequences, k, launch=launch, captured=time > 0)

    def _mix(self, times: int) -> None:
        """Run each pass that prompts and decoding sequences share, and what surrounds it for each number of these."""
        mixed = [size for size in self._runner.prompt_sizes if size.num_decodes]
        for size in mixed:
            number = min(size.num_decodes, (size.num_rows - 1) // size.width, self._most_seqs - 1)
            self._run_mixed(number, size, times)
        is_shared = bool(mixed) and self._runner.max_num_rows > mixed[-1].num_rows
        for before, count in pairwise((0, *self.sizes)):
            for k in sorted({self._k_for(number) for number in range(before + 1, count + 1)}):
                number = min(count, self._most_seqs - 1)
                limit = max((size.num_decodes for size in mixed if size.width == k + 1), default=0)
                if limit and is_shared:
                    limit = MOST_DECODE_ROWS // (k + 1)
                if before < number <= limit:
                    self._decode(number, k, _PLAIN, times, launch=self._runner.run_around_pass)
        if is_shared:
            for width in {size.width for size in mixed}:
                most = PromptSize(self._runner.max_num_rows, self._most_seqs, self._most_seqs, width)
                self._run_mixed(1, most, 1)

    def _run_mixed(self, number: int, size: PromptSize, times: int) -> None:
        """Run a pass of a size with `number` decoding sequences, as often as it takes to capture it."""
        lengths = self._share_out(size.num_rows - number * size.width)
        if len(lengths) > min(size.num_seqs, self._most_seqs - number):
            return
        decodes = [self._sequence(slot, 1, _GREEDY) for slot in range(number)]
        made = [self._sequence(number + slot, length, _GREEDY) for slot, length in enumerate(lengths)]
        chunks = [Chunk(sequence, 0, length) for sequence, length in zip(made, lengths, strict=True)]
        for time in range(times):
            self._run(chunks, decodes, size.width - 1, captured=time > 0)

    def _prefill(self, lengths: list[int], params: SamplingParams, *, captured: bool = False) -> None:
        """Compute whole prompts."""
        made = [self._sequence(slot, length, params) for slot, length in enumerate(lengths)]
        chunks = [Chunk(sequence, 0, length) for sequence, length in zip(made, lengths, strict=True)]
        self._run(chunks, [], 0, captured=captured)

    def _prefill_in_part(self) -> None:
        """Compute prompts of which one is complete and the other is not, and then that one's rest."""
        if min(self._longest, self._most_tokens) < 2 * _CHUNK:
            return
        part, whole = self._sequence(0, 2 * _CHUNK, _GREEDY), self._sequence(1, _CHUNK, _GREEDY)
        others = [Chunk(whole, 0, _CHUNK)] if self._most_seqs > 1 else []
        self._run([Chunk(part, 0, _CHUNK), *others], [], 0)
        self._run([Chunk(part, _CHUNK, _CHUNK)], [], 0, keeps=True)

    def _run(
        self,
        chunks: list[Chunk],
        decodes: list[Sequence],
        k: int,
        *,
        launch: Launch | None = None,
        keeps: bool = False,
        captured: bool = False,
    ) -> None:
        """Launch a step, or another part of one, of sequences that are new to everybody, or, where `keeps`, are not;
        with some of its layers, unless it is to be captured."""
        slots = [sequence.row for sequence in (*(chunk.sequence for chunk in chunks), *decodes)]
        released = [] if keeps else slots
        model, graphs = self._runner.model, self._runner.graphs
        weights, model.weights = model.weights, model.weights if captured else self._some_layers
        graphs.paused = not captured
        try:
            launch = launch or self._runner.run
            launch(StepSchedule(chunks=chunks, decodes=decodes, k=k, released_slots=released, page_changes=[]))
        finally:
            model.weights, graphs.paused = weights, False

    def forget(self) -> None:
        """Release all slots."""
        slots = list(range(self._most_seqs))
        nobody = StepSchedule(chunks=[], decodes=[], k=0, released_slots=slots, page_changes=[])
        self._runner.run(nobody)
        self._made.clear()

    def _sequence(self, slot: int, length: int, params: SamplingParams) -> Sequence:
        key = slot, length, id(params)
        if key not in self._made:
            request = EngineRequest(request_id=f"rehearsal-{slot}", prompt_token_ids=[_TOKEN] * length, params=params)
            self._made[key] = self._admission.make_sequence(request, 0)
            self._made[key].slot = slot
        return self._made[key]

    def _prompts(self, briefly: bool) -> Iterator[list[int]]:
        """Yield the lengths of the prompts of each pass, from few tokens to as many as a step computes."""
        most = min(self._most_tokens, self._most_seqs * self._longest)
        captured = max((size.num_rows for size in self._runner.prompt_sizes if not size.num_decodes), default=0)
        for power in range(captured.bit_length(), most.bit_length()):
            rows = 1 << power
            if rows <= (_MANY if self._runner.model.mixture else _FEW):
                yield from (self._share_out(min(each, most)) for each in (rows, rows + 1, rows * 3 // 2 + 1))
            elif rows <= _MANY or not briefly:
                yield self._share_out(rows)
        yield self._share_out(min(most, _MANY) if briefly else most)

    def _share_out(self, rows: int, *, least: int = 1) -> list[int]:
        """Return the lengths of prompts that have `rows` tokens together: as few as possible, but at least `least`."""
        longest = min(self._longest, rows - least + 1)
        whole, rest = divmod(rows, longest)
        return [longest] * whole + [rest] * (rest > 0)

    def _attend(self, kv: PagedKV, window: int | None) -> None:
        """Attend with prompts of all lengths for which the kernels differ; these do not depend on anything else."""
        model, shape = self._runner.model, kv.shape
        if not kv.layers[0].is_cuda:
            return
        from draftwise.engine.kernels.cuda.paged_attention import can_copy, find_forms  # Triton is there where CUDA is

        forms = find_forms(
            num_heads=shape.num_heads,
            num_groups=shape.num_kv_heads,
            head_dim=shape.head_dim,
            itemsize=model.dtype.itemsize,
            kv_itemsize=kv.layers[0].itemsize,
            device=model.device,
            copies=window is None and can_copy(kv.layers[0], model.dtype),
            most_seqs=self._most_seqs,
            most_tokens=self._most_tokens,
            longest=self._longest,
        )
        for lengths in forms:
            spans = Spans.of([0] * len(lengths), lengths, model.device)
            pages_BP = self._runner.table.pages(upload(range(len(lengths)), model.device))
            plan = plan_attention(spans, pages_BP, block_size=kv.block_size)
            heads = shape.num_heads + 2 * shape.num_kv_heads
            qkv_NSD = torch.zeros(spans.num_rows, heads, shape.head_dim, dtype=model.dtype, device=model.device)
            attend(qkv_NSD[:, : shape.num_heads], kv, 0, plan, window=window)


def warm_up(engine: Engine, compilers: Compilers | None, startup: Startup) -> bool:
    """Run all possible kinds of steps; return whether that succeeded.

    Does nothing on a CPU: building the engine compiles its kernels, which are the same for every step.

    Args:
        engine: engine without any requests so far.
        compilers: compile kernels in advance. None: kernels exist, or are compiled one by one.
        startup: receives the phases.
    """
    # A method that writes what it sees to disk must not see what is made up.
    if engine.runner.model.device.type != "cuda" or engine.proposer.needs_every_state:
        return True
    from draftwise.engine.kernels.cuda.compile_ahead import (  # Triton is there where CUDA is
        note_late_compilations,
        prepare,
    )
    from draftwise.engine.kernels.cuda.matmul import loading_library

    rehearsal = Rehearsal(engine)
    if compilers is not None:
        with startup.phase("compile kernels"):
            prepare()
            _compile(rehearsal, compilers)
    with startup.phase("capture steps"):
        try:
            prepare()
            with torch.inference_mode(), loading_library():
                rehearsal.run()
            torch.cuda.synchronize()
        except Exception:  # requests that need no more than what went well are served
            logger.exception("Some steps could not be rehearsed. Requests wait while these compile or are captured.")
            rehearsal.forget()
            return False
    note_late_compilations()
    return True


def _compile(rehearsal: Rehearsal, compilers: Compilers) -> None:
    """Compile what a rehearsal would launch; what fails here is compiled when it is launched, one by one."""
    from draftwise.engine.kernels.cuda.compile_ahead import recording

    try:
        with recording(compilers.begin):
            rehearsal.run(briefly=True)
    except Exception:  # it only saves time, and looks into Triton to do so
        logger.exception("Not all kernels could be recorded.")
    failed = compilers.finish()
    logger.info("%d kernels to compile ahead, %d failures", compilers.num_jobs, len(failed))
    for each in failed[:3]:
        logger.warning("Not compiled ahead: %s", each)
