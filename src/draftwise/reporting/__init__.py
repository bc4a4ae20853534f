"""Renders a run for readers: a page, its plots and tables, Markdown, JSON."""
