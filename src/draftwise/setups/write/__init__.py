"""Writes a setup as what operators run, and as JSON; `read(write(setup)) == setup`."""

from draftwise.setups.write.command_line import write_flags, write_shell, write_words
from draftwise.setups.write.json_setup import write_json

__all__ = ["write_flags", "write_json", "write_shell", "write_words"]
