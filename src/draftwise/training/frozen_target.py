"""The frozen target: computes hidden states of whole sequences with transformers.

Shape letters: B sequences, T tokens of a sequence (padded on the right), H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from draftwise.engine.families import get_family
from draftwise.engine.models.checkpoint import CheckpointReader
from draftwise.knowledge.messages import refusal
from draftwise.version import tell_install


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Token sequences, each a prompt and an answer."""

    tokens_BT: Tensor
    """int64, padded on the right."""
    valid_BT: Tensor
    """bool: False for padding."""
    learned_BT: Tensor
    """bool: tokens of answers. Only predictions of these are learned and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The frozen target's hidden states for a batch, without gradients.

    Padding follows a sequence's tokens, and the target attends only backward, so states do not depend on padding.
    """

    aux_BTH: tuple[Tensor, ...]
    """Hidden states in the order of the method's `aux_layers` (numbered as `Proposer.aux_layers` of the engine)."""
    final_BTH: Tensor
    """States after the final norm. The head applied to `final_BTH[:, t]` gives the logits of the token after t."""


class FrozenTarget:
    """A causal language model that is not trained.

    Attributes:
        model: a transformers model.
        path: its checkpoint directory.
        config: its config.json.
        dtype: the checkpoint's type, in which drafters are stored; states may differ.
        device: device of its weights.
    """

    def __init__(self, model: Any, path: Path, config: dict[str, Any]) -> None:
        self.model, self.path, self.config = model, path, config
        self.embedding_VH: Tensor = model.get_input_embeddings().weight
        self.head_VH: Tensor = model.get_output_embeddings().weight
        self.device = self.head_VH.device
        named = config.get("dtype") or config.get("torch_dtype") or "float32"
        self.dtype: torch.dtype = getattr(torch, str(named).removeprefix("torch."))

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype = "auto",
        *,
        shard: bool = False,
        num_layers: int | None = None,
    ) -> FrozenTarget:
        """Return the target of a Hugging Face checkpoint directory.

        Args:
            path: directory with config.json, tokenizer.json and safetensors.
            dtype: compute type: `auto` (the checkpoint's), or a torch type or its name.
            shard: whether ranks divide the decoder layers' weights and gather each layer when it runs.
            num_layers: decoder layers to load; 0: only embedding, final norm and head. None: all.

        Raises:
            InvalidSetup: the checkpoint does not exist, or its family is not in `engine.families`.
        """
        checkpoint = CheckpointReader(path)
        get_family(checkpoint.config, where=str(checkpoint.path / "config.json"))
        model_class = _import_model_class()
        chosen = {} if num_layers is None else {"num_hidden_layers": num_layers}
        with _quiet_about_unread() if chosen else nullcontext():
            model = model_class.from_pretrained(
                str(path), dtype=dtype, attn_implementation="sdpa", local_files_only=True, **chosen
            )
        model = model.eval().requires_grad_(False)
        for layer in model.model.layers if shard else ():
            fully_shard(layer)
        model = model.to(device)
        return cls(model, checkpoint.path, checkpoint.config)

    def count_bytes(self) -> int:
        """Return the bytes of this process's weights."""
        parts = (each.to_local() if isinstance(each, DTensor) else each for each in self.model.parameters())
        return sum(each.nbytes for each in parts)

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.embedding_VH.shape[1]

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.embedding_VH.shape[0]

    @property
    def num_layers(self) -> int:
        """Number of decoder layers, loaded or not."""
        return int(self.config["num_hidden_layers"])

    @property
    def max_length(self) -> int:
        """Longest sequence, in tokens."""
        return int(self.config["max_position_embeddings"])

    def compile(self) -> None:
        """Compile each decoder layer separately, for fixed shapes. Layers share one graph per batch shape."""
        for layer in self.model.model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=False)

    @torch.no_grad()
    def compute_states(self, batch: TokenBatch, aux_layers: Sequence[int]) -> States:
        """Return the hidden states of a batch, in the target's compute type.

        Args:
            batch: on the target's device.
            aux_layers: layers of the auxiliary hidden states, numbered as `Proposer.aux_layers`.
        """
        with self._recording(set(aux_layers)) as seen, torch.autocast(self.device.type, enabled=False):
            # No mask: padding lies behind the tokens, and attention looks back only.
            output = self.model.model(input_ids=batch.tokens_BT, use_cache=False)
        final_BTH = seen[self.num_layers + 1] = output.last_hidden_state
        return States(aux_BTH=tuple(seen[layer] for layer in aux_layers), final_BTH=final_BTH)

    @contextmanager
    def _recording(self, aux_layers: Collection[int]) -> Iterator[dict[int, Tensor]]:
        """Record the inputs of the auxiliary layers; layer L is the input of the final norm."""
        body, seen = self.model.model, {}

        def keep(layer: int) -> Callable[..., None]:
            def hook(_module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
                seen[layer] = given[0] if given else named["hidden_states"]

            return hook

        inlets = [*body.layers, body.norm]
        hooks = [
            inlets[layer].register_forward_pre_hook(keep(layer), with_kwargs=True)
            for layer in aux_layers
            if layer < len(inlets)
        ]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()


@contextmanager
def _quiet_about_unread() -> Iterator[None]:
    """Keep transformers from listing the tensors that it leaves out on request."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _import_model_class() -> Any:
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    except ImportError:
        raise refusal("train-not-installed", case="transformers", install=tell_install("train")) from None
    logging.disable_progress_bar()  # the run shows its own
    return AutoModelForCausalLM
