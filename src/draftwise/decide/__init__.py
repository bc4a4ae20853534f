"""From comparisons to a decision: what to run at which load, for what it holds, and when to undo it."""
