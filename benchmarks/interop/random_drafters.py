"""Every checkpoint layout in both engines, with random weights: run this before there is anything trained.

    python benchmarks/interop/random_drafters.py --vllm-python VLLM_PYTHON

The target mostly says what a fixed permutation puts after the last token, disturbed by random layers. The drafters know
the permutation too and have random weights of their own beside it: so many of their guesses stand, many fall, and every
tensor has a say in which.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm_drafters import HERE, ROOT, Row, parse_arguments, run

sys.path.insert(0, str(ROOT))

from tests.support.dflash_checkpoint import write_dflash
from tests.support.every_method import write_medusa
from tests.support.made_drafters import write_eagle, write_eagle3, write_mtp
from tests.support.tiny_models import write_tokenizer

Change = Callable[[dict[str, Tensor]], None]
"""Alters a checkpoint's tensors."""

PARALLEL = {"parallel_drafting": True}
HEAD_DIM = 32
"""The smallest that vLLM's attention on a CPU has."""
SIGNAL = 0.45
"""How loud the permutation is among a drafter's random weights."""

ROWS = (
    Row(name="none", spec=None),
    Row(name="draft_model", folder="draft_model", spec={"method": "draft_model"}),
    Row(name="pard", folder="pard", spec={"method": "draft_model"} | PARALLEL, chained=False),
    Row(name="medusa", folder="medusa", spec={"method": "medusa"}, k_key="num_heads", chained=False),
    Row(name="eagle", folder="eagle", spec={"method": "eagle"}),
    Row(name="eagle_two_layers", folder="eagle_two_layers", spec={"method": "eagle"}),
    Row(name="eagle3", folder="eagle3", spec={"method": "eagle3"}),
    Row(name="eagle3_draft_vocabulary", folder="eagle3_draft_vocabulary", spec={"method": "eagle3"}),
    Row(name="p_eagle", folder="p_eagle", spec={"method": "eagle3"} | PARALLEL, chained=False),
    Row(name="mtp", folder="mtp", spec={"method": "mtp"}, in_target=True),
    Row(name="dflash", folder="dflash", spec={"method": "dflash"}, k_key="block_size", chained=False),
    Row(name="dflash_draft_vocabulary", folder="dflash_draft_vocabulary", spec={"method": "dflash"}, chained=False),
)


def main() -> None:
    with TemporaryDirectory() as folder:
        bundle = write_bundle(Path(folder) / "bundle")
        args = parse_arguments(
            ROWS, description=__doc__, bundle=bundle, out=HERE / "results" / "random_drafters.json", max_model_len=512
        )
        sys.exit(run(ROWS, args, [f"random-{i}" for i in range(args.prompts)], make_prompts(args.prompts)))


def make_prompts(number: int) -> list[list[int]]:
    """Return random prompts; every other one starts as the first does, for prefix caching, over more than a page."""
    rng = random.Random(5)
    prompts = [[rng.randrange(256) for _ in range(rng.randrange(1, 200))] for _ in range(number)]
    shared = [rng.randrange(256) for _ in range(150)]
    return [prompt if i % 2 else shared + prompt for i, prompt in enumerate(prompts)]


def write_bundle(folder: Path) -> Path:
    """Write a target and a drafter for each row; return the folder."""
    target = write_target(folder / "target", seed=1)
    config = json.loads((target / "config.json").read_text())
    heads: dict[str, Any] = {"head_dim": HEAD_DIM, "intermediate_size": 96}
    follow = Follow(target)
    write_eagle(folder / "eagle", config, **heads)
    write_eagle(folder / "eagle_two_layers", config, seed=3, num_layers=2, own_embedding=True, **heads)
    for name in ("eagle", "eagle_two_layers"):
        edit(folder / name, follow.next_token("fc.weight", start=0))
    write_eagle3(folder / "eagle3", config, own_head=True, **heads)
    write_eagle3(folder / "eagle3_draft_vocabulary", config, seed=4, draft_vocab_size=160, num_layers=2, **heads)
    write_eagle3(folder / "p_eagle", config, seed=5, own_head=True, parallel=True, **heads)
    for name in ("eagle3", "eagle3_draft_vocabulary", "p_eagle"):
        edit(folder / name, follow.state_before)
    write_mtp(folder / "mtp", config, target=target)
    edit(folder / "mtp", follow.next_token("model.mtp_layers.0.input_proj.weight", start=config["hidden_size"]))
    edit(write_medusa(folder / "medusa", config), follow.medusa)
    write_dflash(folder / "dflash", config, own_head=True, head_dim=HEAD_DIM)
    write_dflash(folder / "dflash_draft_vocabulary", config, seed=6, draft_vocab_size=160, head_dim=HEAD_DIM)
    for name in ("p_eagle", "dflash", "dflash_draft_vocabulary"):
        edit(folder / name, look_closely)
    edit(copy(target, folder / "draft_model"), follow.roughly)
    copy(folder / "draft_model", folder / "pard", pard_token=config["vocab_size"] - 1)
    return folder


def write_target(folder: Path, *, seed: int) -> Path:
    """Write the target: head row perm[t] is the embedding of t; the layers are random."""
    import transformers

    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(folder)
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=4 * HEAD_DIM,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        max_position_embeddings=512,
        initializer_range=0.08,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)

    def permute(tensors: dict[str, Tensor]) -> None:
        embedding_VH = torch.randn(vocab_size, config.hidden_size)
        order = torch.arange(256)[torch.randperm(256)]  # one cycle through the bytes; nothing leads to an end token
        successor_V = torch.arange(vocab_size)
        successor_V[order] = order.roll(-1)
        tensors["model.embed_tokens.weight"] = embedding_VH
        tensors["lm_head.weight"] = torch.zeros_like(embedding_VH).index_copy_(0, successor_V, embedding_VH)

    edit(folder, permute)
    return folder


class Follow:
    """Edits that let a drafter for `target` know the permutation."""

    def __init__(self, target: Path) -> None:
        tensors = load_file(target / "model.safetensors")
        self._embedding_VH, head_VH = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
        self._successor_V = (self._embedding_VH @ head_VH.T).argmax(-1)

    def next_token(self, name: str, *, start: int) -> Change:
        """Return what lets the stream start from the embedding, column `start` on of tensor `name`."""

        def change(tensors: dict[str, Tensor]) -> None:
            hidden = tensors[name].shape[0]
            tensors[name][:, start : start + hidden] += SIGNAL * torch.eye(hidden)
            if "embed_tokens.weight" in tensors:
                tensors["embed_tokens.weight"] = self._embedding_VH + 0.3 * tensors["embed_tokens.weight"]

        return change

    def state_before(self, tensors: dict[str, Tensor]) -> None:
        """Let an EAGLE-3 head start from the embedding of the token before, and name what comes two after it."""
        hidden = tensors["fc.weight"].shape[0]
        tensors["fc.weight"][:, :hidden] += SIGNAL * torch.eye(hidden)
        head_VH = self._head(2)
        d2t = tensors.get("d2t")
        tensors["lm_head.weight"] = head_VH if d2t is None else head_VH[d2t + torch.arange(len(d2t))].contiguous()

    def medusa(self, tensors: dict[str, Tensor]) -> None:
        """Let head i name what comes i + 2 after the token whose state it reads."""
        for i in range(sum(name.startswith("lm_heads.") for name in tensors)):
            name = f"lm_heads.{i}.weight"
            tensors[name] = self._head(i + 2) + 2 * tensors[name] / tensors[name].std()

    def roughly(self, tensors: dict[str, Tensor]) -> None:
        """Disturb a copy of the target."""
        generator = torch.Generator().manual_seed(9)
        for name, tensor in tensors.items():
            if tensor.dim() == 2:
                tensors[name] = tensor + 0.8 * tensor.std() * torch.randn(tensor.shape, generator=generator)

    def _head(self, steps: int) -> Tensor:
        """Return a head that names the token `steps` after the one whose embedding it reads."""
        successor_V = torch.arange(len(self._successor_V))
        for _ in range(steps):
            successor_V = self._successor_V[successor_V]
        return torch.zeros_like(self._embedding_VH).index_copy_(0, successor_V, self._embedding_VH)


def look_closely(tensors: dict[str, Tensor]) -> None:
    """Let attention choose among the context and matter more than the mask: else masked guesses hardly vary."""
    for name, tensor in tensors.items():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            tensors[name] = 2 * tensor
        if name.endswith("o_proj.weight"):
            tensors[name] = 3 * tensor


def edit(folder: Path, change: Change) -> Path:
    """Change a checkpoint's tensors in place; return its folder."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def copy(source: Path, folder: Path, **settings: Any) -> Path:
    """Copy a checkpoint; `settings` go into its config.json."""
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings, indent=2))
    return folder


if __name__ == "__main__":
    main()
