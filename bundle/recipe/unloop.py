"""Train loops out of the target: generate greedily, and make the tokens that continue a loop unlikely."""

import argparse
from pathlib import Path

import torch
from batches import BUCKETS, UnitBatches
from generate import ended, generate
from models import build_model, save_model
from policy import SHARES, PromptPool
from ragged import Ragged
from train import Mixture, heldout_batches

from draftwise.deciding.validity.output_checks import find_loop
from training import LossLog, Optimizers, batch_loss, compile_layers, compiled, cross_entropy, mean_loss, unlikelihood

MIN_LOOP_TOKENS = 16
LOOP_ROWS = 64


def looping(prompts: list[list[int]], outputs: list[list[int]]) -> list[tuple[list[int], int]]:
    """Return the sequences that end in a loop, each with the index of its first repeated token."""
    found = []
    for prompt, output in zip(prompts, outputs, strict=True):
        loop = None if ended(output) else find_loop(output, min_tokens=MIN_LOOP_TOKENS)
        if loop is not None and len(prompt) + len(output) <= BUCKETS[-1]:
            found.append((prompt + output, len(prompt) + loop.start + loop.period))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder with target.pt; target is written anew")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=1024, help="generated from in each round")
    parser.add_argument("--new-tokens", type=int, default=192)
    parser.add_argument("--steps", type=int, default=4, help="in each round")
    parser.add_argument("--batch-tokens", type=int, default=65536)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--weight", type=float, default=1.0, help="of the unlikelihood loss")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = build_model("target").to(args.device)
    model.load_state_dict(torch.load(args.out / "target.pt", map_location=args.device))
    writer = build_model("target").to(args.device, torch.bfloat16)
    if args.device == "cuda":
        compile_layers(model)
    likelihood, repulsion = compiled(cross_entropy, args.device), compiled(unlikelihood, args.device)
    mixture = Mixture(args.data, args.batch_tokens, args.device, args.seed, text_every=None, unit_every=1)
    pool = PromptPool(args.data, args.seed, SHARES)
    heldout = heldout_batches(args.data, args.batch_tokens, args.device)
    optimizers = Optimizers(model, args.lr, 0.0, args.rounds * args.steps, decay_from=0.5)
    log = LossLog(args.out / "unloop_loss.csv", ["loops", "ended", "likelihood", "unlikelihood", *heldout])
    model.train()
    for number in range(1, args.rounds + 1):
        writer.load_state_dict(model.state_dict())
        _, prompts = pool.deal(args.prompts)
        outputs = generate(writer, prompts, args.new_tokens)
        loops = looping(prompts, outputs)
        bad = UnitBatches(Ragged.from_sequences(loops), 0, args.device, number) if loops else None
        sums = torch.zeros(2, device=args.device)
        for _ in range(args.steps):
            batches = mixture.next()
            for batch in batches.values():
                loss = batch_loss(model, batch, likelihood)
                (loss / len(batches)).backward()
                sums[0] += loss.detach() / len(batches)
            if bad is not None:
                chosen = torch.randint(len(loops), (LOOP_ROWS,), device=args.device)
                loss = batch_loss(model, bad.gather(chosen, BUCKETS[-1]), repulsion)
                (args.weight * len(loops) / (len(loops) + LOOP_ROWS / 4) * loss).backward()
                sums[1] += loss.detach()
            optimizers.step()
        finished = sum(map(ended, outputs)) / len(outputs)
        scores = [mean_loss(model, group, likelihood) for group in heldout.values()]
        log.write(number, len(loops) / len(outputs), finished, *(sums / args.steps).tolist(), *scores)
    torch.save(model.state_dict(), args.out / "target.pt")
    save_model(model.cpu(), args.out / "target")


if __name__ == "__main__":
    main()
