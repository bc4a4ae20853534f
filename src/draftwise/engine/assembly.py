"""Builds an engine: loads weights, plans graph captures, sizes the page pool and creates the runner."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch

from draftwise.core import Finding, ModelShape, SpecConfig
from draftwise.engine.attention import has_kernel
from draftwise.engine.engine_config import EngineConfig, Limits
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.memory.pages import PagePool
from draftwise.engine.memory.pool_size import activation_bytes, graph_budget, num_pages
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.proposers import make_proposer
from draftwise.engine.proposers.proposer import PlainDecoding, Proposer
from draftwise.engine.resolved_spec import ResolvedSpec, resolve_spec
from draftwise.engine.sampling.acceptance_rules import Standard, place
from draftwise.engine.sampling.grammar import Grammars
from draftwise.engine.startup_phases import Startup
from draftwise.engine.step.capture import CapturePlan, plan_capture
from draftwise.engine.step.confirm import make_confirmations
from draftwise.engine.step.host_sampler import HostSampler
from draftwise.engine.step.passes import Passes
from draftwise.engine.step.prompt_passes import prompt_sizes
from draftwise.engine.step.runner import StepRunner
from draftwise.engine.step.scheduler import PrefixUse, Scheduler
from draftwise.engine.step.table import SequenceTable
from draftwise.engine.step.threads import make_threads
from draftwise.engine.text.tokenizer import Tokenizer, load_tokenizer
from draftwise.knowledge.messages import refusal

_KERNELS_A_LAYER = 9
_KERNELS_OF_EXPERTS = 4
"""Additional kernels of a layer with a mixture of experts."""
_KERNELS_AFTERWARDS = 30
"""Kernels at the end of a step; a separate graph if prompts share the pass."""
_GRAPHS_A_SIZE = 12
"""Variants of a step: greedy, sampled and truncated batches, each without, with few and with many log-probabilities,
and with logits that the host changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of an engine."""

    config: EngineConfig
    """The config, resolved with the checkpoint and the machine."""
    spec: ResolvedSpec | None
    tokenizer: Tokenizer
    shape: ModelShape
    """The target's shape."""
    proposer: Proposer
    scheduler: Scheduler
    runner: StepRunner
    lag: int
    """Number of steps that the host is behind the device."""
    findings: tuple[Finding, ...]
    """Findings on this config for the operator."""


def build(config: EngineConfig, spec: SpecConfig | None, *, startup: Startup, lag: int | None) -> Parts:
    """Return the parts of an engine.

    Raises:
        InvalidSetup: the checkpoint, the configuration or the drafter cannot work.
    """
    try:
        return _build(config, spec, startup=startup, lag=lag)
    except (MemoryError, RuntimeError) as error:
        # torch's allocators raise RuntimeError, of which a GPU's is a subclass.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise refusal(
            "engine-out-of-memory",
            cause=str(error).splitlines()[0] if str(error) else "no memory is left",
            model=config.model,
        ) from None


def _build(config: EngineConfig, spec: SpecConfig | None, *, startup: Startup, lag: int | None) -> Parts:
    resolved = resolve_spec(spec) if spec is not None else None
    tokenizer = load_tokenizer(config.model, skip=config.skip_tokenizer_init)
    with startup.phase("load weights"):
        model = load_model(
            config.model,
            dtype=config.dtype,
            device=config.device,
            load_format=config.load_format,
            quantization=config.quantization,
        )
    if model.device.type == "cpu":  # a GPU's kernels depend on what the steps are
        with startup.phase("compile kernels"):
            model.compile()
    config = _resolve(config, model)
    proposer: Proposer = PlainDecoding()
    if resolved is not None:
        with startup.phase("load drafter"):
            proposer = make_proposer(resolved, config, model)
    if model.device.type == "cpu":
        _return_memory()
    lag = int(model.device.type == "cuda") if lag is None else lag
    site = _Site(config=config, spec=resolved, model=model, proposer=proposer, lag=lag)
    capture = site.plan_capture()
    with startup.phase("allocate KV cache"):
        pages = site.count_pages(capture)
        runner = site.make_runner(capture, num_pages=pages, tokenizer=tokenizer)
    return Parts(
        config=config,
        spec=resolved,
        tokenizer=tokenizer,
        shape=model.shape,
        proposer=proposer,
        scheduler=site.make_scheduler(num_pages=pages),
        runner=runner,
        lag=lag,
        findings=(*(resolved.findings if resolved else ()), *model.notes, *capture.findings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """Everything that is loaded, from which the parts of an engine are made."""

    config: EngineConfig
    spec: ResolvedSpec | None
    model: CausalLM
    proposer: Proposer
    lag: int

    @property
    def k(self) -> int:
        """Maximum draft tokens per sequence."""
        return self.spec.k if self.spec else 0

    @property
    def shares_passes(self) -> bool:
        """Whether prompts and decoding sequences share target passes. False if drafts have distributions, which would
        take memory for every size."""
        return self.spec is None or not self.spec.probabilistic

    def plan_capture(self) -> CapturePlan:
        """Return the batch sizes for which to capture steps as CUDA graphs, or pad steps without a GPU."""
        config, shape, spec = self.config, self.model.shape, self.spec
        if not self.lag or config.enforce_eager:
            return CapturePlan(sizes=(), num_bytes=0)
        row_values = shape.hidden_size * 8 + self.model.mlp_values
        # The logits count twice: those of steps that the host has a part in are kept.
        step_values = (self.k + 1) * (row_values + shape.vocab_size * 2)
        num_mixtures = len(self.model.mixture.layers) if self.model.mixture else 0
        num_kernels = _KERNELS_A_LAYER * shape.num_layers + _KERNELS_OF_EXPERTS * num_mixtures
        # The drafter runs once for each draft token.
        step_kernels = num_kernels + _KERNELS_A_LAYER * self.k * self.proposer.num_layers
        budget = graph_budget(
            config,
            self.model,
            extra_bytes_per_token=self.proposer.kv_bytes_per_token,
            activation_bytes=self._activation_bytes(),
        )
        ks = sorted({spec.k_for(n) for n in range(1, config.num_slots + 1)}) if spec else [0]
        plan = plan_capture(
            config.num_slots,
            ks=ks,
            kernels_per_graph=_GRAPHS_A_SIZE * (step_kernels + _KERNELS_AFTERWARDS),
            activation_bytes_per_seq=step_values * self.model.dtype.itemsize,
            given=config.cudagraph_capture_sizes,
            budget_bytes=budget,
        )
        if not has_kernel(self.model.dtype):  # a graph would repeat the lengths that it was captured with
            return plan
        kept_values = shape.hidden_size * (1 + len(self.proposer.aux_layers))
        return plan.with_prompts(
            prompt_sizes(
                max_num_seqs=config.num_slots,
                max_num_batched_tokens=config.num_step_tokens,
                widths=[k + 1 for k in ks] if self.shares_passes else (),
            ),
            kernels_per_graph=num_kernels,
            bytes_per_row=(row_values + kept_values) * self.model.dtype.itemsize,
            budget_bytes=budget,
        )

    def count_pages(self, capture: CapturePlan) -> int:
        """Return the number of pages in the pool."""
        return num_pages(
            self.config,
            self.model,
            extra_bytes_per_token=self.proposer.kv_bytes_per_token,
            activation_bytes=self._activation_bytes(),
            graph_bytes=capture.num_bytes,
        )

    def make_runner(self, capture: CapturePlan, *, num_pages: int, tokenizer: Tokenizer) -> StepRunner:
        """Allocate the pages and return the step runner."""
        config, model, proposer = self.config, self.model, self.proposer
        assert config.max_model_len is not None, "_resolve fills it in"
        proposer.allocate(num_pages=num_pages, block_size=config.block_size)
        kv_dtype = model.dtype if config.kv_cache_dtype == "auto" else torch.float8_e4m3fn
        table = SequenceTable(
            num_slots=config.num_slots,
            max_model_len=config.max_model_len,
            block_size=config.block_size,
            scratch_page=num_pages,
            width=self.k + 1,
            num_features=len(proposer.aux_layers) * model.shape.hidden_size,
            dtype=model.dtype,
            device=model.device,
        )
        kv = PagedKV(
            model.shape, num_pages=num_pages, block_size=config.block_size, dtype=kv_dtype, device=model.device
        )
        rule, uniform = place(self.spec.acceptance if self.spec else Standard(), model.device), self.lag > 0
        confirmations = make_confirmations(proposer, table, uniform=uniform)
        num_ids = model.shape.vocab_size
        end_ids = frozenset(each for each in tokenizer.end_ids if each < num_ids)
        sampler = HostSampler(
            rule,
            end_ids=end_ids,
            grammars=Grammars(partial(tokenizer.to_json, num_ids), end_ids=end_ids, vocab_size=num_ids),
            num_slots=table.padding_slot,
            vocab_size=num_ids,
            device=model.device,
        )
        return StepRunner(
            Passes(model, kv, table, confirmations, rule=rule, uniform=uniform),
            sampler,
            capture_sizes=capture.sizes,
            prompt_sizes=capture.prompts,
            max_num_rows=self._max_num_rows if self.shares_passes else 0,
            threads=make_threads(model.device),
        )

    def make_scheduler(self, *, num_pages: int) -> Scheduler:
        """Return the scheduler."""
        config = self.config
        return Scheduler(
            pool=PagePool(num_pages, enable_prefix_caching=config.enable_prefix_caching),
            block_size=config.block_size,
            max_num_seqs=config.num_slots,
            max_num_batched_tokens=config.num_step_tokens,
            prefix=_prefix_use(self.proposer),
        )

    @property
    def _max_num_rows(self) -> int:
        """Rows of a pass at most."""
        return max(self.config.num_step_tokens, self.config.num_slots * (self.k + 1))

    def _activation_bytes(self) -> int:
        """Return the memory that the largest step needs in addition to weights and pages."""
        config = self.config
        return activation_bytes(
            self.model.shape,
            rows=self._max_num_rows,
            logits_rows=config.num_slots * (self.k + 1),
            bytes_per_value=self.model.dtype.itemsize,
            num_aux_layers=len(self.proposer.aux_layers),
            mlp_values=self.model.mlp_values,
        )


def _prefix_use(proposer: Proposer) -> PrefixUse:
    """Return how much of a cached prefix the proposer can do without."""
    if proposer.needs_every_state:
        return PrefixUse.NONE
    return PrefixUse.BUT_LAST if proposer.aux_layers and proposer.kv_bytes_per_token else PrefixUse.ALL


def _return_memory() -> None:
    """Give back what packing weights has left in the C library's heap: more than the weights themselves."""
    with suppress(OSError, AttributeError):  # only glibc has this
        ctypes.CDLL(None).malloc_trim(0)


def _resolve(config: EngineConfig, model: CausalLM) -> EngineConfig:
    """Fill in what the checkpoint and the machine decide."""
    longest = model.shape.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise refusal("context-too-long", max_model_len=config.max_model_len, longest=longest)
    memory = torch.cuda.get_device_properties(model.device).total_memory if model.device.type == "cuda" else None
    limits = Limits.of_device(memory)
    return replace(
        config,
        max_model_len=config.max_model_len or longest,
        max_num_seqs=config.max_num_seqs or limits.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or limits.max_num_batched_tokens,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
    )
