"""The memory of one GPU, item by item, and the rest for keys and values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers that share a block table: a sequence holds the same number of blocks in each of them."""

    num_layers: int
    block_size: int
    """Tokens per block."""
    window: int | None = None
    """Tokens that stay visible; None for all."""
    chunked: bool = False
    """Whether the window is a chunk of the sequence that starts with its own block."""
    state_blocks: int = 0
    """Blocks of a sequence of any length, if layers keep a state instead of tokens; else 0."""
    every_block: bool = False
    """Whether a state is also kept for each block of tokens."""

    def blocks(self, tokens: int, in_flight: int = 1) -> int:
        """Return the blocks that a sequence holds.

        Args:
            tokens: length of the sequence.
            in_flight: tokens that may be computed at once before blocks outside the window are freed.
        """
        if self.state_blocks or self.every_block:
            return self.state_blocks + self.every_block * -(-tokens // self.block_size)
        if self.window is None:
            return -(-tokens // self.block_size)
        held = min(tokens, self.window + in_flight - (not self.chunked))
        return -(-held // self.block_size) + (not self.chunked)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """How keys and values of target and drafter are laid out on one GPU."""

    groups: tuple[KVGroup, ...]
    bytes_per_block: int
    """Bytes of one block in all layers that share the pool."""
    bytes_per_token: int
    """Bytes of one more token inside every layer's window, target and drafter together."""
    drafter_bytes_per_token: int = 0
    """The drafter's share of `bytes_per_token`."""
    null_blocks: int = 0
    """Blocks that vLLM sets aside when it checks whether a sequence fits."""

    def blocks_per_sequence(self, tokens: int, in_flight: int = 1) -> int:
        """Return the blocks that a sequence of `tokens` holds in all groups."""
        return sum(group.blocks(tokens, in_flight) for group in self.groups)

    def bytes_per_sequence(self, tokens: int, in_flight: int = 1) -> int:
        """Return the bytes of a sequence, rounded up to whole blocks."""
        return self.blocks_per_sequence(tokens, in_flight) * self.bytes_per_block


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How vLLM uses the memory of one GPU. Numbers are bytes unless stated otherwise."""

    device: int
    """Memory of the GPU as its driver reports it."""
    requested: int
    """The part that `gpu_memory_utilization` allows vLLM to plan with."""
    target: int
    """Weights of the target, its rotary table included."""
    drafter: int
    """Weights of the drafter or head that it does not share with the target."""
    activations: int
    """Peak of one profiled step on top of the weights."""
    non_torch: int
    """Libraries, kernels and communication buffers that grow while the profile runs."""
    graphs: int
    """Captured CUDA graphs, as vLLM will take them."""
    graphs_counted: int
    """The part of `graphs` that this release subtracts from the KV cache in advance."""
    buffers: int
    """Sampler and runner buffers that live as long as the server."""
    buffers_counted: bool
    """Whether this release subtracts `buffers` from the KV cache."""
    context: int
    """CUDA context, created before vLLM measures the GPU: outside every plan."""
    kv: KVCache
    max_model_len: int
    max_num_seqs: int
    in_flight: int
    """Tokens that may be scheduled but not yet finished: sliding windows keep them in addition."""
    num_speculative_tokens: int = 0
    min_blocks: int = 0
    """Minimum number of blocks with which vLLM starts, for sequences of any length."""

    @property
    def weights(self) -> int:
        """Weights of target and drafter."""
        return self.target + self.drafter

    @property
    def fixed(self) -> int:
        """Everything planned except keys and values."""
        counted = self.buffers if self.buffers_counted else 0
        return self.weights + self.activations + self.non_torch + self.graphs_counted + counted

    @property
    def kv_bytes(self) -> int:
        """What is left for keys and values; negative if the model does not fit."""
        return self.requested - self.fixed

    @property
    def num_blocks(self) -> int:
        """KV blocks."""
        return max(0, self.kv_bytes // self.kv.bytes_per_block)

    @property
    def max_concurrency(self) -> float:
        """Sequences of `max_model_len` tokens that fit, as vLLM logs it."""
        return self.num_blocks / self.kv.blocks_per_sequence(self.max_model_len, self.in_flight)

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit, as vLLM logs the size of its KV cache: `max_concurrency` times `max_model_len`."""
        return int(self.max_concurrency * self.max_model_len)

    @property
    def fits(self) -> bool:
        """Whether one sequence of `max_model_len` tokens has room: vLLM refuses to start otherwise."""
        return self.starts(self.max_model_len)

    @property
    def outside(self) -> int:
        """Memory in use that this release does not plan for."""
        buffers = 0 if self.buffers_counted else self.buffers
        return self.context + buffers + max(0, self.graphs - self.graphs_counted)

    @property
    def reserve(self) -> int:
        """What stays free on the GPU under full load; negative if it will run out of memory."""
        return self.device - self.requested - self.outside

    def sequences(self, context: int) -> int:
        """Return how many sequences of this length can decode at once, regardless of `max_num_seqs`."""
        return self.num_blocks // self.kv.blocks_per_sequence(context, 1 + self.num_speculative_tokens)

    def starts(self, context: int) -> bool:
        """Return whether vLLM starts with this `max_model_len`: one such sequence must fit while it is computed."""
        needed = self.kv.blocks_per_sequence(context, self.in_flight) + self.kv.null_blocks
        return self.kv_bytes > 0 and max(needed, self.min_blocks) <= self.num_blocks

    def longest_context(self, sequences: int = 1) -> int:
        """Return the longest `max_model_len`, up to the current one, at which this many such sequences decode at once.

        The server starts with it too; 0 if no such length exists.
        """
        low, high = 0, self.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.starts(middle) and self.sequences(middle) >= sequences
            low, high = (middle, high) if fits else (low, middle - 1)
        return low
