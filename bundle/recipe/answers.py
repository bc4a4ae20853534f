"""Let the target answer the prompts: the on-policy text that every drafter learns from; goes on where it was."""

import argparse
import gzip
import json
from pathlib import Path

from draftwise.engine.models.gguf_unpacking import checkpoint_of
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.training.data import AnswerSettings, answer, read_samples
from draftwise.training.training_progress import TrainingBars

MAX_LENGTH = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, help="a checkpoint folder or a GGUF file")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--cache", type=Path, required=True, help="folder of answers, written as they come")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl.gz file")
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--part", default="0/1", metavar="I/N", help="each N-th prompt from I on, for processes side by side"
    )
    parser.add_argument("--memory", type=float, default=0.9, help="share of the GPU's memory that this process takes")
    args = parser.parse_args()
    first, step = map(int, args.part.split("/"))
    target = Path(checkpoint_of(args.target, print))
    tokenizer = Tokenizer.from_pretrained(str(target))
    prompts = list(read_samples([args.prompts], tokenizer, max_length=MAX_LENGTH, window=MAX_LENGTH))[first::step]
    settings = AnswerSettings(
        temperature=args.temperature, max_tokens=args.new_tokens, gpu_memory_utilization=args.memory
    )
    samples = answer(target, prompts, args.cache, settings, device=args.device, progress=TrainingBars())
    written = args.out.with_name(args.out.name + ".part")
    with gzip.open(written, "wt", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps({"token_ids": sample.tokens.tolist(), "num_prompt": sample.num_prompt}) + "\n")
    written.rename(args.out)


if __name__ == "__main__":
    main()
