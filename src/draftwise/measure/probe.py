"""Sends a few prompts to running servers, one at a time, to check in seconds that they run as configured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache

from draftwise.backends import UrlBackend
from draftwise.backends.backend import ProbedPair, ServerProbe
from draftwise.core import Answer, BackendError, Divergence, Workload
from draftwise.deciding.comparison.cell import OutputDifference, find_difference
from draftwise.measure.divergences import ask, conclude
from draftwise.measure.load.client import Client
from draftwise.runs.turn_order import Turn
from draftwise.workloads.loading import load_workloads

_BUNDLED = ("code", "prose", "rewrite")
_MOST_TOKENS = 64


def load_probe(num_prompts: int) -> tuple[Workload, ...]:
    """Return bundled prompts, the same number for each kind of text."""
    shares = (len(range(start, num_prompts, len(_BUNDLED))) for start in range(len(_BUNDLED)))
    return tuple(each.first(share) for each, share in zip(_load_bundled(), shares, strict=True) if share)


@cache
def _load_bundled() -> tuple[Workload, ...]:
    return tuple(load_workloads(name, max_tokens=_MOST_TOKENS)[0] for name in _BUNDLED)


async def probe(
    server: UrlBackend, plain: UrlBackend | None, workloads: Sequence[Workload], *, salt: str
) -> ProbedPair:
    """Return a server's behavior, compared with a plain server if given.

    Args:
        server: server to probe, not started yet.
        plain: server of the same model without speculation.
        workloads: workloads whose prompts to send.
        salt: makes the prompts new to the servers' prefix caches.

    Raises:
        BackendError: a server does not answer, or rejects a prompt.
    """
    async with _open(server, workloads, salt) as client:
        probed = await _ask_all(server, client, workloads)
        if plain is None:
            return ProbedPair(server=probed)
        async with _open(plain, workloads, salt) as plain_client:
            beside = await _ask_all(plain, plain_client, workloads)
            clients = (plain_client, client)
            found = [await _look_at(each, clients) for each in _find_differences(beside, probed)]
    return ProbedPair(server=probed, plain=beside, divergences=tuple(found))


@asynccontextmanager
async def _open(backend: UrlBackend, workloads: Sequence[Workload], salt: str) -> AsyncIterator[Client]:
    try:
        await backend.start()
        hello = replace(workloads[0].prompts[0], max_tokens=1)
        yield await Client.greet(backend, hello, salt=salt)
    finally:
        await backend.stop()


async def _ask_all(backend: UrlBackend, client: Client, workloads: Sequence[Workload]) -> ServerProbe:
    before = await backend.counters()
    answers = [answer for workload in workloads for answer in await _ask(backend, client, workload)]
    return ServerProbe(
        info=await backend.describe(),
        answers=tuple(answers),
        growth=await backend.counters() - before,
        counts_drafts=await backend.has_draft_counters(),
    )


async def _ask(backend: UrlBackend, client: Client, workload: Workload) -> list[Answer]:
    turn = Turn(number=0, arm=backend.name, workload=workload.name, repeat=1, prompts=workload.prompts)
    answers = [await client.ask(turn, prompt, seed=0) for prompt in workload.prompts]
    for answer in answers:
        if answer.error is not None:
            raise BackendError(f"{backend.name}: {backend.url} rejects a prompt ({answer.error}). Check its log.")
    return answers


def _find_differences(plain: ServerProbe, server: ServerProbe) -> Iterator[OutputDifference]:
    for theirs, ours in zip(plain.answers, server.answers, strict=True):
        difference = find_difference((ours.workload, ours.prompt_id), theirs, ours)
        if difference is not None:
            yield difference


async def _look_at(difference: OutputDifference, clients: Sequence[Client]) -> Divergence:
    return conclude(difference, [await ask(difference, client) for client in clients])
