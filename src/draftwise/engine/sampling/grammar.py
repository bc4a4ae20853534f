"""Keeps completions within a grammar: determines the allowed tokens at every position of a draft.

llguidance compiles grammars and computes masks on the host, and releases the interpreter lock meanwhile.

Shape letters: B sequences, S = K+1 target rows a sequence, K draft tokens, N constrained sequences, R constrained rows,
W words of 32 tokens each, V vocabulary.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwise.core import InvalidSetup
from draftwise.engine.memory.transfer import upload
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.params import StructuredOutputsParams
from draftwise.knowledge.messages import refusal
from draftwise.version import tell_install

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

_KEPT, _LEAST, _OF_STEP = 2**20, 2**14, 64
"""Maximum size of all cached grammars in characters, each up to 600 bytes; size of a short one, which may spell out a
long text; and what a step adds, since states that it finds are kept with the grammar."""
_WORN = 2**12
"""Steps after which a grammar is compiled again, without the states that these have found."""
_WHITESPACE = r"[ \t\r\n]{1,40}"
"""Default whitespace between parts of JSON: enough for indentation. With more, small models write nothing else."""
_LONG = 2**14
"""Number of characters above which a grammar's masks may take as long as a step."""
_STEP_ITEMS = 10_000
"""Maximum parser items per mask; llguidance's default of 50,000 takes half a second."""
_TRIED = 3
"""Number of tokens after which a too complex grammar has usually failed."""
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$#&\-~/])")
"""Characters with a meaning in a regex."""
_COMPILERS, _NICE = 2, 10
"""Number of grammars compiled in parallel, and the nice value of their threads. A step's threads often wait for each
other, each time as long as one of them lacks a core.
"""
_LARK = re.compile(r"^[^\S\n]*(%llguidance\b|start\s*:)", re.M)
"""A line that only Lark has. llguidance looks for it in quadratic time, and all threads wait for a regex of Python."""
_LONGEST_GBNF = 2**14
"""Maximum characters of a GBNF grammar, which is converted in Python: a chain of rules takes quadratic time."""
_SLICE = 2**12
"""Characters between which other threads may go on."""
_STACK, _LONGEST = 2**30, 2**20
"""Bytes of a compiler's stack, of which only what is used takes memory, and characters of a grammar at most: llguidance
recurses along a chain of rules or references, 1 to 8 KiB each, and an overflow would end the process."""
_TEXT, _STEP_TEXT = (2**17, 10**6), (2**15, 200_000)
"""Work on texts, in llguidance's units (one to four a character of a forced text), while a grammar is compiled, and in
a step: at least this, four and two units for each character of the grammar, and at most llguidance's defaults.
"""
_FEW = 4
"""Sequences up to which their masks are found sooner one after another than by waking threads."""


def _give_way() -> None:
    """Let threads of a step go first; only what holds no interpreter lock may be done after this."""
    if sys.platform == "linux":  # where threads have a niceness of their own
        os.nice(_NICE)


class _DeepThreads(ThreadPoolExecutor):
    """Threads that give way, with stacks of `_STACK`."""

    def __init__(self, name: str) -> None:
        super().__init__(_COMPILERS, name, _give_way)
        self._jobs = set[Future[Any]]()

    @property
    def num_busy(self) -> int:
        """Threads that compute now."""
        return min(sum(not job.done() for job in tuple(self._jobs)), _COMPILERS)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        before = threading.stack_size(_STACK)  # of the thread that this may start
        try:
            job = super().submit(fn, *args, **kwargs)
        finally:
            threading.stack_size(before)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job


class _Compilation:
    """A compiled grammar at its start, and the steps of its completions."""

    def __init__(self, matcher: LLMatcher, num_characters: int) -> None:
        self.matcher, self.num_characters, self.num_steps = matcher, num_characters, 0

    @property
    def size(self) -> int:
        """Size as in `_KEPT`."""
        return max(self.num_characters, _LEAST) + _OF_STEP * self.num_steps


class Grammar:
    """One completion's progress in its grammar.

    Args:
        kept: the compiled grammar.
        maskers: compute masks while steps run, for a grammar in which that may take long. Such a completion has no
            drafts.

    Attributes:
        mask: allowed next tokens, computed or in progress; None: the step that needs them computes them.
    """

    def __init__(self, kept: _Compilation, maskers: Executor | None = None) -> None:
        self.matcher, self._kept, self._maskers = kept.matcher.deep_copy(), kept, maskers
        self.mask: Future[bytes] | None = None  # compiling has found the first one
        self.refused_draft = False
        """Whether the last step had a draft of which not even the first token was allowed."""

    def copy(self) -> Grammar:
        """Return the grammar of another completion, at the start."""
        return Grammar(self._kept, self._maskers)

    def advance(self, token_ids: Sequence[int]) -> tuple[int, str | None]:
        """Advance by a step's tokens. Return how many belong to the completion, and why it ends there.

        The reason is `stop` if nothing may follow a complete text, `abort` if an incomplete text cannot be continued,
        and None if the completion continues.
        """
        self._kept.num_steps += 1
        for count, token in enumerate(token_ids):
            if not self.matcher.try_consume_tokens([token]):
                return count, "stop" if self.matcher.is_accepting() else "abort"
            if self.matcher.is_stopped():
                return count + 1, "abort" if self.matcher.is_error() else "stop"
        self._look_ahead()
        return len(token_ids), None

    @property
    def is_slow(self) -> bool:
        """Whether masks are computed while steps run."""
        return self._maskers is not None

    @property
    def is_ready(self) -> bool:
        """Whether the mask is ready without waiting."""
        return self.mask is None or self.mask.done()

    def _look_ahead(self) -> None:
        if self._maskers is not None:
            self.mask = self._maskers.submit(self.matcher.compute_bitmask)

    def explain_abort(self) -> str:
        """Return why an incomplete text cannot be continued."""
        if self.matcher.is_error():
            return _shorten(self.matcher.get_error())
        return "the other settings of the request forbid every token that it needs"


class Grammars:
    """Compiles grammars for one tokenizer, and masks logits accordingly.

    Args:
        tokenizer_json: returns the content of tokenizer.json; called for the first grammar. Raises InvalidSetup without
            a tokenizer.
        end_ids: end-of-sequence tokens below V, which a grammar allows after a complete text.
    """

    def __init__(self, tokenizer_json: Callable[[], str], *, end_ids: Collection[int], vocab_size: int) -> None:
        self._tokenizer_json = tokenizer_json
        self._end_ids = sorted(end_ids)
        self._vocab_size, self._num_words = vocab_size, -(-vocab_size // 32)
        self._compiled: OrderedDict[str, _Compilation] = OrderedDict()
        self._lock = threading.Lock()
        self._compilers, self._maskers = _DeepThreads("draftwise-grammar"), _DeepThreads("draftwise-mask")

    def has(self, params: StructuredOutputsParams) -> bool:
        """Return whether a grammar is already compiled."""
        return (kept := self._compiled.get(params.key)) is not None and kept.num_steps < _WORN

    def prepare(self) -> None:
        """Load llguidance and its tokenizer in advance of the first grammar. Failures are reported by requests."""
        with suppress(Exception):
            self._compile(StructuredOutputsParams(choice=("a",)))

    @property
    def num_busy(self) -> int:
        """Cores on which grammars are compiled, or masks found, while steps go on."""
        return self._compilers.num_busy + self._maskers.num_busy

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """Return a grammar at its start. Thread-safe.

        Raises:
            InvalidSetup: the grammar is invalid, too complex or matches no text; llguidance is not installed; or the
                model has no tokenizer or end token.
        """
        key = params.key
        with self._lock:
            if self.has(params):
                self._compiled.move_to_end(key)
                return self._start(self._compiled[key])
        kept = _Compilation(self._compile(params), len(key))
        with self._lock:
            self._compiled.pop(key, None)
            self._compiled[key] = kept
            while len(self._compiled) > 1 and sum(each.size for each in self._compiled.values()) > _KEPT:
                self._compiled.popitem(last=False)
            return self._start(kept)

    def _start(self, kept: _Compilation) -> Grammar:
        return Grammar(kept, self._maskers if kept.num_characters > _LONG else None)

    def constrain(self, logits_BSV: Tensor, grammars: Sequence[Grammar | None], draft: Draft) -> Draft:
        """Set disallowed logits to -inf in place, waiting for the draft. Return the draft, cut at each row's first
        disallowed token.

        Row s is treated as if draft tokens 0..s-1 were already output. Rows after a disallowed draft token are
        unchanged and unused.

        Args:
            logits_BSV: any float type.
            grammars: grammars of the first rows of B; None for a sequence without one.
        """
        members = [b for b, grammar in enumerate(grammars) if grammar is not None]
        if not members:
            return draft
        num_rows = logits_BSV.shape[1]
        drafted = torch.cat((draft.lengths_B.unsqueeze(1), draft.tokens_BK), dim=1).tolist()
        constrained = [grammar for grammar in grammars if grammar is not None]
        masks_NSW = self._find_masks(constrained, [drafted[b][1 : 1 + drafted[b][0]] for b in members], num_rows)
        # An empty mask is one that was not computed: at least the end is allowed.
        reached_NS: NDArray[np.bool_] = np.any(masks_NSW, axis=2)
        places_R2 = np.argwhere(reached_NS)
        places_R2[:, 0] = np.asarray(members)[places_R2[:, 0]]
        b_R, s_R = upload(places_R2, logits_BSV.device).unbind(1)
        bytes_RC = upload(masks_NSW[reached_NS].view(np.uint8), logits_BSV.device, np.uint8)
        bits = torch.arange(8, dtype=torch.uint8, device=logits_BSV.device)
        allowed_RV = (bytes_RC.unsqueeze(2) >> bits).bitwise_and_(1).flatten(1)[:, : self._vocab_size].bool()
        logits_BSV[b_R, s_R] = logits_BSV[b_R, s_R].masked_fill_(~allowed_RV, -torch.inf)
        lengths = [row[0] for row in drafted]
        for b, reached in zip(members, reached_NS.sum(1).tolist(), strict=True):
            allowed_length = min(lengths[b], reached - 1)
            if (grammar := grammars[b]) is not None:
                grammar.refused_draft = allowed_length < 1 <= lengths[b]
            lengths[b] = allowed_length
        lengths_B = upload(lengths, draft.lengths_B.device)
        return Draft(tokens_BK=draft.tokens_BK, lengths_B=lengths_B, probs_BKV=draft.probs_BKV)

    def _find_masks(self, grammars: list[Grammar], drafts: list[list[int]], num_rows: int) -> NDArray[np.uint32]:
        """Return masks_NSW, 0 in rows behind a draft token that is not allowed."""
        masks_NSW = np.zeros((len(grammars), num_rows, self._num_words), np.uint32)
        num_bytes = 4 * self._num_words
        jobs: list[tuple[Any, int, list[int]]] = []  # LLMatcher, whose stubs leave one method out
        for n, (grammar, draft) in enumerate(zip(grammars, drafts, strict=True)):
            if grammar.mask is None:
                jobs.append((grammar.matcher, n * num_rows, draft))
            else:
                masks_NSW[n, 0] = np.frombuffer(grammar.mask.result(), np.uint32)[: self._num_words]
        if len(jobs) <= _FEW:
            for matcher, row, draft in jobs:
                masks_SW = masks_NSW[row // num_rows]
                if draft:
                    matcher.unsafe_compute_mask_ptr_with_draft_token(masks_SW.ctypes.data, num_bytes, draft)
                else:
                    matcher.unsafe_compute_mask_ptr(masks_SW.ctypes.data, num_bytes)
            return masks_NSW
        out = masks_NSW.ctypes.data, num_bytes, len(grammars) * num_rows
        if with_draft := [job for job in jobs if job[2]]:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(with_draft, *out)
        if without := [(matcher, first_row) for matcher, first_row, draft in jobs if not draft]:
            self._executor.unsafe_compute_mask_ptr(without, *out)
        return masks_NSW

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor()

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        if not self._end_ids:
            raise refusal("no-end-token")
        from llguidance import LLTokenizer

        try:
            return LLTokenizer(self._tokenizer_json(), n_vocab=self._vocab_size, eos_token=self._end_ids)
        except ValueError as error:
            raise _invalid("grammar", f"the model's tokenizer does not fit the model: {error}") from None

    def _compile(self, params: StructuredOutputsParams) -> LLMatcher:
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ModuleNotFoundError:
            raise refusal("no-grammar-library", install=tell_install("engine")) from None
        try:
            source = _to_llguidance(params)
        except ValueError as error:
            raise _invalid(params.kind, str(error)) from None
        first, later = _bound(4 * len(params.key), *_TEXT), _bound(2 * len(params.key), *_STEP_TEXT)
        limits = LLParserLimits(
            verbose_errors=False, step_max_items=_STEP_ITEMS, initial_lexer_fuel=first, step_lexer_fuel=later
        )
        matcher = self._compilers.submit(LLMatcher, self._tokenizer, source, log_level=0, limits=limits).result()
        if not matcher.is_error():  # finds out whether any token can begin, and does work that all requests share
            self._compilers.submit(matcher.compute_bitmask).result()
        for tried in (matcher, *self._try(matcher)):
            if tried.is_error():
                raise _invalid(params.kind, tried.get_error())
        return matcher

    def _try(self, matcher: LLMatcher) -> Iterator[LLMatcher]:
        """Yield a copy after each of a few tokens: only then is it known whether it exceeds limits."""
        tried = matcher.deep_copy()
        for _ in range(_TRIED):
            if tried.is_error() or tried.is_stopped():
                return
            allowed = np.frombuffer(self._compilers.submit(tried.compute_bitmask).result(), np.uint8)
            (bytes_N,) = allowed.nonzero()
            if not len(bytes_N):
                return
            first = int(bytes_N[0])
            lowest_bit = int(allowed[first]) & -int(allowed[first])
            tried.try_consume_tokens([8 * first + lowest_bit.bit_length() - 1])
            yield tried


def _bound(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)


def _to_llguidance(params: StructuredOutputsParams) -> str:
    """Return the grammar in llguidance's own form; raises ValueError where it cannot be read."""
    from llguidance import LLMatcher

    if len(params.key) > _LONGEST:
        raise ValueError(f"it has {len(params.key)} characters, and at most {_LONGEST} are compiled")
    if params.choice is not None:
        # As a regex, since a grammar may have no more than 2,000 alternatives.
        return LLMatcher.grammar_from_regex("|".join(map(_escape, params.choice)))
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(params.regex)
    if params.grammar is not None:
        lark = params.grammar if _LARK.search(params.grammar) else _to_lark(params.grammar)
        return LLMatcher.grammar_from_lark(lark)
    schema = '{"type": "object"}' if params.json is None else str(params.json)
    options: JsonCompileOptions = {"whitespace_flexible": False}
    if not params.disable_any_whitespace:
        options = {"whitespace_pattern": params.whitespace_pattern or _WHITESPACE}
    return LLMatcher.grammar_from_json_schema(schema, overrides=options)


def _escape(text: str) -> str:
    """Return a regex that matches a text."""
    return "".join(_SPECIAL.sub(r"\\\1", text[at : at + _SLICE]) for at in range(0, len(text), _SLICE))


def _to_lark(gbnf: str) -> str:
    """Return a GBNF grammar in Lark's form; raises ValueError where it cannot be read."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(gbnf) > _LONGEST_GBNF:
        raise ValueError(f"it has {len(gbnf)} characters, and GBNF may have {_LONGEST_GBNF}; write it in Lark")
    try:
        return gbnf_to_lark(gbnf)
    except Exception as error:
        raise ValueError(f"it cannot be read as GBNF: {error}") from None


_NO_TEXT = "NoExtension"
"""Begins llguidance's message where no token may come first."""
_TOO_LONG = ("too many expressions constructed", "grammar) too big")
"""Parts of llguidance's messages where texts take more work than allowed."""


def _invalid(kind: str, message: str) -> InvalidSetup:
    """Return the error of a grammar that llguidance refuses, in one sentence."""
    told = _shorten(message)
    if told.startswith(_NO_TEXT):
        told = "no text matches it"
    elif any(words in told for words in _TOO_LONG):
        told = "it spells out too long a text, or has too many alternatives"
    return refusal("invalid-grammar", kind=kind, told=told.rstrip("."))


def _shorten(message: str) -> str:
    """Return the sentence of llguidance's message that says what is wrong."""
    lines = [line.strip() for line in message.splitlines()]
    told = (line.removeprefix("error: ") for line in lines if line.startswith("error: "))
    return next(told, lines[0] if lines else "").rstrip(".")
