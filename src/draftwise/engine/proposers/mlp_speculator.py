"""The MLP speculator: a small recurrence over the target's state and its own draft tokens (Wertheimer et al. 2024).

Source: "Accelerating Production LLMs with Combined Token/Embedding Speculators", arXiv 2404.19124; checkpoints are
those of fms-extras (https://github.com/foundation-model-stack/fms-extras), which vLLM's V0 engine ran.

Shape letters: B sequences, H the target's hidden size, I inner size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.models.draft_head import HeadCheckpoint
from draftwise.engine.models.linear import Linear
from draftwise.engine.proposers.proposer import Proposer, find_weights
from draftwise.engine.proposers.stateless import StatelessProposer, join_stages, pick_count
from draftwise.engine.resolved_spec import ResolvedSpec

_EPS = 1e-6
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True, eq=False)
class SpeculatorStage:
    """Weights of one draft token."""

    embedding_VI: Tensor
    project: Linear
    """[B, H] -> [B, I] in the first stage, [B, I] -> [B, I] in the others."""
    norm_weight_I: Tensor
    norm_bias_I: Tensor
    head: Linear


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MlpSpeculator:
    """The stages, and shared settings."""

    stages: tuple[SpeculatorStage, ...]
    token_weight: float
    """Weight of a token's embedding relative to the previous state."""
    scale_input: bool = False
    """Whether the target's state is first normed to a variance of 1/2."""


class MlpSpeculatorProposer(StatelessProposer[Tensor]):
    """Drafts each token from the one before it: state = GELU(norm(project(state) + token_weight * embedding(token))).

    The norm divides by the root of the mean square and has weight and bias.

    Args:
        network: weights; one stage per draft token.
        probabilistic: see `StatelessProposer`.
    """

    def __init__(self, network: MlpSpeculator, target: CausalLM, *, probabilistic: bool = False) -> None:
        super().__init__(target, probabilistic=probabilistic)
        self._network = network
        if target.is_quantized:
            self.at_once = join_stages(
                [
                    ((each.project,), each.head, each.embedding_VI, (each.norm_weight_I, each.norm_bias_I))
                    for each in network.stages
                ],
                token_weight=network.token_weight,
                eps=_EPS,
            )

    def enter(self, features_BH: Tensor) -> Tensor:
        """Return the state that enters the first stage."""
        if not self._network.scale_input:
            return features_BH
        return F.rms_norm(features_BH, features_BH.shape[-1:], eps=_EPS) / math.sqrt(2)

    def begin(self, state_BH: Tensor, num_drafted: int) -> Tensor:
        """Return the state as it is."""
        assert num_drafted <= len(self._network.stages)
        return state_BH

    def step(self, index: int, carry: Tensor, tokens_B: Tensor) -> tuple[Tensor, Tensor]:
        """Run one stage; return its logits and the state for the next."""
        stage = self._network.stages[index]
        embedded_BI = F.embedding(tokens_B, stage.embedding_VI)
        mixed_BI = torch.add(stage.project(carry), embedded_BI, alpha=self._network.token_weight)
        normed_BI = F.rms_norm(mixed_BI, mixed_BI.shape[-1:], stage.norm_weight_I, eps=_EPS) + stage.norm_bias_I
        state_BI = F.gelu(normed_BI)
        return stage.head(state_BI), state_BI


def token_weight(inner: int, num_stages: int) -> float:
    """Return the weight of a token's embedding relative to the previous state.

    The state's own weight is left out, because the norm that follows fixes the scale.

    Args:
        num_stages: number of stages in training.
    """
    state_weight = 0.5 ** (0.5 / num_stages)
    return math.sqrt((1 - state_weight**2) * inner / 2) / state_weight


def build(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of an MLP speculator."""
    network = load_mlp_speculator(find_weights(spec, config), target, k=spec.k)
    return MlpSpeculatorProposer(network, target, probabilistic=spec.probabilistic)


def load_mlp_speculator(path: str | Path, target: CausalLM, *, k: int | None = None) -> MlpSpeculator:
    """Return the stages of a checkpoint directory.

    Missing keys of config.json have the defaults of vLLM's MLPSpeculatorConfig.

    Args:
        k: maximum draft tokens per step: loads the first k stages. None: all.

    Raises:
        InvalidSetup: the checkpoint is incomplete, has fewer than k stages or does not match the target.
    """
    checkpoint = HeadCheckpoint(path, target, width_key="emb_dim")
    config, reader = checkpoint.config, checkpoint.reader
    hidden, vocab_size = target.shape.hidden_size, target.shape.vocab_size
    inner, num_stages = int(config.get("inner_dim") or hidden), int(config.get("n_predict") or 3)
    names = _Names(checkpoint, range(pick_count(num_stages, k, where=checkpoint.where)))
    embeddings = _read_each(names.of("emb"), lambda name: reader.fused([f"{name}.weight"], [vocab_size], inner))
    first, *later = names.of("proj")
    projections = [reader.linear("", [first], [inner], hidden)]
    projections += _read_each(later, lambda name: reader.linear("", [name], [inner], inner))
    norm_weights = _read_each(names.of("ln"), lambda name: reader.vector(f"{name}.weight", inner))
    norm_biases = _read_each(names.of("ln"), lambda name: reader.vector(f"{name}.bias", inner))
    heads = _read_each(names.of("head"), lambda name: reader.linear("", [name], [vocab_size], inner))
    checkpoint.files.check_complete()
    parts = zip(embeddings, projections, norm_weights, norm_biases, heads, strict=True)
    return MlpSpeculator(
        stages=tuple(SpeculatorStage(*part) for part in parts),
        token_weight=token_weight(inner, num_stages),
        scale_input=bool(config.get("scale_input")),
    )


class _Names:
    """How a checkpoint calls the weights of its stages."""

    def __init__(self, checkpoint: HeadCheckpoint, stages: range) -> None:
        self._files, self._stages = checkpoint, stages
        self._tied = bool(checkpoint.config.get("tie_weights"))
        self._prefix = "speculator." if any(name.startswith("speculator.") for name in self._files) else ""

    def of(self, part: str) -> list[str]:
        """Return the name of `part` (emb, proj, ln or head) for each stage, without `.weight`."""
        return [f"{self._prefix}{part}.{self._owner(part, stage)}" for stage in self._stages]

    def _owner(self, part: str, stage: int) -> int:
        """Return the stage under whose name the weights lie: tied ones are written once, at their first stage.

        fms-extras ties heads too, vLLM does not: a head of the stage's own comes first.
        """
        if not self._tied or (part == "head" and f"{self._prefix}head.{stage}.weight" in self._files):
            return stage
        return min(stage, 1) if part == "proj" else 0


def _read_each(names: list[str], read: Callable[[str], _Part]) -> list[_Part]:
    """Return what `read` gives for each name; a name that comes again shares the memory."""
    loaded = {name: read(name) for name in dict.fromkeys(names)}
    return [loaded[name] for name in names]
