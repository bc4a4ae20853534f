"""What a server's model says of the tokens of a text: `prompt_logprobs` of vLLM and of draftwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from draftwise.backends.asking import Asker
from draftwise.core import BackendError
from draftwise.replaying.served_drafts import Score

__all__ = ["Scorer"]


class Scorer:
    """Asks one server; from several threads at once.

    Args:
        url: with or without /v1.
        headers: of every request.
        client: that reaches the server; None for one of its own.

    Raises:
        BackendError: it does not answer, or serves no model.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, client: httpx.Client | None = None) -> None:
        self._server = Asker(url, headers, client)
        self.model = self._server.model

    def score(self, text: Sequence[int]) -> list[Score]:
        """Return what the model says of each token but the first.

        Raises:
            BackendError: the server does not answer, or not with log-probabilities of the prompt.
        """
        choice = (self._server.complete(list(text), prompt_logprobs=1).get("choices") or [{}])[0]
        rows = choice.get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(text):
            raise BackendError(f"{self._server.url} does not tell prompt_logprobs: it is neither vLLM nor draftwise.")
        return [self._read(row, token) for row, token in zip(rows[1:], text[1:], strict=True)]

    def _read(self, row: Mapping[str, Any], token: int) -> Score:
        try:
            own = row[str(token)]
            return Score(logprob=float(own["logprob"]), is_best=own["rank"] == 1)
        except (KeyError, TypeError, ValueError):
            raise BackendError(
                f"{self._server.url} does not say how likely token {token} is: it has another vocabulary than the log."
            ) from None
