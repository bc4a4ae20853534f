"""Options and progress that `serve` and `warm-up` share: the engine's flags, and a line per phase of its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from draftwise.cli._console import open_console
from draftwise.cli._options import add_options, option
from draftwise.core.progress import Silent
from draftwise.verbs.engine import DEVICES, DTYPES, KV_CACHE_DTYPES, LOAD_FORMATS, PARALLEL_SIZES, QUANTIZATIONS

if TYPE_CHECKING:
    from draftwise.verbs.engine import StartupPhase


def _read_sizes(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> list[int] | None:
    """Read the sizes, each in a flag of its own or several with commas between."""
    try:
        return [int(each) for word in words for each in word.split(",")] or None
    except ValueError:
        raise click.BadParameter("give numbers, such as 1,2,4,8.") from None


_LOADING = (
    option("--dtype", "Type of weights and KV cache.", type=click.Choice(DTYPES)),
    option("--quantization", "-q", "Quantize the weights while loading.", type=click.Choice(QUANTIZATIONS)),
    option("--load-format", "auto, or dummy: random weights, to measure speed.", type=click.Choice(LOAD_FORMATS)),
    option("--skip-tokenizer-init", "Use token ids only: no tokenizer, no text.", is_flag=True, default=None),
    option("--device", "Device to run on.", type=click.Choice(DEVICES)),
    option("--enforce-eager", "Capture no CUDA graphs.", is_flag=True, default=None),
    click.option("--cudagraph-capture-sizes", multiple=True, callback=_read_sizes, metavar="N,N,...",
                 help="Batch sizes to capture as CUDA graphs  [default: 1, 2, 4, 8 ... max-num-seqs]"),
)  # fmt: skip
_LIMITS = (
    option("--max-model-len TOKENS", "Longest prompt plus output.", type=click.IntRange(1)),
    option("--max-num-seqs N", "Sequences that decode together  [default: 256 on a GPU of 70 GiB, else 128; CPU: 16]",
           type=click.IntRange(1)),
    option("--max-num-batched-tokens TOKENS", "Tokens per step  [default: 8192 on a GPU of 70 GiB, else 2048]",
           type=click.IntRange(1)),
    option("--gpu-memory-utilization SHARE", "Share of GPU memory to use.  [default: 0.9]", type=float),
    option("--kv-cache-memory-bytes BYTES", "Size of the KV cache, instead of a share.", type=click.IntRange(1)),
    option("--num-gpu-blocks-override N", "Number of KV blocks, instead of a share.", type=click.IntRange(1)),
    option("--kv-cache-dtype", "KV cache type; fp8 takes one byte per value.", type=click.Choice(KV_CACHE_DTYPES)),
    option("--block-size TOKENS", "Tokens per KV block.", type=click.IntRange(1)),
    click.option("--no-enable-prefix-caching", "enable_prefix_caching", is_flag=True, flag_value=False, default=None,
                 help="Compute every prompt from its start, without prefix cache."),
    option("--hidden-states-folder DIR", "Output folder of the method extract_hidden_states."),
    option("--seed", "Seed for requests without one.", type=int),
)  # fmt: skip
_PARALLEL = tuple(
    click.option(
        f"--{name.replace('_', '-')}",
        short,
        name,
        type=click.IntRange(1),
        metavar="N",
        help="Only 1 works here; for more, use vLLM.",
    )
    for name, short in zip(PARALLEL_SIZES, ("-tp", "-pp", "-dp"), strict=True)
)


engine_options = add_options(*_LOADING, *_LIMITS, *_PARALLEL)
"""Flags of the engine's settings, with vLLM's names; None if not given."""


@click.command()
@engine_options
def _engine_command() -> None: ...


_SETTINGS = frozenset(each.name for each in _engine_command.params)


def split_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request, with the engine's flags collected under `settings`."""
    own = {name: value for name, value in given.items() if name not in _SETTINGS}
    return {**own, "settings": {name: value for name, value in given.items() if name in _SETTINGS}}


class PhaseLines(Silent):
    """Shows the phases of a start on stderr, one line each, animated in a terminal."""

    def __init__(self, *, says_to_stderr: bool = False) -> None:
        self._says_to_stderr = says_to_stderr
        self._console = open_console(stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> PhaseLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    def status(self, text: str) -> None:
        """Print that the server is ready, to stdout unless that is for JSON."""
        click.echo(text, err=self._says_to_stderr)

    def update(self, result: object) -> None:
        """Draw a phase that begins, or print one that is over."""
        phase = cast("StartupPhase", result)
        if phase.seconds is not None:
            self._hide()
            self._console.print(f"{phase.name}: {phase.seconds:.1f} s", highlight=False)
        elif self._status is not None:
            self._status.update(phase.name)
            self._status.start()

    def _hide(self) -> None:
        if self._status is not None:
            self._status.stop()
