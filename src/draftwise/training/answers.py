"""On-policy data: the target's own answers to the prompts, from the embedded engine."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from draftwise.engine.config import EngineConfig
from draftwise.engine.core import Engine, EngineRequest, Pending
from draftwise.engine.sampling.params import SamplingParams
from draftwise.runs.row_files import RowFile, cut_unfinished
from draftwise.training.progress import Bar, Reporter
from draftwise.training.ranks import ALONE, Ranks
from draftwise.training.reading import Sample

__all__ = ["AnswerSettings", "answer", "cut_prompts"]


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


def cut_prompts(samples: Sequence[Sample], *, num_tokens: int, room: int) -> list[Sample]:
    """Return the samples' prompts without answers and without duplicates.

    Args:
        samples: of one without a prompt the first `num_tokens` tokens are taken.
        num_tokens: see `samples`.
        room: longest prompt; longer ones lose their start.
    """
    prompts: dict[bytes, Sample] = {}
    for sample in samples:
        tokens = sample.tokens[: sample.num_prompt or num_tokens][-room:]
        prompts.setdefault(tokens.tobytes(), Sample(tokens, len(tokens)))
    return list(prompts.values())


def answer(
    target: Path,
    prompts: Sequence[Sample],
    folder: Path,
    settings: AnswerSettings,
    *,
    device: str,
    reporter: Reporter,
    ranks: Ranks = ALONE,
) -> list[Sample]:
    """Return each prompt with the target's answer to it, end token included.

    Answers are written to `folder` as they come, and those already there are not computed again, so a run that was
    stopped resumes where it was.

    Args:
        target: its checkpoint directory.
        prompts: without answers.
        folder: of the cache.
        settings: how to answer.
        device: `cpu` or `cuda`.
        reporter: shows the progress.
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
        Sample(np.concatenate([prompt.tokens, np.array(known[key], np.int32)]), prompt.num_prompt)
        for key, prompt in by_key.items()
    ]


def _key(prompt: Sample) -> str:
    return hashlib.sha256(prompt.tokens.tobytes()).hexdigest()[:24]


def _read_all(folder: Path, stem: str) -> dict[str, list[int]]:
    """Return the answers on disk, of all ranks, without incomplete last lines."""
    files = (RowFile(file, lambda row: (row["prompt"], row["token_ids"])) for file in folder.glob(f"{stem}*.jsonl"))
    return dict(chain.from_iterable(file.read() for file in files))


def _generate(
    target: Path, prompts: Mapping[str, Sample], settings: AnswerSettings, device: str, bar: Bar
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
