"""Runs every kind of step once, on made-up sequences, before there are requests.

On a GPU a step's kernels depend on how many sequences decode, on how their tokens are sampled, and on how long the
prompts beside them are. `rehearse` goes through all that can come, so that afterwards nothing is compiled and each
graph is captured. The sequences hold no pages: what they write goes to the scratch page, and nobody sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch

from draftwise.engine.config import EngineConfig
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.step.capture import capture_sizes
from draftwise.engine.step.graphs import Graphs
from draftwise.engine.step.runner import Runner
from draftwise.engine.step.scheduler import Chunk, Schedule
from draftwise.engine.step.sequence import Request, Sequence

__all__ = ["Rehearsal"]

_TOKEN = 0
_MANY = 1024
"""Rows of a pass beyond which only libraries see how many there are."""
_EARLIER = 8
"""Tokens of a prompt before and after the end of a chunk."""
_GREEDY = SamplingParams(temperature=0)
_SAMPLED = SamplingParams(temperature=1)
_TRUNCATED = SamplingParams(temperature=1, top_k=20, top_p=0.9, min_p=0.01)
_PLAIN = (_GREEDY, _SAMPLED, _TRUNCATED)
"""Requests whose steps never meet the host, one for each kind of graph."""
_ON_HOST = tuple(SamplingParams(temperature=p.temperature, top_k=p.top_k, logprobs=1) for p in _PLAIN)
"""Requests of the same kinds whose logits the host has a part in."""
_ADJUSTED = SamplingParams(
    temperature=1, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1, logit_bias={_TOKEN: -1.0},
    min_tokens=2, logprobs=5, prompt_logprobs=1,
)  # fmt: skip


class Rehearsal:
    """All kinds of steps of an engine that has no request yet.

    Args:
        runner: of the engine.
        config: likewise, with what the checkpoint decides filled in.
        k_for: how many tokens are drafted for each of so many sequences.
        make_sequence: makes the sequence of a request.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        *,
        k_for: Callable[[int], int],
        make_sequence: Callable[[Request], Sequence],
    ) -> None:
        assert config.max_model_len is not None, "the engine fills it in"
        self._runner, self._make_sequence, self._k_for = runner, make_sequence, k_for
        self._most_seqs = config.max_num_seqs
        self._most_tokens = config.max_num_batched_tokens
        self._longest = max(1, config.max_model_len - 2)
        self._made: dict[tuple[int, int, int], Sequence] = {}

    @property
    def sizes(self) -> list[int]:
        """Numbers of sequences that decode together."""
        return sorted({*(self._runner.capture_sizes or capture_sizes(self._most_seqs)), self._most_seqs})

    def run(self, *, briefly: bool = False) -> None:
        """Run all prompts and steps.

        Args:
            briefly: each kind of kernel once, and no graph captured: to record what there is to compile.
        """
        graphs = self._runner.graphs
        if briefly:
            self._runner.graphs = Graphs(enabled=False)
        try:
            for lengths in (*self._attended(), *self._prompts(briefly)):
                self._prefill(lengths, _GREEDY)
            self._prefill_in_part()
            sizes = self.sizes
            times = 2 if self._runner.graphs.enabled else 1
            for before, size in pairwise((0, *sizes)):
                whole = not briefly or size in (*sizes[:2], sizes[-1], 16)
                for k in sorted({self._k_for(count) for count in range(before + 1, size + 1)}):
                    self._decode(size, k, whole=whole, times=times)
            self._adjust(min(2, self._most_seqs))
            self._forget(self._most_seqs)
        finally:
            self._runner.graphs = graphs

    def _decode(self, size: int, k: int, *, whole: bool, times: int) -> None:
        """Run the steps of so many sequences, each as often as it takes to capture it."""
        for params in _PLAIN if whole else (_GREEDY,):
            self._prefill([1] * size, params)
        for params in (*_PLAIN, *_ON_HOST) if whole else (_GREEDY,):
            sequences = [self._sequence(slot, 1, params) for slot in range(size)]
            for _ in range(times):
                self._run([], sequences, k)

    def _adjust(self, size: int) -> None:
        """Run what the host has its largest part in."""
        length = min(2 * _EARLIER, self._longest)
        self._prefill([length] * size, _ADJUSTED)
        self._run([], [self._sequence(slot, length, _ADJUSTED) for slot in range(size)], self._k_for(size))

    def _prefill(self, lengths: list[int], params: SamplingParams) -> None:
        """Compute whole prompts."""
        made = [self._sequence(slot, length, params) for slot, length in enumerate(lengths)]
        self._run([Chunk(sequence, 0, length) for sequence, length in zip(made, lengths, strict=True)], [], 0)

    def _prefill_in_part(self) -> None:
        """Compute prompts of which one is complete and the other is not, and then that one's rest."""
        if min(self._longest, self._most_tokens) < 2 * _EARLIER:
            return
        part, whole = self._sequence(0, 2 * _EARLIER, _GREEDY), self._sequence(1, _EARLIER, _GREEDY)
        beside = [Chunk(whole, 0, _EARLIER)] if self._most_seqs > 1 else []
        self._run([Chunk(part, 0, _EARLIER), *beside], [], 0)
        self._run([Chunk(part, _EARLIER, _EARLIER)], [], 0, keeps=True)

    def _run(self, chunks: list[Chunk], decodes: list[Sequence], k: int, *, keeps: bool = False) -> None:
        """Launch a step of sequences that are new to everybody, or, where `keeps`, are not."""
        slots = [chunk.sequence.row for chunk in chunks] or [sequence.row for sequence in decodes]
        released = [] if keeps else slots
        self._runner.run(Schedule(chunks=chunks, decodes=decodes, k=k, released_slots=released, page_changes=[]))

    def _forget(self, count: int) -> None:
        """Let go of all slots."""
        nobody = Schedule(chunks=[], decodes=[], k=0, released_slots=list(range(count)), page_changes=[])
        self._runner.run(nobody)
        self._made.clear()

    def _sequence(self, slot: int, length: int, params: SamplingParams) -> Sequence:
        key = slot, length, id(params)
        if key not in self._made:
            request = Request(request_id=f"rehearsal-{slot}", prompt_token_ids=[_TOKEN] * length, params=params)
            self._made[key] = self._make_sequence(request)
            self._made[key].slot = slot
        return self._made[key]

    def _prompts(self, briefly: bool) -> Iterator[list[int]]:
        """Yield the lengths of the prompts of each pass, from few tokens to as many as a step computes."""
        most = min(self._most_tokens, self._most_seqs * self._longest)
        for power in range(most.bit_length()):
            rows = 1 << power
            if rows <= _MANY:
                yield from (self._share_out(min(each, most)) for each in (rows, rows + 1, rows * 3 // 2 + 1))
            elif not briefly:
                yield self._share_out(rows)
        if not briefly:
            yield self._share_out(most)

    def _share_out(self, rows: int) -> list[int]:
        """Return prompts of so many tokens together, as few as there can be."""
        whole, rest = divmod(rows, self._longest)
        return [self._longest] * whole + [rest] * (rest > 0)

    def _attended(self) -> list[list[int]]:
        """Return the shortest prompts for which attention's kernels differ."""
        model = self._runner.model
        if model.device.type != "cuda":
            return []
        from draftwise.engine.kernels.cuda.attention import find_forms  # Triton is there where CUDA is

        return find_forms(
            num_heads=model.shape.num_heads,
            num_groups=model.shape.num_kv_heads,
            head_dim=model.shape.head_dim,
            itemsize=model.dtype.itemsize,
            device=torch.device(model.device),
            most_seqs=self._most_seqs,
            most_tokens=self._most_tokens,
            longest=self._longest,
        )
