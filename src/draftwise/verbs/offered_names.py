"""Names that options and forms offer. Importing this imports no verb."""

from draftwise.knowledge.advice import read_traffic_kinds
from draftwise.knowledge.gpus import read_gpus
from draftwise.knowledge.vllm import releases


def list_gpus() -> list[str]:
    """Return the GPUs that are known by name."""
    return [gpu.name for gpu in read_gpus()]


def list_releases() -> list[str]:
    """Return the known releases of vLLM, the newest first."""
    return [str(release) for release in reversed(releases())]


def list_traffic_kinds() -> list[str]:
    """Return the kinds of traffic that `pick` takes as `workload`."""
    return list(read_traffic_kinds())
