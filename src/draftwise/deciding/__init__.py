"""From the answers of a run to a decision: numbers, validity checks, verdicts, what to run, and when to undo it."""
