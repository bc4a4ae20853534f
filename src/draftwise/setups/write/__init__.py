"""Writes a setup as what operators run; `read(write(setup)) == setup`."""

from draftwise.setups.write.command_line import write_flags, write_shell, write_words

__all__ = ["write_flags", "write_shell", "write_words"]
