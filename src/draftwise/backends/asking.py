"""Sends single requests to a server with OpenAI's API, from any number of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from draftwise.core import BackendError
from draftwise.machine.network import find_proxy, open_tls
from draftwise.replaying.served_drafts import Score

_PATIENCE_S = 600.0


class Asker:
    """Sends single requests to one server. Thread-safe.

    Attributes:
        url: the server's address, without /v1.
        model: the first model that it serves.

    Args:
        url: the server's address, with or without /v1.
        headers: sent with every request.
        client: HTTP client to use; None creates one.

    Raises:
        BackendError: the server does not answer, or serves no model.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, client: httpx.Client | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = client or httpx.Client(
            headers=headers, timeout=_PATIENCE_S, trust_env=False, proxy=find_proxy(self.url), verify=open_tls(),
        )  # fmt: skip
        models = self._ask("GET", "/v1/models", None).get("data") or []
        if not models:
            raise BackendError(f"{self.url} serves no model.")
        self.model: str = models[0]["id"]

    def complete(self, prompt: list[int], **fields: Any) -> dict[str, Any]:
        """Return the answer to a prompt: one token at temperature 0.

        Args:
            prompt: token ids.
            fields: further fields of the request.

        Raises:
            BackendError: the server does not answer, or its answer is not JSON.
        """
        body = {"model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        return self._ask("POST", "/v1/completions", body | fields)

    def _ask(self, verb: str, path: str, body: object) -> dict[str, Any]:
        try:
            reply = self._client.request(verb, f"{self.url}{path}", json=body)
            found = reply.json() if reply.is_success else None
        except (httpx.HTTPError, ValueError) as error:
            raise BackendError(f"{self.url} does not answer: {error or type(error).__name__}.") from None
        if not isinstance(found, dict):
            raise BackendError(f"{self.url} answers {reply.status_code}: {reply.text[:300]}")
        return found


class Scorer:
    """Scores texts with one server. Thread-safe.

    Raises:
        BackendError: the server does not answer, or serves no model.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, client: httpx.Client | None = None) -> None:
        self._server = Asker(url, headers, client)
        self.model = self._server.model

    def score(self, text: Sequence[int]) -> list[Score]:
        """Return the model's score of each token except the first.

        Raises:
            BackendError: the server does not answer, or returns no log-probabilities of the prompt.
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
                f"{self._server.url} reports no probability for token {token}: its vocabulary is not that of the log."
            ) from None
