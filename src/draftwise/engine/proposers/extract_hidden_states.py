"""Writes the target's hidden states of each prompt to disk, for training drafters. Drafts nothing.

The files equal those of vLLM's `extract_hidden_states`: `token_ids` and `hidden_states` in one safetensors file.

Shape letters: B sequences, C tokens of a prompt in one step, T tokens of a prompt, N layers, H hidden size,
F = N * H.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from draftwise.checkpoints.config_values import AUX_KEY
from draftwise.core import cause_of
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.models.checkpoint import write_tensors
from draftwise.engine.proposers.proposer import Confirmed, Proposer
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.engine.sampling.draft import Draft
from draftwise.knowledge.messages import refusal


def hidden_states_path(folder: str | Path, prompt_token_ids: Sequence[int]) -> Path:
    """Return the file for a prompt's states."""
    digest = hashlib.sha256(array("q", prompt_token_ids).tobytes()).hexdigest()
    return Path(folder) / f"{digest[:32]}.safetensors"


@dataclass(slots=True)
class _Prompt:
    """States of a prompt's first tokens, on the host."""

    path: Path
    token_ids: list[int]
    wanted: bool
    """Whether its file was absent at the start."""
    states_CF: list[Tensor] = field(default_factory=list)
    num_known: int = 0


class ExtractHiddenStatesProposer(Proposer):
    """Collects the hidden states of each prompt and writes them once its first output token is confirmed.

    The file `hidden_states_path` of each prompt then has `token_ids`, int64 [T], and `hidden_states`, [T, N, H] in the
    target's dtype. Existing files are kept, so you can resume an interrupted run.

    Args:
        aux_layers: states to write (see `Proposer.aux_layers`), in ascending order along N, as in vLLM.
        folder: output folder; created if missing.

    Raises:
        InvalidSetup: no state is named, or the folder is not writable.
    """

    needs_every_state = True
    needs_ending = True
    on_host = True

    def __init__(self, *, aux_layers: Sequence[int], folder: str | Path) -> None:
        if not aux_layers:
            raise refusal("no-layers", aux_key=AUX_KEY)
        self.aux_layers = tuple(sorted(set(aux_layers)))
        self._folder = _make_folder(folder)
        self._prompts: dict[int, _Prompt] = {}

    def propose(self, new: Confirmed, k: int) -> Draft:
        """Keep the states of prompt tokens, and write the file of each completed prompt."""
        assert new.features_NF is not None
        assert new.spans.host is not None
        features = new.features_NF.split([length for _, length in new.spans.host])
        rows = zip(new.slots_B.tolist(), new.num_prompt_B.tolist(), new.spans.host, new.histories, strict=True)
        for features_CF, (slot, num_prompt, (start, _), history) in zip(features, rows, strict=True):
            # A token comes with the states of the position before it.
            if start <= num_prompt:
                self._take_in(slot, list(history[:num_prompt]), start - 1, features_CF)
        return Draft.empty(new.spans.num_seqs, k)

    def release(self, slot: int) -> None:
        """Forget the sequence in `slot`. An incomplete prompt is not written."""
        self._prompts.pop(slot, None)

    def _take_in(self, slot: int, token_ids: list[int], first: int, features_CF: Tensor) -> None:
        """Keep the states of a prompt's tokens from position `first` on."""
        if first == 0:
            path = hidden_states_path(self._folder, token_ids)
            self._prompts[slot] = _Prompt(path, token_ids, wanted=not path.exists())
        prompt = self._prompts.get(slot)
        if prompt is None:  # a fork: another sequence computes its prompt
            return
        assert first == prompt.num_known, "no state may be missing"
        prompt.num_known = min(first + len(features_CF), len(token_ids))
        if prompt.wanted:
            prompt.states_CF.append(features_CF[: len(token_ids) - first].to("cpu", copy=True))
        if prompt.num_known == len(token_ids):
            if prompt.wanted:
                self._write(prompt)
            del self._prompts[slot]

    def _write(self, prompt: _Prompt) -> None:
        """Write next to the file and rename, so that a file under its name is a whole one."""
        states_TF = torch.cat(prompt.states_CF)
        tensors = {
            "token_ids": torch.tensor(prompt.token_ids, dtype=torch.long),
            "hidden_states": states_TF.view(len(prompt.token_ids), len(self.aux_layers), -1),
        }
        partial = prompt.path.with_name(f".{prompt.path.name}.{os.getpid()}")
        try:
            write_tensors(partial, tensors)
            partial.replace(prompt.path)
        finally:
            partial.unlink(missing_ok=True)


def build(spec: ResolvedSpec, config: EngineConfig, _target: CausalLM) -> Proposer:
    """Return the proposer that writes hidden states of the layers in the speculative config."""
    return ExtractHiddenStatesProposer(aux_layers=spec.layer_ids, folder=config.hidden_states_folder)


def _make_folder(folder: str | Path) -> Path:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise refusal("folder-not-writable", path=path, cause=cause_of(error)) from None
