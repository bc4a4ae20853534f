"""The two engines that are compared: this one in process, real vLLM in a process of its own environment."""

from __future__ import annotations

import gc
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

from torch import Tensor

from draftwise import LLM, SamplingParams
from draftwise.engine.core import Engine
from draftwise.engine.proposers import proposer as drafting
from draftwise.engine.proposers.proposer import Confirmed, Proposer
from draftwise.engine.sampling.draft import Draft


@dataclass(frozen=True, slots=True)
class Answer:
    """What one engine made of one prompt."""

    tokens: Sequence[int]
    drafts: dict[int, list[int]]
    """Guesses, by how many output tokens were known when they were made."""


class Gaps(Protocol):
    """How far apart the two largest logits of a choice were; None where no logits decided."""

    def of_guess(self, position: int, index: int) -> float | None:
        """Return it for guess `index` of the draft made at `position`."""

    def of_token(self, position: int) -> float | None:
        """Return it for the output token at `position`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of speculation, over drafts that max_tokens leaves room for."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_pos: tuple[int, ...]
    distinct_per_pos: tuple[int, ...]
    """How many different tokens were guessed; a drafter that always says the same would prove little."""


@dataclass(slots=True, kw_only=True)
class Comparison:
    """How the answers of two engines compare."""

    num_prompts: int = 0
    equal_outputs: int = 0
    drafts_at_same_text: int = 0
    equal_drafts: int = 0
    ties: list[dict[str, float | int]] = field(default_factory=list)
    failures: list[dict[str, object]] = field(default_factory=list)


def compare(
    ours: Sequence[Answer],
    theirs: Sequence[Answer],
    *,
    max_tokens: int,
    k: int,
    chained: bool,
    tie: float,
    gaps_of: Callable[[int], Gaps],
) -> Comparison:
    """Compare two engines prompt by prompt.

    Near the end of an output the engines differ on purpose: this one drafts what max_tokens leaves room for, vLLM
    always drafts k. Drafts with less room than k are left out.

    Args:
        ours: answers of one engine.
        theirs: answers of the other, for the same prompts.
        max_tokens: most output tokens a prompt.
        k: guesses a draft at most.
        chained: whether each guess is made from the one before it, so that only the first difference tells something.
        tie: a difference is one of rounding if the two largest logits are less than this apart.
        gaps_of: returns our gaps for a prompt, by its number; asked for where something differs only.
    """
    result = Comparison(num_prompts=len(ours))
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        parted = _first_difference(one.tokens, other.tokens)
        result.equal_outputs += parted is None
        if parted is not None:
            _judge(result, number, "output", parted, None, gaps_of(number).of_token(parted), tie)
        common = min(len(one.tokens), len(other.tokens)) if parted is None else parted
        _compare_drafts(result, number, one, other, min(common, max_tokens - k - 1), chained, tie, gaps_of)
    return result


def _compare_drafts(
    result: Comparison,
    number: int,
    one: Answer,
    other: Answer,
    last: int,
    chained: bool,
    tie: float,
    gaps_of: Callable[[int], Gaps],
) -> None:
    """Compare the drafts that two engines made at positions up to `last`."""
    differs = False
    for position in sorted(one.drafts.keys() | other.drafts.keys()):
        if position > last:
            return
        ours, theirs = one.drafts.get(position), other.drafts.get(position)
        if ours is None or theirs is None:
            # Once the engines have drafted differently they verify at different places.
            if not differs:
                _judge(result, number, "place", position, None, None, tie)
            differs = True
            continue
        result.drafts_at_same_text += 1
        result.equal_drafts += ours == theirs
        for index in _differences(ours, theirs, chained):
            _judge(result, number, "draft", position, index, gaps_of(number).of_guess(position, index), tie)
            differs = True


def _differences(ours: list[int], theirs: list[int], chained: bool) -> list[int]:
    """Return at which guesses two drafts differ, as far as one does not follow from the other."""
    found = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    if len(ours) != len(theirs) and not (chained and found):
        found.append(min(len(ours), len(theirs)))
    return found[:1] if chained else found


def _judge(
    result: Comparison, number: int, what: str, position: int, index: int | None, gap: float | None, tie: float
) -> None:
    """Note a difference as a tie or a failure."""
    note = {"prompt": number, "what": what, "position": position, "index": index, "gap": gap}
    (result.ties if gap is not None and gap < tie else result.failures).append(note)


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    if list(ours) == list(theirs):
        return None
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def count(answers: Sequence[Answer], *, max_tokens: int, k: int) -> Counts:
    """Return what an engine's counters say, but for drafts with less room than k before max_tokens."""
    made = [
        (draft, _num_accepted(draft, answer.tokens[position:]))
        for answer in answers
        for position, draft in answer.drafts.items()
        if position <= max_tokens - k - 1
    ]
    return Counts(
        num_drafts=len(made),
        num_draft_tokens=sum(len(draft) for draft, _ in made),
        num_accepted_tokens=sum(accepted for _, accepted in made),
        accepted_per_pos=tuple(sum(accepted > i for _, accepted in made) for i in range(k)),
        distinct_per_pos=tuple(len({draft[i] for draft, _ in made if len(draft) > i}) for i in range(k)),
    )


def _num_accepted(draft: list[int], text: Sequence[int]) -> int:
    """Return how many guesses of a draft the text confirms, at temperature 0."""
    for i, (guess, token) in enumerate(zip(draft, text, strict=False)):
        if guess != token:
            return i
    return min(len(draft), len(text))


WORKER = Path(__file__).with_name("vllm_worker.py")
PREFIX = "vllm:spec_decode_"
NEED_NUMBA = ("ngram", "suffix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one engine gave."""

    answers: list[Answer]
    counters: dict[str, Any]
    """By vLLM's names, without `vllm:spec_decode_`."""
    versions: dict[str, str]
    corrections: list[str]
    """What had to be corrected in it before it computed what it means to."""
    ms_per_token: list[float] = field(default_factory=list)
    """Of each timed pass over the prompts, prompts included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What both engines are asked."""

    target: Path
    speculative_config: dict[str, Any] | None
    prompts: list[list[int]]
    max_tokens: int
    settings: dict[str, Any]
    """Settings that both know under the same name."""
    timed_passes: int = 0
    """How often the prompts are answered again, against the clock."""


class Vllm:
    """Real vLLM in a child process, which is started when a job comes and ends with the `with` block.

    One process runs one engine after the other, which saves importing vLLM each time. Two things need a fresh one: an
    engine that failed leaves its process unusable, and after a method that imports numba (ngram, suffix) vLLM 0.32
    cannot start a second engine without triton.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._child: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None

    def __enter__(self) -> Vllm:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, job: Job) -> Side:
        """Run a job.

        Raises:
            RuntimeError: vLLM failed; with the last lines that it wrote.
        """
        if self._child is None:
            self._log = TemporaryFile("w+")  # noqa: SIM115 - `_end` closes it
            self._child = subprocess.Popen(
                [self._python, str(WORKER)],
                stdin=PIPE,
                stdout=PIPE,
                stderr=self._log,
                text=True,
                start_new_session=True,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(asdict(job) | {"target": str(job.target)}) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(self._end())
        if (job.speculative_config or {}).get("method") in NEED_NUMBA:
            self._end()
        given = json.loads(line)
        answers = [Answer(row["tokens"], dict(row["drafts"])) for row in given.pop("answers")]
        return Side(answers=answers, **given)

    def _end(self) -> str:
        """End the child; return the last lines of its log."""
        if self._child is None or self._log is None:
            return ""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._child.kill()
        self._log.seek(0)
        lines = self._log.read().splitlines()
        self._log.close()
        self._child = self._log = None
        return "\n".join(lines[-25:])


def run_ours(job: Job) -> Side:
    """Run the embedded engine."""
    llm = _load(job)
    drafts = _record_drafts(llm.engine, llm.engine.proposer)
    prompts, params = _as_prompts(job.prompts), SamplingParams(temperature=0, max_tokens=job.max_tokens)
    outputs = llm.generate(prompts, params)
    answers = [
        Answer(output.outputs[0].token_ids, drafts.get(tuple(ids), {}))
        for ids, output in zip(job.prompts, outputs, strict=True)
    ]
    counters = {
        metric.name.removeprefix(PREFIX): getattr(metric, "values", None) or getattr(metric, "value", 0)
        for metric in llm.get_metrics()
        if metric.name.startswith(PREFIX)
    }
    num_tokens, ms_per_token = sum(len(answer.tokens) for answer in answers), []
    for _ in range(job.timed_passes):
        started = time.perf_counter()
        llm.generate(prompts, params)
        ms_per_token.append(1e3 * (time.perf_counter() - started) / num_tokens)
    return Side(answers=answers, counters=counters, versions={}, corrections=[], ms_per_token=ms_per_token)


class OurGaps:
    """How far apart the two largest logits of each choice for one prompt are: the prompt is run once more, alone."""

    def __init__(self, job: Job, number: int) -> None:
        llm = _load(job)
        self._guesses: dict[int, list[float]] = {}
        prompts = _as_prompts([job.prompts[number]])
        params = SamplingParams(temperature=0, max_tokens=job.max_tokens, logprobs=2)
        with _record_gaps(llm.engine.proposer, self._guesses):
            output = llm.generate(prompts, params)[0].outputs[0]
        best = [sorted(entry.logprob for entry in each.values()) for each in output.logprobs or []]
        self._tokens = [values[-1] - values[-2] for values in best]
        del llm
        gc.collect()

    def of_guess(self, position: int, index: int) -> float | None:
        """Return it for a guess; None where no logits decided."""
        gaps = self._guesses.get(position, [])
        return gaps[index] if index < len(gaps) else None

    def of_token(self, position: int) -> float | None:
        """Return it for an output token; None past the end."""
        return self._tokens[position] if position < len(self._tokens) else None


def _load(job: Job) -> LLM:
    return LLM(str(job.target), speculative_config=job.speculative_config, **job.settings)


def _as_prompts(prompts: list[list[int]]) -> list[dict[str, Any]]:
    return [{"prompt_token_ids": ids} for ids in prompts]


def _record_drafts(engine: Engine, proposer: Proposer) -> dict[tuple[int, ...], dict[int, list[int]]]:
    """Return what will hold, by prompt, each draft by how many output tokens were known when it was made."""
    drafts: dict[tuple[int, ...], dict[int, list[int]]] = {}
    propose = proposer.propose

    def propose_and_record(new: Confirmed, k: int) -> Draft:
        draft = propose(new, k)
        prompts = {sequence.slot: tuple(sequence.request.prompt_token_ids) for sequence in engine.scheduler.running}
        columns = (draft.tokens_BK, draft.lengths_B, new.slots_B, new.num_output_B)
        for tokens, length, slot, num_output in zip(*(column.tolist() for column in columns), strict=True):
            if length:
                drafts.setdefault(prompts[slot], {})[num_output] = tokens[:length]
        return draft

    proposer.propose = propose_and_record  # type: ignore[method-assign]
    return drafts


@contextmanager
def _record_gaps(proposer: Proposer, gaps: dict[int, list[float]]) -> Iterator[None]:
    """Fill `gaps` with those of each guess, by the number of output tokens known, while one sequence runs."""
    choose, propose = drafting.choose, proposer.propose
    current: list[float] = []

    def choose_and_record(logits_RU: Tensor, **rest: Any) -> Any:
        top_R2 = logits_RU.float().topk(2).values
        current.extend((top_R2[:, 0] - top_R2[:, 1]).tolist())
        return choose(logits_RU, **rest)

    def propose_and_record(new: Confirmed, k: int) -> Draft:
        current.clear()
        draft = propose(new, k)
        gaps[int(new.num_output_B[0])] = list(current)
        return draft

    proposer.propose = propose_and_record  # type: ignore[method-assign]
    drafting.choose = choose_and_record  # type: ignore[attr-defined]
    try:
        yield
    finally:
        drafting.choose = choose  # type: ignore[attr-defined]
