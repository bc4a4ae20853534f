"""Checks a measurement's validity. Errors block an adoption; other findings inform the reader."""
