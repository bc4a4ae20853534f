"""Load, paired A/B runs, statistics, decision, report: everything over HTTP, nothing that needs torch."""
