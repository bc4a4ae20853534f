"""Which CUDA graph a release runs a step on, by the number of sequences: the time of a step is a staircase."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from draftwise.core import Setup
from draftwise.plan.check import check_context, get_context
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.engine.step_budget import get_limits
from draftwise.plan.check.serving.cuda_graphs import find_holes, list_captured
from draftwise.plan.cost.machine import Graph

__all__ = ["GraphPlan", "plan_graphs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPlan:
    """The graphs that a server captures."""

    sizes: tuple[int, ...] = ()
    """Tokens of a step, in order; empty where steps need no graphs, or where they are not known."""
    holes: frozenset[int] = frozenset()
    """Numbers of sequences that find no full graph although a larger one is there."""
    mixed_lengths: bool = False
    """Whether steps whose sequences verify different numbers of tokens run without a full graph."""
    full: bool = True
    """Whether steps are captured as a whole."""

    def place(
        self, sequences: float, tokens: float, *, prefill_tokens: float = 0.0, uneven: bool = False
    ) -> tuple[Graph, float | None]:
        """Return how a step is launched, and the tokens that it is padded to; None where it is not padded.

        Args:
            sequences: that decode.
            tokens: that are computed for them.
            prefill_tokens: of prompts in the same step, which full graphs do not take.
            uneven: whether sequences verify different numbers of tokens.
        """
        if not self.sizes:
            return Graph.FULL, None
        if tokens + prefill_tokens > self.sizes[-1]:
            return Graph.NONE, None
        if prefill_tokens:
            return Graph.PIECEWISE, None
        padded = float(self.sizes[bisect_left(self.sizes, tokens)])
        whole = self.full and round(sequences) not in self.holes and not (uneven and self.mixed_lengths)
        return (Graph.FULL if whole else Graph.PIECEWISE), padded


def plan_graphs(setup: Setup) -> tuple[GraphPlan, Resolved | None]:
    """Return the graphs of a vLLM setup and its speculative config as the release resolves it.

    Raises:
        InvalidSetup: the release is not known.
    """
    context = get_context(setup)
    resolved = check_context(context).resolved
    if context.platform == "cpu" or context.runs_eagerly:
        return GraphPlan(), resolved
    k = (resolved.num_speculative_tokens if resolved is not None else None) or 0
    limits = get_limits(context)
    sizes = list_captured(context, k, limits)
    runner = resolved.runner if resolved is not None else None
    reach = limits.requests or sizes[-1] // (k + 1)
    has_holes = k and runner == "V2" and context.rules.holds("graph-holes")
    plan = GraphPlan(
        sizes=sizes,
        holes=frozenset(find_holes(sizes, max_num_seqs=reach, num_speculative_tokens=k) if has_holes else ()),
        mixed_lengths=runner == "V1",
        full=not context.lacks_full_graphs,
    )
    return plan, resolved
