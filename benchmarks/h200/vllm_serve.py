"""The `vllm` command with the load format of vllm_side.py: heads from their files, dummies where there are none.

measure_vllm.py gives it to draftwise in place of `vllm`. vLLM's engine process is spawned and imports this file again,
so that the format is known there too.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("LOADED_MODELS", os.devnull)
os.environ.setdefault("TARGET_NOISE", "0")

import vllm_side  # noqa: F401  (registers the format)

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
