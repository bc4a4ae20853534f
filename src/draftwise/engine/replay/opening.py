"""Opens an engine for a replay: eager, without a prefix cache, and no larger than the log asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from draftwise.checkpoints.config_json import read_config
from draftwise.checkpoints.config_values import get_int
from draftwise.core import SpecConfig
from draftwise.engine.core import Engine
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.replay.dense import DenseReplayer
from draftwise.engine.replay.forced import ForcedReplayer
from draftwise.replaying.transcripts import Replayer

_BY_LOAD = ("num_speculative_tokens_per_batch_size", "disable_by_batch_size")
"""Keys that make k depend on the load, which a replay leaves to whoever forecasts."""
_ON_GPU = 64
"""Requests that a GPU replays together: the drafter's walk over their answers waits for the host, however many they are
(3 ms a token on an H200), but memory is set aside for the logits of all. A processor takes the engine's default: a
batch ends, and is kept, sooner."""
_TOKENS_ON_GPU = 2048
"""Tokens of a pass, for the same reason."""


def open_replayer(
    spec: SpecConfig,
    target: Path,
    ks: Sequence[int],
    *,
    longest: int,
    forced: bool,
    settings: Mapping[str, Any],
) -> Replayer:
    """Return what replays a candidate with the target and its drafter.

    Args:
        spec: with the largest k.
        target: checkpoint.
        ks: the k to replay.
        longest: tokens of the longest request with its answer.
        forced: by forced decoding, step for step, instead of densely.
        settings: fields of `EngineConfig`; None where the default holds.

    Raises:
        InvalidSetup: target or drafter cannot be loaded, or do not fit.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if given.get("device") != "cpu" and torch.cuda.is_available():
        given.setdefault("max_num_seqs", _ON_GPU)
        given.setdefault("max_num_batched_tokens", _TOKENS_ON_GPU)
    if "max_model_len" not in given:
        positions = get_int(read_config(target), "max_position_embeddings")
        wanted = longest + max(ks) + 1  # so that no draft ends where the log does
        given["max_model_len"] = wanted if positions is None else min(wanted, positions)
    config = EngineConfig.from_settings(
        model=str(target), **({"enforce_eager": True, "enable_prefix_caching": False} | given)
    )
    options = {key: value for key, value in spec.options.items() if key not in _BY_LOAD}
    engine = Engine(config, replace(spec, options=options), lag=0)
    return ForcedReplayer(engine, tuple(ks)) if forced else DenseReplayer(engine, ks)
