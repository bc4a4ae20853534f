"""Training samples, read from files or answered by the target, as flat arrays in a reproducible order.

Samples come from text and JSON lines; the target's own answers come from the embedded engine.

Shape letters: N tokens of all samples, S samples, B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwise.core import cause_of
from draftwise.core.progress import Progress
from draftwise.engine.core import Engine, Pending
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.step.scheduler import EngineRequest
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.knowledge.messages import refusal
from draftwise.runs.row_files import RowFile, cut_unfinished
from draftwise.training.frozen_target import TokenBatch
from draftwise.training.ranks import ALONE, Ranks
from draftwise.training.training_progress import Bar, show_bar
from draftwise.workloads.workload_rows import DAMAGED, open_plain, read_objects

_PIECE = 2**16
"""Characters of plain text to tokenize at a time, up to the next line end."""


@dataclass(frozen=True, slots=True)
class TextSample:
    """A sequence of token ids: a prompt, then the tokens to learn."""

    tokens: NDArray[np.int32]
    num_prompt: int
    """Number of prompt tokens. 0: no prompt, all tokens are learned; all tokens: a prompt without an answer."""


def read_samples(
    paths: Sequence[str | Path], tokenizer: Tokenizer, *, max_length: int, window: int
) -> Iterator[TextSample]:
    """Yield the samples of files, each at most `max_length` tokens long.

    - .txt: one running text, cut into windows of `window` tokens.
    - .jsonl, a JSON object a line: `text` (cut into windows), `prompt` with or without `completion`, `messages`
      (rendered with the chat template; the last one is learned if it is the assistant's), or `token_ids` with or
      without `num_prompt`. A sample that is too long loses its end; a prompt without an answer loses its start.

    Raises:
        InvalidSetup: a file is missing or of an unknown type, or a line is invalid.
    """
    for path in map(Path, paths):
        kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
        if kind not in (".txt", ".jsonl"):
            raise refusal("unknown-data", path=path)
        try:
            with open_plain(path) as file:
                if kind == ".txt":
                    lines = TextIOWrapper(file, encoding="utf-8")
                    yield from _windows(_encode_pieces(lines, tokenizer), window)
                else:
                    yield from _read_lines(file, path, tokenizer, max_length, window)
        except (UnicodeDecodeError, *DAMAGED) as error:
            raise refusal("unreadable-data", path=path, cause=cause_of(error)) from None


def _encode_pieces(lines: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    piece: list[str] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= _PIECE:
            yield tokenizer.encode("".join(piece), False)
            piece, size = [], 0
    yield tokenizer.encode("".join(piece), False)


def _windows(pieces: Iterable[list[int]], window: int) -> Iterator[TextSample]:
    """Yield consecutive windows of a text."""
    rest: list[int] = []
    for piece in pieces:
        rest += piece
        full = len(rest) - len(rest) % window
        for start in range(0, full, window):
            yield _sample(rest[start : start + window], 0)
        rest = rest[full:]
    if rest:
        yield _sample(rest, 0)


def _read_lines(
    file: IO[bytes], path: Path, tokenizer: Tokenizer, max_length: int, window: int
) -> Iterator[TextSample]:
    for where, entry in read_objects(file, str(path)):
        try:
            if "text" in entry:
                yield from _windows([tokenizer.encode(_text(entry, "text"), False)], window)
            else:
                yield from _read_entry(entry, tokenizer, max_length, where)
        except (AttributeError, KeyError, TypeError) as error:
            raise refusal("bad-entry", case="type", where=where, error=error) from None


def _read_entry(entry: dict[str, Any], tokenizer: Tokenizer, max_length: int, where: str) -> Iterator[TextSample]:
    if "prompt" in entry:
        prompt = tokenizer.encode(_text(entry, "prompt"))
        answer = tokenizer.encode(_text(entry, "completion") if entry.get("completion") else "", False)
    elif "messages" in entry:
        prompt, answer = _encode_messages(entry["messages"], tokenizer)
    elif "token_ids" in entry:
        tokens, num_prompt = entry["token_ids"], entry.get("num_prompt", 0)
        if type(num_prompt) is not int or num_prompt < 0:
            raise TypeError("num_prompt must be a number of tokens")
        if not isinstance(tokens, list) or not all(
            type(each) is int and 0 <= each < tokenizer.vocab_size for each in tokens
        ):
            raise TypeError(f"token_ids must be a list of token ids below {tokenizer.vocab_size}")
        prompt, answer = tokens[:num_prompt], tokens[num_prompt:]
    else:
        raise refusal("bad-entry", where=where, keys=", ".join(entry) or "none")
    tokens = (prompt + answer)[:max_length] if answer else prompt[-max_length:]
    if tokens:
        yield _sample(tokens, min(len(prompt), len(tokens)))


def _text(entry: dict[str, Any], key: str) -> str:
    if not isinstance(text := entry[key], str):
        raise TypeError(f"{key} must be a text")
    return text


def _encode_messages(messages: list[dict[str, Any]], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the conversation up to the last answer, and that answer as the template ends it."""
    if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
        raise TypeError("messages must be a list of objects with role and content")
    has_answer = bool(messages) and messages[-1]["role"] == "assistant"
    before = tokenizer.apply_chat_template(messages[:-1] if has_answer else messages)
    if not has_answer:
        return tokenizer.encode(before, False), []
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    answer = whole.removeprefix(before) if whole.startswith(before) else messages[-1]["content"]
    return tokenizer.encode(before, False), tokenizer.encode(answer, False)


def _sample(tokens: list[int], num_prompt: int) -> TextSample:
    return TextSample(np.array(tokens, dtype=np.int32), num_prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """Settings for the target's answers."""

    temperature: float = 0.0
    max_tokens: int = 256
    seed: int = 0
    max_num_seqs: int = 256
    """Maximum number of prompts answered together."""
    gpu_memory_utilization: float = 0.9
    """Share of the GPU's memory. Several processes may share one GPU."""


def cut_prompts(samples: Sequence[TextSample], *, num_tokens: int, room: int) -> list[TextSample]:
    """Return the samples' prompts without answers and without duplicates.

    Args:
        samples: samples; without a prompt, the first `num_tokens` tokens count as prompt.
        room: maximum prompt length; longer ones lose their start.
    """
    prompts: dict[bytes, TextSample] = {}
    for sample in samples:
        tokens = sample.tokens[: sample.num_prompt or num_tokens][-room:]
        prompts.setdefault(tokens.tobytes(), TextSample(tokens, len(tokens)))
    return list(prompts.values())


def answer(
    target: Path,
    prompts: Sequence[TextSample],
    folder: Path,
    settings: AnswerSettings,
    *,
    device: str,
    progress: Progress,
    ranks: Ranks = ALONE,
) -> list[TextSample]:
    """Return each prompt with the target's answer, including the end token.

    Answers are written to `folder` as they arrive, and existing ones are not computed again, so an interrupted run
    resumes.

    Args:
        ranks: processes; each answers its share of the prompts and writes a separate file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec = f"{settings.temperature}-{settings.max_tokens}-{settings.seed}"
    stem = f"answers-{hashlib.sha256(spec.encode()).hexdigest()[:8]}"
    file = folder / (f"{stem}.jsonl" if ranks.is_first else f"{stem}-rank{ranks.rank}.jsonl")
    known = _read_all(folder, stem)
    by_key = {_key(prompt): prompt for prompt in prompts}
    missing = {key: prompt for key, prompt in by_key.items() if key not in known}
    ranks.wait()  # until all know what is missing
    if mine := dict(ranks.share(list(missing.items()))):
        cut_unfinished(file)
        with (
            show_bar(progress, "answers", total=len(by_key), done=len(by_key) - len(missing)) as bar,
            file.open("a") as out,
        ):
            for key, tokens in _generate(target, mine, settings, device, bar):
                out.write(json.dumps({"prompt": key, "token_ids": tokens}) + "\n")
                out.flush()
                bar.advance(ranks.size)
    ranks.wait()
    known = _read_all(folder, stem)
    return [
        TextSample(np.concatenate([prompt.tokens, np.array(known[key], np.int32)]), prompt.num_prompt)
        for key, prompt in by_key.items()
    ]


def _key(prompt: TextSample) -> str:
    return hashlib.sha256(prompt.tokens.tobytes()).hexdigest()[:24]


def _read_all(folder: Path, stem: str) -> dict[str, list[int]]:
    """Return the answers on disk, of all ranks, without incomplete last lines."""
    files = (RowFile(file, lambda row: (row["prompt"], row["token_ids"])) for file in folder.glob(f"{stem}*.jsonl"))
    return dict(chain.from_iterable(file.read() for file in files))


def _generate(
    target: Path, prompts: Mapping[str, TextSample], settings: AnswerSettings, device: str, bar: Bar
) -> Iterator[tuple[str, list[int]]]:
    """Yield answers as they finish."""
    longest = max(len(prompt.tokens) for prompt in prompts.values())
    engine = Engine(
        EngineConfig.from_settings(
            model=str(target),
            device=device,
            dtype="float32" if device == "cpu" else "auto",
            max_model_len=longest + settings.max_tokens,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=max(8192, settings.max_num_seqs),
            gpu_memory_utilization=settings.gpu_memory_utilization,
            enable_prefix_caching=False,
            seed=settings.seed,
        )
    )
    params = SamplingParams(temperature=settings.temperature, max_tokens=settings.max_tokens)
    waiting = iter(prompts.items())
    answers: dict[str, list[int]] = {}
    num_tokens = 0
    pending: Pending = ()
    while True:
        for key, prompt in waiting:
            engine.add(EngineRequest(request_id=key, prompt_token_ids=prompt.tokens.tolist(), params=params))
            answers[key] = []
            if len(answers) >= 2 * settings.max_num_seqs:
                break
        if not engine.has_work():
            break
        pending, deltas = engine.step(pending)
        for delta in deltas:
            answers[delta.request_id] += delta.token_ids
            num_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                yield delta.request_id, answers.pop(delta.request_id)
                bar.set_note(f"{num_tokens} tokens")
    del engine
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


_FIRST_LEARNED = 2
"""A draft needs a known token and a state before it: no method can predict an earlier one."""
_NUM_BUCKETS = 3
_SHORTEST_ROW = 32
"""Long enough for the longest drafts."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Sample i is tokens_N[offsets_S[i] : offsets_S[i + 1]]. Tokens from starts_S[i] on are learned."""

    tokens_N: NDArray[np.int32]
    offsets_S: NDArray[np.int64]
    starts_S: NDArray[np.int64]

    @classmethod
    def from_samples(cls, samples: Iterable[TextSample]) -> Corpus:
        """Return the corpus of samples, without those that have no tokens to learn."""
        kept = [each for each in samples if len(each.tokens) > max(each.num_prompt, _FIRST_LEARNED)]
        lengths = np.array([0, *(len(each.tokens) for each in kept)], np.int64)
        tokens_N = np.concatenate([each.tokens for each in kept]) if kept else np.zeros(0, np.int32)
        starts_S = np.array([max(each.num_prompt, _FIRST_LEARNED) for each in kept], np.int64)
        return cls(tokens_N, lengths.cumsum(), starts_S)

    def __len__(self) -> int:
        return len(self.starts_S)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample, [S]."""
        return np.diff(self.offsets_S)

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.tokens_N)

    @property
    def digest(self) -> str:
        """A hash of the content, which identifies this corpus."""
        hashed = hashlib.sha256()
        for array in (self.tokens_N, self.offsets_S, self.starts_S):
            hashed.update(np.ascontiguousarray(array).tobytes())
        return hashed.hexdigest()[:16]

    def count_learned(self, vocab_size: int) -> NDArray[np.int64]:
        """Return the number of occurrences of each token in learned parts, [V]."""
        places_N = np.arange(self.num_tokens) - np.repeat(self.offsets_S[:-1], self.lengths)
        learned_N = places_N >= np.repeat(self.starts_S, self.lengths)
        return np.bincount(self.tokens_N[learned_N], minlength=vocab_size)


def split(samples: list[TextSample], share: float, *, most_tokens: int) -> tuple[list[TextSample], list[TextSample]]:
    """Return the samples to learn, and those held out: about `share` of them, at least one.

    A hash of the prompt (or of the whole text) decides, so a sample stays on its side if others are added or removed,
    and equal prompts stay together. Held-out samples beyond `most_tokens` are left out.

    Raises:
        InvalidSetup: there are fewer than two different samples.
    """
    places = [_place(each) for each in samples]
    limit = max(share, min(places, default=0.0))
    learned = [each for each, place in zip(samples, places, strict=True) if place > limit]
    chosen = sorted((place, i) for i, place in enumerate(places) if place <= limit)
    ends = np.cumsum([len(samples[i].tokens) for _, i in chosen])
    held_out = [samples[i] for (_, i), end in zip(chosen, ends, strict=True) if end <= most_tokens or end == ends[0]]
    if not learned:
        raise refusal("too-little-data", num_samples=len(samples))
    return learned, held_out


def _place(sample: TextSample) -> float:
    """Return a number in [0, 1) that depends on the prompt only."""
    content = sample.tokens[: sample.num_prompt or None]
    return int.from_bytes(hashlib.sha256(content.tobytes()).digest()[:8], "big") / 2**64


def bucket_lengths(lengths_S: NDArray[np.int64], count: int, multiple: int) -> list[int]:
    """Return at most `count` row lengths, multiples of `multiple`, that minimize the padding of all samples."""
    sizes, numbers = np.unique(-(-lengths_S // multiple) * multiple, return_counts=True)
    below = np.concatenate([np.zeros(1, np.int64), numbers.cumsum()])
    best: list[tuple[float, list[int]]] = [(0.0, []), *[(np.inf, [])] * len(sizes)]
    for _ in range(count):
        previous = best
        best = [previous[0]]
        for last in range(1, len(sizes) + 1):
            size = int(sizes[last - 1])
            options = [(previous[i][0] + size * (below[last] - below[i]), previous[i][1]) for i in range(last)]
            cost, chosen = min(options, key=lambda option: option[0])
            best.append(min(previous[last], (float(cost), [*chosen, size]), key=lambda option: option[0]))
    return best[-1][1]


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """The samples of one batch."""

    samples_B: NDArray[np.int64]
    """Sample of each row; -1: an empty row."""
    length: int
    """T."""
    num_learned: int
    num_tokens: int
    """Tokens without padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A run's position in its data."""

    step: int = 0
    taken: tuple[int, ...] = ()
    """Number of samples taken so far, by bucket."""


class SampleOrder:
    """The order in which samples are learned, determined only by the seed and the position.

    Samples of similar length share batches of `batch_tokens` tokens. Each step takes its batches from one length
    bucket. A bucket is reshuffled once it is used up.

    Args:
        batch_tokens: tokens per batch, padding included; at least one sample.
        accumulate: batches per step.
        lengths: row lengths. None: those that fit the corpus best. Each costs a compilation. A longer one is added if
            necessary.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_tokens: int,
        accumulate: int = 1,
        seed: int = 0,
        lengths: Sequence[int] | None = None,
    ) -> None:
        lengths_S = corpus.lengths
        multiple = 64 if lengths_S.max() >= 256 else 16
        best = bucket_lengths(lengths_S.clip(min=_SHORTEST_ROW), _NUM_BUCKETS, multiple)
        self.lengths = best if lengths is None else sorted({*lengths, max(*lengths, *best)})
        bucket_S = np.searchsorted(self.lengths, lengths_S)
        self._members = [np.flatnonzero(bucket_S == i) for i in range(len(self.lengths))]
        self._lengths_S, self._num_learned_S = lengths_S, lengths_S - corpus.starts_S
        self._seed, self._accumulate = seed, accumulate
        self._sizes = [max(batch_tokens // length, 1) * accumulate for length in self.lengths]
        if lengths is None:  # no sample twice in a batch
            self._sizes = [
                min(size, -(-len(members) // accumulate) * accumulate)
                for size, members in zip(self._sizes, self._members, strict=True)
            ]
        weights = np.array([len(members) / size for members, size in zip(self._members, self._sizes, strict=True)])
        self._shares = weights / weights.sum()

    def get_start(self) -> Position:
        """Return the position before the first step."""
        return Position(taken=(0,) * len(self.lengths))

    def leads_to(self, position: Position) -> bool:
        """Return whether as many steps as a position counts can have taken its samples."""
        if len(position.taken) != len(self._sizes):
            return False
        steps = [divmod(taken, size) for taken, size in zip(position.taken, self._sizes, strict=True)]
        return min(steps)[0] >= 0 and not any(rest for _, rest in steps) and sum(n for n, _ in steps) == position.step

    def take_step(self, position: Position) -> tuple[list[BatchRows], Position]:
        """Return the batches of the step at a position, and the position after it."""
        bucket = int(np.random.default_rng((self._seed, 0, position.step)).choice(len(self.lengths), p=self._shares))
        size, first = self._sizes[bucket], position.taken[bucket]
        samples = self._take(bucket, first, size)
        taken = (*position.taken[:bucket], first + size, *position.taken[bucket + 1 :])
        parts = np.split(samples, self._accumulate)
        return [self._rows(part, bucket) for part in parts], Position(step=position.step + 1, taken=taken)

    def iterate_once(self) -> Iterator[BatchRows]:
        """Yield batches that hold each sample once, padded with empty rows to the shapes of `take_step`."""
        for bucket, members in enumerate(self._members):
            size = self._sizes[bucket] // self._accumulate
            for first in range(0, len(members), size):
                part = members[first : first + size]
                yield self._rows(np.pad(part, (0, size - len(part)), constant_values=-1), bucket)

    def _take(self, bucket: int, first: int, size: int) -> NDArray[np.int64]:
        """Return the members number first .. first + size - 1 of a bucket's endless shuffled stream."""
        members, parts = self._members[bucket], []
        while size:
            epoch, offset = divmod(first, len(members))
            shuffled = np.random.default_rng((self._seed, 1, bucket, epoch)).permutation(members)
            parts.append(shuffled[offset : offset + size])
            first, size = first + len(parts[-1]), size - len(parts[-1])
        return np.concatenate(parts)

    def _rows(self, samples_B: NDArray[np.int64], bucket: int) -> BatchRows:
        used = samples_B[samples_B >= 0]
        num_learned, num_tokens = self._num_learned_S[used].sum(), self._lengths_S[used].sum()
        return BatchRows(samples_B, self.lengths[bucket], int(num_learned), int(num_tokens))


class Feed:
    """Makes batches on a device. The corpus is kept there, too, if it takes little memory."""

    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self.corpus, self._device = corpus, device
        home = device if _fits(corpus, device) else torch.device("cpu")
        self._tokens_N = torch.from_numpy(corpus.tokens_N).to(home)
        self._firsts_S = torch.from_numpy(corpus.offsets_S[:-1].copy()).to(home)
        self._lengths_S = torch.from_numpy(corpus.lengths).to(home)
        self._starts_S = torch.from_numpy(corpus.starts_S).to(home)

    def make_batch(self, rows: BatchRows) -> TokenBatch:
        """Return a batch."""
        chosen_B = _send(torch.from_numpy(rows.samples_B), self._tokens_N.device)
        places_T = torch.arange(rows.length, device=chosen_B.device)
        used_B, chosen_B = chosen_B >= 0, chosen_B.clamp(min=0)
        valid_BT = (places_T < self._lengths_S[chosen_B][:, None]) & used_B[:, None]
        places_BT = (self._firsts_S[chosen_B][:, None] + places_T).clamp(max=len(self._tokens_N) - 1)
        tokens_BT = torch.where(valid_BT, self._tokens_N[places_BT].long(), 0)
        learned_BT = valid_BT & (places_T >= self._starts_S[chosen_B][:, None])
        parts = (_send(part, self._device) for part in (tokens_BT, valid_BT, learned_BT))
        return TokenBatch(**dict(zip(("tokens_BT", "valid_BT", "learned_BT"), parts, strict=True)))


def _fits(corpus: Corpus, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return corpus.tokens_N.nbytes < free // 8


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without making the host wait."""
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
