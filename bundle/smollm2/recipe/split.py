"""Divide a drafter's weights into files below 15 MB, with their index, so that a repository can hold them."""

import sys
from pathlib import Path

from safetensors.torch import load_file

from draftwise.training.drafter_export import write_shards

MOST_BYTES = 15_000_000


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        whole = folder / "model.safetensors"
        if whole.exists() and whole.stat().st_size > MOST_BYTES:
            tensors = sorted(load_file(whole).items(), key=lambda each: -each[1].nbytes)
            write_shards(tensors, folder, MOST_BYTES)
            whole.unlink()


if __name__ == "__main__":
    main()
