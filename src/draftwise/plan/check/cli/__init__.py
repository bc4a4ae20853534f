"""The command line: flags and the speculative JSON, typed as the release's parser types them."""

from draftwise.plan.check.cli.coercion import Fields, read_fields
from draftwise.plan.check.cli.configs import find_load_faults, find_media_faults
from draftwise.plan.check.cli.engine_args import get_context

__all__ = ["Fields", "find_load_faults", "find_media_faults", "get_context", "read_fields"]
