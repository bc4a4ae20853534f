"""KServe's own server around vLLM: its flags taken out, so that the rest is what vLLM is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from draftwise.plan.read.shell.words import Word

__all__ = ["to_vllm"]

_RENAMED: Mapping[str, str] = {
    "--model-id": "--model",
    "--model-dir": "--model",
    "--model-name": "--served-model-name",
    "--model-revision": "--revision",
    "--max-length": "--max-model-len",
}
_WITH_VALUE = frozenset(
    [
        "--backend",
        "--task",
        "--http-port",
        "--grpc-port",
        "--workers",
        "--max-threads",
        "--max-asyncio-workers",
        "--tensor-input-names",
        "--predictor-host",
        "--predictor-protocol",
        "--log-config-file",
        "--access-log-format",
    ]
)
_SWITCHES = frozenset(["--disable-lower-case", "--disable-special-tokens", "--return-token-type-ids"])


def to_vllm(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words that are left for vLLM; of a model id and a directory, the id is the model."""
    kept: list[Word] = []
    waiting = iter(words)
    for word in waiting:
        flag, separator, value = word.text.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if flag in _SWITCHES:
            continue
        if flag not in _WITH_VALUE and flag not in _RENAMED:
            kept.append(word)
            continue
        given = replace(word, text=value) if separator else next(waiting, None)
        if flag in _RENAMED and given is not None:
            kept += [replace(word, text=_RENAMED[flag]), given]
    return _without_directory(kept, words)


def _without_directory(kept: list[Word], words: Sequence[Word]) -> tuple[Word, ...]:
    """Leave the model's directory out where an id is given: KServe loads the id then."""
    ids = [word.text.startswith(("--model_id", "--model-id")) for word in words]
    places = [index for index, word in enumerate(kept) if word.text == "--model"]
    if not any(ids) or len(places) < 2:
        return tuple(kept)
    by_id = next(word for word, is_id in zip(words, ids, strict=True) if is_id)
    drop = {
        at
        for index in places
        if kept[index].line != by_id.line or kept[index].place != by_id.place
        for at in (index, index + 1)
    }
    return tuple(word for index, word in enumerate(kept) if index not in drop)
