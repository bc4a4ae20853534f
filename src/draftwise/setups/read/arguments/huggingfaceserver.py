"""KServe's own server around vLLM: its flags taken out, so that the rest is what vLLM is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from draftwise.setups.read.shell.words import Word

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
    """Return the words that are left for vLLM; where a model id is given, the directory is not used."""
    has_id = any(_flag(word) == "--model-id" for word in words)
    kept: list[Word] = []
    waiting = iter(words)
    for word in waiting:
        flag, (_, separator, value) = _flag(word), word.text.partition("=")
        if flag in _SWITCHES:
            continue
        if flag not in _WITH_VALUE and flag not in _RENAMED:
            kept.append(word)
            continue
        given = replace(word, text=value) if separator else next(waiting, None)
        if flag in _RENAMED and given is not None and not (has_id and flag == "--model-dir"):
            kept += [replace(word, text=_RENAMED[flag]), given]
    return tuple(kept)


def _flag(word: Word) -> str:
    flag = word.text.partition("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag
