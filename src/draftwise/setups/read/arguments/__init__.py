"""The words after `vllm serve`, as a release's own parser reads them."""
