"""Drafters saved by the speculators library, run here: do they guess what the library's own networks do?

    pip install speculators
    python benchmarks/interop/speculators_checkpoints.py --target bundle/target --out results.json

For each kind the library makes a random drafter for the target and saves it. Our engine loads the directory and
generates with it at temperature 1, drawing its guesses; the library's network is then run over the same states of the
target and the same guesses. Reported is the largest difference between the two log-probabilities of any token of any
guess, and whether greedy output stays what it is without a drafter.

Shape letters: T known tokens, F features of a token, K guesses, U tokens that the drafter can name.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from speculators.models.dflash import DFlashDraftModel
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.peagle import PEagleDraftModel
from speculators.models.peagle import core as peagle_core
from torch import Tensor

from draftwise import LLM, SamplingParams, __version__
from draftwise.engine.proposers import Confirmed
from draftwise.engine.sampling.draft import Draft

Network = Eagle3DraftModel | PEagleDraftModel | DFlashDraftModel


@dataclass(frozen=True, slots=True)
class Guess:
    """One draft of our engine, with what it was made from."""

    tokens: list[int]
    """T tokens; the last is not computed by the target yet."""
    states_TF: Tensor
    """The target's states at all but the last of them."""
    draft_K: Tensor
    probs_KV: Tensor


class Recorder:
    """Stands before a proposer and keeps what goes in and out, for one sequence at a time."""

    def __init__(self, llm: LLM) -> None:
        self.guesses: list[Guess] = []
        self._states_NF: list[Tensor] = []
        self._engine = llm.engine
        self._propose = llm.engine.proposer.propose
        llm.engine.proposer.propose = self.propose  # type: ignore[method-assign, union-attr]

    def propose(self, new: Confirmed, k: int) -> Draft:
        draft = self._propose(new, k)
        start, end = int(new.spans.starts_B[0]), int(new.spans.starts_B[0] + new.spans.lengths_B[0])
        if start == 1:
            self._states_NF = []
        assert new.features_NF is not None
        self._states_NF.append(new.features_NF.clone())
        length = int(draft.lengths_B[0])
        if length and draft.probs_BKV is not None:
            (sequence,) = self._engine.scheduler.running
            tokens = sequence.tokens[:end]
            states_TF = torch.cat(self._states_NF)
            self.guesses.append(Guess(tokens, states_TF, draft.tokens_BK[0, :length], draft.probs_BKV[0, :length]))
        return draft


class _Captured(Exception):  # noqa: N818 - nothing is wrong
    """Ends a forward pass whose logits are known."""


def capture_logits(network: Network, run: Callable[[], Any], *, stop: bool = False) -> list[Tensor]:
    """Return what the network's head gives in each call while `run` runs; `stop`: end it after the first."""
    seen: list[Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: Any, output: Tensor) -> None:
        seen.append(output[0])
        if stop:
            raise _Captured

    handle = network.lm_head.register_forward_hook(keep)
    try:
        run()
    except _Captured:
        pass
    finally:
        handle.remove()
    return seen


def eagle3_logits(network: Eagle3DraftModel, guess: Guess) -> Tensor:
    """Return the logits [K, U] of guesses made one after the other."""
    k, num_rows = len(guess.draft_K), len(guess.states_TF)
    ids = torch.tensor([guess.tokens[1:] + guess.draft_K.tolist()])
    states = torch.cat((guess.states_TF, guess.states_TF.new_zeros(k, guess.states_TF.shape[1])))
    documents = torch.zeros_like(ids)
    run = lambda: network(hidden_states=states[None], input_ids=ids, document_ids=documents, ttt_steps=k)  # noqa: E731
    return torch.stack([logits_TU[num_rows - 1] for logits_TU in capture_logits(network, run)])


def peagle_logits(network: PEagleDraftModel, guess: Guess) -> Tensor:
    """Return the logits [K, U] of guesses made in one pass behind the last row."""
    k, num_rows = len(guess.draft_K), len(guess.states_TF)
    length = num_rows + k
    anchors = torch.tensor([*range(num_rows), *[num_rows - 1] * (k - 1)])
    depths = torch.tensor([*[0] * num_rows, *range(1, k)])
    states = torch.cat((guess.states_TF, guess.states_TF.new_zeros(k, guess.states_TF.shape[1])))
    ids = torch.tensor([guess.tokens[1:] + [0] * k])

    def run() -> None:
        with mock.patch.object(peagle_core, "generate_cod_sample_indices", return_value=(anchors, depths)):
            network(
                hidden_states=states[None],
                input_ids=ids,
                document_ids=torch.zeros(1, length, dtype=torch.long),
                verifier_last_hidden_states=states[None],
            )

    return capture_logits(network, run, stop=True)[0][num_rows - 1 :]


def dflash_logits(network: DFlashDraftModel, guess: Guess) -> Tensor:
    """Return the logits [K, U] of the masks of the block behind the last state."""
    known, block = len(guess.states_TF), len(guess.draft_K) + 1
    network.block_size = block  # guesses of a block look at each other; near a sequence's end ours are shorter
    anchors = torch.zeros(1, known + block + 1)
    anchors[0, known] = 1
    states = torch.cat((guess.states_TF, guess.states_TF.new_zeros(block + 1, guess.states_TF.shape[1])))

    def run() -> None:
        network._backbone_forward(
            hidden_states=states[None],
            input_ids=torch.tensor([guess.tokens + [0] * block]),
            loss_mask=anchors,
            verifier_last_hidden_states=states[None, :, : network.hidden_size],
            document_ids=torch.zeros(1, known + block + 1, dtype=torch.long),
            max_anchors=1,
        )

    return capture_logits(network, run, stop=True)[0][1:]


@dataclass(frozen=True, slots=True)
class Kind:
    """How the library makes a drafter, how ours runs it, and how the library's own does."""

    network: type[Network]
    layers: str
    made_with: dict[str, Any]
    method: dict[str, Any]
    logits: Callable[[Any, Guess], Tensor]


def kinds(k: int, mask_token_id: int) -> dict[str, Kind]:
    """Return what is checked, by name."""
    eagle3: dict[str, Any] = {"method": "eagle3"}
    masked = {"mask_token_id": mask_token_id}
    block = {**masked, "block_size": k + 1}
    return {
        f"eagle3 {layers} {'norm_before_residual' if norm else ''}".strip(): Kind(
            Eagle3DraftModel, layers, {"norm_before_residual": norm, "ttt_steps": k}, eagle3, eagle3_logits
        )
        for layers in ("llama", "qwen3")
        for norm in (True, False)
    } | {
        "eagle3 llama norm_before_fc norm_output": Kind(
            Eagle3DraftModel,
            "llama",
            {"norm_before_residual": True, "ttt_steps": k, "norm_before_fc": True, "norm_output": True},
            eagle3,
            eagle3_logits,
        ),
        "peagle llama": Kind(
            PEagleDraftModel, "llama", {**masked, "num_depths": k}, {**eagle3, "parallel_drafting": True}, peagle_logits
        ),
        "dflash qwen3": Kind(DFlashDraftModel, "qwen3", block, {"method": "dflash"}, dflash_logits),
    }


def make_network(kind: Kind, target: Path, draft_vocab_size: int) -> Network:
    """Return a random drafter of the library's for the target, with some of its vocabulary."""
    config = transformers.AutoConfig.from_pretrained(target)
    layer_config = transformers.AutoConfig.for_model(
        kind.layers,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=2 if kind.network is DFlashDraftModel else 1,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
    )
    layer_config._attn_implementation = "eager"
    t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
    t2d[torch.randperm(config.vocab_size)[:draft_vocab_size]] = True
    network = kind.network.from_training_args(
        layer_config,
        t2d=t2d,
        d2t=t2d.nonzero().flatten() - torch.arange(draft_vocab_size),
        draft_vocab_size=draft_vocab_size,
        verifier_name_or_path=str(target),
        target_layer_ids=[1, config.num_hidden_layers // 2, config.num_hidden_layers],
        draft_attn_impl="eager",
        **kind.made_with,
    )
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if not name.startswith(("embed", "lm_head", "verifier")):
                spread = 0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
                parameter.add_(torch.randn_like(parameter) * spread)
    return network


def check_kind(kind: Kind, target: Path, prompts: list[str], *, k: int, draft_vocab_size: int, plain: list[Any]) -> Any:
    """Return how far our log-probabilities are from the library's, and whether greedy output is kept."""
    torch.manual_seed(0)
    network = make_network(kind, target, draft_vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        spec = {**kind.method, "model": folder, "num_speculative_tokens": k, "draft_sample_method": "probabilistic"}
        llm = LLM(str(target), speculative_config=spec, dtype="float64", device="cpu", max_num_seqs=1)
    recorder = Recorder(llm)
    for i, prompt in enumerate(prompts):
        llm.generate(prompt, SamplingParams(temperature=1.0, seed=i, max_tokens=12, ignore_eos=True))
    guesses, recorder.guesses = recorder.guesses, []
    greedy = [each.outputs[0].token_ids for each in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12))]
    network.double().eval()
    ids_U = torch.arange(draft_vocab_size) + network.d2t
    worst = 0.0
    for guess in guesses:
        with torch.no_grad():
            law_KU = kind.logits(network, guess).log_softmax(-1)[: len(guess.draft_K)]
        ours_KU = guess.probs_KV[:, ids_U].double().log()
        worst = max(worst, float((ours_KU - law_KU).abs().max()))
    num_guesses = sum(len(guess.draft_K) for guess in guesses)
    return {"guesses": num_guesses, "max_logprob_difference": worst, "greedy_equal": greedy == plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=Path("bundle/target"))
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--draft-vocab-size", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not (args.target / "config.json").exists():
        parser.error(f"--target: there is no target in {args.target}")
    prompts = ["def add(a, b):", "The quick brown fox", "import os\n\n\ndef main():"][: args.prompts]
    llm = LLM(str(args.target), dtype="float64", device="cpu", max_num_seqs=1)
    plain = [each.outputs[0].token_ids for each in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12))]
    del llm
    mask_token_id = transformers.AutoConfig.from_pretrained(args.target).vocab_size - 1
    results: dict[str, Any] = {}
    for name, kind in kinds(args.k, mask_token_id).items():
        results[name] = check_kind(
            kind, args.target, prompts, k=args.k, draft_vocab_size=args.draft_vocab_size, plain=plain
        )
        print(name, results[name], file=sys.stderr)
    names = ("speculators", "torch", "transformers")
    report = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "versions": {
            "draftwise": __version__,
            **{name: importlib.metadata.version(name) for name in names},
            "python": platform.python_version(),
        },
        "kinds": results,
    }
    text = json.dumps(report, indent=2) + "\n"
    print(text) if args.out is None else args.out.write_text(text)


if __name__ == "__main__":
    main()
