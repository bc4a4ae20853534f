"""What `serve` and `warm-up` have in common: the engine's flags, and lines for the phases of its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from draftwise.cli._console import open_console
from draftwise.cli._options import add_options
from draftwise.core import InvalidSetup, Severity, SpecConfig
from draftwise.engine.engine_config import (
    DEVICES,
    DTYPES,
    KV_CACHE_DTYPES,
    LOAD_FORMATS,
    PARALLEL_SIZES,
    QUANTIZATIONS,
    EngineConfig,
    one_gpu_settings,
    vllm_setup,
)

if TYPE_CHECKING:
    from draftwise.serve.channel import StartupPhase

__all__ = ["PhaseLines", "engine_options", "make_config"]


def _read_sizes(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> list[int] | None:
    """Read the sizes, each in a flag of its own or several with commas between."""
    try:
        return [int(each) for word in words for each in word.split(",")] or None
    except ValueError:
        raise click.BadParameter("give numbers, such as 1,2,4,8.") from None


_LOADING = (
    click.option("--dtype", type=click.Choice(DTYPES), help="Of weights and KV."),
    click.option("--quantization", "-q", type=click.Choice(QUANTIZATIONS), help="Quantize the weights while loading."),
    click.option("--load-format", type=click.Choice(LOAD_FORMATS), help="dummy: random weights, to measure speed."),
    click.option("--skip-tokenizer-init", is_flag=True, default=None, help="Token ids only: no tokenizer, no text."),
    click.option("--device", type=click.Choice(DEVICES)),
    click.option("--enforce-eager", is_flag=True, default=None, help="Capture no CUDA graphs."),
    click.option("--cudagraph-capture-sizes", multiple=True, callback=_read_sizes, metavar="N,N,...",
                 help="Numbers of sequences to capture steps for  [default: 1, 2, 4, 8 ... max-num-seqs]"),
)  # fmt: skip
_LIMITS = (
    click.option("--max-model-len", type=click.IntRange(1), metavar="TOKENS", help="Prompt plus output."),
    click.option("--max-num-seqs", type=click.IntRange(1), metavar="N", help="Sequences decoded together."),
    click.option("--max-num-batched-tokens", type=click.IntRange(1), metavar="TOKENS", help="Computed in one step."),
    click.option("--gpu-memory-utilization", type=float, metavar="SHARE", help="Of the GPU's memory.  [default: 0.9]"),
    click.option("--kv-cache-memory-bytes", type=click.IntRange(1), metavar="BYTES", help="Of the page pool, instead."),
    click.option("--num-gpu-blocks-override", type=click.IntRange(1), metavar="N", help="Pages of the pool, instead."),
    click.option("--kv-cache-dtype", type=click.Choice(KV_CACHE_DTYPES), help="fp8: one byte a value."),
    click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a page."),
    click.option("--no-enable-prefix-caching", "enable_prefix_caching", is_flag=True, flag_value=False, default=None,
                 help="Compute every prompt from its start."),
    click.option("--hidden-states-folder", metavar="DIR", help="Where the method extract_hidden_states writes."),
    click.option("--seed", type=int, help="For requests that bring none."),
)  # fmt: skip
_PARALLEL = tuple(
    click.option(
        f"--{name.replace('_', '-')}",
        short,
        name,
        type=click.IntRange(1),
        metavar="N",
        help="More than 1 is vLLM's job.",
    )
    for name, short in zip(PARALLEL_SIZES, ("-tp", "-pp", "-dp"), strict=True)
)


engine_options = add_options(*_LOADING, *_LIMITS, *_PARALLEL)
"""Flags of the engine's settings, with vLLM's names; one that is not given is None."""


def make_config(model: str, spec: SpecConfig | None, settings: Mapping[str, Any]) -> EngineConfig:
    """Return the engine's config for the flags.

    Raises:
        InvalidSetup: they cannot work, or ask for what vLLM does, whose command is then named and judged.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        return EngineConfig.from_settings(model=model, **one_gpu_settings(model, spec, given))
    except InvalidSetup as error:
        raise _judged_by_vllm(error, model, spec, given) from None


def _judged_by_vllm(error: InvalidSetup, model: str, spec: SpecConfig | None, given: Mapping[str, Any]) -> InvalidSetup:
    """Return the error with what the newest vLLM would say of the command it names, if it names one."""
    if not any(finding.code == "more-than-one-gpu" for finding in error.findings):
        return error
    from draftwise.plan.check import check

    report = check(vllm_setup(model, spec, given))
    serious = [each for each in report.findings if each.severity is Severity.ERROR]
    return InvalidSetup([*error.findings, *serious])


class PhaseLines:
    """Shows the phases of the start-up on stderr: a line for each, drawn while it lasts where there is a terminal."""

    def __init__(self) -> None:
        self._console = open_console(stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> PhaseLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    def show(self, phase: StartupPhase) -> None:
        """Draw a phase that begins, or write down one that is over."""
        if phase.seconds is not None:
            self._hide()
            self._console.print(f"{phase.name}: {phase.seconds:.1f} s", highlight=False)
        elif self._status is not None:
            self._status.update(phase.name)
            self._status.start()

    def _hide(self) -> None:
        if self._status is not None:
            self._status.stop()
