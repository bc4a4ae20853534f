"""What the training scripts share: forward pass, losses, optimisers, schedule and log."""

import csv
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from batches import Batch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

WARMUP_STEPS = 100


def hidden_states(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Return the normed hidden states [B, T, D] of a causal pass without cache or padding mask."""
    body = model.model
    hidden = body.embed_tokens(tokens)
    positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    rotary = body.rotary_emb(hidden, positions)
    for layer in body.layers:
        hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary)
    return body.norm(hidden)


def cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, learnt: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of the learnt targets."""
    losses = F.cross_entropy(F.linear(hidden, weight).flatten(0, 1).float(), targets.flatten(), reduction="none")
    mask = learnt.flatten()
    return (losses * mask).sum() / mask.sum().clamp(min=1)


def unlikelihood(hidden: Tensor, weight: Tensor, targets: Tensor, learnt: Tensor) -> Tensor:
    """Return the mean of -log(1 - p) over the learnt targets (Welleck et al. 2019, arXiv:1908.04319)."""
    log_p = -F.cross_entropy(F.linear(hidden, weight).flatten(0, 1).float(), targets.flatten(), reduction="none")
    losses = -torch.log1p(-log_p.exp().clamp(max=1 - 1e-5))
    mask = learnt.flatten()
    return (losses * mask).sum() / mask.sum().clamp(min=1)


Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def batch_loss(model: LlamaForCausalLM, batch: Batch, loss: Loss) -> Tensor:
    with torch.autocast(batch.inputs.device.type, torch.bfloat16):
        hidden = hidden_states(model, batch.inputs)
        return loss(hidden, model.lm_head.weight, batch.targets, batch.learnt)


@torch.no_grad()
def mean_loss(model: LlamaForCausalLM, batches: list[Batch], loss: Loss) -> float:
    model.eval()
    losses = [batch_loss(model, batch, loss).item() for batch in batches]
    model.train()
    return sum(losses) / len(losses)


def add_dropout(model: LlamaForCausalLM, share: float) -> None:
    """Drop a share of what each attention and each MLP adds to the residual stream while training."""

    def drop(module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        return F.dropout(output, share, module.training)

    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(drop)
        layer.mlp.down_proj.register_forward_hook(drop)


def compile_layers(model: LlamaForCausalLM) -> None:
    """Compile each decoder layer by itself: the layers share one compiled graph for each batch shape."""
    torch._dynamo.config.recompile_limit = 64
    for layer in model.model.layers:
        layer.compile(dynamic=False)


def compiled(function: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    """Return `function` compiled for fixed shapes on a GPU, as it is elsewhere."""
    return torch.compile(function, dynamic=False) if device == "cuda" else function


class Optimizers:
    """Muon for the matrices of the layers, AdamW for the rest, under one trapezoidal schedule."""

    def __init__(self, model: LlamaForCausalLM, lr: float, weight_decay: float, steps: int, decay_from: float) -> None:
        matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
        self.parts = [
            torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=lr, weight_decay=0.0, betas=(0.9, 0.95), fused=True),
        ]
        self.model, self.lr, self.steps, self.decay_from = model, lr, steps, decay_from
        self.done = 0

    def factor(self) -> float:
        """Return the learning rate's share at this step: linear warm-up, constant, linear decay."""
        left = (self.steps - self.done) / (self.steps * (1 - self.decay_from))
        return min(1.0, (self.done + 1) / min(WARMUP_STEPS, self.steps), left)

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * self.factor()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.done += 1


class LossLog:
    """A CSV file of one row per report, also printed."""

    def __init__(self, path: Path, columns: list[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w", newline="")
        self.writer = csv.writer(self.file, lineterminator="\n")
        self.writer.writerow(["step", "seconds", *columns])
        self.columns, self.started = columns, time.monotonic()

    def write(self, step: int, *values: float) -> None:
        seconds = time.monotonic() - self.started
        self.writer.writerow([step, f"{seconds:.1f}", *(f"{value:.4f}" for value in values)])
        self.file.flush()
        pairs = "  ".join(f"{name} {value:.4f}" for name, value in zip(self.columns, values, strict=True))
        print(f"step {step:5}  {seconds:6.1f} s  {pairs}", flush=True)
