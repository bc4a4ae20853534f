"""Hidden states from a vLLM server that runs: its method `extract_hidden_states` writes files, which are read here.

Shape letters: T tokens of a sample, N states of a token, H hidden size, F = N * H.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from draftwise.backends.asking import Asker
from draftwise.core import BackendError, InvalidSetup
from draftwise.training.batch import Batch
from draftwise.training.data import Corpus
from draftwise.training.features import GatheredStates
from draftwise.training.target import Target

__all__ = ["ServedStates", "check_served"]

_AT_ONCE = 16
"""Samples that the server is asked for at a time."""
_MOST_DIFFERENCE = 0.05
"""Between the server's states and ours, relative to their size: rounding to bfloat16 stays below."""
_CHECKED_TOKENS = 64


class ServedStates(GatheredStates):
    """Asks a server for the states of each sample when its batch is due; its files are deleted once they are read.

    Args:
        corpus: the samples.
        target: the one that is served; of its weights only embedding, norm and head are used.
        aux_layers: the states that the drafter reads; the server writes these and that which leaves the last layer.
        url: of the server, with or without /v1.

    Raises:
        BackendError: it does not answer.
    """

    def __init__(self, corpus: Corpus, target: Target, aux_layers: Sequence[int], url: str) -> None:
        super().__init__(corpus, target, aux_layers)
        layers = _served_layers(aux_layers, target)
        self._num_states, self._places = len(layers), [layers.index(layer) for layer in aux_layers]
        self._norm: Callable[[Tensor], Tensor] = target.model.model.norm
        self._server, self._pool = Asker(url), ThreadPoolExecutor(_AT_ONCE)

    def _read(self, samples: Sequence[int]) -> Iterator[Tensor]:
        texts = [self._corpus.tokens_N[slice(*self._corpus.offsets_S[i : i + 2])].tolist() for i in samples]
        yield from self._pool.map(self._get, texts)

    def _get(self, tokens: list[int]) -> Tensor:
        """Return a sample's states, the last of them normed, [T, F] in the target's dtype."""
        states_TNH = _ask(self._server, tokens, self._num_states).to(self._device, self._dtype)
        with torch.no_grad():
            final_TH = self._norm(states_TNH[:, -1])
        return torch.cat((states_TNH[:, self._places].flatten(1), final_TH), dim=-1).cpu()


def check_served(url: str, corpus: Corpus, target: Target, aux_layers: Sequence[int]) -> None:
    """Make sure that a server writes the states that are asked for, by computing those of a short text here.

    Args:
        url: of the server.
        corpus: where the text is from.
        target: whole, on any device.
        aux_layers: the states that the drafter reads.

    Raises:
        InvalidSetup: it serves other weights, or writes the states of other layers.
        BackendError: it does not answer, or writes nothing that can be read here.
    """
    tokens = corpus.tokens_N[: min(int(corpus.lengths[0]), _CHECKED_TOKENS)].tolist()
    tokens_BT = torch.tensor([tokens], device=target.device)
    given_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    wanted = _served_layers(aux_layers, target)
    batch = Batch(tokens_BT=tokens_BT, valid_BT=given_BT, learnt_BT=given_BT)
    expected_TNH = torch.stack(target.compute_states(batch, wanted).aux_BTH, dim=2)[0].float().cpu()
    served_TNH = _ask(Asker(url), tokens, len(wanted)).float()
    sizes_N = expected_TNH.norm(dim=-1).median(0).values
    differences_N = (served_TNH - expected_TNH).norm(dim=-1).median(0).values / sizes_N
    wrong = [layer for layer, each in zip(wanted, differences_N.tolist(), strict=True) if not each < _MOST_DIFFERENCE]
    if not wrong:
        return
    raise InvalidSetup.because(
        "wrong-states",
        f"{url} writes other states than those of layers {_join(wanted)}: {_join(wrong)} differ from what "
        f"{target.path} computes.",
        where="--hidden-states",
        fix=f"Serve this very target, with eagle_aux_hidden_state_layer_ids: [{_join(wanted)}].",
    )


def _served_layers(aux_layers: Sequence[int], target: Target) -> list[int]:
    """Return the layers whose states a server must write, in vLLM's order: ascending, once each."""
    return sorted({*aux_layers, target.num_layers})


def _ask(server: Asker, tokens: list[int], num_states: int) -> Tensor:
    """Return the states of a text, [T, N, H].

    Raises:
        BackendError: there are none, or not for these tokens.
    """
    told = server.complete(tokens).get("kv_transfer_params") or {}
    path = told.get("hidden_states_path")
    if not isinstance(path, str):
        raise BackendError(
            f"{server.url} names no file of hidden states: start vLLM with the method extract_hidden_states and a "
            "connector that writes them (docs/training.md)."
        )
    tensors = _take(Path(path))
    states, ids = tensors.get("hidden_states"), tensors.get("token_ids")
    if states is None or ids is None or ids.tolist() != tokens or states.shape[:1] != ids.shape:
        raise BackendError(f"{path} does not hold the hidden states of the {len(tokens)} tokens that were sent.")
    if states.shape[1] != num_states:
        raise BackendError(
            f"{path} holds {states.shape[1]} states of a token; {num_states} are needed, the last layer's included."
        )
    return states


def _take(path: Path) -> Mapping[str, Tensor]:
    """Read a file that a server writes, once its lock is free, and delete both.

    Raises:
        BackendError: it cannot be read.
    """
    lock = path.with_name(path.name + ".lock")
    try:
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            tensors = load_file(path)
        path.unlink()
        lock.unlink()
    except (OSError, SafetensorError) as error:
        raise BackendError(
            f"{path}, where the server says that it wrote hidden states, cannot be read here: {error}. Its "
            "shared_storage_path must be a folder that this machine sees under the same name."
        ) from None
    return tensors


def _join(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
