"""vLLM's connector that writes hidden states, on a machine without an accelerator; imported by vLLM 0.32, not by us."""

from typing import Any
from unittest import mock

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import ExampleHiddenStatesConnector


class _Done:
    """Stands where there is no event of a GPU: the copy has been made."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once."""


class CpuStatesConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]  # no stubs
    """0.32 asks for pinned memory, which needs an accelerator, and for an event of the copy."""

    def _submit_async_write(self, pending: Any) -> None:
        empty_like = torch.empty_like

        def unpinned(*args: Any, pin_memory: bool = False, **others: Any) -> torch.Tensor:  # noqa: ARG001
            return empty_like(*args, **others)

        with mock.patch.object(torch, "empty_like", unpinned):
            super()._submit_async_write(pending)
        self._req_copy_events[pending.req_id] = _Done()
