"""What a reader sees of a run: a page, its plots and tables, Markdown, JSON."""
