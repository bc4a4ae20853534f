"""Manages the pages of the KV cache: their number, owners and contents."""
