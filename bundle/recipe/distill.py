"""Train the draft model on the target's distributions, half of the time on the target's own greedy text."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from batches import Batch, UnitBatches
from generate import generate
from models import build_model, load_model, save_model
from policy import SHARES, PromptPool
from ragged import Ragged
from torch import Tensor
from train import Mixture
from transformers import LlamaForCausalLM

from training import LossLog, Optimizers, compile_layers, compiled, hidden_states


def divergence(student: Tensor, student_head: Tensor, teacher: Tensor, teacher_head: Tensor, learnt: Tensor) -> Tensor:
    """Return the mean KL(teacher || student) over the learnt positions."""
    log_q = F.log_softmax(F.linear(student, student_head).float(), dim=-1)
    log_p = F.log_softmax(F.linear(teacher, teacher_head).float(), dim=-1)
    losses = (log_p.exp() * (log_p - log_q)).sum(-1)
    return (losses * learnt).sum() / learnt.sum().clamp(min=1)


def roll_out(teacher: LlamaForCausalLM, pool: PromptPool, count: int, new_tokens: int) -> Ragged:
    """Return `count` prompts with the teacher's greedy continuations, which are what is learnt."""
    _, prompts = pool.deal(count)
    outputs = generate(teacher, prompts, new_tokens)
    return Ragged.from_sequences((p + o, len(p)) for p, o in zip(prompts, outputs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder with target; draft_model is written")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rollouts", type=int, default=24576)
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--batch-tokens", type=int, default=65536)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--report-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    teacher = load_model(args.out / "target", args.device, torch.bfloat16).eval()
    pool = PromptPool(args.data, args.seed, SHARES)
    rollouts = roll_out(teacher, pool, args.rollouts, args.new_tokens)
    own = UnitBatches(rollouts, args.batch_tokens, args.device, args.seed)
    student = build_model("draft_model").to(args.device)
    if args.device == "cuda":
        compile_layers(student)
        compile_layers(teacher)
    loss_of = compiled(divergence, args.device)
    mixture = Mixture(args.data, args.batch_tokens, args.device, args.seed, text_every=2, unit_every=1)
    optimizers = Optimizers(student, args.lr, 0.05, args.steps, decay_from=0.4)
    log = LossLog(args.out / "draft_loss.csv", ["kl_own_text", "kl_corpus"])

    def distil(batch: Batch) -> Tensor:
        with torch.autocast(args.device, torch.bfloat16):
            with torch.no_grad():
                wanted = hidden_states(teacher, batch.inputs)
            made = hidden_states(student, batch.inputs)
            return loss_of(made, student.lm_head.weight, wanted, teacher.lm_head.weight, batch.learnt)

    sums = torch.zeros(2, device=args.device)
    for step in range(1, args.steps + 1):
        corpus = list(mixture.next().values())
        for index, batches in enumerate(([own.next()], corpus)):
            for batch in batches:
                loss = distil(batch) / len(batches)
                loss.backward()
                sums[index] += loss.detach()
        optimizers.step()
        if step % args.report_every == 0 or step == args.steps:
            log.write(step, *(sums / (step % args.report_every or args.report_every)).tolist())
            sums.zero_()
    save_model(student.cpu(), args.out / "draft_model")


if __name__ == "__main__":
    main()
