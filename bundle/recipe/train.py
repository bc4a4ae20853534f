"""Train the target on plain text, on units with natural ends and on rewrites."""

import argparse
from pathlib import Path

import torch
from batches import Batch, TextBatches, UnitBatches
from models import build_model, save_model
from ragged import Ragged

from training import LossLog, Optimizers, add_dropout, batch_loss, compile_layers, compiled, cross_entropy, mean_loss

HELDOUT_BATCHES = 4


class Mixture:
    """Deals the batches of each step: always a rewrite batch; a text batch and a unit batch now and then.

    Rewrites never run out, whereas text and units would be learnt by heart if every step had them.
    """

    def __init__(
        self, data: Path, batch_tokens: int, device: str, seed: int, text_every: int | None, unit_every: int
    ) -> None:
        def units(name: str) -> UnitBatches:
            return UnitBatches(Ragged.load(data / f"{name}.npz"), batch_tokens, device, seed)

        self.text = TextBatches(data / "text.npy", batch_tokens, device, seed)
        self.rewrites, self.code, self.prose = units("rewrites"), units("code"), units("prose")
        self.text_every, self.unit_every = text_every, unit_every
        self.step = self.units = 0

    def next(self) -> dict[str, Batch]:
        self.step += 1
        batches = {"rewrite": self.rewrites.next()}
        if self.text_every and self.step % self.text_every == 0:
            batches["text"] = self.text.next()
        if self.step % self.unit_every == 0:
            self.units += 1
            batches["unit"] = (self.prose if self.units % 5 < 2 else self.code).next()
        return batches


def heldout_batches(data: Path, batch_tokens: int, device: str) -> dict[str, list[Batch]]:
    """Return fixed batches of held-out code and prose units."""
    made = {}
    for name in ("heldout_code", "heldout_prose"):
        source = UnitBatches(Ragged.load(data / f"{name}.npz"), batch_tokens, device, seed=0)
        made[name] = [source.next() for _ in range(HELDOUT_BATCHES)]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that pack.py and rewrites.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the log")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--text-every", type=int, default=3, help="steps between batches of plain text")
    parser.add_argument("--unit-every", type=int, default=2, help="steps between batches of units")
    parser.add_argument("--decay-from", type=float, default=0.4, help="share of the steps before the rate decays")
    parser.add_argument("--batch-tokens", type=int, default=65536, help="of each of the batches of a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--report-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = build_model("target").to(args.device)
    add_dropout(model, args.dropout)
    if args.device == "cuda":
        compile_layers(model)
    loss_of = compiled(cross_entropy, args.device)
    mixture = Mixture(args.data, args.batch_tokens, args.device, args.seed, args.text_every, args.unit_every)
    heldout = heldout_batches(args.data, args.batch_tokens, args.device)
    optimizers = Optimizers(model, args.lr, args.weight_decay, args.steps, args.decay_from)
    recent: dict[str, list[torch.Tensor]] = {"text": [], "rewrite": [], "unit": []}
    log = LossLog(args.out / "target_loss.csv", [*recent, *heldout])
    model.train()
    for step in range(1, args.steps + 1):
        batches = mixture.next()
        for name, batch in batches.items():
            loss = batch_loss(model, batch, loss_of)
            (loss / len(batches)).backward()
            recent[name].append(loss.detach())
        optimizers.step()
        if step % args.report_every == 0 or step == args.steps:
            scores = [mean_loss(model, group, loss_of) for group in heldout.values()]
            log.write(step, *(torch.stack(losses).mean().item() for losses in recent.values()), *scores)
            for losses in recent.values():
                losses.clear()
    torch.save(model.state_dict(), args.out / "target.pt")
    save_model(model.cpu(), args.out / "target")


if __name__ == "__main__":
    main()
