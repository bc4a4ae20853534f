"""Training samples: read from text and JSON lines, or the target's own answers from the embedded engine."""

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

from draftwise.core import InvalidSetup, cause_of
from draftwise.engine.core import Engine, EngineRequest, Pending
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.runs.row_files import RowFile, cut_unfinished
from draftwise.training.ranks import ALONE, Ranks
from draftwise.training.training_progress import Bar, Reporter
from draftwise.workloads.workload_rows import open_plain, read_objects

_PIECE = 2**16
"""Characters of plain text tokenized at a time, up to the next line end."""


@dataclass(frozen=True, slots=True)
class TextSample:
    """A sequence of token ids: a prompt, then the tokens to learn."""

    tokens: NDArray[np.int32]
    num_prompt: int
    """0: no prompt, all is learned; as many as there are tokens: a prompt without an answer."""


def read_samples(
    paths: Sequence[str | Path], tokenizer: Tokenizer, *, max_length: int, window: int
) -> Iterator[TextSample]:
    """Yield the samples of files, each at most `max_length` tokens long.

    - .txt: one running text, cut into windows of `window` tokens.
    - .jsonl, a JSON object a line: `text` (cut into windows), `prompt` with or without `completion`, `messages`
      (rendered with the chat template; the last one is learned if it is the assistant's), or `token_ids` with or
      without `num_prompt`. A sample that is too long loses its end; a prompt without an answer loses its start.

    Raises:
        InvalidSetup: a file is missing or of an unknown kind, or a line is invalid.
    """
    for path in map(Path, paths):
        kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
        if kind not in (".txt", ".jsonl"):
            raise InvalidSetup.because(
                "unknown-data",
                f"{path} has an unknown file type.",
                where=str(path),
                fix="Use .txt, .jsonl, .txt.gz or .jsonl.gz.",
            )
        try:
            with open_plain(path) as file:
                if kind == ".txt":
                    lines = TextIOWrapper(file, encoding="utf-8")
                    yield from _windows(_encode_pieces(lines, tokenizer), window)
                else:
                    yield from _read_lines(file, path, tokenizer, max_length, window)
        except (OSError, EOFError, UnicodeDecodeError) as error:
            message = f"{path} cannot be read ({cause_of(error)})."
            raise InvalidSetup.because("unreadable-data", message, where=str(path)) from None


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
                yield from _windows([tokenizer.encode(entry["text"], False)], window)
            else:
                yield from _read_entry(entry, tokenizer, max_length, where)
        except (AttributeError, KeyError, TypeError) as error:
            text = f"{where} holds a value of the wrong type: {error}."
            raise InvalidSetup.because("bad-entry", text, where=where) from None


def _read_entry(entry: dict[str, Any], tokenizer: Tokenizer, max_length: int, where: str) -> Iterator[TextSample]:
    if "prompt" in entry:
        prompt = tokenizer.encode(entry["prompt"])
        answer = tokenizer.encode(entry.get("completion") or "", False)
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
        raise InvalidSetup.because(
            "bad-entry",
            f"{where} lacks text, prompt, messages or token_ids. Its keys are {', '.join(entry) or 'none'}.",
            where=where,
            fix="Give each line one of them.",
        )
    tokens = (prompt + answer)[:max_length] if answer else prompt[-max_length:]
    if tokens:
        yield _sample(tokens, min(len(prompt), len(tokens)))


def _encode_messages(messages: list[dict[str, Any]], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the conversation up to the last answer, and that answer as the template ends it."""
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
    """How the target answers."""

    temperature: float = 0.0
    max_tokens: int = 256
    seed: int = 0
    max_num_seqs: int = 256
    """Maximum number of prompts that are answered together."""
    gpu_memory_utilization: float = 0.9
    """Share of the GPU's memory; several processes may share one."""


def cut_prompts(samples: Sequence[TextSample], *, num_tokens: int, room: int) -> list[TextSample]:
    """Return the samples' prompts without answers and without duplicates.

    Args:
        samples: of one without a prompt the first `num_tokens` tokens are taken.
        room: longest prompt; longer ones lose their start.
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
    reporter: Reporter,
    ranks: Ranks = ALONE,
) -> list[TextSample]:
    """Return each prompt with the target's answer to it, end token included.

    Answers are written to `folder` as they come, and those already there are not computed again, so a run that was
    stopped resumes where it was.

    Args:
        ranks: each answers its share of the prompts, and writes a file of its own.
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
            reporter.show_bar("answers", total=len(by_key), done=len(by_key) - len(missing)) as bar,
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
