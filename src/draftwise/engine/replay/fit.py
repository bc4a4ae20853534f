"""Whether an engine can have written what a log holds."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise.core import InvalidSetup
from draftwise.engine.core import Engine
from draftwise.replaying.transcripts import Transcript

__all__ = ["check_fit"]


def check_fit(engine: Engine, requests: Sequence[Transcript]) -> None:
    """Refuse requests that the engine cannot have served.

    Raises:
        InvalidSetup: one is longer than the model's context, or has ids that the target does not.
    """
    longest, vocab_size = engine.config.max_model_len, engine.shape.vocab_size
    assert longest is not None
    for request in requests:
        if request.num_tokens > longest:
            raise InvalidSetup.because(
                "answer-too-long",
                f"Request {request.id} has {request.num_tokens} tokens, its answer included, and the target takes "
                f"{longest}.",
                where=request.id,
                fix="Name the model that was served, or leave the request out.",
            )
        if max(*request.prompt_ids, *request.answer_ids) >= vocab_size:
            raise InvalidSetup.because(
                "unknown-token",
                f"Request {request.id} has token ids that the target does not: its vocabulary has 0..{vocab_size - 1}.",
                where=request.id,
                fix="Name the model that wrote the log as --target.",
            )
