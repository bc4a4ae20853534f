"""What a platform team reads first: what is deployed, why, how to undo it, and what nobody has measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from draftwise.core import Expected, Finding
from draftwise.deploying.order import Order
from draftwise.deploying.twin import count_hosts
from draftwise.reporting.conditions import describe_rule
from draftwise.reporting.units import describe_load
from draftwise.setups.write import write_shell

__all__ = ["write_memo"]

_NOBODY = "**Who.** Nobody is named to answer for it (--owner)."


def write_memo(
    order: Order,
    *,
    files: Mapping[str, str],
    apply: Mapping[str, str],
    weights: Sequence[str] = (),
    limits: Sequence[Finding] = (),
    leave_off: Sequence[str] = (),
    leaves: str = "",
    unwatched: Sequence[str] = (),
) -> str:
    """Return the memo as Markdown.

    Args:
        order: of the side that speculates.
        files: what each file of the folder is for, by its name.
        apply: the commands by what they do.
        weights: where the server finds its weights, and where else they could lie, a sentence each.
        limits: what the platform does not grant.
        leave_off: where speculation does not belong, a sentence each.
        leaves: what stays behind after going back, a sentence.
        unwatched: what no rule watches, a sentence each.
    """
    return "\n".join(
        chain(
            _tell(order),
            _list_files(files),
            _list_points("Where the weights lie", weights),
            _list_commands(apply),
            _list_points("Limits", map(str, limits)),
            _list_points("Where to leave it off", leave_off),
            _list_points("What to expect", _tell_expected(order.evidence.expected)),
            _list_points("When to go back", map(describe_rule, order.evidence.rollback)),
            _list_points("What going back leaves behind", [leaves] if leaves else []),
            _list_points("Not watched", unwatched),
            _list_points("Not measured", order.evidence.unmeasured),
            ("",),
        )
    )


def _tell(order: Order) -> Iterator[str]:
    setup, evidence = order.setup, order.evidence
    method = setup.spec.method if setup.spec is not None else None
    yield f"# {order.service}: {f'speculative decoding with {method}' if method else 'plain decoding'}"
    yield ""
    if evidence.headline:
        yield f"**Why.** {evidence.headline} (run `{evidence.run}`)"
    else:
        yield "**Why.** Nobody has measured this setup: `draftwise decide` does."
    yield ""
    yield "**What.** The server that both files stand for; its twin lacks the speculative config and nothing else:"
    yield ""
    yield "```sh"
    yield write_shell(setup, line_per_flag=True)
    yield "```"
    yield ""
    hosts, gpus = count_hosts(setup), f"{order.num_gpus} GPU{'s' if order.num_gpus > 1 else ''}"
    who, gib = f"Each of its {hosts} hosts" if hosts > 1 else "It", 1 << 30
    yield (
        f"{who} takes {gpus}, {order.host.cpus} CPUs, {order.host.memory_bytes // gib} GiB of the host's memory and "
        f"{order.host.shm_bytes // gib} GiB of /dev/shm; a start has {order.startup_s} s."
    )
    yield ""
    yield f"**Who.** {order.owner} answers for it." if order.owner else _NOBODY


def _tell_expected(expected: Expected | None) -> Iterator[str]:
    """Yield what the counters of the run said, where its break-even is the highest."""
    if expected is None:
        return
    counters, drafts = expected.counters, expected.counters.spec
    place = f"{expected.workload}, {describe_load(expected.condition)}"
    if counters.tokens_per_step is not None:
        yield f"{place}: {counters.tokens_per_step:.2f} tokens per step."
    if drafts.acceptance_length is not None:
        rates = ", ".join(f"{100 * rate:.0f} %" for rate in drafts.rate_per_pos)
        yield f"{place}: {drafts.acceptance_length:.2f} tokens of output for a draft; accepted by position {rates}."


def _list_files(files: Mapping[str, str]) -> Iterator[str]:
    yield from ("", "## Files", "")
    yield from (f"- `{name}`: {text}" for name, text in files.items())


def _list_commands(apply: Mapping[str, str]) -> Iterator[str]:
    yield from ("", "## Commands")
    for text, command in apply.items():
        yield from ("", f"{text}:", "", "```sh", command, "```")


def _list_points(title: str, points: Iterable[str]) -> Iterator[str]:
    """Yield a section; nothing where there are no points."""
    lines = [f"- {point}" for point in points]
    if lines:
        yield from ("", f"## {title}", "", *lines)
