"""Manages the pages of the KV cache: number, owners and contents."""
